"""Many claimers on one queue: each key has a chain of values, to be handed out in order, once."""

import asyncio
from collections.abc import Sequence

from leasedkeyq.model.requests import Ack, Claim, Put, Refusal
from leasedkeyq.stores import Store

LEASE = 600.0


async def run_claimers(stores: Sequence[Store], *, claimers: int, keys: int, values: int) -> None:
    """Work on `keys` keys until each of them has seen its `values` values.

    Who has leased a value puts the next one beside it, and then acknowledges.
    """
    names = [f"key{number}" for number in range(keys)]
    await stores[0].put([Put("q", tuple((name, b"0") for name in names))])
    held: set[str] = set()
    seen: dict[str, list[int]] = {name: [] for name in names}
    fences: set[int] = set()
    left = keys * values

    async def claim_all(store: Store) -> None:
        nonlocal left
        woken = asyncio.Event()
        stop = store.watch("q", woken.set)
        try:
            while left:
                [items] = await store.claim([Claim((("q", 3),), 3, None, LEASE)])
                if not items:
                    await asyncio.wait_for(woken.wait(), 60)
                    woken.clear()
                for item in items:
                    assert item.key not in held, "a key was held twice"
                    assert item.fence not in fences, "a fence came twice"
                    held.add(item.key)
                    fences.add(item.fence)
                puts: list[Put] = []
                for item in items:
                    number = int(item.value)
                    seen[item.key].append(number)
                    if number + 1 < values:
                        puts.append(Put("q", ((item.key, b"%d" % (number + 1)),), "buffer"))
                for answer in await store.put(puts):
                    assert isinstance(answer, tuple)
                held.difference_update(item.key for item in items)
                acks = [Ack("q", item.key, item.token) for item in items]
                for settled in await store.settle(acks):
                    assert not isinstance(settled, Refusal), "a valid lease was refused"
                left -= len(items)
        finally:
            stop()

    tasks = [
        asyncio.create_task(claim_all(stores[number % len(stores)])) for number in range(claimers)
    ]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    # When nothing is left, nobody comes to wake those who wait.
    for task in pending:
        task.cancel()
    assert all(order == list(range(values)) for order in seen.values()), "an order was not kept"
    assert await stores[0].count() == {}
    for store in stores:
        await store.close()
