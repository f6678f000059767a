"""`move`: a queue, or all queues, from one store to another, while they are in use."""

import asyncio
import os
from collections.abc import Callable, Mapping

import msgspec

from leasedkeyq import checks
from leasedkeyq.connect import connect
from leasedkeyq.model.admission import check_name
from leasedkeyq.stores.store import Store
from leasedkeyq.transfer.queue_transfer import (
    OWN_QUEUES,
    MoveProgress,
    Newer,
    QueueMove,
    QueueTransfer,
    unfinished,
)
from leasedkeyq.types import Duration


class MoveReport(msgspec.Struct, frozen=True):
    """What became of a move."""

    queues: Mapping[str, QueueMove]
    """By the name of the queue."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left in the source but results, which expire there."""
        return not any(queue.left for queue in self.queues.values())

    @property
    def verified(self) -> bool:
        """Whether every item was read back from the target and is the one of the source.

        It need not be where others work on the target meanwhile: they may have taken an item
        before it could be read back.
        """
        return all(queue.source_checksum == queue.target_checksum for queue in self.queues.values())

    @property
    def moved(self) -> int:
        """How many items were moved, in all queues and states."""
        return sum(queue.moved for queue in self.queues.values())


async def move(
    source: Store | str,
    target: Store | str,
    queue: str | None = None,
    *,
    wait: Duration | None = None,
    newer: Newer | None = None,
    batch: int = 500,
    progress: Callable[[MoveProgress], None] | None = None,
) -> MoveReport:
    """Move a queue, or all queues, from one store to another, while both are in use.

    Available items are leased in the source, put into the target, read back, and only then
    acknowledged in the source, so that none is lost and no consumer of the source works on it
    meanwhile. Scheduled items keep what is left of their delays, buried ones their errors, and
    results what is left of their lifetimes; results stay in the source, too, until they expire
    there. Items that are put into the source meanwhile are moved as well, until it is empty. Order,
    priority, kind and deadline are kept, and so is the progress of buried items and results. Ids,
    ages, attempts, history and the progress of items that wait start anew, as after a
    requeue.

    A key with a line is moved as a whole: it leaves the source when all its values are in the
    target, in their order. A buried item that holds its key is moved with its line, and holds it.

    A move that was interrupted, in whatever way, is resumed by calling it again. A second one of
    the same queue waits for the first.

    Args:
        source: A store or its URL.
        target: Another store or its URL.
        queue: Which queue. None: all of them, but for those of leasedkeyq itself.
        wait: How long to wait for items that are in flight, until their leases end, in all queues
            together. None: as long as it takes; 0: not at all, they are left and reported.
        newer: For queues of which only the newest value of a key counts: where a key that waits
            in both was put last. ``"source"``: its item updates the one in the target.
            ``"target"``: producers put into the target already, and what is there stands. None:
            every value counts, and what comes from the source goes to the end of the key's line. So
            it does where a key has a line in one of them.
        batch: How many items are moved at a time.
        progress: Called after every batch.

    Raises:
        ValueError: Both are the same store.
        LimitExceededError: The target has lower limits than an item needs. It stays in the source.
        StoreError: A store has failed. What has been moved is in the target, the rest in the
            source.
    """
    limit = checks.wait_time("wait", wait)
    checks.whole("batch", batch, 1)
    if newer not in (None, "source", "target"):
        raise ValueError(f"newer must be 'source', 'target' or None, got {newer!r}")
    opened: list[Store] = []
    try:
        stores: list[Store] = []
        for name, store in (("source", source), ("target", target)):
            if isinstance(store, str):
                store = connect(store)  # noqa: PLW2901  # from here on, it is a store
                opened.append(store)
            elif not isinstance(store, Store):
                raise TypeError(f"{name} must be a Store or a URL, got {type(store).__name__}")
            stores.append(store)
        if stores[0] is stores[1] or _same_file(*stores):
            raise ValueError("source and target are the same store")
        if queue is not None:
            check_name("queue", queue, stores[0].limits)
        return await _move(stores[0], stores[1], queue, limit, newer, batch, progress)
    finally:
        for store in opened:
            await store.close()


async def _move(  # noqa: PLR0917  # checked by the caller
    source: Store,
    target: Store,
    queue: str | None,
    wait: float | None,
    newer: Newer | None,
    batch: int,
    progress: Callable[[MoveProgress], None] | None,
) -> MoveReport:
    transfers: dict[str, QueueTransfer] = {}

    async def run(name: str, seconds: float | None) -> None:
        if name not in transfers:
            transfers[name] = QueueTransfer(
                source, target, name, newer=newer, batch=batch, progress=progress
            )
        await transfers[name].run(seconds)

    async def run_all() -> None:
        """Move all items that are not in flight, also those put while other queues were moved."""
        while True:
            left = await _left(source)
            more = [
                name for name in left if name not in transfers or left[name] > transfers[name].left
            ]
            for name in more:
                await run(name, 0.0)
            if not more:
                return

    if queue is not None:
        await run(queue, wait)
    else:
        await run_all()
        if wait != 0:
            # Items in flight are waited for at the end, in all queues together.
            loop = asyncio.get_running_loop()
            began = loop.time()
            for name in [name for name, transfer in transfers.items() if transfer.left]:
                await run(name, None if wait is None else max(0.0, wait - (loop.time() - began)))
            await run_all()
    return MoveReport({name: transfer.report() for name, transfer in transfers.items()})


async def _left(store: Store) -> dict[str, int]:
    counts = await store.count()
    return {
        name: unfinished(counts[name]) for name in sorted(counts) if not name.startswith(OWN_QUEUES)
    }


def _same_file(source: Store, target: Store) -> bool:
    paths = [getattr(store, "path", "") for store in (source, target)]
    return all(paths) and os.path.realpath(paths[0]) == os.path.realpath(paths[1])
