"""What all batching has in common: calls, the line in which they wait, and their answers."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

from leasedkeyq.model.requests import Claim, Claimed, Release
from leasedkeyq.stores.closable import Closable
from leasedkeyq.stores.take_back import is_still_leased, take_back

logger = logging.getLogger("leasedkeyq")

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")
TurnT = TypeVar("TurnT", bound="CallersTurn")


class CallersTurn(Protocol):
    """What a caller waits for."""

    def done(self) -> bool:
        """Whether there are answers, or the caller has gone."""
        ...


class Call(Generic[RequestT, TurnT]):
    """What one caller asks for, and where the answers go.

    Attributes:
        requests: They are applied in one batch, in order.
        turn: The caller waits for it; done before there are answers, if the caller has gone. None:
            nobody waits, as the call takes something back.
        alone: Whether no requests of other calls may be in the batch.
    """

    __slots__ = ("alone", "requests", "turn")

    def __init__(
        self,
        requests: Sequence[RequestT],
        turn: TurnT | None,
        alone: bool = False,
    ) -> None:
        self.requests = requests
        self.turn = turn
        self.alone = alone


LoopCall: TypeAlias = Call[RequestT, asyncio.Future[list[AnswerT]]]
"""A call whose caller waits in an event loop."""
CallOutcome: TypeAlias = tuple[LoopCall[RequestT, AnswerT], list[AnswerT] | BaseException]
"""A call, and its answers or what went wrong with its batch."""


class CallLine(deque[Call[RequestT, TurnT]], Generic[RequestT, TurnT]):
    """The calls that wait, in the order in which they came.

    Args:
        most: How many requests go into one batch; a call with more is a batch of its own.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def next_batch(
        self, waits: Callable[[Call[RequestT, TurnT]], bool] | None = None
    ) -> list[Call[RequestT, TurnT]]:
        """Take the calls of the next batch out of the line.

        Args:
            waits: Says of a call that it must wait, and with it those behind it.
        """
        batch: list[Call[RequestT, TurnT]] = []
        room = self._most
        while self:
            call = self[0]
            if call.turn is not None and call.turn.done():
                self.popleft()  # its caller has gone
                continue
            number = len(call.requests)
            if batch and (call.alone or number > room):
                break
            if waits is not None and waits(call):
                break
            self.popleft()
            batch.append(call)
            room -= number
            if call.alone:
                break
        return batch


class Batcher(Closable, ABC, Generic[RequestT, AnswerT]):
    """Applies the requests of many callers batch by batch.

    Callers may be in any number of event loops. A caller that is cancelled while its requests wait
    withdraws them. If they are being applied already they are applied in full, and `undo` is asked,
    for each answer that nobody waits for, which requests take it back; these are applied soon. If
    that fails, as the server is away, they are applied again together with the next call.

    Args:
        name: In errors, what was closed.
        most: How many requests go into one batch; a call with more is a batch of its own.
        undo: Says how to take back an answer that nobody waits for.
    """

    def __init__(
        self,
        *,
        name: str = "leasedkeyq store",
        most: int = 1000,
        undo: Callable[[RequestT, AnswerT], Iterable[RequestT]] | None = None,
    ) -> None:
        super().__init__(name)
        self._most = most
        self._undo = undo
        self._unwanted: deque[RequestT] = deque()
        """Requests that take back answers, and have failed."""

    async def submit(self, request: RequestT, *, alone: bool = False) -> AnswerT:
        """Have one request applied and return its answer, as `submit_many` does."""
        return (await self.submit_many((request,), alone=alone))[0]

    async def submit_many(
        self, requests: Sequence[RequestT], *, alone: bool = False
    ) -> list[AnswerT]:
        """Have requests applied in one batch, in order, and return their answers.

        With `alone`, nobody else's requests are in that batch; it waits for its turn as any other.
        Exceptions among the answers are returned, not raised.

        Raises:
            StoreClosedError: `close` was called before.
        """
        turn: asyncio.Future[list[AnswerT]] = asyncio.get_running_loop().create_future()
        call: LoopCall[RequestT, AnswerT] = Call(requests, turn, alone)
        self._enqueue(call)
        if self._unwanted:
            self._try_again()
        try:
            return await turn
        except asyncio.CancelledError:
            # Answers that came together with the cancellation have reached nobody.
            if not turn.cancel() and not turn.cancelled() and not turn.exception():
                self._take_back([(call, turn.result())])
            raise

    @abstractmethod
    async def close(self) -> None:
        """Finish what was asked for so far; refuse what comes later."""

    @abstractmethod
    def _enqueue(self, call: LoopCall[RequestT, AnswerT]) -> None:
        """Have a call applied; if nobody waits for it, also while the batcher is being closed."""

    def _hand_out(self, outcomes: Iterable[CallOutcome[RequestT, AnswerT]]) -> None:
        """Give callers their answers, in their event loop."""
        lost: list[CallOutcome[RequestT, AnswerT]] = []
        for outcome in outcomes:
            call, answers = outcome
            turn = call.turn
            if turn is None:
                self._check_taken_back(call, answers)
            elif turn.done():
                lost.append(outcome)
            elif not isinstance(answers, BaseException):
                turn.set_result(answers)
            elif isinstance(answers, asyncio.CancelledError):
                turn.cancel()
            else:
                turn.set_exception(answers)
        if lost:
            self._take_back(lost)

    def _take_back(self, outcomes: Iterable[CallOutcome[RequestT, AnswerT]]) -> None:
        """Have answers undone that nobody waits for."""
        undo = self._undo
        if undo is None:
            return
        requests: list[RequestT] = []
        for call, answers in outcomes:
            if not isinstance(answers, BaseException):
                for request, answer in zip(call.requests, answers, strict=True):
                    requests.extend(undo(request, answer))
        if requests:
            self._enqueue(Call(requests, None))

    def _check_taken_back(
        self, call: LoopCall[RequestT, AnswerT], answers: list[AnswerT] | BaseException
    ) -> None:
        """See what has become of a call that takes back answers."""
        if isinstance(answers, BaseException):
            failed = [(request, answers) for request in call.requests]
        else:
            found = zip(call.requests, answers, strict=True)
            failed = [(request, error) for request, error in found if is_still_leased(error)]
        if failed:
            text = "the %s cannot take back %d answers whose callers have gone: %s; this is tried"
            logger.warning(
                f"{text} again with the next call", self._name, len(failed), failed[0][1]
            )
            self._unwanted.extend(request for request, _ in failed)

    def _try_again(self) -> None:
        requests: list[RequestT] = []
        with suppress(IndexError):  # other event loops may do the same
            while True:
                requests.append(self._unwanted.popleft())
        if requests:
            self._enqueue(Call(requests, None))


def outcomes_of(
    batch: list[Call[RequestT, TurnT]], answers: Sequence[AnswerT] | BaseException
) -> list[tuple[Call[RequestT, TurnT], list[AnswerT] | BaseException]]:
    """The answers to a batch, cut back to its calls."""
    if isinstance(answers, BaseException):
        return [(call, answers) for call in batch]
    outcomes: list[tuple[Call[RequestT, TurnT], list[AnswerT] | BaseException]] = []
    start = 0
    for call in batch:
        end = start + len(call.requests)
        outcomes.append((call, list(answers[start:end])))
        start = end
    return outcomes


def undo_claim(request: object, answer: object) -> list[Release]:
    """How a store takes back what nobody waits for: a claim whose caller has gone."""
    if isinstance(request, Claim) and isinstance(answer, tuple):
        return take_back(cast("tuple[Claimed, ...]", answer))
    return []
