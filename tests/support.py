"""What several tests need."""

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, TypeVar, cast

from leasedkeyq import LeasedKeyQueue
from leasedkeyq.items import Item
from leasedkeyq.testing import VirtualTimeLoop

T = TypeVar("T")


async def steps(count: int = 5) -> None:
    """Let every task that can run do so, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def started(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that has come as far as it can."""
    task = asyncio.create_task(coroutine)
    await steps()
    return task


async def keys(queue: LeasedKeyQueue[Any, Any]) -> list[Any]:
    """The available keys in the order in which they would be handed out."""
    return [item.key for item in await queue.snapshot() if item.state == "available"]


def virtual_loop() -> VirtualTimeLoop:
    """The loop that the test runs in."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


def waiters(queue: LeasedKeyQueue[Any, Any]) -> int:
    """How many tasks wait for something of the queue."""
    return len(list(queue._consumers)) + len(queue._producers.line) + len(queue._joiners)


def check_invariants(queue: LeasedKeyQueue[Any, Any]) -> None:
    """The promises that hold between any two steps."""
    state = queue._state
    available = list(state.ready)
    assert len({item.key for item in available}) == len(available) == len(state.ready)
    for item in available:
        assert state.items[item.key] is item
        assert item.lease is None
        assert item.timer is None
    for line in [state.ready.normal, *state.ready.others.values()]:
        nodes = list(line)
        assert len(nodes) == len(line)
        positions = [cast("Item[Any, Any]", node).position for node in nodes]
        assert positions == sorted(positions)
        chain = [line.head, *nodes, line.tail]
        for left, right in pairwise(chain):
            assert left.next is right
            assert right.prev is left
    assert all(state.ready.others.values())
    fences = set[int]()
    for key, item in state.in_flight.items():
        assert state.items[key] is item
        assert item.next is None
        assert item.lease.key == key
        assert item.lease._ended is None
        fences.add(item.lease.fence)
    assert len(fences) == len(state.in_flight)
    scheduled = [i for i in state.items.values() if i.lease is None and i.next is None]
    assert len(scheduled) == state.scheduled
    timed = [item for item in state.items.values() if item.timer is not None]
    assert all(item in timed for item in scheduled)
    live = [entry for entry in state.timers.heap if entry[2].timer is entry]
    assert len(live) == state.timers.live == len(timed)
    assert len(state.timers.heap) <= 2 * state.timers.live + 64 + 1
    assert sum(item.buffered is not None for item in state.items.values()) == state.buffered
    assert len(state.items) == len(available) + len(state.in_flight) + len(scheduled)
    if not queue.closed and any(not turn.done() for turn in queue._consumers.for_any):
        assert not available, "somebody waits for any item while one is available"
    for key in queue._consumers.for_key:
        if not queue.closed and queue._consumers.awaits(key):
            wanted = state.items.get(key)
            assert wanted is None or wanted.next is None, f"somebody waits for {key}, it is there"
