"""Tracing whose failures harm no command: they are logged."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from leasedkeyq.telemetry.instrument import Carrier, Tracing

T = TypeVar("T")

logger = logging.getLogger("leasedkeyq")


class GuardedTracing:
    """Passes everything on to `tracing`, and lets none of its exceptions out."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def submitting(self, lane: str, kind: str, command_id: str) -> AbstractContextManager[Carrier]:
        """As `Tracing.submitting`."""
        nothing: Carrier = {}
        return _Guarded(partial(self._tracing.submitting, lane, kind, command_id), nothing)

    def submitting_many(self, lane: str, count: int) -> AbstractContextManager[Carrier]:
        """As `Tracing.submitting_many`."""
        nothing: Carrier = {}
        # Looked up within: one that was written for an older version does not have it.
        return _Guarded(lambda: self._tracing.submitting_many(lane, count), nothing)

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
        return _Guarded(begin, None)

    def settling(self, lane: str, count: int) -> AbstractContextManager[None]:
        """As `Tracing.settling`."""
        return _Guarded(partial(self._tracing.settling, lane, count), None)


class _Guarded(AbstractContextManager[T], Generic[T]):
    """A span, if it can be had. What passes through is neither swallowed nor replaced."""

    def __init__(self, begin: Callable[[], AbstractContextManager[T]], otherwise: T) -> None:
        self._begin = begin
        self._otherwise = otherwise
        self._span: AbstractContextManager[T] | None = None

    def __enter__(self) -> T:
        try:
            span = self._begin()
            given = span.__enter__()
        except Exception:
            logger.exception("tracing failed")
            return self._otherwise
        self._span = span
        return given

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._span is not None:
            try:
                self._span.__exit__(kind, error, traceback)
            except Exception as raised:
                if raised is not error:
                    logger.exception("tracing failed")
