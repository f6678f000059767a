"""The engine in memory: a `QueueState` for each partition of a lane, and no detours."""

import secrets
import time
from asyncio import Future, TimerHandle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Any

import msgspec

from leasedkeyq.errors import LeasedKeyQError, repeated
from leasedkeyq.lanes import events
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.dead_letters import DeadLetter, DeadLetterQueue
from leasedkeyq.lanes.errors import CommandCancelledError
from leasedkeyq.lanes.events import EventEmitter
from leasedkeyq.lanes.running.command_id import CommandName
from leasedkeyq.lanes.running.engine import (
    LaneEngine,
    Submitted,
    key_present,
)
from leasedkeyq.lanes.running.error_text import error_line, traceback_text
from leasedkeyq.lanes.running.job import ENDED, Job
from leasedkeyq.lanes.running.lane import Lane, Partition, Slots
from leasedkeyq.lanes.running.limits import KeyLimits, KeyRoom
from leasedkeyq.lanes.running.local_workflow import Gathering, LocalPart, MisfitCommand
from leasedkeyq.lanes.running.stats import lane_stats, queue_stats
from leasedkeyq.lanes.workflow.note import new_chain, new_gather, part_key
from leasedkeyq.lanes.workflow.outcome import (
    LOST,
    GatheredOutcomes,
    GatherOutcome,
    GatherStatus,
    failed_outcome,
)
from leasedkeyq.lanes.workflow.steps import WorkflowStep
from leasedkeyq.model.items import Item
from leasedkeyq.model.urgency import Rank, goes_before, in_line, rank
from leasedkeyq.telemetry.instrument import Instrument, Tracing
from leasedkeyq.telemetry.stats import LaneStats, QueueStats
from leasedkeyq.types import PutPolicy

MOST_NAMED = 10_000
"""Commands that have ended and whose ids were shown. Of more, the oldest are forgotten."""


