"""What a scenario leaves behind: one line for each thing that its caller saw."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable
from typing import Any, TypeVar

from leasedkeyq import BuriedItem, ItemSnapshot, Lease

T = TypeVar("T")

ATTRIBUTES = ("key", "keys", "reason", "state", "maxsize")
BURIED_ID = re.compile(r"buried item \d+")
QUEUE_NAME = re.compile(r"the queue '[^']*'")


class Trace:
    """Lines that must be the same at every door.

    Args:
        pace: How slow the scenario is, for a door or a machine that is slow. 1 is in good time.

    Attributes:
        short: Seconds: a delay or a lease that ends within the scenario.
    """

    def __init__(self, pace: float = 1.0) -> None:
        self.lines: list[str] = []
        self.short = 1.2 * pace
        self._pause = 0.2 * pace

    async def pause(self) -> None:
        """Until a call that waits has come to its wait, and one that need not wait has ended."""
        await asyncio.sleep(self._pause)

    def note(self, *parts: object) -> None:
        """Write down what was seen."""
        self.lines.append(
            " ".join(part if isinstance(part, str) else shown(part) for part in parts)
        )

    async def call(self, label: str, call: Awaitable[T]) -> T | None:
        """Await a call and write down what it returned or raised."""
        try:
            result = await call
        except Exception as error:
            self.note(label, "raised", error_shown(error))
        else:
            self.note(label, "->", result)
            return result
        return None

    async def fails(self, label: str, call: Awaitable[Any]) -> None:
        """The same for a call whose error has a text that differs: note the type alone."""
        try:
            self.note(label, "->", await call)
        except Exception as error:
            self.note(label, "raised", type(error).__name__)

    def start(self, label: str, call: Awaitable[Any]) -> "Waiting":
        """Begin a call that waits. What becomes of it is noted by `ended`, at a known time."""
        return Waiting(label, call)

    async def ended(self, *waiting: "Waiting") -> None:
        """Wait for the end of calls, and note how each of them ended."""
        await asyncio.wait([each.task for each in waiting], timeout=10)
        for each in waiting:
            self.lines += each.trace.lines if each.done() else [f"{each.label} hangs"]
            await each.cancel()


class Waiting:
    """A call that was begun, with a trace of its own."""

    def __init__(self, label: str, call: Awaitable[Any]) -> None:
        self.label = label
        self.trace = Trace()
        self.task = asyncio.ensure_future(self._run(call))

    async def _run(self, call: Awaitable[Any]) -> None:
        try:
            await self.trace.call(self.label, call)
        except asyncio.CancelledError:
            self.trace.note(self.label, "was cancelled")

    def done(self) -> bool:
        """Whether the call has ended."""
        return self.task.done()

    async def cancel(self) -> None:
        """Cancel the call and wait for its end."""
        self.task.cancel()
        await asyncio.wait([self.task])


def shown(value: object) -> str:
    """A value without what differs from run to run: tokens, moments, numbers of items."""
    match value:
        case (key, item, Lease() as lease):
            return f"{key}={item} (attempt {lease.attempt})"
        case ItemSnapshot():
            due = "" if value.due is None else " with a time"
            return (
                f"{value.key}={value.value} {value.state} priority {value.priority} "
                f"attempt {value.attempt}{due}"
            )
        case BuriedItem():
            holds = " holds its key" if value.holds else ""
            return (
                f"{value.key}={value.value} priority {value.priority} attempt {value.attempt} "
                f"error {value.error!r}{holds}"
            )
        case Lease():
            return f"lease of {value.key}, attempt {value.attempt}"
        case Counter():
            return ", ".join(f"{count} {what}" for what, count in sorted(value.items()))
        case set():
            return "{" + ", ".join(sorted(map(str, value))) + "}"
        case list():
            return "[" + ", ".join(map(shown, value)) + "]"
        case _:
            return str(value)


def error_shown(error: BaseException) -> str:
    """An error with its type, its words and its data."""
    data = {name: getattr(error, name) for name in ATTRIBUTES if hasattr(error, name)}
    notes = "".join(f" + {note}" for note in getattr(error, "__notes__", ()))
    said = QUEUE_NAME.sub("the queue", f"{error}{notes}")
    return f"{type(error).__name__}: {BURIED_ID.sub('buried item', said)} {data}"
