"""Telemetry: what happens in the lanes, measured.

`LaneMetrics` keeps counters and latencies in memory. `leasedkeyq.telemetry.prometheus` and
`leasedkeyq.telemetry.otel` pass them on, and need the extras of their names.
"""

from leasedkeyq.telemetry.instrument import AttemptEnd, Carrier, Instrument, Outcome, Tracing
from leasedkeyq.telemetry.metrics import (
    LaneMetrics,
    LatencySnapshot,
    MetricsSnapshot,
    SeriesSnapshot,
)

__all__ = [
    # Metrics in memory
    "LaneMetrics",
    "LatencySnapshot",
    "MetricsSnapshot",
    "SeriesSnapshot",
    # What an instrument of your own implements
    "AttemptEnd",
    "Carrier",
    "Instrument",
    "Outcome",
    "Tracing",
]