class MemoryEngine(LaneEngine):
    """Commands in memory. They are as lasting as the process."""

    def __init__(
        self,
        lanes: dict[str, Lane],
        *,
        registry: CommandRegistry,
        slots: Slots,
        emitter: EventEmitter,
        dlq: DeadLetterQueue,
        instruments: Sequence[Instrument] = (),
        tracing: Tracing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._prefix = secrets.token_hex(4)
        """Begins the key of a command that was given none, so that it never meets another.

        It is a part of the ids of all commands: another manager does not know them.
        """
        self._key_limits: dict[str, KeyLimits] = {}
        self._pausing: list[Partition] = []
        """The partitions of lanes in which a dead letter holds its key."""
        super().__init__(
            lanes,
            registry=registry,
            slots=slots,
            emitter=emitter,
            instruments=instruments,
            tracing=tracing,
            clock=clock,
        )
        self.dlq = dlq
        self._numbers = count(1)
        self._unfinished = 0
        self._named: dict[int, Job] = {}
        """Commands that have not ended and whose ids were shown, by number."""
        self._named_ended: OrderedDict[int, Job] = OrderedDict()
        """Those that have ended, for as long as the results of their lanes are kept."""
        self._holding: dict[tuple[str, str], tuple[Partition, int]] = {}
        """Which burial each dead letter stands for that holds its key, by lane and letter."""
        self._done: dict[str, OrderedDict[str, Job]] = {}
        """By lane: the commands of keys that were completed of late, for `unique_for`."""
        self._longest_unique: dict[str, float] = {}
        """By lane: for how long they are remembered. A lane that never asked remembers none."""
        self._idlers: list[Future[None]] = []
        self._alarm: TimerHandle | None = None

    def add_lane(self, lane: Lane) -> None:
        """As `LaneEngine.add_lane`."""
        for partition in lane.partitions:
            partition.scope = self._prefix
        if lane.config.key_limits:
            self._key_limits[lane.id] = KeyLimits(lane)
        if lane.config.on_dead_letter == "pause_key":
            self._pausing += lane.partitions
        super().add_lane(lane)

    async def submit(self, lane: Lane, command: Submitted, terms: SubmitTerms) -> Job:
        """As `LaneEngine.submit`."""
        now = (self.bound_loop or self._loop).time()
        if terms.policy == "skip" and (there := self._there(lane, command[0], terms, now)):
            return there
        job = self._add(lane, command, terms, now)
        if self._tracing is not None:
            with self._tracing.submitting(lane.id, job.kind, job.command_id) as carrier:
                job.carrier = carrier
        self.wake(job.partition)
        return job

    async def submit_many(
        self, lane: Lane, commands: Sequence[Submitted], terms: SubmitTerms
    ) -> list[Job]:
        """As `LaneEngine.submit_many`; in memory, the partitions of the lane are one in this."""
        now = (self.bound_loop or self._loop).time()
        if terms.policy == "only_new":
            self._refuse_present(lane, [key for key, _, _ in commands if key is not None])
        added: list[Job] = []
        jobs: list[Job] = []
        for command in commands:
            job = self._there(lane, command[0], terms, now) if terms.policy == "skip" else None
            if job is None:
                job = self._add(lane, command, terms, now)
                added.append(job)
            jobs.append(job)
        if self._tracing is not None and added:
            with self._tracing.submitting_many(lane.id, len(added)) as carrier:
                for job in added:
                    job.carrier = carrier
        for partition in dict.fromkeys([job.partition for job in added]):
            self.wake(partition)
        return jobs

    # Workflows

    async def submit_chain(
        self,
        lane: Lane,
        command: tuple[str, Any],
        steps: Sequence[WorkflowStep],
        terms: SubmitTerms,
    ) -> Job:
        """As `LaneEngine.submit_chain`."""
        chain = new_chain()
        job = self._add_part(lane, (part_key(chain, 0), *command), terms)
        job.workflow = LocalPart(chain=chain, steps=tuple(steps))
        self.wake(job.partition)
        return job

    async def submit_gather(
        self,
        members: Sequence[tuple[Lane, str, Any]],
        then: tuple[Lane, WorkflowStep | None],
        within: float,
        terms: SubmitTerms,
    ) -> Job:
        """As `LaneEngine.submit_gather`."""
        gather = new_gather()
        lane, step = then
        gathering = Gathering(len(members), step)
        kind = members[0][1] if step is None else step.command_type
        waiting = (gather, kind, GatheredOutcomes(kind))
        gathering.then = self._add_part(lane, waiting, terms._replace(delay=within))
        gathering.then.workflow = LocalPart(gathered=gathering)
        for number, (home, member_kind, command) in enumerate(members):
            job = self._add_part(home, (part_key(gather, number), member_kind, command), terms)
            job.workflow = LocalPart(gathering=gathering, number=number)
            gathering.jobs.append(job)
        for partition in dict.fromkeys(job.partition for job in gathering.jobs):
            self.wake(partition)
        return gathering.then

    def _add_part(self, lane: Lane, command: Submitted, terms: SubmitTerms) -> Job:
        """Put a command of a workflow where it waits for its turn."""
        job = self._add(lane, command, terms, self._loop.time())
        if self._tracing is not None:
            with self._tracing.submitting(lane.id, job.kind, job.command_id) as carrier:
                job.carrier = carrier
        return job

    def _go_on(self, job: Job, part: LocalPart, result: Any) -> None:
        """A command of a workflow is done: submit the next step, or record its outcome."""
        if not part.steps:
            self._record(job, GatherOutcome(result=result))
            return
        step = part.steps[0]
        position = part.position + 1
        command: Any
        try:
            command = step.command(result)
        except LeasedKeyQError as error:
            command = MisfitCommand(step.command_type, error)
        terms = SubmitTerms(priority=step.priority)
        waiting = (part_key(part.chain, position), step.command_type, command)
        following = self._add_part(self.lanes[step.lane], waiting, terms)
        following.workflow = LocalPart(chain=part.chain, position=position, steps=part.steps[1:])
        job.follow(following)
        self.wake(following.partition)

    def _record(self, job: Job, outcome: GatherOutcome[Any]) -> None:
        """Tell the gather of a command what became of it; the last one lets the gather go on."""
        part: LocalPart = job.workflow
        gathering = part.gathering
        if gathering is None or not gathering.record(part.number, outcome):
            return
        then = gathering.then
        item = None if then is None else then.partition.state.items.get(then.key)
        if then is None or item is None or item.value is not then or item.lease is not None:
            return  # it was cancelled, or did not wait any longer
        now = self._loop.time()
        self._advance(then.partition, now)
        then.partition.state.put(then.key, then, "update", None, now)
        then.status = "pending"
        then.ready_at = now
        self.wake(then.partition)

    async def _complete_arguments(self, job: Job) -> None:
        gathering: Gathering | None = job.workflow.gathered
        if gathering is None:
            return
        outcomes = [LOST if outcome is None else outcome for outcome in gathering.outcomes]
        if gathering.step is None:
            job.command = GatheredOutcomes(job.kind, outcomes)
        else:
            job.command = gathering.step.command(outcomes)

    def _check_result(self, job: Job, result: Any) -> None:
        del job, result  # in memory, any object can be handed on

    def _refuse_present(self, lane: Lane, keys: Sequence[str]) -> None:
        """Take none of many commands if one of their keys is there, or comes twice."""
        live = {key for key in keys if key in lane.partition_of(key).state.items}
        present = repeated(keys, live)
        if present:
            raise key_present(lane, present, len(keys))

    def _there(self, lane: Lane, key: str | None, terms: SubmitTerms, now: float) -> Job | None:
        """The command of a key that is there already, or was there a short while ago."""
        longest = self._longest_unique.get(lane.id, 0.0)
        if terms.unique_for > longest:
            self._longest_unique[lane.id] = terms.unique_for
        if key is None:
            return None
        partition = lane.partition_of(key)
        item = partition.state.items.get(key)
        if item is not None:
            newest = item.last_in_line
            return item.value if newest is None else newest.value
        done = self._done.get(lane.id)
        job = None if done is None else done.get(key)
        if job is None or not terms.unique_for or job.ended_at + terms.unique_for < now:
            return None
        return job

    def _remember_done(self, job: Job) -> None:
        """A command was completed: in a lane that asks, its key is unique for a while."""
        longest = self._longest_unique.get(job.partition.lane.id)
        if longest is None or job.key.startswith(self._prefix):
            return
        done = self._done.setdefault(job.partition.lane.id, OrderedDict())
        job.ended_at = now = self._loop.time()
        done[job.key] = job
        done.move_to_end(job.key)
        while done and next(iter(done.values())).ended_at + longest < now:
            done.popitem(last=False)

    def _add(self, lane: Lane, submitted: Submitted, terms: SubmitTerms, now: float) -> Job:
        """Put a command where it waits for its turn."""
        key, kind, command = submitted
        if (options := self.registry.options.get(kind)) is not None:
            terms = terms.with_defaults(options)
        policy, priority, delay, deadline, _, _ = terms
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
            job.coalesces = policy == "buffer"
            self._unfinished += 1
        else:
            job.command, job.kind = command, kind
            job.timeout, job.deadline = timeout, deadline
            if priority is not None:
                job.priority = priority
        # Commands are counted as lanes are, lower first, and the items of queues the other way.
        place = None if priority is None else -priority
        outcome = state.put(key, job, policy, place, due, number=number)
        if deadline is not None:
            self._note(partition, state.items[key])
        if due is not None:
            job.ready_at = due
        if due is not None and outcome in ("added", "updated"):
            item = state.items[key]
            if item.value is job and item.lease is None:
                job.status = "scheduled" if item.next is None else "pending"
                if item.next is None:
                    self._wake_at(due)
        self._tell_of_submission(job)
        return job

    def _tell_of_submission(self, job: Job) -> None:
        lane = job.partition.lane
        lane.submitted += 1
        if self.emitter.listening:
            self._emit(events.COMMAND_SUBMITTED, job)
            self._look_for_pressure(lane)
        if self._metrics is not None:
            self._metrics.of(lane.id, job.kind).submitted += 1
        if self._instrument is not None:
            self._tell_submitted(self._instrument, job)

    def _living(self, partition: Partition, key: str, policy: PutPolicy) -> Job | None:
        """The job that a put on `key`, which is there, replaces.

        Raises:
            KeyAlreadyPresentError: The policy is to refuse it.
        """
        if policy == "only_new":
            raise key_present(partition.lane, (key,), 1)
        state = partition.state
        if state.grows_by(key, policy):
            return None
        item = state.items[key]
        newest = item.last_in_line
        return item.value if newest is None else newest.value

    # Starting

    async def start(self) -> None:
        """As `LaneEngine.start`."""
        self.check_loop()
        self.started = True
        self.loop_watch.start()
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
            # One that waited in line with a delay is scheduled when the one before it has ended.
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
        job.priority = -item.priority  # a buffered command has that of the one before it
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
        self._next_in_line(partition, partition.state.ack(job.lease))
        partition.lane.completed += 1
        if self._longest_unique:
            self._remember_done(job)
        if job.workflow is not None:
            self._go_on(job, job.workflow, result)
        self._over(job)
        self._finish(job, "completed", result)

    def _retry(self, job: Job, delay: float, error: BaseException) -> None:
        del error
        now = self._loop.time()
        state = job.partition.state
        self._advance(job.partition, now)
        beside = state.item_of(job.lease).buffered
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
        partition = job.partition
        letter = self._letter(job, error)
        if letter.holds:
            _, buried, _ = partition.state.bury(job.lease, letter.error, hold=True)
            self._holding[letter.lane, letter.id] = partition, buried.id
        else:
            self._next_in_line(partition, partition.state.ack(job.lease))
        self.dlq.add(letter)
        self._buried(job, error)
        timeout = job.interruption == "timeout"
        if job.workflow is not None:
            status: GatherStatus = "timed_out" if timeout else "failed"
            self._record(job, failed_outcome(status, error, letter.error))
        self._over(job)
        self._finish(job, "timed_out" if timeout else "failed", None, error)

    def _letter(self, job: Job, error: BaseException) -> DeadLetter:
        now = self.clock()
        arguments: Any = getattr(job.command, "arguments", None)
        timeout = self._default_timeout(job.partition.lane, job.kind)
        return DeadLetter(
            id=job.command_id,
            lane=job.partition.lane.id,
            command_type=job.kind,
            key=job.key,
            payload=job.command if arguments is None else msgspec.structs.asdict(arguments),
            error=error_line(error),
            traceback=traceback_text(error),
            attempts=job.attempt,
            priority=job.priority,
            timeout=None if job.timeout == timeout else job.timeout or inf,
            submitted_at=now - (self._loop.time() - job.submitted_at),
            failed_at=now,
            command=job.command,
            workflow=job.workflow,
            holds=job.partition.lane.config.on_dead_letter == "pause_key",
        )

    def let_go(self, letter: DeadLetter) -> None:
        """A dead letter is gone: if it held its key, the commands behind it go on."""
        partition, number = self._holding.pop((letter.lane, letter.id), (None, 0))
        if partition is not None:
            self._next_in_line(partition, partition.state.unbury(number))
            self.wake(partition)

    def _stop_holding(self, partition: Partition, item: Item[str, Job]) -> None:
        """The commands of a held key were cancelled: its dead letter stays, and holds nothing."""
        lane, letter = partition.lane.id, item.value.command_id
        _, number = self._holding.pop((lane, letter))
        partition.state.remove(item.key)
        partition.state.unbury(number)
        self.dlq.stop_holding(lane, letter)

    async def resubmit_held(self, lane: Lane, letter: DeadLetter, command: Any) -> bool:
        """As `LaneEngine.resubmit_held`."""
        partition, number = self._holding.pop((letter.lane, letter.id), (None, 0))
        if partition is None:
            return False
        now = self._loop.time()
        priority, kind = letter.priority, letter.command_type
        timeout = self._default_timeout(lane, kind)
        if letter.timeout is not None:
            timeout = _limit(letter.timeout)
        job = Job(
            next(self._numbers), partition, kind, letter.key, command, now, priority, timeout, None
        )
        job.workflow = letter.workflow
        partition.state.requeue_head(number, job)
        self._unfinished += 1
        self._tell_of_submission(job)
        self.wake(partition)
        return True

    def _next_in_line(self, partition: Partition, item: Item[str, Job] | None) -> None:
        """The next command of a key may have become its head."""
        if item is None:
            return
        self._note(partition, item)
        job = item.value
        if item.next is None and item.lease is None and item.timer is not None:
            job.status = "scheduled"
            self._wake_at(item.timer[0])
        elif job.lease is None:
            job.ready_at = max(job.ready_at, self._loop.time())

    def _cancelled(self, job: Job) -> None:
        self._next_in_line(job.partition, job.partition.state.ack(job.lease))
        self._end_cancelled(job)

    def _end_cancelled(self, job: Job) -> None:
        job.partition.lane.cancelled += 1
        error = self._error(CommandCancelledError, job, "was cancelled")
        if job.workflow is not None:
            self._record(job, failed_outcome("cancelled", error, error_line(error)))
        self._over(job)
        self._finish(job, "cancelled", None, error)
        if job.workflow is not None and job.workflow.gathered is not None:
            for member in job.workflow.gathered.jobs:
                self._cancel_job(member.latest())

    def _take_back(self, job: Job) -> None:
        state = job.partition.state
        beside = state.item_of(job.lease).buffered
        self._note(job.partition, state.unclaim(job.lease))
        job.status = "pending"
        if beside is not None:
            # The newer command has taken its place.
            job.follow(beside.value)
            self._over(job)

    def _over(self, job: Job) -> None:
        """One command less."""
        self._unfinished -= 1
        if self._named:
            self._note_end(job)
        if self._idlers and self._is_idle():
            idlers, self._idlers = self._idlers, []
            for idler in idlers:
                if not idler.done():
                    idler.set_result(None)
        lane = job.partition.lane
        if lane.pressed and self.emitter.listening:
            self._look_for_pressure(lane)

    def _is_idle(self) -> bool:
        """Whether nothing is left but commands behind dead letters."""
        behind = sum(partition.state.behind_held for partition in self._pausing)
        return self._unfinished == behind

    # By id

    forgets = (
        ", or no more: in memory, a command is known while it waits or runs, and for keep_results "
        "after its end if its handle was asked for its id"
    )

    def name(self, job: Job) -> str:
        """As `LaneEngine.name`; the job is remembered for a while after its end."""
        number = job.id
        if number not in self._named and number not in self._named_ended:
            self._named[number] = job
            if job.status in ENDED:
                self._note_end(job)
        return job.command_id

    def _note_end(self, job: Job) -> None:
        """A command has ended: if its id was shown, it is known for a while."""
        if self._named.pop(job.id, None) is not None:
            job.ended_at = job.ended_at or (self.bound_loop or self._loop).time()
            ended = self._named_ended
            ended[job.id] = job
            while ended and (len(ended) > MOST_NAMED or self._too_old(next(iter(ended.values())))):
                ended.popitem(last=False)

    def _too_old(self, job: Job) -> bool:
        age = (self.bound_loop or self._loop).time() - job.ended_at
        return age > job.partition.lane.keep_results

    def _find(self, partition: Partition, place: CommandName) -> Job | None:
        if place.scope != self._prefix:
            return None
        job: Job | None = self._named_ended.get(place.number)
        if job is not None and self._too_old(job):
            return None
        item = partition.state.items.get(place.key)
        if job is None and item is not None:
            job = item.value
            if job.id != place.number and item.line is not None:
                behind = item.line.get(place.number)
                job = None if behind is None else behind.value
        found = job is not None and (job.id, job.key) == (place.number, place.key)
        return job if found else None

    # From outside

    async def cancel(self, lane: Lane, key: str) -> bool:
        """As `LaneEngine.cancel`."""
        partition = lane.partition_of(key)
        state = partition.state
        item = state.items.get(key)
        if item is None:
            return False
        waiting = [value.value for value in state.remove_from_line(key)]
        runs = item.lease is not None
        if key in state.held:
            self._stop_holding(partition, item)
        elif not runs:
            state.remove(key)
            waiting.insert(0, item.value)
        for job in waiting:
            self._end_cancelled(job)
        if runs:
            self._cancel_run(item.value)
        return runs or bool(waiting)

    async def cancel_job(self, job: Job) -> bool:
        """As `LaneEngine.cancel_job`."""
        return self._cancel_job(job)

    def _cancel_job(self, job: Job) -> bool:
        if job.status in ENDED:
            return False
        state = job.partition.state
        item = state.items[job.key]
        if item.value is not job:
            state.remove_from_line(job.key, job.id)
            self._end_cancelled(job)
        elif item.lease is None:
            state.remove_head(job.key)
            self._next_in_line(job.partition, state.items.get(job.key))
            self._end_cancelled(job)
            self.wake(job.partition)
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
        pending = scheduled = held = 0
        oldest: float | None = None
        for partition in lane.partitions:
            self._advance(partition, now)
            state = partition.state
            pending += state.available
            scheduled += state.scheduled
            held += state.behind_held
            for line in (state.ready.normal, *state.ready.others.values()):
                if line:
                    first: Any = line.head.next
                    age = now - first.value.submitted_at
                    oldest = age if oldest is None else max(oldest, age)
        return lane_stats(lane, pending, scheduled, held, oldest)

    def _unfinished_jobs(self) -> list[Job]:
        found: list[Job] = [job for job in self.running if job.status not in ENDED]
        for partition in self.partitions:
            found += [snapshot.value for snapshot in partition.state.snapshot()]
        return list(dict.fromkeys(found))

    async def idle(self) -> None:
        """As `LaneEngine.idle`."""
        if not self._is_idle():
            idler: Future[None] = self._loop.create_future()
            self._idlers.append(idler)
            await idler

    async def unfinished(self) -> dict[str, int]:
        """As `LaneEngine.unfinished`."""
        left = {
            lane.id: sum(
                len(state.items) - len(state.held) + state.in_line
                for state in (partition.state for partition in lane.partitions)
            )
            for lane in self.lanes.values()
        }
        return {lane: number for lane, number in left.items() if number}

    async def close(self) -> None:
        """As `LaneEngine.close`."""
        self.loop_watch.stop()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for partition in self.partitions:
            jobs: list[Job] = [snapshot.value for snapshot in partition.state.snapshot()]
            for key in list(partition.state.items):
                partition.state.remove(key)
            for job in jobs:
                self._over(job)
                job.end("lost", None, self.closed_error(job))

    def _look_for_pressure(self, lane: Lane) -> None:
        waiting = sum(partition.state.available for partition in lane.partitions)
        self._tell_pressure(lane, waiting, lane.active)


def _limit(timeout: float) -> float | None:
    return None if timeout == inf else timeout


def _key(item: Item[str, Job]) -> str:
    return item.key


def _rank(now: float, item: Item[str, Job]) -> Rank:
    job = item.value
    return rank(job.partition.urgency, job.submitted_at, job.deadline, job.id, now)
