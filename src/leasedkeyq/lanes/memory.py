"""The engine in memory: a `QueueState` for each partition of a lane, and no detours."""

import secrets
import time
from asyncio import Future, TimerHandle
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Any

import msgspec

from leasedkeyq.errors import KeyAlreadyInFlightError, describe
from leasedkeyq.lanes import events
from leasedkeyq.lanes.dead_letters import DeadLetter, DeadLetterQueue
from leasedkeyq.lanes.errors import CommandCancelledError
from leasedkeyq.lanes.events import EventEmitter
from leasedkeyq.lanes.running.engine import (
    LaneEngine,
    Submitted,
    error_line,
    traceback_text,
)
from leasedkeyq.lanes.running.job import ENDED, Job
from leasedkeyq.lanes.running.lane import Lane, Partition, Slots
from leasedkeyq.lanes.running.limits import KeyLimits, KeyRoom
from leasedkeyq.lanes.running.stats import lane_stats, queue_stats
from leasedkeyq.lanes.submit_terms import SubmitTerms
from leasedkeyq.model.items import Item
from leasedkeyq.model.urgency import Rank, goes_before, in_line, rank
from leasedkeyq.telemetry.instrument import Instrument, Tracing
from leasedkeyq.telemetry.stats import LaneStats, QueueStats
from leasedkeyq.types import InFlightPolicy


