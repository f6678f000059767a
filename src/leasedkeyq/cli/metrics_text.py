"""Metrics in the text format of Prometheus: of lanes in memory, and of several processes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from leasedkeyq.lanes import QueueStats
from leasedkeyq.telemetry import LatencySnapshot, MetricsSnapshot

Family: TypeAlias = Callable[[str, str, str, Iterable[str]], None]
"""Adds a metric: its name, its kind, what it is, and its samples."""
QUANTILES: Final = (("0.5", "p50"), ("0.9", "p90"), ("0.95", "p95"), ("0.99", "p99"))


def lane_text(snapshot: MetricsSnapshot, stats: QueueStats | None) -> str:
    """What was measured in memory, under the names of `PrometheusInstrument`.

    Durations are summaries with quantiles, as the buckets of its histograms are not known.
    """
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: Iterable[str]) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples))

    series = snapshot.series
    name = "leasedkeyq_commands_submitted_total"
    family(
        name,
        "counter",
        "Commands that were submitted.",
        (f"{name}{labels(lane=one.lane, type=one.command_type)} {one.submitted}" for one in series),
    )
    name = "leasedkeyq_attempts_ended_total"
    family(
        name,
        "counter",
        "Attempts that ended, by outcome.",
        (
            f"{name}{labels(lane=one.lane, type=one.command_type, outcome=outcome)} {number}"
            for one in series
            for outcome, number in (
                ("completed", one.completed),
                ("failed", one.failed - one.timed_out),
                ("timeout", one.timed_out),
                ("retry", one.retried),
                ("cancelled", one.cancelled),
                ("lost", one.lost),
            )
        ),
    )
    name = "leasedkeyq_commands_dead_lettered_total"
    family(
        name,
        "counter",
        "Commands that went to the dead letters.",
        (
            f"{name}{labels(lane=one.lane, type=one.command_type)} {one.dead_lettered}"
            for one in series
        ),
    )
    for part, text in (
        ("waiting", "From when an attempt could start until it did."),
        ("running", "From the start of an attempt to its end."),
        ("end_to_end", "From the submission of a command until it was done or given up."),
    ):
        name = f"leasedkeyq_command_{part}_seconds"
        samples: list[str] = []
        for one in series:
            which = {"lane": one.lane, "type": one.command_type}
            times: LatencySnapshot = getattr(one, part)
            samples += [
                f"{name}{labels(**which, quantile=share)} {getattr(times, field)!r}"
                for share, field in QUANTILES
            ]
            samples += [
                f"{name}_sum{labels(**which)} {times.total!r}",
                f"{name}_count{labels(**which)} {times.count}",
            ]
        family(name, "summary", text, samples)
    if stats is not None:
        _gauges(stats, family)
    return "\n".join(lines) + "\n"


def _gauges(stats: QueueStats, family: Family) -> None:
    for part, text in (
        ("pending", "Commands that could start."),
        ("active", "Commands that run."),
        ("scheduled", "Commands that wait for their time."),
    ):
        name = f"leasedkeyq_lane_{part}"
        samples = [
            f"{name}{labels(lane=lane)} {getattr(one, part)}" for lane, one in stats.lanes.items()
        ]
        family(name, "gauge", text, samples)
    name = "leasedkeyq_lane_oldest_age_seconds"
    ages = [
        f"{name}{labels(lane=lane)} {one.oldest_age or 0.0!r}" for lane, one in stats.lanes.items()
    ]
    family(name, "gauge", "How long the oldest pending command has waited.", ages)
    name = "leasedkeyq_dead_letters"
    letters = [f"{name} {stats.dead_letters}"]
    family(name, "gauge", "Letters in the dead letter queue.", letters)


def labels(**values: str) -> str:
    """Labels, as they are written behind a name."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def merged(texts: Mapping[str, str]) -> str:
    """The metrics of several worker processes as one text; a label tells which is whose.

    Args:
        texts: By process, the value of the label ``process``.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for process, text in texts.items():
        label = f'process="{_escaped(process)}"'
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if not any(known.split(" ", 2)[1] == line.split(" ", 2)[1] for known in head):
                    head.append(line)
                samples.setdefault(family, [])
            elif line and not line.startswith("#"):
                samples.setdefault(family, []).append(_labelled(line, label))
    lines = [line for family in samples for line in (*heads.get(family, ()), *samples[family])]
    return "\n".join(lines) + "\n"


def _labelled(sample: str, label: str) -> str:
    """A sample with one more label."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
