"""The rounds of the kill tests must find what goes wrong in a store."""

import asyncio
import signal
from collections.abc import Collection

from leasedkeyq.model.requests import Cancel
from tests.engines.kill_facts import QUEUE, PutDone
from tests.engines.kill_judge import LOST
from tests.engines.kill_rounds import WAITING, Arena, browse


async def take_one_of(arena: Arena, ids: Collection[str]) -> str | None:
    """Take an item away as if the store had lost it, if it still has one of these."""
    store = arena.open()
    found = [item for item in await browse(store, WAITING) if str(item.id) in ids]
    if found:
        assert await store.settle([Cancel(QUEUE, found[0].key)])
    await store.close()
    return str(found[0].id) if found else None


def test_a_value_that_is_lost_is_missed() -> None:
    with Arena("sqlite-full") as arena:
        taken: str | None = None
        put: set[str] = set()
        while taken is None:
            doomed = arena.start("requests", point="after COMMIT", count=20, signal=signal.SIGKILL)
            arena.dies(doomed)
            put |= {fact.item for fact in doomed.facts() if isinstance(fact, PutDone)}
            taken = asyncio.run(take_one_of(arena, put))
        arena.judge()
    assert {complaint.wrong for complaint in arena.complaints} == {LOST}
    assert any(f"item {taken}," in complaint.words for complaint in arena.complaints)