class MemoryEngine(LaneEngine):
    """Commands in memory. They are as lasting as the process."""

    def __init__(
        self,
        lanes: dict[str, Lane],
        *,
        slots: Slots,
        emitter: EventEmitter,
        dlq: DeadLetterQueue,
        instruments: Sequence[Instrument] = (),
        tracing: Tracing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key_limits: dict[str, KeyLimits] = {}
        super().__init__(
            lanes,
            slots=slots,
            emitter=emitter,
            instruments=instruments,
            tracing=tracing,
            clock=clock,
        )
        self.dlq = dlq
        self._numbers = count(1)
        self._prefix = secrets.token_hex(4)
        """Begins the key of a command that was given none, so that it never meets another."""
        self._unfinished = 0
        self._idlers: list[Future[None]] = []
        self._alarm: TimerHandle | None = None

    def add_lane(self, lane: Lane) -> None:
        """As `LaneEngine.add_lane`."""
        if lane.config.key_limits:
            self._key_limits[lane.id] = KeyLimits(lane)
        super().add_lane(lane)

    async def submit(self, lane: Lane, command: Submitted, terms: SubmitTerms) -> Job:
        """As `LaneEngine.submit`."""
        job = self._add(lane, command, terms, (self.bound_loop or self._loop).time())
        if self._tracing is not None:
            with self._tracing.submitting(lane.id, job.kind, str(job.id)) as carrier:
                job.carrier = carrier
        self.wake(job.partition)
        return job

    async def submit_many(
        self, lane: Lane, commands: Sequence[Submitted], terms: SubmitTerms
    ) -> list[Job]:
        """As `LaneEngine.submit_many`; in memory, the partitions of the lane are one in this."""
        now = (self.bound_loop or self._loop).time()
        if terms.policy == "reject":
            self._refuse_leased(lane, [key for key, _, _ in commands if key is not None])
        jobs = [self._add(lane, command, terms, now) for command in commands]
        if self._tracing is not None:
            with self._tracing.submitting_many(lane.id, len(jobs)) as carrier:
                for job in jobs:
                    job.carrier = carrier
        for partition in dict.fromkeys([job.partition for job in jobs]):
            self.wake(partition)
        return jobs

    def _refuse_leased(self, lane: Lane, keys: Sequence[str]) -> None:
        """Take none of many commands if one of their keys is in flight."""
        leased = tuple(key for key in keys if key in lane.partition_of(key).state.in_flight)
        if leased:
            message = (
                f"lane {lane.id!r}: {len(leased)} of {len(keys)} keys are in flight, the first is "
                f"{describe(leased[0])}; nothing was submitted"
            )
            raise KeyAlreadyInFlightError(message, keys=leased)

    def _add(self, lane: Lane, submitted: Submitted, terms: SubmitTerms, now: float) -> Job:
        """Put a command where it waits for its turn."""
        key, kind, command = submitted
        policy, priority, delay, deadline, _ = terms
        timeout = lane.timeout if terms.timeout is None else terms.time_limit(lane.timeout)
        number = next(self._numbers)
        if key is None:
            key = f"{self._prefix}-{number}"
        partition = lane.partition_of(key)
        state = partition.state
        if deadline is not None:
            deadline += now
        due = None
        if delay is not None or state.timers.live:
            self._advance(partition, now)
            due = None if delay is None else now + delay
        job = self._living(partition, key, policy) if key in state.items else None
        if job is None:
            job = Job(number, partition, kind, key, command, now, priority or 0, timeout, deadline)
            self._unfinished += 1
        else:
            job.command, job.kind = command, kind
            job.timeout, job.deadline = timeout, deadline
            if priority is not None:
                job.priority = priority
        # Commands are counted as lanes are, lower first, and the items of queues the other way.
        state.put(key, job, policy, None if priority is None else -priority, due)
        lane.submitted += 1
        if deadline is not None:
            self._note(partition, state.items[key])
        if due is not None and (item := state.items[key]).lease is None:
            job.ready_at = due
            job.status = "scheduled" if item.next is None else "pending"
            if item.next is None:
                self._wake_at(due)
        if self.emitter.listening:
            self._emit(events.COMMAND_SUBMITTED, job)
            self._look_for_pressure(lane)
        if self._metrics is not None:
            self._metrics.of(lane.id, kind).submitted += 1
        if self._instrument is not None:
            self._tell_submitted(self._instrument, job)
        return job

    def _living(self, partition: Partition, key: str, policy: InFlightPolicy) -> Job | None:
        """The job that a put on `key` joins.

        Raises:
            KeyAlreadyInFlightError: The key is in flight, and the policy is to refuse then.
        """
        item = partition.state.items[key]
        if item.lease is not None:
            if policy == "reject":
                message = f"lane {partition.lane.id!r}: key {key!r} is in flight: its command runs"
                raise KeyAlreadyInFlightError(message, keys=(key,))
            if item.buffered is not None:
                buffered: Job = item.buffered.value
                return buffered
            if policy == "buffer":
                return None
        return item.value

    # Starting

    async def start(self) -> None:
        """As `LaneEngine.start`."""
        self.check_loop()
        self.started = True
        self.wake()

    def wake(self, partition: Partition | None = None) -> None:
        """Start every command that may start now, the most urgent first.

        Where the lanes do not share a capacity, a slot of one lane is of no use to the others.
        """
        if not self.started or self.stopped:
            return
        partitions = self.partitions
        if partition is not None and self.slots.capacity is None:
            lane = partition.lane
            if not lane.linked:
                while lane.active < lane.most and self._may_start(partition):
                    self._start(partition)
                return
            partitions = lane.partitions
        while (urgent := self._next(partitions)) is not None:
            self._start(urgent)

    def _may_start(self, partition: Partition) -> bool:
        """Whether it has a command that may start, given that there is a slot."""
        state = partition.state
        if state.timers.live:
            self._advance(partition, self._loop.time())
            # One that was buffered with a delay is scheduled when the one before it has ended.
            earliest = state.timers.earliest()
            if earliest is not None:
                self._wake_at(earliest)
        lane = partition.lane
        ready = state.ready
        if not ready.normal.size and not ready.others:
            return False
        if lane.paused or not partition.owned:
            return False
        return not lane.limited or self._first(partition) is not None

    def _first(self, partition: Partition) -> Item[str, Job] | None:
        """The command whose turn it is: of those that have room, as a store would choose it."""
        lane = partition.lane
        room: KeyRoom | None = None
        now = self._loop.time()
        if lane.limited:
            most = lane.config.global_concurrency
            if most is not None and lane.active >= most:
                return None
            limiter = lane.rate_limiter
            if limiter is not None and (moment := limiter.free_at(now)) > now:
                self._wake_at(moment)
                return None
            if lane.id in self._key_limits:
                room = self._key_limits[lane.id].room(now)
        ready = partition.state.ready
        nearest = partition.deadlines.first()  # which forgets those that have started
        if room is None:
            first = ready.first()
            if first is None or nearest is None:
                return first
            return nearest if goes_before(_rank(now, nearest), _rank(now, first)) else first
        line = in_line(ready, partition.deadlines, partial(_rank, now), 1, (room, _key))
        for _, item in line:
            return item
        if room.next_at < inf:
            self._wake_at(room.next_at)
        return None

    def _note(self, partition: Partition, item: Item[str, Job] | None) -> None:
        """An item may have become available, or have another deadline."""
        if item is not None and item.value.deadline is not None and partition.lane.boost.enabled:
            partition.deadlines.add(item, len(partition.state.ready))

    def _next(self, partitions: Sequence[Partition]) -> Partition | None:
        """The partition of a lane whose turn it is, of these."""
        best: tuple[Rank, Partition] | None = None
        now = self._loop.time()
        for partition in partitions:
            if self.slots.may_start(partition) and self._may_start(partition):
                first = self._first(partition)
                if first is not None:
                    mine = _rank(now, first)
                    if best is None or mine < best[0]:
                        best = mine, partition
        return None if best is None else best[1]

    def _start(self, partition: Partition) -> None:
        lane = partition.lane
        if lane.limited:
            item = self._claim_limited(partition)
        elif partition.deadlines and (first := self._first(partition)) is not None:
            item = partition.state.claim_key(first.key)
        else:
            item = partition.state.claim()
        if item is None:
            return
        job = item.value
        job.lease = item.lease
        job.attempt = item.attempt
        job.priority = -item.priority  # a command that was buffered has that of the one before it
        if self._metrics is not None:
            job.counts = self._metrics.of(lane.id, job.kind)
        self.slots.take(partition)
        self._begin(job)
        if lane.pressed and self.emitter.listening:
            self._look_for_pressure(lane)

    def _claim_limited(self, partition: Partition) -> Item[str, Job] | None:
        """Lease the next command that has room, and take its tokens.

        None if its key has no token: then it waits for one.
        """
        lane = partition.lane
        now = self._loop.time()
        first = self._first(partition)
        assert first is not None
        item = partition.state.claim_key(first.key)
        assert item is not None
        limiter = lane.key_rate_limiter
        if limiter is not None:
            moment = limiter.free_at(item.key, now)
            if moment > now:
                self._postpone(partition, item, moment)
                return None
            limiter.take(item.key, now)
        if lane.rate_limiter is not None:
            lane.rate_limiter.take(now)
        limits = self._key_limits.get(lane.id)
        if limits is not None:
            limits.take(item.key, now)
        return item

    def _postpone(self, partition: Partition, item: Item[str, Job], when: float) -> None:
        """The key has no token left: it waits for one, which is no attempt."""
        self._advance(partition, self._loop.time())
        partition.state.unclaim(item.lease, when)
        item.value.status = "scheduled"
        self._wake_at(when)

    def _wake_at(self, when: float) -> None:
        if self._alarm is None or self._alarm.when() > when:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        """Something has come due."""
        self._alarm = None
        now = self._loop.time()
        for partition in self.partitions:
            self._advance(partition, now)
        self.wake()
        moments = [partition.state.timers.earliest() for partition in self.partitions]
        earliest = min((moment for moment in moments if moment is not None), default=None)
        if earliest is not None:
            self._wake_at(earliest)

    def _advance(self, partition: Partition, now: float) -> None:
        for item, _ in partition.state.advance(now):
            item.value.status = "pending"
            self._note(partition, item)

    # Ends of runs

    def _completed(self, job: Job, result: Any) -> None:
        partition = job.partition
        self._note(partition, partition.state.ack(job.lease))
        partition.lane.completed += 1
        self._over(job)
        self._finish(job, "completed", result)

    def _retry(self, job: Job, delay: float, error: BaseException) -> None:
        del error
        now = self._loop.time()
        state = job.partition.state
        self._advance(job.partition, now)
        beside = state.held(job.lease).buffered
        job.ready_at = now + delay
        item = state.release(job.lease, due=now + delay if delay else None)
        if beside is not None:
            # The newer command has taken its place.
            job.follow(beside.value)
            self._over(job)
        self._note(job.partition, item)
        waits = item.next is None
        item.value.status = "scheduled" if waits else "pending"
        if waits:
            self._wake_at(item.timer[0])

    def _give_up(self, job: Job, error: BaseException) -> None:
        self._note(job.partition, job.partition.state.ack(job.lease))
        self.dlq.add(self._letter(job, error))
        self._buried(job, error)
        self._over(job)
        timeout = job.interruption == "timeout"
        self._finish(job, "timed_out" if timeout else "failed", None, error)

    def _letter(self, job: Job, error: BaseException) -> DeadLetter:
        now = self.clock()
        arguments: Any = getattr(job.command, "arguments", None)
        return DeadLetter(
            id=str(job.id),
            lane=job.partition.lane.id,
            command_type=job.kind,
            key=job.key,
            payload=job.command if arguments is None else msgspec.structs.asdict(arguments),
            error=error_line(error),
            traceback=traceback_text(error),
            attempts=job.attempt,
            priority=job.priority,
            timeout=None if job.timeout == job.partition.lane.timeout else job.timeout or inf,
            submitted_at=now - (self._loop.time() - job.submitted_at),
            failed_at=now,
            command=job.command,
        )

    def _cancelled(self, job: Job) -> None:
        self._note(job.partition, job.partition.state.ack(job.lease))
        self._end_cancelled(job)

    def _end_cancelled(self, job: Job) -> None:
        job.partition.lane.cancelled += 1
        self._over(job)
        error = self._error(CommandCancelledError, job, "was cancelled")
        self._finish(job, "cancelled", None, error)

    def _take_back(self, job: Job) -> None:
        state = job.partition.state
        beside = state.held(job.lease).buffered
        self._note(job.partition, state.unclaim(job.lease))
        job.status = "pending"
        if beside is not None:
            # The newer command has taken its place.
            job.follow(beside.value)
            self._over(job)

    def _over(self, job: Job) -> None:
        """One command less."""
        self._unfinished -= 1
        if not self._unfinished:
            idlers, self._idlers = self._idlers, []
            for idler in idlers:
                if not idler.done():
                    idler.set_result(None)
        lane = job.partition.lane
        if lane.pressed and self.emitter.listening:
            self._look_for_pressure(lane)

    # From outside

    async def cancel(self, lane: Lane, key: str) -> bool:
        """As `LaneEngine.cancel`."""
        partition = lane.partition_of(key)
        state = partition.state
        item = state.items.get(key)
        if item is None:
            return False
        if item.lease is None:
            state.remove(key)
            self._end_cancelled(item.value)
            return True
        if item.buffered is not None:
            self._end_cancelled(state.unbuffer(key))
        self._cancel_run(item.value)
        return True

    async def cancel_job(self, job: Job) -> bool:
        """As `LaneEngine.cancel_job`."""
        if job.status in ENDED:
            return False
        state = job.partition.state
        item = state.items[job.key]
        if item.value is not job:
            self._end_cancelled(state.unbuffer(job.key))
        elif item.lease is None:
            state.remove(job.key)
            self._end_cancelled(job)
        else:
            self._cancel_run(job)
        return True

    async def stats(self) -> QueueStats:
        """As `LaneEngine.stats`."""
        now = self._loop.time()
        return queue_stats(
            {lane.id: self._lane_stats(lane, now) for lane in self.lanes.values()},
            await self.dlq.len(),
        )

    def _lane_stats(self, lane: Lane, now: float) -> LaneStats:
        pending = scheduled = 0
        oldest: float | None = None
        for partition in lane.partitions:
            self._advance(partition, now)
            state = partition.state
            pending += state.available
            scheduled += state.scheduled
            for line in (state.ready.normal, *state.ready.others.values()):
                if line:
                    first: Any = line.head.next
                    age = now - first.value.submitted_at
                    oldest = age if oldest is None else max(oldest, age)
        return lane_stats(lane, pending, scheduled, oldest)

    def _unfinished_jobs(self) -> list[Job]:
        found: list[Job] = [job for job in self.running if job.status not in ENDED]
        for partition in self.partitions:
            for item in partition.state.items.values():
                found += (
                    [item.value] if item.buffered is None else [item.value, item.buffered.value]
                )
        return list(dict.fromkeys(found))

    async def idle(self) -> None:
        """As `LaneEngine.idle`."""
        if self._unfinished:
            idler: Future[None] = self._loop.create_future()
            self._idlers.append(idler)
            await idler

    async def unfinished(self) -> dict[str, int]:
        """As `LaneEngine.unfinished`."""
        left = {
            lane.id: sum(
                len(partition.state.items) + partition.state.buffered
                for partition in lane.partitions
            )
            for lane in self.lanes.values()
        }
        return {lane: number for lane, number in left.items() if number}

    async def close(self) -> None:
        """As `LaneEngine.close`."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for partition in self.partitions:
            for snapshot in list(partition.state.snapshot()):
                job: Job = snapshot.value
                partition.state.remove(job.key)
                self._over(job)
                job.end("lost", None, self.closed_error(job))

    def _look_for_pressure(self, lane: Lane) -> None:
        waiting = sum(partition.state.available for partition in lane.partitions)
        self._tell_pressure(lane, waiting, lane.active)


def _key(item: Item[str, Job]) -> str:
    return item.key


def _rank(now: float, item: Item[str, Job]) -> Rank:
    job = item.value
    return rank(job.partition.urgency, job.submitted_at, job.deadline, job.id, now)
