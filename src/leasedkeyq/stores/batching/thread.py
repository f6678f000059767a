"""Batches that a thread applies: for engines that block."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from leasedkeyq.stores.batching.batcher import (
    AnswerT,
    Batcher,
    CallLine,
    CallOutcome,
    LoopCall,
    RequestT,
    outcomes_of,
)
from leasedkeyq.stores.batching.spoiled_batch import SpoiledBatchError, apply_apart

PATIENCE: Final = 1.0
"""Seconds that closing waits for an event loop that does not take its answers."""
HOLD_STEP: Final = 0.02
"""Seconds between two questions whether a fork waits any longer for a batch."""


class ThreadBatcher(Batcher[RequestT, AnswerT]):
    """Gathers the requests of many callers and applies them batch by batch in one thread.

    The thread starts with the first call that needs it, and is the only one that ever runs
    `apply`. Callers may be in the event loops of any number of threads.

    Args:
        apply: Gets a list of requests and returns as many answers; what it raises goes to every
            caller of the batch, but for `SpoiledBatchError`: then each request is applied alone.
        apply_here: The same in the event loop of the callers, if that holds up the loop for no
            longer than two changes of threads do; None if the thread should do it. It is asked
            while the thread has nothing to do, with what was called in one turn of the loop.
        name: The name of the thread and, in errors, of what was closed.
        most: How many requests go into one batch; a call with more is a batch of its own.
        undo: Says how to take back an answer that nobody waits for.
        at_end: Called in the thread when the batcher is closed and all work is done.
    """

    def __init__(
        self,
        apply: Callable[[list[RequestT]], Sequence[AnswerT]],
        *,
        apply_here: Callable[[list[RequestT]], Sequence[AnswerT] | None] | None = None,
        name: str = "leasedkeyq store",
        most: int = 1000,
        undo: Callable[[RequestT, AnswerT], Iterable[RequestT]] | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name=name, most=most, undo=undo)
        self._apply = apply
        self._apply_here = apply_here
        self._at_end = at_end
        self._lock = threading.Lock()
        self._applying = threading.Lock()
        """Held while a batch is applied, by the thread or in an event loop."""
        self._idle = True
        """Whether the thread has nothing to do, and no call is on its way to it."""
        self._gathered: dict[asyncio.AbstractEventLoop, list[LoopCall[RequestT, AnswerT]]] = {}
        """The calls that were made in this turn of an event loop while the thread was idle."""
        self._thread: threading.Thread | None = None
        self._arrived: SimpleQueue[LoopCall[RequestT, AnswerT] | None] = SimpleQueue()
        """Calls on their way to the thread; None has it look whether it is time to end."""
        self._line: CallLine[RequestT, asyncio.Future[list[AnswerT]]] = CallLine(most)
        """The calls that wait; the thread alone uses it."""
        self._undelivered: dict[int, list[CallOutcome[RequestT, AnswerT]]] = {}
        """What event loops have not handed out yet: some of it may have to be taken back."""
        self._ended = False
        self._closers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def close(self) -> None:
        """Finish what was asked for so far and end the thread; refuse what comes later."""
        with self._lock:
            self._closed = True
            while self._gathered and self._process == os.getpid():
                self._pass_on(self._gathered.popitem()[1])
        try:
            # A caller that was cancelled together with its answer takes that back in this turn.
            await asyncio.sleep(0)
        finally:
            ended = self._end(asyncio.get_running_loop())
        if ended is not None:
            thread, turn = ended
            await turn
            thread.join()

    def _end(
        self, loop: asyncio.AbstractEventLoop
    ) -> "tuple[threading.Thread, asyncio.Future[None]] | None":
        """Have the thread end, and say what to wait for; None if there is nothing to wait for."""
        with self._lock:
            if self._ended or self._process != os.getpid():
                self._ended = True
                return None
            if self._applying.locked():
                # Another event loop applies a batch, and may pass it on: the thread waits for it.
                self._pass_on([])
            if self._thread is None:
                if self._at_end is not None:
                    self._at_end()
                self._ended = True
                return None
            turn: asyncio.Future[None] = loop.create_future()
            self._closers.append((loop, turn))
            self._arrived.put(None)
            return self._thread, turn

    def hold(self, give_up: Callable[[], bool]) -> bool:
        """Wait until no batch is applied, and apply none until `go_on`: the process forks.

        `give_up` is asked from time to time whether to wait no longer. Returns whether it is held;
        a batcher that belongs to another process is not.
        """
        if self._process != os.getpid():
            return False
        while not self._applying.acquire(timeout=HOLD_STEP):
            if give_up():
                return False
        return True

    def go_on(self) -> None:
        """Apply batches again, after `hold`."""
        self._applying.release()

    def _enqueue(self, call: LoopCall[RequestT, AnswerT]) -> None:
        with self._lock:
            if call.turn is not None:
                self._check_usable()
            elif self._ended:
                return
            if call.turn is None or self._apply_here is None:
                self._pass_on([call])
                return
            loop = call.turn.get_loop()
            gathered = self._gathered.get(loop)
            if gathered is not None:
                gathered.append(call)
            elif self._idle:
                self._gathered[loop] = [call]
                loop.call_soon(self._try_here, loop)
            else:
                self._pass_on([call])

    def _pass_on(self, calls: list[LoopCall[RequestT, AnswerT]]) -> None:
        """Have the thread apply calls; with the lock."""
        self._idle = False
        for call in calls:
            self._arrived.put(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _try_here(self, loop: asyncio.AbstractEventLoop) -> None:
        """Apply in the event loop what was called in this turn of it, or leave it to the thread."""
        with self._lock:
            calls = self._gathered.pop(loop, [])
            batch = [call for call in calls if call.turn is not None and not call.turn.done()]
            if not batch:
                return
            here = self._idle and not any(call.alone for call in batch)
            if not here or not self._applying.acquire(blocking=False):
                self._pass_on(batch)
                return
        assert self._apply_here is not None
        answers: Sequence[AnswerT] | BaseException | None
        try:
            answers = self._apply_here([request for call in batch for request in call.requests])
        except BaseException as error:
            answers = error
        try:
            if answers is None:
                with self._lock:
                    self._pass_on(batch)
        finally:
            self._applying.release()  # not before: the thread of a closed batcher waits for it
        if answers is not None:
            self._hand_out(outcomes_of(batch, answers))

    # The thread

    def _run(self) -> None:
        while batch := self._next_batch():
            requests = [request for call in batch for request in call.requests]
            try:
                with self._applying:
                    answers = self._apply_all(requests)
            except BaseException as error:
                self._deliver(outcomes_of(batch, error))
            else:
                self._deliver(outcomes_of(batch, answers))
        try:
            if self._at_end is not None:
                with self._applying:
                    self._at_end()
        finally:
            with self._lock:
                self._ended = True
                closers = self._closers
            for loop, ended in closers:
                _call_in(loop, _finish, ended)

    def _apply_all(self, requests: list[RequestT]) -> Sequence[AnswerT]:
        try:
            return self._apply(requests)
        except SpoiledBatchError as spoiled:
            return apply_apart(self._apply, requests, spoiled)

    def _next_batch(self) -> list[LoopCall[RequestT, AnswerT]]:
        """Wait for calls and take them; nothing when it is time to end."""
        line, arrived = self._line, self._arrived
        wait = False
        while True:
            while wait or not arrived.empty():
                try:
                    call = arrived.get(timeout=PATIENCE if self._closed else None)
                except Empty:
                    return []
                wait = False
                if call is not None:
                    line.append(call)
            if batch := line.next_batch():
                return batch
            if self._undelivered:
                self._take_back_from_closed_loops()
            with self._lock:
                self._idle = wait = arrived.empty()
                at_end = wait and self._closed and not self._undelivered
            if at_end:
                with self._applying:  # an event loop may be about to pass its batch on
                    if arrived.empty():
                        return []

    def _deliver(self, outcomes: list[CallOutcome[RequestT, AnswerT]]) -> None:
        """Pass the outcomes to their event loops: one call for each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[CallOutcome[RequestT, AnswerT]]] = {}
        for outcome in outcomes:
            turn = outcome[0].turn
            if turn is None:
                self._check_taken_back(*outcome)
            else:
                by_loop.setdefault(turn.get_loop(), []).append(outcome)
        for loop, mine in by_loop.items():
            self._undelivered[id(mine)] = mine
            _call_in(loop, self._receive, mine)

    def _take_back_from_closed_loops(self) -> None:
        """Take back what was on its way to event loops that have been closed."""
        for mine in list(self._undelivered.values()):
            if _loop_of(mine).is_closed():
                del self._undelivered[id(mine)]
                self._take_back(mine)

    # In the callers' event loops

    def _receive(self, outcomes: list[CallOutcome[RequestT, AnswerT]]) -> None:
        self._hand_out(outcomes)
        del self._undelivered[id(outcomes)]
        if self._closed:
            self._arrived.put(None)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], argument: Any) -> None:
    """Call a function in an event loop, unless that is closed."""
    try:  # noqa: SIM105 - this is on the way of every batch, and `suppress` takes three calls
        loop.call_soon_threadsafe(function, argument)
    except RuntimeError:
        pass


def _loop_of(outcomes: list[CallOutcome[RequestT, AnswerT]]) -> asyncio.AbstractEventLoop:
    turn = outcomes[0][0].turn
    assert turn is not None
    return turn.get_loop()


def _finish(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
