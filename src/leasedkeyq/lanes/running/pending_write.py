"""`PendingWrite`: a pause or resume that holds here, and is on its way to the other workers."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any


class PendingWrite:
    """Await it to know that all workers can see the change. It need not be awaited."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Callable[[], Awaitable[None]] | None = None) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, None, None]:
        if self._wait is not None:
            yield from self._wait().__await__()


WRITTEN = PendingWrite()
"""There are no other workers."""
