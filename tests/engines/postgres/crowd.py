"""Many who claim from one queue at a time, from several stores on one server."""

import asyncio
from collections import Counter
from typing import Any

from leasedkeyq import connect
from leasedkeyq.stores import Ack, Claim, Put, Store


async def work_together(
    url: str, schema: str, *, stores: int, claimers: int, keys: int, rounds: int
) -> None:
    """Each key has so many jobs, one after the other: who has done one puts the next, and acks.

    No job is lost or done twice, no key is held twice, and each key's jobs are done in order.
    """
    opened: list[Store] = [connect(url, schema=schema) for _ in range(stores)]
    done: Counter[str] = Counter()
    held: set[str] = set()
    fences: dict[str, int] = {}
    first = Put("q", tuple((f"k{number}", b"0") for number in range(keys)))
    await opened[0].put([first])

    async def work(store: Store) -> None:
        while sum(left.values()):
            [claimed] = await store.claim([Claim((("q", 3),), 3, None, 600.0)])
            for item in claimed:
                key = item.key
                assert key not in held, f"{key} is held twice"
                held.add(key)
                assert item.fence > fences.get(key, 0), "a fence did not grow"
                fences[key] = item.fence
                assert int(item.value) == done[key], f"{key} is out of order"
                done[key] += 1
                left[key] -= 1
                if left[key]:
                    follower = Put("q", ((key, b"%d" % done[key]),), "buffer")
                    [answer] = await store.put([follower])
                    assert isinstance(answer, tuple)
                held.discard(key)
                assert await store.settle([Ack("q", key, item.token)]) == [None]
            if not claimed:
                await asyncio.sleep(0.001)

    left: dict[str, Any] = dict.fromkeys((f"k{number}" for number in range(keys)), rounds)
    await asyncio.gather(*(work(opened[number % stores]) for number in range(claimers)))
    assert set(done.values()) == {rounds}
    assert len(done) == keys
    assert await opened[0].count() == {}
    for store in opened:
        await store.close()
