"""Several instruments as one."""

import logging
from collections.abc import Sequence

from leasedkeyq.telemetry.instrument import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Instrument,
    SubmittedCommand,
)
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

    def submitted(self, command: SubmittedCommand) -> None:
        """As `Instrument.submitted`."""
        self._tell("submitted", command)

    def started(self, start: AttemptStart) -> None:
        """As `Instrument.started`."""
        self._tell("started", start)

    def ended(self, end: AttemptEnd) -> None:
        """As `Instrument.ended`."""
        self._tell("ended", end)

    def dead_lettered(self, command: DeadLetteredCommand) -> None:
        """As `Instrument.dead_lettered`."""
        self._tell("dead_lettered", command)

    def gauges(self, stats: QueueStats) -> None:
        """As `Instrument.gauges`."""
        self._tell("gauges", stats)

    def _tell(self, name: str, event: object) -> None:
        for instrument in self._instruments:
            try:
                getattr(instrument, name)(event)
            except Exception:
                logger.exception(INSTRUMENT_FAILED, instrument)
