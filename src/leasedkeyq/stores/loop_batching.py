"""Natural batching without a thread: for engines that work in the event loop of their callers.

As in `leasedkeyq.stores.batching`, calls that arrive while a batch is being applied form the next
one. No task stands between a caller and the engine: a call that comes alone costs two turns of the
event loop, one until the answer is there and one until the caller goes on.
"""

import asyncio
import os
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.stores.batching import AnyBatcher, Call, Outcome

Request = TypeVar("Request")
Answer = TypeVar("Answer")

Done: TypeAlias = Callable[[Sequence[Any] | BaseException], None]
"""Takes the answers to a batch, or what went wrong with all of it."""

LONELY: Final = 3
"""After so many calls in a row that nobody joined, the next one is sent at once."""
MANY: Final = 32
"""Callers that are parted in two groups, which take turns."""
END_TIME: Final = 1.0
"""Seconds for which an event loop that ends waits for what is under way."""


class Applying(Protocol):
    """The engine of one event loop, which applies one batch at a time."""

    def apply(self, requests: list[Any], done: Done) -> None:
        """Begin to apply a batch; `done` is called once, with the answers, when this is over."""
        ...

    def abandon(self) -> None:
        """Let go of what it holds, at once."""
        ...


class LoopBatcher(AnyBatcher[Request, Answer]):
    """Gathers the requests of many callers and applies them batch by batch in their event loop.

    Callers may be in any number of event loops, each of which has an engine of its own. A caller
    that is cancelled while its requests wait withdraws them. If they are being applied already
    they are applied in full, and `undo` is asked, for each answer that nobody waits for, which
    requests take it back; these are applied soon.

    Args:
        engine: Makes the engine of an event loop.
        name: In errors, what was closed.
        most: How many requests go into one batch; a call with more is a batch of its own.
        undo: Says how to take back an answer that nobody waits for.
    """

    def __init__(
        self,
        engine: Callable[[], Applying],
        *,
        name: str,
        most: int = 1000,
        undo: Callable[[Request, Answer], Iterable[Request]] | None = None,
    ) -> None:
        self._engine = engine
        self._name = name
        self._most = most
        self._undo = undo
        self._closed = False
        self._process = os.getpid()
        self._sites: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Site[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )

    async def submit_many(
        self, requests: Sequence[Request], *, alone: bool = False
    ) -> list[Answer]:
        """As `AnyBatcher.submit_many`."""
        requests = list(requests)
        if self._closed:
            raise StoreClosedError(f"the {self._name} is closed")
        if self._process != os.getpid():
            message = f"the {self._name} was opened before a fork; open it in the new process"
            raise StoreError(message)
        loop = asyncio.get_running_loop()
        site = self._sites.get(loop) or await self._settle_in(loop)
        turn: asyncio.Future[list[Answer]] = loop.create_future()
        call: Call[Request, Answer] = Call(requests, loop, turn, alone)
        site.add(call)
        try:
            return await turn
        except asyncio.CancelledError:
            withdrawn, call.taken = not call.taken, True
            # A result that came together with the cancellation has reached nobody.
            if not withdrawn and turn.done() and not turn.cancelled() and not turn.exception():
                site.take_back([(call, turn.result())])
            raise

    async def _settle_in(self, loop: asyncio.AbstractEventLoop) -> "_Site[Any, Any]":
        for ended in [other for other in self._sites if other.is_closed()]:
            del self._sites[ended]
        site = self._sites[loop] = _Site(self._engine(), self._most, self._undo)
        site.end = self._until_the_end(loop, site)
        await anext(site.end)
        return site

    async def _until_the_end(
        self, loop: asyncio.AbstractEventLoop, site: "_Site[Any, Any]"
    ) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            # What was claimed for one who has gone is given back.
            with suppress(TimeoutError):
                async with asyncio.timeout(END_TIME):
                    await site.finished()
            site.engine.abandon()
            self._sites.pop(loop, None)

    async def close(self) -> None:
        """Finish what was asked for so far in this event loop; refuse what comes later."""
        self._closed = True
        here = asyncio.get_running_loop()
        for loop, site in list(self._sites.items()):
            if loop is here:
                await site.finished()
                await site.end.aclose()
            elif loop.is_closed():
                del self._sites[loop]
            elif self._process == os.getpid():
                with suppress(RuntimeError):  # it was closed this moment
                    loop.call_soon_threadsafe(site.close_when_idle)


