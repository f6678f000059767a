"""The memory store: the model with the contract around it."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import (
    Answer,
    Capabilities,
    Change,
    Claim,
    Claimed,
    Counts,
    Extend,
    Limits,
    Placed,
    Put,
    StoredItem,
    StoredState,
)
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.stores.store import Store, report_dropped


class MemoryStore(Store):
    """Queues that live and die with the process. For tests, and where nothing must survive."""

    capabilities: Capabilities = Capabilities(
        durability="none", cross_process=False, joint_edits=True, extends_apart=True
    )

    def __init__(
        self, *, limits: Limits | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__("memory store", limits)
        self._model = StoreModel(self.limits)
        self._clock = clock
        self._extensions: deque[tuple[float, Sequence[Extend]]] = deque()
        """What `extend_apart` was asked for, each with the time at which it was."""

    def _now(self) -> float:
        """The time, once leases are renewed as of the time at which that was asked for."""
        while self._extensions:
            asked_at, requests = self._extensions.popleft()
            for request in requests:
                self._model.settle(request, asked_at)
        return self._clock()

    def _wake(self, queues: Iterable[str] = ()) -> None:
        """Wake who watches these queues, or those in which something has come due."""
        model = self._model
        self._watchers.wake({*queues, *model.moved})
        model.moved.clear()

    def _report_dropped(self) -> None:
        dropped = self._model.dropped
        if dropped:
            report_dropped((item.queue, item.key) for item in dropped)
            dropped.clear()

    # The contract

    async def extend_apart(self, requests: Sequence[Extend]) -> list[Answer]:
        """As `Store.extend_apart`.

        The model belongs to the event loop, which may go on at any moment. So this only notes what
        is to be renewed, and when: the next call of the loop does it as of that time, before
        it can find anything expired.
        """
        self._check_usable()
        now = self._clock()
        self._extensions.append((now, requests))
        return [None if one.lease_time is None else now + one.lease_time for one in requests]

    async def do_put(self, requests: Sequence[Put]) -> list[tuple[Placed, ...] | LeasedKeyQError]:
        """As `Store.do_put`."""
        now = self._now()
        answers = [self._model.put(request, now) for request in requests]
        self._wake(_changed(requests, answers))
        return answers

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        """As `Store.do_claim`."""
        now = self._now()
        answers = [self._model.claim(request, now) for request in requests]
        self._wake(claimed.queue for answer in answers for claimed in answer)
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        """As `Store.do_settle`."""
        now = self._now()
        answers = [self._model.settle(request, now) for request in requests]
        self._wake(_changed(requests, answers))
        self._report_dropped()
        return answers

    async def do_edit(self, edit: Edit) -> list[Answer]:
        """As `Store.do_edit`; the work is called in the event loop."""
        try:
            answers = self._model.edit(edit, self._now())
        except EditStoppedError:
            self._wake()
            raise
        self._wake(edit.queues)
        self._report_dropped()
        return answers

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        """As `Store.do_sweep`."""
        now = self._now()
        seconds = [self._model.sweep(queue, now) for queue in queues]
        self._wake()
        return seconds

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        """As `Store.do_count`."""
        now = self._now()
        names = list(self._model.queues) if queues is None else queues
        counts = {name: self._model.count(name, now) for name in names}
        self._wake()
        return counts

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """As `Store.do_heads`."""
        now = self._now()
        found = [self._model.head(queue, now) for queue in queues]
        self._wake()
        return found

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """As `Store.do_look`."""
        now = self._now()
        found = [self._model.look(queue, key, now) for key in keys]
        self._wake()
        return found

    async def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Sequence[StoredItem]:
        """As `Store.do_line`."""
        found = self._model.line(queue, key, self._now(), after=after, limit=limit)
        self._wake()
        return found

    async def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> list[StoredItem]:
        """As `Store.do_browse`."""
        found = self._model.browse(
            queue,
            states,
            prefix,
            self._now(),
            after=after,
            limit=limit,
            newest_first=newest_first,
        )
        self._wake()
        return found

    async def do_results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        """As `Store.do_results`."""
        now = self._now()
        found = [self._model.result(queue, number, now) for number in ids]
        self._wake()
        return found


def _changed(requests: Sequence[Put] | Sequence[Change], answers: Sequence[object]) -> set[str]:
    """The queues of those requests that were not refused: nobody need hear of the others.

    A producer that waits for room would hear of its own request, and ask again without end. A lease
    that was renewed makes nothing available.
    """
    return {
        request.queue
        for request, answer in zip(requests, answers, strict=True)
        if not isinstance(answer, Exception) and not isinstance(request, Extend)
    }
