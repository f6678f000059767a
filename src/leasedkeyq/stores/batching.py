"""Natural batching: calls that arrive while a batch is being applied form the next batch.

No timers and no added latency: a call that comes alone is applied alone, at once. Under load one
transaction, one fsync or one round trip serves everybody who waits.
"""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import Claim, Claimed, Release

Request = TypeVar("Request")
Answer = TypeVar("Answer")

PATIENCE = 1.0
"""Seconds that closing waits for an event loop that does not take its answers."""


class Call(Generic[Request, Answer]):
    """What one caller asks for, and where the answers go."""

    __slots__ = ("alone", "loop", "requests", "taken", "turn")

    def __init__(
        self,
        requests: Sequence[Request],
        loop: asyncio.AbstractEventLoop | None,
        turn: "asyncio.Future[list[Answer]] | None",
        alone: bool = False,
    ) -> None:
        self.requests = requests
        self.loop = loop
        self.turn = turn
        self.alone = alone
        self.taken = False


Outcome = tuple[Call[Request, Answer], "list[Answer] | BaseException"]


class AnyBatcher(ABC, Generic[Request, Answer]):
    """Applies the requests of many callers batch by batch."""

    async def submit(self, request: Request) -> Answer:
        """Have one request applied and return its answer, as `submit_many` does."""
        return (await self.submit_many((request,)))[0]

    @abstractmethod
    async def submit_many(
        self, requests: Sequence[Request], *, alone: bool = False
    ) -> list[Answer]:
        """Have requests applied in one batch, in order, and return their answers.

        With `alone`, nobody else's requests are in that batch; it waits for its turn as any other.
        Exceptions among the answers are returned, not raised.

        Raises:
            StoreClosedError: `close` was called before.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was asked for so far; refuse what comes later."""


