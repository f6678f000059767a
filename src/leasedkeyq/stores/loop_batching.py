"""Natural batching without a thread: for engines that are awaited.

As in `leasedkeyq.stores.batching`, calls that arrive while a batch is being applied form the next
one. Here batches are applied in the event loop of the callers, by a worker of that loop.
"""

import asyncio
import os
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.stores.batching import AnyBatcher, Call, Outcome

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Applying(Protocol):
    """The engine of one event loop."""

    async def apply(self, requests: list[Any]) -> Sequence[Any]:
        """Apply a batch, and answer each of its requests; what it raises goes to every caller."""
        ...

    def abandon(self) -> None:
        """Let go of what it holds, at once."""
        ...


class LoopBatcher(AnyBatcher[Request, Answer]):
    """Gathers the requests of many callers and applies them batch by batch in their event loop.

    Callers may be in any number of event loops, each of which has an engine of its own. A caller
    that is cancelled while its requests wait withdraws them. If they are being applied already
    they are applied in full, and `undo` is asked, for each answer that nobody waits for, which
    requests take it back; these are applied next.

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
            site.engine.abandon()
            self._sites.pop(loop, None)

    async def close(self) -> None:
        """Finish what was asked for so far in this event loop; refuse what comes later."""
        self._closed = True
        here = asyncio.get_running_loop()
        for loop, site in list(self._sites.items()):
            if loop is here:
                while site.runner is not None:
                    await asyncio.wait([site.runner])
                await site.end.aclose()
            elif not loop.is_closed() and self._process == os.getpid():
                loop.call_soon_threadsafe(site.close_when_idle)


class _Site(Generic[Request, Answer]):
    """The calls of one event loop.

    Attributes:
        runner: The task that applies batches, while there are any.
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
        self._closing = False
        self.runner: asyncio.Task[None] | None = None
        self.end: AsyncGenerator[None]

    def add(self, call: Call[Request, Answer]) -> None:
        self._waiting.append(call)
        if self.runner is None:
            self.runner = asyncio.get_running_loop().create_task(self._run())

    def close_when_idle(self) -> None:
        self._closing = True
        if self.runner is None:
            self.engine.abandon()

    async def _run(self) -> None:
        try:
            while batch := self._next_batch():
                await self._apply(batch)
        finally:
            # Here and not a moment later: a call that comes in between starts another runner.
            self.runner = None
            if self._closing:
                self.engine.abandon()

    async def _apply(self, batch: list[Call[Request, Answer]]) -> None:
        requests = [request for call in batch for request in call.requests]
        try:
            answers = await self.engine.apply(requests)
        except BaseException as error:
            for call in batch:
                if call.turn is not None and not call.turn.done():
                    if isinstance(error, asyncio.CancelledError):
                        call.turn.cancel()
                    else:
                        call.turn.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
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
        while waiting:
            call = waiting[0]
            if batch and (call.alone or size + len(call.requests) > self._most):
                break
            waiting.popleft()
            if call.taken:
                continue
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
