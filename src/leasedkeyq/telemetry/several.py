"""Several instruments as one."""

import logging
from collections.abc import Sequence
from typing import Any

from leasedkeyq.telemetry.instrument import AttemptEnd, Instrument
from leasedkeyq.telemetry.stats import QueueStats

logger = logging.getLogger("leasedkeyq")

INSTRUMENT_FAILED = "the instrument %r failed"


def together(instruments: Sequence[Instrument]) -> Instrument | None:
    """One instrument that stands for all of these; None where there is none."""
    return Several(instruments) if len(instruments) > 1 else next(iter(instruments), None)


class Several:
    """Tells each of its instruments. One that fails does not keep it from the others."""

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self._instruments = tuple(instruments)

    def submitted(self, lane: str, kind: str, command_id: str) -> None:
        """As `Instrument.submitted`."""
        self._tell("submitted", lane, kind, command_id)

    def started(self, lane: str, kind: str, command_id: str, attempt: int, waited: float) -> None:
        """As `Instrument.started`."""
        self._tell("started", lane, kind, command_id, attempt, waited)

    def ended(self, end: AttemptEnd) -> None:
        """As `Instrument.ended`."""
        self._tell("ended", end)

    def dead_lettered(self, lane: str, kind: str, command_id: str) -> None:
        """As `Instrument.dead_lettered`."""
        self._tell("dead_lettered", lane, kind, command_id)

    def gauges(self, stats: QueueStats) -> None:
        """As `Instrument.gauges`."""
        self._tell("gauges", stats)

    def _tell(self, name: str, *arguments: Any) -> None:
        for instrument in self._instruments:
            try:
                getattr(instrument, name)(*arguments)
            except Exception:
                logger.exception(INSTRUMENT_FAILED, instrument)
