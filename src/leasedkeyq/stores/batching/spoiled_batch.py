"""A batch in which one request cannot be stored at all: each of its requests is applied alone.

So the bad request spoils nobody else's. An engine that meets it raises `SpoiledBatchError`; the
drivers of batching do the rest.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from leasedkeyq.errors import StoreError, StoreUnavailableError, UnstorableError

RequestT = TypeVar("RequestT")


def _never() -> bool:
    return False


class SpoiledBatchError(Exception):
    """One request of a batch is at fault, and nothing of the batch was applied.

    Callers never see it: they get the answer to their own request.

    Args:
        where: The store, for people.
        error: What went wrong with the batch.
        stops: Asked after a request alone has failed for another reason than its own fault:
            whether those behind it are not sent, as each of them would wait for the same.

    Attributes:
        answer: To the request, if it was alone: `error` itself if that is a `StoreError`.
    """

    def __init__(
        self, where: str, error: BaseException, *, stops: Callable[[], bool] = _never
    ) -> None:
        super().__init__(f"{where}: a request of a batch cannot be stored: {error}")
        self.answer = error
        if not isinstance(error, StoreError):
            self.answer = UnstorableError(f"{where}: the request cannot be stored: {error}")
            self.answer.__cause__ = error
        self.stops = stops


def each_alone(
    requests: Sequence[RequestT], spoiled: SpoiledBatchError
) -> Generator[list[RequestT], Sequence[Any] | BaseException, list[Any]]:
    """The answers to a spoiled batch: yields each request alone, and is sent how that went.

    A failure of the store is an answer, as others may have been stored before it.
    """
    if len(requests) == 1:
        return [spoiled.answer]
    answers: list[Any] = []
    for request in requests:
        outcome = yield [request]
        if isinstance(outcome, SpoiledBatchError):
            outcome = outcome.answer
        if not isinstance(outcome, BaseException):
            answers += outcome
            continue
        if not isinstance(outcome, StoreError):
            raise outcome
        answers.append(outcome)
        if not isinstance(outcome, UnstorableError) and spoiled.stops():
            told = StoreUnavailableError(f"not sent, as others failed: {outcome}")
            return answers + [told] * (len(requests) - len(answers))
    return answers


def apply_apart(
    apply: Callable[[list[RequestT]], Sequence[Any]],
    requests: Sequence[RequestT],
    spoiled: SpoiledBatchError,
) -> list[Any]:
    """Apply the requests of a spoiled batch one after the other, in this thread."""
    steps = each_alone(requests, spoiled)
    try:
        alone = next(steps)
        while True:
            outcome: Sequence[Any] | Exception
            try:
                outcome = apply(alone)
            except Exception as error:
                outcome = error
            alone = steps.send(outcome)
    except StopIteration as end:
        answers: list[Any] = end.value
        return answers
