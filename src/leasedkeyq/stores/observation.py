"""What instruments are told of the calls of a store."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import signature
from time import perf_counter
from typing import Any, Final, get_args

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Change,
    Claimed,
    Discard,
    Extend,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
)
from leasedkeyq.telemetry.guarded_span import GuardedSpan
from leasedkeyq.telemetry.instrument import (
    ItemOutcome,
    StoreCall,
    StoreInstrument,
    StoreTracing,
    StoreVerb,
)
from leasedkeyq.telemetry.several import INSTRUMENT_FAILED

logger = logging.getLogger("leasedkeyq")

VERBS: Final[tuple[StoreVerb, ...]] = get_args(StoreVerb)
OUTCOMES: Final[dict[type[Change], ItemOutcome]] = {
    Ack: "acknowledged",
    Release: "released",
    Extend: "extended",
    Bury: "buried",
    Cancel: "cancelled",
    Amend: "amended",
    Requeue: "requeued",
    Purge: "purged",
    Discard: "discarded",
}

CHANGING: Final = frozenset({"put", "claim", "settle", "edit"})
"""The verbs that do something to items."""

Items = dict[str, dict[ItemOutcome, int]]


class StoreObservation:
    """Calls the verbs of a store, and tells instruments of each call.

    Args:
        instruments: Told the numbers.
        tracing: Told the spans, if anybody wants them.
    """

    def __init__(
        self, instruments: Sequence[StoreInstrument], tracing: StoreTracing | None
    ) -> None:
        self._instruments = tuple(instruments)
        self._tracing = tracing

    def observed(
        self, verb: StoreVerb, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """A verb of a store that tells of its calls."""
        return partial(self._edit if verb == "edit" else self._call, verb, call)

    async def _edit(
        self,
        verb: StoreVerb,
        call: Callable[..., Awaitable[Any]],
        queue: str,
        work: Callable[[Sequence[StoredItem]], Sequence[Put | Change]],
        *,
        keys: Sequence[str] | None = None,
    ) -> Any:
        """As `_call`; what an edit does is known when its work has been called."""
        changes: list[Put | Change] = []

        def noted(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            changes.extend(work(items))
            return changes

        return await self._observe(verb, (queue,), changes, partial(call, queue, noted, keys=keys))

    async def _call(
        self,
        verb: StoreVerb,
        call: Callable[..., Awaitable[Any]],
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Call a verb. Its first argument is requests, queues, or one queue."""
        if options:  # a caller may name any argument
            bound = signature(call).bind(*arguments, **options)
            arguments, options = bound.args, bound.kwargs
        asked, *more = arguments or (None,)
        if asked is None:  # all queues are counted
            return await self._observe(verb, (), (), call)
        if isinstance(asked, str):
            requests = more[0] if more else (asked,)
            queues: tuple[str, ...] = (asked,)
        else:
            requests = asked
            queues = tuple(dict.fromkeys(name for each in asked for name in _queues_of(each)))
        return await self._observe(verb, queues, requests, partial(call, *arguments, **options))

    async def _observe(
        self,
        verb: StoreVerb,
        queues: tuple[str, ...],
        requests: Sequence[Any],
        call: Callable[[], Awaitable[Any]],
    ) -> Any:
        tracing = self._tracing
        span = (
            nullcontext()
            if tracing is None
            else GuardedSpan(partial(tracing.calling, verb, queues, len(requests)), None)
        )
        start = perf_counter()
        try:
            with span:
                answers = await call()
        except BaseException as error:
            seconds = perf_counter() - start
            self._tell(StoreCall(verb, queues, len(requests), {}, seconds, error))
            raise
        items = _items(requests, answers) if verb in CHANGING else {}
        seconds = perf_counter() - start
        self._tell(StoreCall(verb, queues, len(requests), items, seconds))
        return answers

    def tell_given(self, item: Claimed) -> None:
        """Tell of an item that came without a call, to a claim that was parked."""
        items: Items = {item.queue: {"claimed": 1}}
        self._tell(StoreCall("claim", (item.queue,), 0, items, 0.0, given=True))

    def _tell(self, call: StoreCall) -> None:
        for instrument in self._instruments:
            try:
                instrument.called(call)
            except Exception:
                logger.exception(INSTRUMENT_FAILED, instrument)


def _queues_of(asked: Any) -> Iterable[str]:
    """The queues that a request names, or the name of one."""
    if isinstance(asked, str):
        return (asked,)
    queues: Sequence[tuple[str, int]] | None = getattr(asked, "queues", None)
    return (asked.queue,) if queues is None else (name for name, _ in queues)


def _items(requests: Sequence[Any], answers: Sequence[Any]) -> Items:
    """To how many items requests have done what, by queue."""
    found: Items = {}
    for request, answer in zip(requests, answers, strict=False):
        if isinstance(request, Put):
            refused = isinstance(answer, LeasedKeyQError)
            _add(found, request.queue, "refused" if refused else "put", len(request.items))
        elif isinstance(request, Change):
            if isinstance(answer, LeasedKeyQError):
                _add(found, request.queue, "refused", 1)
            elif answer is not False:  # it was there
                number = answer if isinstance(request, Purge | Cancel) else 1
                _add(found, request.queue, OUTCOMES[type(request)], number)
        else:
            claimed: tuple[Claimed, ...] = answer
            for item in claimed:
                _add(found, item.queue, "claimed", 1)
    return found


def _add(found: Items, queue: str, outcome: ItemOutcome, number: int) -> None:
    counts = found.setdefault(queue, {})
    counts[outcome] = counts.get(outcome, 0) + number
