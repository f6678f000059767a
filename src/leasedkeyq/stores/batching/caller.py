"""Batches of calls that blocking threads make, applied in one event loop: for the repository."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic

from leasedkeyq.stores.batching.batcher import AnswerT, Call, CallLine, RequestT
from leasedkeyq.stores.batching.loop import BatchEngine, CallsInLoop, Done

MOST: Final = 500
"""How many calls go into one batch."""


class TaskEngine(BatchEngine, Generic[RequestT, AnswerT]):
    """Applies each batch in a task of its own.

    Args:
        apply: Gets a list of requests and returns as many answers.
    """

    def __init__(self, apply: Callable[[list[RequestT]], Awaitable[Sequence[AnswerT]]]) -> None:
        self._apply = apply
        self._tasks: set[asyncio.Task[None]] = set()

    def apply(self, requests: list[RequestT], done: Done) -> None:
        """As `BatchEngine.apply`."""
        task = asyncio.get_running_loop().create_task(self._run(requests, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, requests: list[RequestT], done: Done) -> None:
        answers: Sequence[AnswerT] | BaseException
        try:
            answers = await self._apply(requests)
        except asyncio.CancelledError as error:
            done(error)
            raise
        except Exception as error:
            answers = error
        # The next batch begins in here: there is a task as long as threads wait for answers.
        done(answers)

    def abandon(self) -> None:
        """As `BatchEngine.abandon`: there are no connections."""


class CallerBatcher(CallsInLoop[RequestT, "Future[AnswerT]", TaskEngine[RequestT, AnswerT]]):
    """Gathers the requests of threads and applies them batch by batch in one event loop.

    The event loop is woken by the first call only: calls that threads make while a batch is applied
    just wait in the line. A task for each call, in that loop, would cost a fifth more of the
    processor's time: so much was measured with 30 threads.

    If a batch is cancelled, as the event loop ends, all calls are, also those that wait.

    Args:
        start: Has a function called in the event loop, or raises if that takes no more calls.
        apply: Gets a list of requests and returns as many answers; what it raises goes to every
            caller of the batch.
        lost: Told an answer that nobody waits for.
    """

    def __init__(
        self,
        start: Callable[[Callable[[], object]], None],
        apply: Callable[[list[RequestT]], Awaitable[Sequence[AnswerT]]],
        *,
        lost: Callable[[AnswerT], object] = lambda _: None,
    ) -> None:
        line: CallLine[RequestT, Future[AnswerT]] = CallLine(MOST)
        super().__init__(TaskEngine(apply), line, self._answer)
        self._start = start
        self._lost = lost
        self._lock = threading.Lock()
        """For the line, and for whether it is looked at."""
        self._awake = False
        """Whether the event loop is going to look at the line once more."""

    def submit(self, request: RequestT) -> "Future[AnswerT]":
        """Have a request applied. A caller that does not wait any more cancels what it got."""
        answer: Future[AnswerT] = Future()
        with self._lock:
            if not self._awake:
                self._start(self.apply_next)
                self._awake = True
            self._line.append(Call((request,), answer))
        return answer

    # In the event loop

    def apply_next(self) -> None:
        """As `CallsInLoop.apply_next`, while no thread adds a call."""
        with self._lock:
            super().apply_next()
            self._awake = bool(self._under_way)

    def _answer(
        self,
        outcomes: "Iterable[tuple[Call[RequestT, Future[AnswerT]], list[Any] | BaseException]]",
    ) -> None:
        for call, answers in outcomes:
            turn = call.turn
            assert turn is not None
            if isinstance(answers, asyncio.CancelledError):
                turn.cancel()
                self._send_away()
            elif isinstance(answers, BaseException):
                if turn.set_running_or_notify_cancel():
                    turn.set_exception(answers)
            elif turn.set_running_or_notify_cancel():
                turn.set_result(answers[0])
            else:
                self._lost(answers[0])

    def _send_away(self) -> None:
        """The event loop ends, as the server is away: no thread will be answered."""
        with self._lock:
            left = list(self._line)
            self._line.clear()
        for call in left:
            assert call.turn is not None
            call.turn.cancel()
