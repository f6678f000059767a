"""A batch of requests in one transaction: what is alike and follows each other goes together.

One statement for many rows costs less than many statements, and the event loop runs meanwhile. The
answers are the same as those of one request after the other.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, cast

import msgspec

from leasedkeyq.engines.sqlite.engine import (
    DELETE_HELD,
    INSERT_INTO,
    KEEP_HELD,
    NEW,
    AnyRequest,
    Transaction,
)
from leasedkeyq.engines.sqlite.rows import Space
from leasedkeyq.engines.sqlite.schema import AVAILABLE
from leasedkeyq.model.requests import (
    OUTCOMES,
    Ack,
    Claim,
    Claimed,
    Put,
)

Wanted = tuple[str, bytes, Put]
"""One item of a put: its key, its value, and the request."""

PORTIONS: Final = (32, 8)
"""How many items one statement puts; what is left over is put one by one."""
LIVE_AMONG: Final = {
    size: f"SELECT 1 FROM items WHERE queue = ? AND key IN ({', '.join('?' * size)}) LIMIT 1"
    for size in PORTIONS
}
INSERT_MANY: Final = {size: f"{INSERT_INTO} {', '.join([NEW] * size)}" for size in PORTIONS}


class Batch(Transaction):
    """Applies batches as of `now`."""

    def apply_all(self, requests: Sequence[AnyRequest]) -> list[Any]:
        """Apply requests in order and return their answers."""
        answers: list[Any] = []
        start = 0
        while start < len(requests):
            end = run_end(requests, start)
            answers += self._apply_run(requests[start:end])
            start = end
        return answers

    def _apply_run(self, run: Sequence[AnyRequest]) -> Sequence[Any]:
        first = run[0]
        if isinstance(first, Put) and _goes_through(first):
            return self._put_together(cast("Sequence[Put]", run))
        if len(run) == 1:
            return [self.apply(first)]
        if isinstance(first, Claim):
            return self._claim_together(first, len(run))
        return self._ack_together(cast("Sequence[Ack]", run))

    def _put_together(self, requests: Sequence[Put]) -> list[tuple[int, ...]]:
        space = self._space(requests[0].queue)
        space.changed = True
        wanted = [(key, value, request) for request in requests for key, value in request.items]
        ids: list[int] = []
        for size in PORTIONS:
            while len(wanted) - len(ids) >= size:
                ids += self._put_portion(space, wanted[len(ids) : len(ids) + size])
        ids += [self._put_one(space, *one, None) for one in wanted[len(ids) :]]
        shared_out = iter(ids)
        return [tuple(islice(shared_out, len(request.items))) for request in requests]

    def _put_portion(self, space: Space, wanted: Sequence[Wanted]) -> Sequence[int]:
        """Put on absent keys by one statement; if one is live, one by one."""
        keys = {key for key, _, _ in wanted}
        size = len(wanted)
        if len(keys) < size or self._execute(LIVE_AMONG[size], (space.id, *keys)).fetchone():
            return [self._put_one(space, *one, None) for one in wanted]
        queue, now, back = space.id or self._stored(space), self._now, self.back
        ids = range(self.last_id + 1, self.last_id + 1 + size)
        rows: list[Any] = []
        for number, (key, value, request) in zip(ids, wanted, strict=True):
            back += 1
            priority, kind, due = request.priority or 0, request.kind, self.deadline(request)
            rows += (number, queue, key, AVAILABLE, priority, back, now, due, None, 0, kind, value)
        self._execute(INSERT_MANY[size], rows)
        self.last_id += size
        self.back = back
        space.available += size
        return ids

    def _claim_together(self, request: Claim, times: int) -> list[tuple[Claimed, ...]]:
        """Apply one claim so many times: read and write all at once, and share it out in order."""
        ((queue, most),) = request.queues
        each = max(min(most, request.limit), 0)
        many = each * times
        claimed = self.claim(msgspec.structs.replace(request, queues=((queue, many),), limit=many))
        return [claimed[each * turn : each * (turn + 1)] for turn in range(times)]

    def _ack_together(self, requests: Sequence[Ack]) -> list[Any]:
        """Acknowledge all at once if all leases hold and nothing is buffered; else one by one."""
        spaces = [self._space(request.queue) for request in requests]
        if not any(space.buffered for space in self._spaces.values()):
            held: list[tuple[int, str, str]] = []
            kept: list[tuple[float, int, bytes, int, str, str]] = []
            for space, request in zip(spaces, requests, strict=True):
                item = (space.id, request.key, request.token)
                held.append(item)
                if request.keep > 0:
                    result = b"null" if request.result is None else request.result
                    outcome = OUTCOMES.index(request.outcome)
                    kept.append((self._now + request.keep, outcome, result, *item))
            self._execute("SAVEPOINT acks")
            if self._many(KEEP_HELD, kept).rowcount == len(kept) and self._many(
                DELETE_HELD, held
            ).rowcount == len(held):
                self._execute("RELEASE acks")
                for space, request in zip(spaces, requests, strict=True):
                    space.in_flight -= 1
                    if request.keep > 0:
                        space.count_result(OUTCOMES.index(request.outcome), 1)
                    space.changed = True
                self.forgettable += len(kept)
                return [None] * len(held)
            self._execute("ROLLBACK TO acks")
            self._execute("RELEASE acks")
        return [self.ack(request) for request in requests]


def run_end(requests: Sequence[AnyRequest], start: int) -> int:
    """Where the requests end that may be applied together with the first one."""
    first = requests[start]
    end = start + 1
    if isinstance(first, Claim):
        one = len(first.queues) == 1 and first.key is None
        lease_time = first.lease_time_of(0) if one else None
        if one and (lease_time is None or lease_time > 0):
            while end < len(requests) and requests[end] == first:
                end += 1
    elif isinstance(first, Put):
        if _goes_through(first):
            while (
                end < len(requests)
                and isinstance(other := requests[end], Put)
                and other.queue == first.queue
                and _goes_through(other)
            ):
                end += 1
    elif isinstance(first, Ack) and first.token:
        while end < len(requests) and isinstance(other := requests[end], Ack) and other.token:
            end += 1
    return end


def _goes_through(put: Put) -> bool:
    """Whether nothing can refuse a put, and it is for now."""
    return put.policy != "reject" and not put.max_items and put.delay is None
