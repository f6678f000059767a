"""`export_store`: all items of a store, as the lines of a backup."""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from leasedkeyq import __version__
from leasedkeyq.model.requests import Counts, StoredItem, StoredState
from leasedkeyq.stores.store import LIVE_STATES, Store
from leasedkeyq.transfer.backup_format import BackupHeader, BackupWriter, item_of

OWN_QUEUES: Final = "leasedkeyq."
SCHEDULES: Final = "leasedkeyq.schedules"
WORKERS: Final = "leasedkeyq.lanes"
PAUSED: Final = "paused:"
"""Of the queues of leasedkeyq itself, a backup has the schedules, and which lanes are paused."""
ON_ITS_WAY: Final = ("leasedkeyq.moving", "leasedkeyq.importing")
"""The kinds of what an interrupted move or import has left behind."""
MOST_ITEMS: Final = 500
MOST_BYTES: Final = 8 * 1024 * 1024
"""A page has so many items, and fewer if the page before had more bytes."""

# Buried items and results can only be put back while their keys are free; what holds its key goes
# before its line.
_PARTS: Final[tuple[tuple[tuple[StoredState, ...], bool | None], ...]] = (
    (("done",), None),
    (("buried",), False),
    (("buried",), True),
    (LIVE_STATES, None),
)


async def export_store(
    store: Store,
    write: Callable[[bytes], object],
    *,
    queues: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Write all items of a store as a backup; returns how many there were.

    It takes a bounded amount of memory, however many items there are. Nothing is changed, and
    nobody has to wait. Items that are put, taken or settled meanwhile may be missed, or be there
    as they were before; for a backup of one moment, stop the programs that use the store.

    Args:
        store: The store.
        write: Is given the lines, one at a time.
        queues: Which queues; None: all, with the schedules and the lanes that are paused.
        progress: Called with the items that were written, and with those that there were at the
            beginning.
        clock: Unix time, for what is left of delays.
    """
    counts = await store.count(queues)
    names = sorted(name for name in counts if queues is not None or _is_kept(name))
    total = sum(_all_of(counts[name]) for name in names)
    writer = BackupWriter()
    write(
        writer.header(
            BackupHeader(
                id=secrets.token_hex(8),
                made_at=clock(),
                library=__version__,
                store=store.name,
                expected=total,
            )
        )
    )
    for name in names:
        prefix = PAUSED if name == WORKERS else ""
        for states, holds in _PARTS:
            async for items in _pages(store, name, states, prefix):
                now = clock()
                for item in items:
                    if item.kind not in ON_ITS_WAY and (holds is None or item.holds is holds):
                        write(writer.item(item_of(item, now)))
                if progress is not None:
                    progress(writer.items, total)
    write(writer.trailer())
    return writer.items


def _is_kept(queue: str) -> bool:
    return not queue.startswith(OWN_QUEUES) or queue in (SCHEDULES, WORKERS)


async def _pages(
    store: Store, queue: str, states: Sequence[StoredState], prefix: str
) -> AsyncIterator[tuple[StoredItem, ...]]:
    cursor: str | None = None
    # How large values are is not known yet: each may be as large as the store takes.
    limit = max(1, min(MOST_ITEMS, MOST_BYTES // store.limits.value_size))
    while True:
        page = await store.browse(queue, states=states, prefix=prefix, cursor=cursor, limit=limit)
        if page.items:
            yield page.items
        cursor = page.cursor
        if cursor is None:
            return
        average = sum(len(item.value) for item in page.items) / len(page.items)
        limit = max(1, min(MOST_ITEMS, int(MOST_BYTES / max(average, 1))))


def _all_of(counts: Counts) -> int:
    waiting = counts.available + counts.scheduled + counts.held
    return waiting + counts.in_flight + counts.buried + counts.done
