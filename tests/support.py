"""What several tests need."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from leasedkeyq import LeasedKeyQueue
from leasedkeyq.testing import VirtualTimeLoop
from tests.local import queue_invariants

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
    """The promises that hold between any two steps of the event loop."""
    queue_invariants.check_invariants(queue, most_timers=1000)
    if not queue.closed:
        consumers, state = queue._consumers, queue._state
        assert not (state.ready and consumers.count_for_any(1)), "an item is there, one waits"
        for key in filter(consumers.awaits, consumers.for_key):
            item = state.items.get(key)
            assert item is None or not item.available, f"somebody waits for {key}, it is there"
