"""What a scrape shows, by the real client."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from leasedkeyq.telemetry import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Instrument,
    SubmittedCommand,
)
from leasedkeyq.telemetry.prometheus import BUCKETS, PrometheusInstrument
from leasedkeyq.telemetry.stats import LaneStats, QueueStats


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """The samples of the exported text, by name and labels."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        sample.name
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_the_life_of_a_command(registry: CollectorRegistry) -> None:
    instrument: Instrument = PrometheusInstrument(registry)
    instrument.submitted(SubmittedCommand("api", "send", "1"))
    instrument.started(AttemptStart("api", "send", "1", 1, 0.5))
    instrument.ended(AttemptEnd("api", "send", "1", 1, "retry", 1.0, 1.5, OSError()))
    instrument.started(AttemptStart("api", "send", "1", 2, 0.25))
    instrument.ended(AttemptEnd("api", "send", "1", 2, "failed", 2.0, 9.0, OSError()))
    instrument.dead_lettered(DeadLetteredCommand("api", "send", "1"))
    samples = scrape(registry)
    where = " lane=api type=send"
    assert samples[f"leasedkeyq_commands_submitted_total{where}"] == 1
    assert samples[f"leasedkeyq_commands_dead_lettered_total{where}"] == 1
    ended = "leasedkeyq_attempts_ended_total lane=api outcome="
    assert samples[f"{ended}retry type=send"] == 1
    assert samples[f"{ended}failed type=send"] == 1
    # Outcomes that have not happened are there as zeros, so that a rate can be taken of them.
    assert samples[f"{ended}completed type=send"] == 0
    for name, count, total in (("waiting", 2, 0.75), ("running", 2, 3.0), ("end_to_end", 1, 9.0)):
        assert samples[f"leasedkeyq_command_{name}_seconds_count{where}"] == count
        assert samples[f"leasedkeyq_command_{name}_seconds_sum{where}"] == total
    bucket = "leasedkeyq_command_waiting_seconds_bucket lane=api le="
    assert samples[f"{bucket}0.25 type=send"] == 1
    assert samples[f"{bucket}0.5 type=send"] == 2


def test_gauges(registry: CollectorRegistry) -> None:
    instrument = PrometheusInstrument(registry)
    api = LaneStats(pending=3, active=2, scheduled=1, oldest_age=7.5)
    instrument.gauges(QueueStats(dead_letters=4, lanes={"api": api, "idle": LaneStats()}))
    samples = scrape(registry)
    assert samples["leasedkeyq_dead_letters"] == 4
    assert samples["leasedkeyq_lane_pending lane=api"] == 3
    assert samples["leasedkeyq_lane_active lane=api"] == 2
    assert samples["leasedkeyq_lane_scheduled lane=api"] == 1
    assert samples["leasedkeyq_lane_oldest_age_seconds lane=api"] == 7.5
    assert samples["leasedkeyq_lane_oldest_age_seconds lane=idle"] == 0
    instrument.gauges(QueueStats(lanes={"api": LaneStats()}))
    assert scrape(registry)["leasedkeyq_lane_pending lane=api"] == 0


def test_the_text_explains_itself(registry: CollectorRegistry) -> None:
    PrometheusInstrument(registry)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert len(families) == 11
    for family in families:
        assert family.documentation
        assert family.type in {"counter", "gauge", "histogram"}


def test_a_name_of_ones_own_and_own_buckets(registry: CollectorRegistry) -> None:
    instrument = PrometheusInstrument(registry, namespace="shop", buckets=(1, 60))
    instrument.started(AttemptStart("api", "send", "1", 1, 30))
    samples = scrape(registry)
    assert all(name.startswith("shop_") for name in samples)
    ends = [name for name in samples if name.startswith("shop_command_waiting_seconds_bucket")]
    assert len(ends) == 3


def test_names_with_quotes_and_line_ends_are_escaped(registry: CollectorRegistry) -> None:
    instrument = PrometheusInstrument(registry)
    instrument.submitted(SubmittedCommand('a"\\\n', "send", "1"))
    assert scrape(registry)['leasedkeyq_commands_submitted_total lane=a"\\\n type=send'] == 1


def test_a_clock_that_was_set_back_counts_as_no_time(registry: CollectorRegistry) -> None:
    instrument = PrometheusInstrument(registry)
    instrument.started(AttemptStart("api", "send", "1", 1, -5))
    instrument.ended(AttemptEnd("api", "send", "1", 1, "completed", -5, -5, None))
    samples = scrape(registry)
    for name in ("waiting", "running", "end_to_end"):
        assert samples[f"leasedkeyq_command_{name}_seconds_sum lane=api type=send"] == 0


def test_types_beyond_the_limit_are_counted_together(registry: CollectorRegistry) -> None:
    instrument = PrometheusInstrument(registry, most=2)
    for number in range(100):
        instrument.submitted(SubmittedCommand("api", f"type {number}", "1"))
    samples = scrape(registry)
    assert samples["leasedkeyq_commands_submitted_total lane=api type=(other)"] == 98
    assert len([name for name in samples if "submitted_total" in name]) == 3


def test_a_registry_takes_one_instrument(registry: CollectorRegistry) -> None:
    PrometheusInstrument(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusInstrument(registry)
    PrometheusInstrument(registry, namespace="other")


def test_the_default_registry() -> None:
    from prometheus_client import REGISTRY

    instrument = PrometheusInstrument(namespace="test_the_default_registry")
    instrument.submitted(SubmittedCommand("api", "send", "1"))
    name = "test_the_default_registry_commands_submitted_total"
    assert REGISTRY.get_sample_value(name, {"lane": "api", "type": "send"}) == 1


def test_the_buckets_ascend() -> None:
    assert list(BUCKETS) == sorted(set(BUCKETS))
