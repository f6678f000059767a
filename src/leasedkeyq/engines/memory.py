"""The memory store: the model with the contract around it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from leasedkeyq.errors import LeasedKeyQError, StoreClosedError
from leasedkeyq.model.admission import admitted
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import (
    Answer,
    Capabilities,
    Change,
    Claim,
    Claimed,
    Counts,
    EditWork,
    Limits,
    Page,
    Put,
    StoredItem,
    StoredState,
)
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.stores.paging import check_listing, page_of
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.watching import Watchers

logger = logging.getLogger("leasedkeyq")


class MemoryStore(Store):
    """Queues that live and die with the process. For tests, and where nothing must survive."""

    capabilities: Capabilities = Capabilities(durability="none", cross_process=False)

    def __init__(
        self, *, limits: Limits | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.limits: Limits = limits or Limits()
        self._model = StoreModel(self.limits)
        self._clock = clock
        self._watchers = Watchers()
        self._closed = False

    def _wake(self, queues: Iterable[str] = ()) -> None:
        """Wake who watches these queues, or those in which something has come due."""
        model = self._model
        self._watchers.wake({*queues, *model.moved})
        model.moved.clear()

    def _now(self) -> float:
        if self._closed:
            raise StoreClosedError("the memory store is closed")
        return self._clock()

    async def put(self, requests: Sequence[Put]) -> list[tuple[int, ...] | LeasedKeyQError]:
        """As `StoreContract.put`."""
        return await admitted(requests, self.limits, self._put)

    async def _put(self, requests: Sequence[Put]) -> list[tuple[int, ...] | LeasedKeyQError]:
        now = self._now()
        answers = [self._model.put(request, now) for request in requests]
        self._wake(_changed(requests, answers))
        return answers

    async def claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        """As `StoreContract.claim`."""
        now = self._now()
        answers = [self._model.claim(request, now) for request in requests]
        self._wake(claimed.queue for answer in answers for claimed in answer)
        return answers

    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        """As `StoreContract.settle`."""
        return await admitted(requests, self.limits, self._settle)

    async def _settle(self, requests: Sequence[Change]) -> list[Answer]:
        now = self._now()
        answers = [self._model.settle(request, now) for request in requests]
        self._wake(_changed(requests, answers))
        self._report_dropped()
        return answers

    async def edit(
        self, queue: str, work: EditWork, *, keys: Sequence[str] | None = None
    ) -> list[Answer]:
        """As `StoreContract.edit`; `work` is called in the event loop."""
        now = self._now()
        try:
            answers = self._model.edit(Edit(queue, work, keys, self.limits), now)
        except EditStoppedError as stopped:
            self._wake()
            error = stopped.error
        else:
            self._wake([queue])
            self._report_dropped()
            return answers
        raise error

    def _report_dropped(self) -> None:
        for item in self._model.dropped:
            logger.warning("queue %r: dropped the oldest buried item, key %r", item.queue, item.key)
        self._model.dropped.clear()

    async def sweep(self, queues: Sequence[str]) -> list[float | None]:
        """As `StoreContract.sweep`."""
        now = self._now()
        seconds = [self._model.sweep(queue, now) for queue in queues]
        self._wake()
        return seconds

    def watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """As `StoreContract.watch`."""
        return self._watchers.add(queue, wake, asyncio.get_running_loop())

    async def count(self, queues: Sequence[str] | None = None) -> Mapping[str, Counts]:
        """As `StoreContract.count`."""
        now = self._now()
        names = list(self._model.queues) if queues is None else queues
        counts = {name: self._model.count(name, now) for name in names}
        self._wake()
        return {name: c for name, c in counts.items() if queues is not None or c != Counts()}

    async def heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """As `StoreContract.heads`."""
        now = self._now()
        found = [self._model.head(queue, now) for queue in queues]
        self._wake()
        return found

    async def look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """As `StoreContract.look`."""
        now = self._now()
        found = [self._model.look(queue, key, now) for key in keys]
        self._wake()
        return found

    async def browse(
        self,
        queue: str,
        *,
        states: Sequence[StoredState] = ("available", "scheduled", "in_flight", "buffered"),
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """As `StoreContract.browse`."""
        after = check_listing(states, prefix, cursor, limit)
        found = self._model.browse(queue, states, prefix, self._now(), after=after, limit=limit)
        self._wake()
        return page_of(found, after, limit)

    async def results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        """As `StoreContract.results`."""
        now = self._now()
        found = [self._model.result(queue, number, now) for number in ids]
        self._wake()
        return found

    async def close(self) -> None:
        """As `StoreContract.close`."""
        self._closed = True
        self._watchers.wake_all()  # Who waits asks again, and hears that it is closed.


def _changed(requests: Sequence[Put] | Sequence[Change], answers: Sequence[object]) -> set[str]:
    """The queues of those requests that were not refused: nobody need hear of the others.

    A producer that waits for room would hear of its own request, and ask again without end.
    """
    return {
        request.queue
        for request, answer in zip(requests, answers, strict=True)
        if not isinstance(answer, Exception)
    }
