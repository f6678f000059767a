"""Batches that are applied in the event loop of the callers: for engines that do not block.

No task stands between a caller and the engine: a call that comes alone costs two turns of the
event loop, one until the answer is there and one until the caller goes on.
"""

import asyncio
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from leasedkeyq.stores.batching.batcher import (
    AnswerT,
    Batcher,
    Call,
    CallLine,
    LoopCall,
    RequestT,
    TurnT,
    outcomes_of,
)
from leasedkeyq.stores.batching.spoiled_batch import SpoiledBatchError, each_alone

Done: TypeAlias = Callable[[Sequence[Any] | BaseException], None]
"""Takes the answers to a batch, or what went wrong with all of it."""

LONELY: Final = 3
"""After so many calls in a row that nobody joined, the next one is sent at once.

One caller that only puts on Redis takes 1.03 times as long without it, and 1.05 times the time of
the processor. That is little; it stays as this is all that one caller of Redis has to spare.
"""
END_TIME: Final = 1.0
"""Seconds for which an event loop that ends waits for what is under way."""


class BatchEngine(ABC):
    """The engine of one event loop, which applies batches there."""

    @abstractmethod
    def apply(self, requests: list[Any], done: Done) -> None:
        """Begin to apply a batch.

        When this is over, and not before this method has returned, `done` is called once. If it
        is given a `SpoiledBatchError`, each request is applied alone.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Let go of all connections, at once."""

    def stop_trying(self) -> None:  # noqa: B027 - most engines have nothing to do
        """The store is being closed: calls do not wait long for a server that is away."""

    async def close(self) -> None:
        """Let go of all connections; nothing is under way."""
        self.abandon()


class Touched(Protocol):
    """What the requests of a call or of a batch touch."""

    def meets(self, other: Any, /) -> bool:
        """Whether both touch the same, or may do so."""
        ...


Engine = TypeVar("Engine", bound=BatchEngine)


