"""`track`: iterate over the work of a command, and tell how far it has come."""

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Sized
from typing import Any, Generic, TypeVar, cast

from leasedkeyq import checks
from leasedkeyq.lanes.running.job import RunningCommand, current_command

T = TypeVar("T")


class track(Generic[T]):  # noqa: N801  # it is called like `enumerate` and `zip`
    """Iterate over the work of a command, and tell its progress with each item that is done.

    ``async for page in track(pages, "page")`` in an async function, ``for page in track(...)`` in a
    plain one, whether that runs in a thread or in a process. It tells
    ``progress(0.4, "page 4 of 10")`` when the fourth of ten pages is done; where nothing says how
    many there are, the count: ``progress(4, "page 4")``. Outside of a command it only iterates, so
    that a function can be called and tested by itself.

    Args:
        items: What to iterate over; with ``async for`` also what is an asynchronous iterable.
        name: What one of them is called, for the text.
        total: How many there are, where `items` have no length.

    Raises:
        TypeError: `items` cannot be iterated over, or only with ``async for``.
    """

    def __init__(
        self, items: Iterable[T] | AsyncIterable[T], name: str = "", *, total: int | None = None
    ) -> None:
        if not isinstance(items, Iterable | AsyncIterable):
            raise TypeError(f"items must be iterable, got {type(items).__name__}")
        if total is None and isinstance(items, Sized):
            total = len(items)
        self._items = items
        self._name = f"{name} " if name else ""
        self._total = None if total is None else checks.whole("total", total, 0)

    def __iter__(self) -> Generator[T]:
        items: Any = self._items
        if not isinstance(items, Iterable):
            kind = type(self._items).__name__
            raise TypeError(f"{kind} is an asynchronous iterable; write: async for ... in track()")
        command = _command()
        self._tell(command, 0)
        for done, item in enumerate(cast("Iterable[T]", items), 1):
            yield item
            self._tell(command, done)

    async def __aiter__(self) -> AsyncGenerator[T]:
        items: Any = self._items
        command = _command()
        self._tell(command, 0)
        done = 0
        if isinstance(items, AsyncIterable):
            async for item in cast("AsyncIterable[T]", items):
                yield item
                done += 1
                self._tell(command, done)
        else:
            for item in cast("Iterable[T]", items):
                yield item
                done += 1
                self._tell(command, done)

    def _tell(self, command: RunningCommand | None, done: int) -> None:
        if command is None:
            return
        total = self._total
        if total:
            command.progress(min(done / total, 1.0), f"{self._name}{done} of {total}")
        elif done:
            command.progress(done, f"{self._name}{done}")


def _command() -> RunningCommand | None:
    try:
        return current_command()
    except LookupError:
        return None
