"""`TopPoller`: asks the store what `top` shows, a few times a second at most."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from leasedkeyq.cli.top.state import FailureRow, LaneRow, RunningRow, TopState
from leasedkeyq.errors import LeasedKeyQError, StoreClosedError
from leasedkeyq.lanes.running.command_id import parse_command_id
from leasedkeyq.lanes.running.progress import decode_progress
from leasedkeyq.model.requests import StoredItem
from leasedkeyq.operations.live.feed import Feed
from leasedkeyq.operations.live.series import SeriesReader
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import FeedEvent, QueueView

EVERY = 1.0
"""Seconds between two looks at the queues."""
WORKERS_EVERY = 5.0
SERIES_EVERY = 20.0
STEP = 10.0
"""Seconds of a step of the course of a rate."""
STEPS = 30
RATE_OVER = 10.0
"""Seconds over which a rate is taken."""
MOST_QUEUES = 8
"""Queues whose leased items are read in one look."""
MOST_ITEMS = 40
"""Leased items that are read of each."""
OLD_FAILURES = 5
"""Dead letters of each queue that are shown at the start."""


class TopPoller:
    """Fills a `TopState` from a store.

    Args:
        operator: Looks at the store.
        state: What is filled.
        changed: Called when something has changed.
        clock: Unix time.
    """

    def __init__(
        self,
        operator: Operator,
        state: TopState,
        changed: Callable[[], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._operator = operator
        self._state = state
        self._changed = changed
        self._clock = clock
        self._series = SeriesReader(operator.store, clock=clock)
        self._feed = Feed(operator.store)
        self._counts: dict[str, deque[tuple[float, int, int]]] = {}
        """By lane: when it was counted, by the loop, and how many were done and failed."""
        self._courses: dict[str, deque[float]] = {}
        self._step_began = 0.0
        self._step_counts: dict[str, int] = {}
        self._capacity: dict[str, int] = {}
        self._alive = 0
        self._lanes: set[str] = set()
        self._workers_at = self._series_at = float("-inf")
        self._old_failures = False

    @property
    def series(self) -> SeriesReader:
        """The minute values of the lanes."""
        return self._series

    async def run(self) -> None:
        """Look again and again. While the store cannot be reached, that is said.

        Raises:
            StoreClosedError: The store was closed.
        """
        while True:
            try:
                async with self._new_feed():
                    await self._look_on()
            except StoreClosedError:
                raise
            except LeasedKeyQError as error:
                self._trouble(error)
            await asyncio.sleep(EVERY)

    @asynccontextmanager
    async def _new_feed(self) -> AsyncGenerator[None]:
        """Listen to failures, and to how much workers do."""
        self._counts.clear()
        async with Feed(
            self._operator.store, outcomes=("failed", "retry"), totals=True, clock=self._clock
        ) as self._feed:
            listener = asyncio.create_task(self._listen(self._feed))
            try:
                yield
            finally:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    def _trouble(self, error: BaseException) -> None:
        self._state.trouble = f"the store cannot be read: {error}"
        self._changed()

    async def _listen(self, feed: Feed) -> None:
        async for event in feed:
            if event.outcome in ("failed", "retry"):
                self._state.add_failure(_failure(event))
                self._changed()

    async def _look_on(self) -> None:
        while True:
            try:
                await self.look()
            except StoreClosedError:
                raise
            except LeasedKeyQError as error:
                self._trouble(error)
            else:
                self._state.trouble = ""
                self._state.loaded = True
            self._state.now = self._clock()
            self._changed()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Look at the store once."""
        now = asyncio.get_running_loop().time()
        if now - self._series_at >= SERIES_EVERY:
            self._series_at = now
            await self._series.refresh()
        if now - self._workers_at >= WORKERS_EVERY:
            self._workers_at = now
            await self._look_at_workers()
        views = await self._operator.queues()
        self._count(now)
        self._state.lanes = self._rows(views)
        self._state.workers = max(self._feed.workers, self._alive)
        await self._look_at_running(views)
        if not self._old_failures:
            self._old_failures = True
            await self._look_at_failures(views)

    async def _look_at_workers(self) -> None:
        capacity: dict[str, int] = {}
        workers = [worker for worker in await self._operator.workers() if worker.alive]
        self._alive = len(workers)
        for worker in workers:
            for lane in worker.lanes:
                capacity[lane.lane] = capacity.get(lane.lane, 0) + lane.max_concurrency
        self._capacity = capacity
        self._lanes |= capacity.keys()

    def _count(self, now: float) -> None:
        """Take how much the workers have done."""
        self._lanes |= self._feed.counts.keys()
        for lane, count in self._feed.counts.items():
            counts = self._counts.setdefault(lane, deque())
            counts.append((now, count.completed, count.failed))
            while len(counts) > 2 and counts[1][0] <= now - RATE_OVER:  # noqa: PLR2004
                counts.popleft()
        if not self._step_began:
            self._step_began = now
            self._step_counts = {lane: one.completed for lane, one in self._feed.counts.items()}
        elif now - self._step_began >= STEP:
            for lane, count in self._feed.counts.items():
                done = count.completed - self._step_counts.get(lane, 0)
                course = self._course(lane)
                course.append(max(0, done) / (now - self._step_began))
                self._step_counts[lane] = count.completed
            self._step_began = now

    def _course(self, lane: str) -> deque[float]:
        """The course of the rate of a lane; at first what the minutes before tell."""
        course = self._courses.get(lane)
        if course is None:
            course = self._courses[lane] = deque(maxlen=STEPS)
            past = self._series.lane(lane, since=self._clock() - STEPS * STEP).completed
            for done in past[:-1]:  # the last minute is not over
                course.extend([done / 60] * round(60 / STEP))
        return course

    def _rates(self, lane: str) -> tuple[float | None, float | None]:
        counts = self._counts.get(lane)
        if not counts or len(counts) < 2:  # noqa: PLR2004
            return (None, None) if lane not in self._lanes else (0.0, 0.0)
        (began, done, failed), (ended, done_now, failed_now) = counts[0], counts[-1]
        seconds = max(0.001, ended - began)
        return (done_now - done) / seconds, (failed_now - failed) / seconds

    def _rows(self, views: list[QueueView]) -> list[LaneRow]:
        rows: dict[str, list[QueueView]] = {lane: [] for lane in self._lanes}
        for view in views:
            rows.setdefault(view.lane or view.name, []).append(view)
        found: list[LaneRow] = []
        for name, parts in rows.items():
            lane = name in self._lanes or any(part.lane for part in parts)
            rate, failed = self._rates(name) if lane else (None, None)
            history: tuple[float, ...] = ()
            if lane:
                history = (*self._course(name), *([rate] if rate is not None else []))
            found.append(
                LaneRow(
                    name=name,
                    is_lane=lane,
                    waiting=sum(part.available for part in parts),
                    scheduled=sum(part.scheduled for part in parts),
                    in_flight=sum(part.in_flight for part in parts),
                    dead=sum(part.buried for part in parts),
                    capacity=self._capacity.get(name),
                    rate=rate,
                    failed_rate=failed,
                    history=history,
                    oldest=max(
                        (part.oldest for part in parts if part.oldest is not None), default=None
                    ),
                    paused=any(part.paused for part in parts),
                )
            )
        return found

    async def _look_at_running(self, views: list[QueueView]) -> None:
        busy = sorted((view for view in views if view.in_flight), key=lambda view: view.in_flight)
        now = self._clock()
        rows: list[RunningRow] = []
        for view in busy[:MOST_QUEUES]:
            page = await self._operator.store.browse(
                view.name, states=("in_flight",), limit=MOST_ITEMS
            )
            rows += [_running(item, view.lane or view.name, now) for item in page.items]
        rows.sort(key=lambda row: -(row.since or 0.0))
        self._state.running = rows

    async def _look_at_failures(self, views: list[QueueView]) -> None:
        """The newest dead letters, so that the list is not empty at first."""
        found: list[FailureRow] = []
        for view in [view for view in views if view.buried][:MOST_QUEUES]:
            page = await self._operator.store.browse(
                view.name, states=("buried",), newest_first=True, limit=OLD_FAILURES
            )
            for item in page.items:
                at = item.history[-1].ended_at if item.history else item.put_at
                error = item.error.partition("\n")[0]
                found.append(
                    FailureRow(
                        at=at,
                        outcome="failed",
                        lane=view.lane or view.name,
                        key=item.key,
                        kind=item.kind,
                        error=error,
                        queue=item.queue,
                        id=item.id,
                        attempt=item.attempt,
                    )
                )
        for failure in sorted(found, key=lambda one: one.at):
            self._state.add_failure(failure)
        self._state.failures.sort(key=lambda one: -one.at)


def _running(item: StoredItem, lane: str, now: float) -> RunningRow:
    progress = decode_progress(item.progress)
    return RunningRow(
        queue=item.queue,
        lane=lane,
        id=item.id,
        key=item.key,
        kind=item.kind,
        attempt=item.attempt,
        since=None if item.leased_at is None else max(0.0, now - item.leased_at),
        fraction=None if progress is None else progress.fraction,
        text="" if progress is None else progress.text,
        holder=item.holder,
    )


def _failure(event: FeedEvent) -> FailureRow:
    queue, number = event.queue, event.id
    if event.command_id:
        try:
            name = parse_command_id(event.command_id)
        except LeasedKeyQError:
            pass
        else:
            queue, number = name.queue, name.number
    return FailureRow(
        at=event.at,
        outcome=event.outcome,
        lane=event.lane or event.queue,
        key=event.key,
        kind=event.kind,
        error=event.error.partition("\n")[0],
        queue=queue,
        id=number,
        attempt=event.attempt,
    )
