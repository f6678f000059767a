"""Spans whose failures harm nobody: they are logged."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

logger = logging.getLogger("leasedkeyq")


class GuardedSpan(AbstractContextManager[T], Generic[T]):
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
