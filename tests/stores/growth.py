"""What verbs cost in a queue that holds little and in one that holds much."""

from collections.abc import Awaitable, Callable
from typing import Any

from leasedkeyq.model.requests import STATES, Ack, Bury, Change, Claim, Limits, Put
from leasedkeyq.stores.store import Store

SIZES = (1000, 50_000)
LIMITS = Limits(buried=10**6)

Counted = Callable[[str, Awaitable[Any]], Awaitable[Any]]
"""Awaits a call and notes what it cost, under a name."""


async def fill(store: Store, size: int) -> None:
    """So many items that wait, are buried or done; 20 are leased and 100 scheduled."""
    later = tuple((f"later{number}", b"1") for number in range(100))
    await store.put([Put("q", later, delay=600.0)])
    for start in range(0, size, 1000):
        keys = [f"k{number}" for number in range(start, start + 1000)]
        await store.put([Put("q", tuple((key, b"1") for key in keys))])
        [items] = await store.claim([Claim((("q", 600),), 600)])
        changes: list[Change] = [Bury("q", item.key, item.token) for item in items[:300]]
        changes += [Ack("q", item.key, item.token, b"1", 600.0) for item in items[300:]]
        await store.settle(changes)
    await store.claim([Claim((("q", 20),), 20)])


async def verbs(store: Store, counted: Counted) -> None:
    """Each verb of a queue and of its store, once it was called before."""
    queue = store.queue("q")
    for rehearsed in (False, True):
        note: Counted = counted if rehearsed else _unnoted
        await note("put", queue.put("new", 1, priority=1))
        lease = (await note("get", queue.get()))[2]
        await note("extend", queue.extend(lease, 60))
        await note("inflight_keys", queue.inflight_keys())
        await note("scheduled_keys", queue.scheduled_keys())
        await note("release", queue.release(lease, delay=600))
        await note("remove", queue.remove("new"))
        _, _, lease = await queue.get()
        buried = await note("bury", queue.bury(lease))
        await note("requeue", queue.requeue(buried))
        lease = (await note("take", queue.take(buried.key)))[2]
        await note("ack", queue.ack(lease))
        for state in STATES:
            await note(f"browse {state}", store.browse("q", states=(state,), limit=50))
        await note("count", store.count(["q"]))
        await note("heads", store.heads(["q"]))
        await note("look", store.look("q", ["k999", "later1"]))
        await note("sweep", store.sweep(["q"]))
    await queue.close()


async def _unnoted(_: str, call: Awaitable[Any]) -> Any:
    return await call


def grown(few: dict[str, int], much: dict[str, int], more: float = 1.5) -> dict[str, Any]:
    """What costs more in the queue that holds much."""
    assert few.keys() == much.keys()
    return {name: (few[name], much[name]) for name in few if much[name] > more * few[name] + 50}
