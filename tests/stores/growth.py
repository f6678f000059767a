"""What verbs cost in a queue that holds little and in one that holds much."""

from collections.abc import Awaitable, Callable
from typing import Any

from leasedkeyq.model.requests import (
    STATES,
    Ack,
    Amend,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Discard,
    Limits,
    Placed,
    Put,
    Release,
    Requeue,
    StoredState,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.types import PutPolicy

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
        [[new]] = await store.look("q", ["new"])
        amend = Amend("q", "new", new.id, b"2", 1 - new.priority, 60.0)
        await note("amend", store.settle([amend]))
        await note("remove", queue.remove("new"))
        _, _, lease = await queue.get()
        buried = await note("bury", queue.bury(lease))
        await note("requeue", queue.requeue(buried))
        lease = (await note("take", queue.take(buried.key)))[2]
        await note("ack", queue.ack(lease))
        for state in STATES:
            await note(f"browse {state}", store.browse("q", states=(state,), limit=50))
            down = store.browse("q", states=(state,), limit=50, newest_first=True)
            await note(f"browse {state}, newest first", down)
        await note("count", store.count(["q"]))
        await note("heads", store.heads(["q"]))
        await note("look", store.look("q", ["k999", "later1"]))
        await note("sweep", store.sweep(["q"]))
    await queue.close()


LENGTHS = (20, 100_000)
"""How many values wait behind one key."""
LINES = (200, 4000)
"""How many keys have a line."""


async def fill_line(store: Store, length: int) -> None:
    """One key with so many values behind its head."""
    for start in range(0, length + 1, 10_000):
        count = min(10_000, length + 1 - start)
        await store.put([Put("q", (("long", b"1"),) * count, "append")])


async def fill_lines(store: Store, lines: int) -> None:
    """The key "long" with a few values, and so many other keys with ten values each."""
    await fill_line(store, 20)
    for start in range(0, lines, 1000):
        keys = [f"k{number}" for number in range(start, min(start + 1000, lines))]
        await store.put([Put("q", tuple((key, b"1") for key in keys) * 10, "append")])


async def line_verbs(store: Store, counted: Counted) -> None:
    """What is done with the key "long" and its line, once it was done before."""
    for rehearsed in (False, True):
        note: Counted = counted if rehearsed else _unnoted
        last = (await _put(store, note, "append", "append")).id
        await _put(store, note, "update", "update")
        await _put(store, note, "skip", "skip")
        await note("refused", store.put([Put("q", (("long", b"1"),), "only_new")]))
        head, item = await _leased(store, note)
        await note("release", store.settle([Release("q", "long", item.token, front=True)]))
        head, item = await _leased(store)
        await note("undo", store.settle([Release("q", "long", item.token, undo=True)]))
        head, item = await _leased(store)
        await note("ack", store.settle([Ack("q", "long", item.token, b"1", 60.0)]))
        head, item = await _leased(store)
        await note("bury", store.settle([Bury("q", "long", item.token, hold=True)]))
        await note("requeue", store.settle([Requeue("q", head)]))
        head, item = await _leased(store)
        await store.settle([Bury("q", "long", item.token, hold=True)])
        await note("put on a held key", store.put([Put("q", (("long", b"1"),), "append")]))
        await note("discard", store.settle([Discard("q", head)]))
        middle = str(last - (last - head) // 2)
        await note("line", store.line("q", "long", limit=10))
        await note("line from the middle", store.line("q", "long", cursor=middle, limit=10))
        await note("line at its end", store.line("q", "long", cursor=str(last - 1), limit=10))
        await note("look", store.look("q", ["long"]))
        states: tuple[StoredState, ...] = ("available", "in_flight", "in_line")
        for state in states:
            await note(f"browse {state}", store.browse("q", states=(state,), limit=10))
        down = store.browse("q", states=("in_line",), limit=10, newest_first=True)
        await note("browse in_line, newest first", down)
        await note("browse", store.browse("q", cursor=middle, limit=10))
        await note("count", store.count(["q"]))
        await note("heads", store.heads(["q"]))
        await note("sweep", store.sweep(["q"]))
        amend = Amend("q", "long", last, b"2", 7, 60.0)
        await note("amend the last", store.settle([amend]))
        await note("cancel the last", store.settle([Cancel("q", "long", id=last)]))
        await note("cancel none", store.settle([Cancel("q", "long", id=last)]))
        [[head_item, *_]] = await store.look("q", ["long"])
        await note("cancel the head", store.settle([Cancel("q", "long", id=head_item.id)]))


async def _put(store: Store, note: Counted, name: str, policy: PutPolicy) -> Placed:
    [answer] = await note(name, store.put([Put("q", (("long", b"1"),), policy)]))
    placed: Placed = answer[0]
    return placed


async def _leased(store: Store, note: Counted | None = None) -> tuple[int, Claimed]:
    """The head of the key, leased."""
    claim = store.claim([Claim((("q", 1),), 1, "long", 60.0)])
    [[item]] = await (note or _unnoted)("claim", claim)
    return item.id, item


async def _unnoted(_: str, call: Awaitable[Any]) -> Any:
    return await call


def grown(few: dict[str, int], much: dict[str, int], more: float = 1.5) -> dict[str, Any]:
    """What costs more in the queue that holds much."""
    assert few.keys() == much.keys()
    return {name: (few[name], much[name]) for name in few if much[name] > more * few[name] + 50}