class LoopBatcher(Batcher[RequestT, AnswerT], Generic[RequestT, AnswerT, Engine]):
    """Gathers the requests of many callers and applies them batch by batch in their event loop.

    Each event loop that callers are in has an engine of its own, until the loop ends.

    Args:
        engine: Makes the engine of an event loop.
        name: In errors, what was closed.
        most: How many requests go into one batch; a call with more is a batch of its own.
        undo: Says how to take back an answer that nobody waits for.
        at_a_time: How many batches of an event loop may be under way.
        touched: Says what requests touch, if several batches may be under way. A call waits for a
            batch that touches the same, and so do those behind it: calls that touch the same
            act in the order in which they were made.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        *,
        name: str,
        most: int = 1000,
        undo: Callable[[RequestT, AnswerT], Iterable[RequestT]] | None = None,
        at_a_time: int = 1,
        touched: Callable[[Iterable[RequestT]], Touched] | None = None,
    ) -> None:
        super().__init__(name=name, most=most, undo=undo)
        self._engine = engine
        self._at_a_time = at_a_time
        self._touched = touched if at_a_time > 1 else None
        self._sites: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, CallsInLoop[RequestT, asyncio.Future[list[AnswerT]], Engine]
        ] = weakref.WeakKeyDictionary()
        self._gate = threading.Lock()
        """Held while `_sites` is changed or walked over: other threads have event loops, too."""

    def engine(self) -> Engine:
        """The engine of the running event loop.

        Raises:
            StoreClosedError: `close` was called before.
        """
        self._check_usable()
        return (self._sites.get(asyncio.get_running_loop()) or self._new_site()).engine

    def engines(self) -> dict[asyncio.AbstractEventLoop, Engine]:
        """The engines of all event loops that have one."""
        return {loop: site.engine for loop, site in self._all_sites()}

    def _all_sites(
        self,
    ) -> list[
        tuple[
            asyncio.AbstractEventLoop,
            "CallsInLoop[RequestT, asyncio.Future[list[AnswerT]], Engine]",
        ]
    ]:
        with self._gate:
            return list(self._sites.items())

    def _enqueue(self, call: LoopCall[RequestT, AnswerT]) -> None:
        site = self._sites.get(asyncio.get_running_loop())
        if call.turn is not None:
            self._check_usable()
            site = site or self._new_site()
        if site is not None:
            site.add(call)

    def _new_site(self) -> "CallsInLoop[RequestT, asyncio.Future[list[AnswerT]], Engine]":
        for ended, _ in self._all_sites():
            if ended.is_closed():
                self._forget(ended)  # a site holds its event loop
        line: CallLine[RequestT, asyncio.Future[list[AnswerT]]] = CallLine(self._most)
        site = CallsInLoop(
            self._engine(),
            line,
            self._hand_out,
            at_a_time=self._at_a_time,
            touched=self._touched,
        )
        loop = asyncio.get_running_loop()
        with self._gate:
            self._sites[loop] = site
        site.end = self._until_the_end(loop, site)
        with suppress(StopIteration):
            site.end.asend(None).send(None)  # up to its `yield`
        return site

    async def _until_the_end(
        self,
        loop: asyncio.AbstractEventLoop,
        site: "CallsInLoop[RequestT, asyncio.Future[list[AnswerT]], Engine]",
    ) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            # What was claimed for a caller that has gone is taken back.
            with suppress(TimeoutError):
                async with asyncio.timeout(END_TIME):
                    await site.finished()
            site.engine.abandon()
            self._forget(loop)

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._gate:
            self._sites.pop(loop, None)

    async def close(self) -> None:
        """Finish what was asked for so far in this event loop; refuse what comes later."""
        self._closed = True
        # A caller that was cancelled together with its answer takes that back in this turn.
        await asyncio.sleep(0)
        here = asyncio.get_running_loop()
        for loop, site in self._all_sites():
            if loop is here:
                site.engine.stop_trying()
                await site.finished()
                await site.engine.close()
                await site.end.aclose()
            elif loop.is_closed():
                self._forget(loop)
            elif self._process == os.getpid():
                with suppress(RuntimeError):  # it was closed this moment
                    loop.call_soon_threadsafe(site.close_when_idle)


class CallsInLoop(Generic[RequestT, TurnT, Engine]):
    """The calls that are applied in one event loop, whoever makes them.

    Args:
        engine: Applies batches.
        line: Where calls wait.
        hand_out: Gives callers their answers.
        at_a_time: As in `LoopBatcher`.
        touched: As in `LoopBatcher`.

    Attributes:
        end: A generator that lets go of the engine when the event loop ends, though nobody has
            closed the store: a loop that ends gives its asynchronous generators time to finish.
    """

    def __init__(
        self,
        engine: Engine,
        line: CallLine[RequestT, TurnT],
        hand_out: Callable[[list[tuple[Call[RequestT, TurnT], list[Any] | BaseException]]], None],
        *,
        at_a_time: int = 1,
        touched: Callable[[Iterable[RequestT]], Touched] | None = None,
    ) -> None:
        self.engine = engine
        self._line = line
        self._hand_out = hand_out
        self._at_a_time = at_a_time
        self._touched = touched
        self._due = False
        """Whether the next batch will be taken in the next turn of the event loop."""
        self._under_way: dict[int, Touched | None] = {}
        """What each batch touches that is being applied; None: perhaps everything."""
        self._lonely = 0
        self._closing = False
        self._idle: list[asyncio.Future[None]] = []
        self.end: AsyncGenerator[None]

    def add(self, call: Call[RequestT, TurnT]) -> None:
        """Have a call applied soon."""
        self._line.append(call)
        if self._due or len(self._under_way) >= self._at_a_time:
            return
        if self._lonely >= LONELY and self._at_a_time == 1:
            self.apply_next()
        else:
            # Whoever calls in this turn of the event loop goes into the same batch. With several
            # batches at a time this keeps the order, too, of calls that do not touch the same.
            self._due = True
            asyncio.get_running_loop().call_soon(self.apply_next)

    async def finished(self) -> None:
        """Wait until nothing is being applied."""
        while self._due or self._under_way:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle

    def close_when_idle(self) -> None:
        """Let go of the engine as soon as nothing is being applied."""
        self._closing = True
        self.engine.stop_trying()
        if not self._due and not self._under_way:
            self.engine.abandon()

    def apply_next(self) -> None:
        """Begin to apply calls that wait, if no other batch is in their way."""
        self._due = False
        while self._line and len(self._under_way) < self._at_a_time:
            waits = self._waits if self._under_way and self._touched else None
            batch = self._line.next_batch(waits)
            if not batch:
                break
            requests = [request for call in batch for request in call.requests]
            self._under_way[id(batch)] = self._touched_by(requests)
            self.engine.apply(requests, partial(self._applied, batch))
        if not self._under_way and (self._idle or self._closing):
            self._rest()

    def _rest(self) -> None:
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()
        if self._closing:
            self.engine.abandon()

    def _applied(
        self, batch: list[Call[RequestT, TurnT]], answers: Sequence[Any] | BaseException
    ) -> None:
        if isinstance(answers, SpoiledBatchError):
            requests = [request for call in batch for request in call.requests]
            self._apply_apart(batch, each_alone(requests, answers), None)
            return
        del self._under_way[id(batch)]
        self._lonely = 0 if len(batch) > 1 or self._line else self._lonely + 1
        self._hand_out(outcomes_of(batch, answers))
        self.apply_next()

    def _apply_apart(
        self,
        batch: list[Call[RequestT, TurnT]],
        steps: Generator[list[RequestT], Any, list[Any]],
        outcome: Sequence[Any] | BaseException | None,
    ) -> None:
        """Apply the requests of a spoiled batch one after the other; the batch stays under way."""
        try:
            alone = steps.send(outcome)
        except StopIteration as end:
            self._applied(batch, end.value)
        except BaseException as error:
            self._applied(batch, error)
        else:
            self.engine.apply(alone, partial(self._apply_apart, batch, steps))

    def _waits(self, call: Call[RequestT, TurnT]) -> bool:
        """Whether a call has to wait for one that is under way."""
        mine = self._touched_by(call.requests)
        others = self._under_way.values()
        return any(mine is None or other is None or mine.meets(other) for other in others)

    def _touched_by(self, requests: Sequence[RequestT]) -> Touched | None:
        """What requests touch; None if nobody can say that, as one of them is malformed."""
        try:
            return self._touched and self._touched(requests)
        except Exception:  # the engine answers what is wrong
            return None
