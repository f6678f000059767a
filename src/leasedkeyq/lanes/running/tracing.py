"""Tracing whose failures harm no command: they are logged."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial

from leasedkeyq.telemetry.guarded_span import GuardedSpan
from leasedkeyq.telemetry.instrument import Carrier, Tracing

logger = logging.getLogger("leasedkeyq")


class GuardedTracing:
    """Passes everything on to `tracing`, and lets none of its exceptions out."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def submitting(self, lane: str, kind: str, command_id: str) -> AbstractContextManager[Carrier]:
        """As `Tracing.submitting`."""
        nothing: Carrier = {}
        return GuardedSpan(partial(self._tracing.submitting, lane, kind, command_id), nothing)

    def submitting_many(self, lane: str, count: int) -> AbstractContextManager[Carrier]:
        """As `Tracing.submitting_many`."""
        nothing: Carrier = {}
        # Looked up within: one that was written for an older version does not have it.
        return GuardedSpan(lambda: self._tracing.submitting_many(lane, count), nothing)

    def claimed(self, lane: str, count: int) -> None:
        """As `Tracing.claimed`."""
        try:
            self._tracing.claimed(lane, count)
        except Exception:
            logger.exception("tracing failed")

    def processing(
        self, lane: str, kind: str, command_id: str, attempt: int, carrier: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """As `Tracing.processing`."""
        begin = partial(self._tracing.processing, lane, kind, command_id, attempt, carrier)
        return GuardedSpan(begin, None)

    def settling(self, lane: str, count: int) -> AbstractContextManager[None]:
        """As `Tracing.settling`."""
        return GuardedSpan(partial(self._tracing.settling, lane, count), None)
