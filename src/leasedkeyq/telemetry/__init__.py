"""Telemetry: what happens in lanes and stores, measured.

`LaneMetrics` and `StoreMetrics` keep counters and latencies in memory.
`leasedkeyq.telemetry.prometheus` and `leasedkeyq.telemetry.otel` pass them on, and need the extras
of their names.

`stores` and `lanes` import it and tell it what they do; it imports nothing of them. Programs import
the names below. Begin with `instrument`, which says what is told.
"""

from leasedkeyq.telemetry.instrument import (
    AttemptEnd,
    AttemptStart,
    Carrier,
    DeadLetteredCommand,
    Instrument,
    ItemOutcome,
    Outcome,
    StoreCall,
    StoreInstrument,
    StoreTracing,
    StoreVerb,
    SubmittedCommand,
    Tracing,
)
from leasedkeyq.telemetry.metrics import (
    LaneMetrics,
    LatencySnapshot,
    MetricsSnapshot,
    SeriesSnapshot,
)
from leasedkeyq.telemetry.process_memory import resident_memory
from leasedkeyq.telemetry.store_metrics import StoreMetrics, StoreSnapshot, VerbSnapshot

__all__ = [
    # Metrics in memory
    "LaneMetrics",
    "LatencySnapshot",
    "MetricsSnapshot",
    "SeriesSnapshot",
    "StoreMetrics",
    "StoreSnapshot",
    "VerbSnapshot",
    "resident_memory",
    # What an instrument of your own implements
    "AttemptEnd",
    "AttemptStart",
    "Carrier",
    "DeadLetteredCommand",
    "Instrument",
    "ItemOutcome",
    "Outcome",
    "StoreCall",
    "StoreInstrument",
    "StoreTracing",
    "StoreVerb",
    "SubmittedCommand",
    "Tracing",
]
