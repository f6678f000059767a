"""Managers for tests: in memory, and on a store, on the virtual clock."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import QueueManagerBuilder
from leasedkeyq.model.requests import Change, Claim

EPOCH = 1_800_000_000.0

Build = Callable[[], QueueManagerBuilder]


def clock() -> float:
    """Unix time that goes with the virtual time of the event loop."""
    return EPOCH + asyncio.get_running_loop().time()


def now() -> float:
    return asyncio.get_running_loop().time()


def is_of_commands(requests: Sequence[Claim | Change]) -> bool:
    """Whether requests are about commands, and not about what workers tell of themselves."""
    return not any(
        queue.startswith("leasedkeyq.")
        for request in requests
        for queue in (
            [name for name, _ in request.queues] if isinstance(request, Claim) else [request.queue]
        )
    )


async def nothing() -> None:
    return None


def in_memory() -> QueueManagerBuilder:
    return QueueManagerBuilder(clock=clock)


def on_a_store() -> QueueManagerBuilder:
    return QueueManagerBuilder(clock=clock).with_storage(MemoryStore(clock=clock))


everywhere = pytest.mark.parametrize("build", [in_memory, on_a_store])


class Work:
    """A command for managers in memory: it does what it is told."""

    command_type = "work"

    def __init__(self, execute: Callable[[], Any]) -> None:
        self.execute = execute
