"""`LeaseGuard`: renews the leases of an engine while its event loop is blocked.

The heartbeat renews them in the event loop, and the guard does nothing, as long as that goes on. If
the loop is blocked and a renewal is overdue, the guard renews all leases itself: by the same batch,
in the thread of the `LoopWatch`, with an event loop and connections of its own there, which it lets
go when the blocked loop goes on.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from math import inf
from typing import Any, TypeVar

from leasedkeyq.errors import StoreClosedError
from leasedkeyq.lanes.durable.heartbeat import Heartbeat, extensions
from leasedkeyq.lanes.durable.outbox import FIRST_PAUSE, LONGEST_PAUSE, report
from leasedkeyq.lanes.running.execution.loop_watch import NOTICE, TICK, log_apart
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.model.requests import Extend, Refusal
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

T = TypeVar("T")

SHORTEST_NOTICE = 1.0
"""Seconds for which an event loop may be blocked without a word, however short its leases are."""
SHORTEST_TICK = 0.01
OVERDUE = 1 / 4
"""After which part of the time between a renewal that is due and the end of the lease the guard
renews. The rest is for tries that fail."""
TRIP = 5.0
"""Seconds for one try to renew, at most."""


class LeaseGuard:
    """Keeps the leases of an engine; a `LeaseKeeper`.

    Args:
        store: Where the leases are.
        lanes: The lanes, with the times of their leases.
        held: Every job that is leased, by the token of its lease.
        heartbeat: Renews the leases as long as the event loop goes on.
        membership: Says how to renew the lease by which this worker has partitions, if it has any.
        is_late: Says whether the worker should have told by now that it lives.
        errand: Says what else to do now that the event loop is blocked, if anything.
        clock: The clock of the heartbeat, for tests.
    """

    def __init__(
        self,
        store: Store,
        lanes: Mapping[str, Lane],
        held: Mapping[str, Job],
        heartbeat: Heartbeat,
        membership: Callable[[], Extend | None],
        *,
        is_late: Callable[[], bool] = lambda: False,
        errand: Callable[[], Coroutine[Any, Any, None] | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._held = held
        self._heartbeat = heartbeat
        self._membership = membership
        self._is_late = is_late
        self._errand = errand
        self._clock = clock
        self._runner: asyncio.Runner | None = None
        self._renewed_at = self._try_at = -inf
        self._pause = FIRST_PAUSE
        self._refused: set[str] = set()
        """Tokens of leases that have ended, while the event loop does not know it."""
        self._told = False
        """Whether the log says already that leases are renewed here, or cannot be."""

    @property
    def tick(self) -> float:
        """As `LeaseKeeper.tick`."""
        return max(SHORTEST_TICK, min(TICK, self._margin() / 8))

    @property
    def notice(self) -> float:
        """As `LeaseKeeper.notice`."""
        return max(SHORTEST_NOTICE, min(NOTICE, self._lease_time() / 3))

    def _lease_time(self) -> float:
        return min((lane.lease_time for lane in list(self._lanes.values())), default=30.0)

    def _interval(self) -> float:
        return min((lane.heartbeat for lane in list(self._lanes.values())), default=10.0)

    def _margin(self) -> float:
        """Seconds between a renewal that is due and the end of the shortest lease."""
        return max(0.0, self._lease_time() - self._interval())

    def overdue(self) -> float:
        """Seconds since the first lease may have run out without a renewal; below 0: none has."""
        if not self._held:
            return -inf
        renewed_at = max(self._renewed_at, self._heartbeat.renewed_at)
        return self._clock() - renewed_at - self._lease_time()

    def is_needed(self) -> bool:
        """As `LeaseKeeper.is_needed`."""
        return bool(self._held) or self._membership() is not None or self._is_late()

    def keep(self) -> None:
        """As `LeaseKeeper.keep`."""
        self._renew_if_due()
        if self._store.capabilities.extends_apart and (work := self._errand()) is not None:
            try:
                self._run(work)
            except Exception as error:  # leases are more important, and said to fail above
                logger.debug("nothing was told while the event loop is blocked: %s", error)

    def _renew_if_due(self) -> None:
        now = self._clock()
        renewed_at = max(self._renewed_at, self._heartbeat.renewed_at)
        if now < max(self._try_at, renewed_at + self._interval() + OVERDUE * self._margin()):
            return
        # The blocked loop may go on at any moment, and change what is held: so it is copied.
        held = [(job, job.lease) for job in list(self._held.values())]
        batch = extensions(held)
        if (membership := self._membership()) is not None:
            batch.append(membership)
        batch = [each for each in batch if each.token not in self._refused]
        if not batch:
            return
        if not self._store.capabilities.extends_apart:
            self._cannot(len(batch))
            return
        try:
            answers = self._run(self._store.extend_apart(batch))
        except StoreClosedError:
            self._try_at = inf  # the engine says so, and ends
        except Exception as error:
            what = f"{len(batch)} leases could not be renewed while the event loop is blocked"
            log_apart(partial(report, what, error))
            # No longer than the leases allow, and else not four lines in the log each second.
            self._pause = min(2 * self._pause, LONGEST_PAUSE, OVERDUE * self._margin())
            self._try_at = self._clock() + self._pause
        else:
            self._renewed_at = now
            self._pause = FIRST_PAUSE
            # Some may be settled by now: then the event loop knows. The heartbeat finds the others.
            self._refused.update(
                each.token
                for each, answer in zip(batch, answers, strict=True)
                if isinstance(answer, Refusal)
            )
            if not self._told:
                self._told = True
                text = "%d leases are renewed by another thread while the event loop is blocked"
                log_apart(partial(logger.info, text, len(batch)))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in this thread, within the time of a trip to the store."""
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def within() -> T:
            try:
                async with asyncio.timeout(TRIP):
                    return await work
            except TimeoutError:
                raise TimeoutError(f"the store did not answer within {TRIP:g} s") from None

        return self._runner.run(within())

    def _cannot(self, number: int) -> None:
        if not self._told:
            self._told = True
            log_apart(
                partial(
                    logger.warning,
                    "%d leases are not renewed while the event loop is blocked, and their commands "
                    "may be run a second time: %s cannot renew them from another thread "
                    "(capabilities.extends_apart)",
                    number,
                    type(self._store).__name__,
                )
            )

    def let_go(self) -> None:
        """As `LeaseKeeper.let_go`."""
        self._refused.clear()
        self._try_at = -inf
        self._pause = FIRST_PAUSE
        if self._store.capabilities.extends_apart:
            self._told = False
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
