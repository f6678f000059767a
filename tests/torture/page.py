"""Makes docs/reliability.md and the lines of the README from the figures that are kept."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import markdown_table
from tests.torture import figures
from tests.torture.figures import Figures
from tests.torture.part import ENGINES, Part
from tests.torture.parts import PARTS

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reliability.md"
README: Final = ROOT / "README.md"
START: Final = "<!-- reliability:start -->"
END: Final = "<!-- reliability:end -->"
NAMES: Final = {
    "memory": "memory",
    "file": "file",
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "redis": "Redis",
}
NOT_RUN: Final = "not run"
SHOWN_ZEROS: Final = 3
"""In a row of the table. All are in the list of the part."""
README_FIGURES: Final = {
    "kills": "{:,} workers killed with kill -9",
    "servers": "{:,} kills and freezes of servers under load",
    "histories": "{:,} histories of concurrent clients under faults checked for linearizability",
}
"""Parts, and what the README says of them."""

TEXT: Final = """\
# Reliability

<!-- Written by `make torture`. Edit tests/torture/page.py and not this page. -->

What was tried on leasedkeyq, how often, on which store, and what went wrong. Every number is from a
run of `make torture`, kept in `tests/torture/figures`. The column *wrong* counts what must not
happen: the zeros are the claim. All that was looked for is in the list of each part, below.

{table}

An empty cell: the fault does not exist there. *{not_run}*: it has not been run at full length.
Redis runs with `appendfsync always` unless a note says otherwise.

To repeat a row on one store, and one round of it by its seed:

```console
$ make torture TORTURE_ARGS="kills postgres"
$ make torture TORTURE_ARGS="kills postgres --seed 17 --amount 1"
```

All that is random in a round comes from its seed. Where processes, servers and real clocks take
part, the same seed gives the same plan and not the same moment: repeat it some times.
A slice of each part runs in `make test`, and all parts run each night with new seeds.

## How long it takes until work goes on

{times}

Measured on a machine with two cores, with the load of the test on it. A worker that dies holds its
keys until its lease ends, so its lease is the least that a kill can cost.

## Each part

{parts}

## What others do

The best-tested databases set the measure, and this page borrows its methods from them:

