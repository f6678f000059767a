"""Commands of types that a worker does not know: they wait, and the log should say so."""

import asyncio
import logging
from asyncio import Task
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.durable.envelope import PARKED
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

BETWEEN = 1.0
"""Seconds between two looks."""
MOST = 1000
"""Types that are told of."""


class UnknownTypes:
    """Warns of each type of command that this worker does not know, when one is next in its lane.

    A worker claims only commands of the types that it knows, so that others can run the rest. If
    nobody does, they wait, and those of a lane are behind them all the time. So whenever a claim
    has found nothing, the worker looks at the next command of each lane, at most once a second.

    Args:
        store: Where the commands are.
        lanes: The lanes of this worker.
        registry: The types that it knows.
        spawn: Begins a task of the engine.
    """

    def __init__(
        self,
        store: Store,
        lanes: Mapping[str, Lane],
        registry: CommandRegistry,
        spawn: Callable[[Coroutine[Any, Any, None], str], Task[None]],
    ) -> None:
        self._spawn = spawn
        self._store = store
        self._lanes = lanes
        self._registry = registry
        self._told: set[str] = set()
        self._task: Task[None] | None = None
        self._last = -inf

    def look(self) -> None:
        """Look soon, unless that is about to happen."""
        if self._task is None or self._task.done():
            self._task = self._spawn(self._look(), "unknown types")

    def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._last + BETWEEN - loop.time()))
        self._last = loop.time()
        partitions = [
            partition
            for lane in self._lanes.values()
            for partition in lane.partitions
            if partition.owned
        ]
        try:
            heads = await self._store.heads([partition.queue for partition in partitions])
        except LeasedKeyQError:
            return  # the claims say what is wrong with the store
        except Exception:
            logger.exception("the next commands could not be looked at")
            return
        for partition, head in zip(partitions, heads, strict=True):
            if head is None or head.kind in {*self._registry.types, *self._told, PARKED}:
                continue
            if len(self._told) == MOST:
                return
            self._told.add(head.kind)
            known = ", ".join(sorted(self._registry.types)) or "none"
            logger.warning(
                "lane %r: commands of type %r wait, which this worker does not know, so that it "
                "leaves them to others; it knows: %s",
                partition.lane.id,
                head.kind,
                known,
                extra={"lane": partition.lane.id, "command_type": head.kind},
            )