class Batcher(AnyBatcher[Request, Answer]):
    """Gathers the requests of many callers and applies them batch by batch in one thread.

    `apply` gets a list of requests and returns as many answers; what it raises goes to every
    caller of the batch. It runs in a thread of its own, which starts with the first call and is
    the only one that ever runs it.

    Callers may be in any number of event loops and threads. A caller that is cancelled while its
    requests wait withdraws them. If they are being applied already they are applied in full, and
    `undo` is asked, for each answer that nobody waits for, which requests take it back; these are
    applied next.

    Args:
        apply: Does the work.
        name: The name of the thread and, in errors, of what was closed.
        most: How many requests go into one batch; a call with more is a batch of its own.
        undo: Says how to take back an answer that nobody waits for.
        at_end: Called in the thread when the batcher is closed and all work is done.
    """

    def __init__(
        self,
        apply: Callable[[list[Request]], Sequence[Answer]],
        *,
        name: str = "leasedkeyq store",
        most: int = 1000,
        undo: Callable[[Request, Answer], Iterable[Request]] | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self._apply = apply
        self._name = name
        self._most = most
        self._undo = undo
        self._at_end = at_end
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: deque[Call[Request, Answer]] = deque()
        self._undelivered = 0
        self._closing = False
        self._ended = False
        self._closers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    async def submit_many(
        self, requests: Sequence[Request], *, alone: bool = False
    ) -> list[Answer]:
        """As `AnyBatcher.submit_many`."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[list[Answer]] = loop.create_future()
        call: Call[Request, Answer] = Call(requests, loop, turn, alone)
        self._enqueue(call)
        try:
            return await turn
        except asyncio.CancelledError:
            with self._lock:
                withdrawn = not call.taken
                call.taken = True
            # A result that came together with the cancellation has reached nobody.
            if not withdrawn and turn.done() and not turn.cancelled() and not turn.exception():
                self._take_back([(call, turn.result())])
            raise

    async def close(self) -> None:
        """Finish what was asked for so far and end the thread; refuse what comes later."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._closing = True
            thread = self._thread
            if thread is None or self._ended or self._process != os.getpid():
                if thread is None and not self._ended and self._at_end is not None:
                    self._at_end()
                self._ended = True
                return
            ended: asyncio.Future[None] = loop.create_future()
            self._closers.append((loop, ended))
            self._work.notify()
        await ended
        thread.join()

    def _enqueue(self, call: Call[Request, Answer]) -> None:
        with self._lock:
            if self._closing and call.loop is not None:
                raise StoreClosedError(f"the {self._name} is closed")
            if self._process != os.getpid():
                message = f"the {self._name} was opened before a fork; open it in the new process"
                raise StoreError(message)
            self._waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            else:
                self._work.notify()

    # The thread

    def _run(self) -> None:
        while batch := self._next_batch():
            requests = [request for call in batch for request in call.requests]
            outcomes: list[Outcome[Request, Answer]] = []
            try:
                answers = self._apply(requests)
            except BaseException as error:
                outcomes = [(call, error) for call in batch]
            else:
                start = 0
                for call in batch:
                    end = start + len(call.requests)
                    outcomes.append((call, list(answers[start:end])))
                    start = end
            self._deliver(outcomes)
        try:
            if self._at_end is not None:
                self._at_end()
        finally:
            with self._lock:
                self._ended = True
                closers = self._closers
            for loop, ended in closers:
                _call_in(loop, _finish, ended)

    def _next_batch(self) -> list[Call[Request, Answer]]:
        """Wait for calls and take them; nothing when it is time to end."""
        batch: list[Call[Request, Answer]] = []
        size = 0
        waiting = self._waiting
        with self._lock:
            while not batch:
                while waiting and (not batch or self._joins(waiting[0], size)):
                    call = waiting.popleft()
                    if not call.taken:
                        call.taken = True
                        batch.append(call)
                        size += len(call.requests)
                        if call.alone:
                            break
                if batch:
                    break
                if not self._closing:
                    self._work.wait()
                elif not self._undelivered or not self._work.wait(PATIENCE):
                    break
        return batch

    def _joins(self, call: Call[Request, Answer], size: int) -> bool:
        """Whether a call fits into a batch of this size."""
        return not call.alone and size + len(call.requests) <= self._most

    def _deliver(self, outcomes: list[Outcome[Request, Answer]]) -> None:
        """Pass the outcomes to their event loops: one call for each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Outcome[Request, Answer]]] = {}
        for outcome in outcomes:
            loop = outcome[0].loop
            if loop is not None:
                by_loop.setdefault(loop, []).append(outcome)
        for loop, mine in by_loop.items():
            with self._lock:
                self._undelivered += 1
            if not _call_in(loop, self._hand_out, mine):
                with self._lock:
                    self._undelivered -= 1
                self._take_back(mine)

    # In the callers' event loops

    def _hand_out(self, outcomes: list[Outcome[Request, Answer]]) -> None:
        lost: list[Outcome[Request, Answer]] = []
        for outcome in outcomes:
            call, answers = outcome
            turn = call.turn
            assert turn is not None
            if turn.done():
                lost.append(outcome)
            elif isinstance(answers, BaseException):
                turn.set_exception(answers)
            else:
                turn.set_result(answers)
        if lost:
            self._take_back(lost)
        with self._lock:
            self._undelivered -= 1
            if self._closing:
                self._work.notify()

    def _take_back(self, outcomes: list[Outcome[Request, Answer]]) -> None:
        """Have answers undone that nobody waits for."""
        if self._undo is None:
            return
        requests: list[Request] = []
        for call, answers in outcomes:
            if not isinstance(answers, BaseException):
                for request, answer in zip(call.requests, answers, strict=True):
                    requests.extend(self._undo(request, answer))
        if requests:
            with self._lock:
                if not self._ended:
                    self._waiting.append(Call(requests, None, None))
                    self._work.notify()


async def submit_edit(batcher: AnyBatcher[Any, Any], edit: Edit) -> list[Any]:
    """Have an edit applied, alone, and return its answers; what stopped it is raised."""
    error: BaseException
    try:
        [answers] = await batcher.submit_many((edit,), alone=True)
    except EditStoppedError as stopped:
        error = stopped.error
    else:
        if not isinstance(answers, StoreError):
            return cast("list[Any]", answers)
        error = answers
    raise error


def give_back(request: object, answer: object) -> Iterator[Release]:
    """How a store takes back what nobody waits for: a claim whose caller has gone."""
    if isinstance(request, Claim) and isinstance(answer, tuple):
        for item in cast("tuple[Claimed, ...]", answer):
            yield Release(item.queue, item.key, item.token, undo=True)


def claims_of(answers: Sequence[tuple[Claimed, ...] | StoreError]) -> list[tuple[Claimed, ...]]:
    """Answers to claims. What was leased reaches its caller, whatever happened to the rest.

    Raises:
        StoreError: Nothing was leased, and something failed.
    """
    claimed = [() if isinstance(answer, StoreError) else answer for answer in answers]
    if not any(claimed):
        for answer in answers:
            if isinstance(answer, StoreError):
                raise answer
    return claimed


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], argument: Any) -> bool:
    """Call a function in an event loop; False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, argument)
    except RuntimeError:
        return False
    return True


def _finish(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