- **SQLite** runs millions of test cases before each release, with full branch coverage of its core
  (MC/DC), simulated power loss, failing I/O and memory, and corrupted files
  ([how SQLite is tested](https://www.sqlite.org/testing.html)). The parts `power`, `disk-faults`
  and `bit-flips` here are of that kind. Coverage as theirs is not claimed here.
- **TigerBeetle** runs its whole cluster in a deterministic simulator with faults of network, disk
  and clock, around the clock and by seed
  ([VOPR](https://github.com/tigerbeetle/tigerbeetle/blob/main/docs/internals/vopr.md)).
  `simulation`, `model` and `clocks` are of that kind, for one process and its store; the servers
  themselves are real here and not simulated.
- **etcd** records what clients saw while processes are killed and the network fails, and checks the
  history against a model by a linearizability search
  ([robustness tests](https://github.com/etcd-io/etcd/tree/main/tests/robustness)). `histories` is
  that, for keys, leases and lines.
- **Jepsen** does so from outside, and publishes what breaks. Its report on
  [NATS JetStream 2.12.1](https://jepsen.io/analyses/nats-2.12.1) found acknowledged messages lost
  after loss of power, because they were synced every two minutes by default, and after damage of
  files on a minority of nodes. Here an acknowledged put is synced (SQLite, files, PostgreSQL), or
  the store says what the server keeps (Redis). Nobody from outside has tested leasedkeyq yet.

## What was not tried

- **Real loss of power.** The part `power` plays back the writes of a run as a disk may have kept
  them. No plug was pulled, and a disk that lies about a sync loses what it lost.
- **Clusters that split.** One PostgreSQL server and one Redis server at a time, and a Redis
  failover; no partition between replicas. With asynchronous replication a failover loses what was
  not replicated: [Run it on PostgreSQL](howto/postgres.md) and [on Redis](howto/redis.md) say what
  to set.
- **Network file systems**, Windows, macOS, and machines with more than two cores.
- **More than some hours.** The longest run is the soak, one hour.
- **Other people's clients** on the same tables and keys. The file store is the exception: other
  programs may edit the document, and that is tested.
- **Bugs of the servers and of the operating system**, beyond what these runs happened to meet.
"""


def write() -> None:
    """Write the page, and the lines of the README, from all figures."""
    kept = figures.load()
    PAGE.write_text(page(kept), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(with_readme_lines(readme, kept), encoding="utf-8")


def page(kept: Sequence[Figures]) -> str:
    """The text of the page."""
    return TEXT.format(
        table=_table(kept),
        times=_times(kept),
        parts="\n\n".join(_of_part(part, kept) for part in PARTS.values()),
        not_run=NOT_RUN,
    )


def with_readme_lines(readme: str, kept: Sequence[Figures]) -> str:
    """The text of the README with its lines about reliability."""
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{readme_lines(kept)}\n\n{END}{after}"


def readme_lines(kept: Sequence[Figures]) -> str:
    """Three figures, and where the others are."""
    tried = [
        words.format(total)
        for part, words in README_FIGURES.items()
        if (total := sum(one.tried for one in kept if one.part == part))
    ]
    wrong = sum(sum(one.wrong.values()) for one in kept if one.part in README_FIGURES)
    return (
        "What was tried, how often and on which store is in [Reliability](docs/reliability.md): "
        f"{'; '.join(tried)}. What was lost, held or settled twice, or out of order in them:"
        f" {wrong}."
    )


def _table(kept: Sequence[Figures]) -> str:
    by_place = {(one.part, one.engine): one for one in kept}
    rows: list[tuple[str, ...]] = []
    for part in PARTS.values():
        cells = [_cell(part, engine, by_place.get((part.name, engine))) for engine in ENGINES]
        wrong: Counter[str] = Counter()
        for one in kept:
            if one.part == part.name:
                wrong.update(one.wrong)
        shown = [*part.wrong[:SHOWN_ZEROS], *(name for name, many in wrong.items() if many)]
        told = ", ".join(
            _bold(wrong[name], f"{wrong[name]:,} {name}")
            for name in dict.fromkeys(shown)
            if name in wrong
        )
        rows.append((f"{part.title}: {part.unit}", *cells, told, f"`{part.name}`"))
    head = ("what was tried", *(NAMES[engine] for engine in ENGINES), "wrong", "part")
    return markdown_table(head, rows)


def _cell(part: Part, engine: str, found: Figures | None) -> str:
    if engine not in part.amounts:
        return ""
    return NOT_RUN if found is None else f"{found.tried:,}"


def _bold(many: int, text: str) -> str:
    return f"**{text}**" if many else text


def _times(kept: Sequence[Figures]) -> str:
    rows = [
        (
            name,
            NAMES[one.engine],
            *(_seconds(value) for value in (times.p50, times.p99, times.max)),
            f"{times.samples:,}",
        )
        for part in PARTS
        for one in kept
        if one.part == part
        for name, times in one.seconds.items()
    ]
    return markdown_table(("what", "store", "p50", "p99", "max", "samples"), rows)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def _of_part(part: Part, kept: Sequence[Figures]) -> str:
    looked_for = f"What must not happen: {', '.join(part.wrong)}."
    lines = [f"### {part.name}", "", f"{part.title}. {looked_for}"]
    lines += ["", part.note] if part.note else []
    runs = [one for one in kept if one.part == part.name]
    if runs:
        lines.append("")
    for one in runs:
        counted = "".join(f", {many:,} {name}" for name, many in one.counted.items())
        lines.append(
            f"- {NAMES[one.engine]}: {one.tried:,} {part.unit}{counted}. {one.rounds:,} rounds from"
            f" seed {one.first_seed}, {_minutes(one.took)}, {one.date}, leasedkeyq {one.version},"
            f" {one.machine}."
        )
    return "\n".join(lines)


def _minutes(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"