class _Site(Generic[Request, Answer]):
    """The calls of one event loop.

    Attributes:
        end: A generator that lets go of the engine when the event loop ends, though nobody has
            closed the store: a loop that ends gives its asynchronous generators time to finish.
    """

    def __init__(
        self,
        engine: Applying,
        most: int,
        undo: Callable[[Request, Answer], Iterable[Request]] | None,
    ) -> None:
        self.engine = engine
        self._most = most
        self._undo = undo
        self._waiting: deque[Call[Request, Answer]] = deque()
        self._batch: list[Call[Request, Answer]] = []
        self._busy = False
        self._lonely = 0
        self._closing = False
        self._idle: list[asyncio.Future[None]] = []
        self.end: AsyncGenerator[None]

    def add(self, call: Call[Request, Answer]) -> None:
        self._waiting.append(call)
        if self._busy:
            return
        self._busy = True
        if self._lonely >= LONELY:
            self._apply_next()
        else:
            # Whoever calls in this turn of the event loop goes into the same batch.
            asyncio.get_running_loop().call_soon(self._apply_next)

    async def finished(self) -> None:
        """Wait until nothing is being applied."""
        while self._busy:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle

    def close_when_idle(self) -> None:
        self._closing = True
        if not self._busy:
            self.engine.abandon()

    def _apply_next(self) -> None:
        self._batch = batch = self._next_batch()
        if batch:
            requests = [request for call in batch for request in call.requests]
            self.engine.apply(requests, self._applied)
            return
        self._busy = False
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()
        if self._closing:
            self.engine.abandon()

    def _applied(self, answers: Sequence[Answer] | BaseException) -> None:
        batch = self._batch
        joined = len(batch) > 1 or self._waiting
        self._lonely = 0 if joined else self._lonely + 1
        if isinstance(answers, BaseException):
            self._fail(batch, answers)
        else:
            self._hand_out(batch, answers)
        self._apply_next()

    def _fail(self, batch: list[Call[Request, Answer]], error: BaseException) -> None:
        for call in batch:
            if call.turn is not None and not call.turn.done():
                if isinstance(error, asyncio.CancelledError):
                    call.turn.cancel()
                else:
                    call.turn.set_exception(error)

    def _hand_out(self, batch: list[Call[Request, Answer]], answers: Sequence[Answer]) -> None:
        start = 0
        lost: list[Outcome[Request, Answer]] = []
        for call in batch:
            end = start + len(call.requests)
            mine = list(answers[start:end])
            start = end
            if call.turn is None:
                continue
            if call.turn.done():
                lost.append((call, mine))
            else:
                call.turn.set_result(mine)
        if lost:
            self.take_back(lost)

    def _next_batch(self) -> list[Call[Request, Answer]]:
        batch: list[Call[Request, Answer]] = []
        size = 0
        waiting = self._waiting
        calls = len(waiting)
        if calls >= MANY:
            # Half of the callers wait for the engine while the other half goes on.
            calls = min(calls, (calls + len(self._batch) + 1) // 2)
        while waiting:
            call = waiting[0]
            full = len(batch) >= calls or size + len(call.requests) > self._most
            if batch and (call.alone or full):
                break
            waiting.popleft()
            if call.taken or (call.turn is not None and call.turn.done()):
                continue  # nobody waits for it
            call.taken = True
            batch.append(call)
            size += len(call.requests)
            if call.alone:
                break
        return batch

    def take_back(self, outcomes: list[Outcome[Request, Answer]]) -> None:
        """Have answers undone that nobody waits for."""
        if self._undo is None:
            return
        requests: list[Request] = []
        for call, answers in outcomes:
            if not isinstance(answers, BaseException):
                for request, answer in zip(call.requests, answers, strict=True):
                    requests.extend(self._undo(request, answer))
        if requests:
            self.add(Call(requests, None, None))
