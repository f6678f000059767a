"""The engine on a store: commands that outlive the process, shared by any number of workers.

A command is an item of the queue of its lane. One task claims for all lanes, as many as there is
room for; another renews the leases of all that run; commands that have ended go to the outbox.
What is claimed, renewed and settled at a time goes to the store as one batch.
"""

import asyncio
import logging
import time
from asyncio import Task, TimerHandle
from collections.abc import Awaitable, Callable, Container, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from math import inf
from typing import Any, TypeVar

import msgspec

from leasedkeyq.checks import storable
from leasedkeyq.errors import LeasedKeyQError, StoreClosedError, describe
from leasedkeyq.lanes import events
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.commands.submit_terms import PLAIN, SubmitTerms
from leasedkeyq.lanes.durable.claim_plan import ClaimPlan
from leasedkeyq.lanes.durable.dead_letters import StoreDeadLetterQueue
from leasedkeyq.lanes.durable.envelope import (
    CANCELLED,
    Continuation,
    Envelope,
    available_since,
    continued,
    decode_envelope,
    ending,
    retry_note,
)
from leasedkeyq.lanes.durable.heartbeat import Heartbeat
from leasedkeyq.lanes.durable.lease_guard import LeaseGuard
from leasedkeyq.lanes.durable.outbox import FIRST_PAUSE, LONGEST_PAUSE, Outbox, report
from leasedkeyq.lanes.durable.prefetch import Prefetch
from leasedkeyq.lanes.durable.reports.event_publisher import EventPublisher
from leasedkeyq.lanes.durable.reports.minute_writer import MinuteWriter
from leasedkeyq.lanes.durable.reports.stack_answers import StackAnswers
from leasedkeyq.lanes.durable.results import ResultWatch
from leasedkeyq.lanes.durable.stats import lane_counts, store_stats, unfinished
from leasedkeyq.lanes.durable.submission import Submissions
from leasedkeyq.lanes.durable.unknown_types import UnknownTypes
from leasedkeyq.lanes.durable.workers import WorkerGroup
from leasedkeyq.lanes.durable.workflow import (
    CONTINUATION_KEPT,
    GatherPlan,
    StorePart,
    StoreWorkflow,
)
from leasedkeyq.lanes.errors import (
    CommandCancelledError,
    CommandLostError,
    ManagerClosedError,
)
from leasedkeyq.lanes.events import EventEmitter
from leasedkeyq.lanes.presence.catalog import Catalog
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.lanes.running.command_id import CommandName
from leasedkeyq.lanes.running.engine import (
    FAILED,
    LaneEngine,
    Submitted,
)
from leasedkeyq.lanes.running.error_text import error_line, traceback_text
from leasedkeyq.lanes.running.job import ENDED, CommandStatus, Job
from leasedkeyq.lanes.running.lane import Lane, Partition, Slots
from leasedkeyq.lanes.running.limits import caps
from leasedkeyq.lanes.running.pending_write import PendingWrite
from leasedkeyq.lanes.running.remote_errors import join
from leasedkeyq.lanes.workflow.note import (
    Gathered,
    Membership,
    WorkflowNote,
    may_have_note,
    new_chain,
    new_gather,
    part_key,
)
from leasedkeyq.lanes.workflow.outcome import (
    LOST,
    GatheredOutcomes,
    GatherOutcome,
    GatherStatus,
    failed_outcome,
)
from leasedkeyq.lanes.workflow.steps import WorkflowStep
from leasedkeyq.model.admission import check_name
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Bury,
    Cancel,
    Change,
    Claimed,
    Extend,
    Placed,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.telemetry.instrument import Instrument, Tracing
from leasedkeyq.telemetry.stats import QueueStats

logger = logging.getLogger("leasedkeyq")

T = TypeVar("T")

GIVEN_UP: frozenset[CommandStatus] = frozenset(("failed", "timed_out", "lost"))
"""How a command ended, as this process knows, that may be alive once more: it was requeued."""
TAKING_BACK = 1.0
"""Seconds for which partitions stay with a worker that ends, until what it prefetched is back."""
FOLLOW_UP = 0.02
"""Seconds for which a worker that settles commands does not look for what comes due next.

What it settles is heard and leads to a claim, after which it looks. If it looked before, too, that
would be one trip more before the result of each single command.
"""
CANCELLED_LATELY = 1000
"""Commands. So many are remembered after they were cancelled."""
PATIENCE = 10.0
"""Seconds for which closing waits for the store to settle the commands that have ended."""


class StoreEngine(LaneEngine):
    """Commands on a store. Any number of processes may run the same lanes.

    Attributes:
        dlq: The store's buried items, as dead letters.
    """

    def __init__(
        self,
        lanes: dict[str, Lane],
        *,
        slots: Slots,
        emitter: EventEmitter,
        store: Store,
        registry: CommandRegistry,
        max_dead_letters: int | None = None,
        instruments: Sequence[Instrument] = (),
        tracing: Tracing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._prefetch = Prefetch(lambda: self._loop, self._take_back)
        super().__init__(
            lanes,
            registry=registry,
            slots=slots,
            emitter=emitter,
            instruments=instruments,
            tracing=tracing,
            clock=clock,
        )
        self.dlq = StoreDeadLetterQueue(
            store, lanes, max_dead_letters, closed=lambda: self.shutting_down
        )
        self._cancelled_lately: dict[int, None] = {}
        """The ids of commands that were cancelled of late. A claim under way may bring them."""
        self._results = ResultWatch(
            store, registry, self._finish_elsewhere, self._watch, self._spawn, lanes=lanes
        )
        self._workflow = StoreWorkflow(store, lanes, registry, clock)
        self._unknown = UnknownTypes(store, lanes, registry, self._spawn)
        self._submissions = Submissions(store, registry, clock)
        self._held: dict[str, Job] = {}
        """All that is leased by this engine, by token: prefetched, running, or not settled yet."""
        self._settling: set[str] = set()
        """The tokens of leases that are being settled: the store may have done it already."""
        self._outbox = Outbox(store, self._tracing)
        self._plan = ClaimPlan(
            store,
            partitions=self.partitions,
            slots=slots,
            running=self.running,
            types=lambda: registry.types,
            prefetch=self._prefetch,
            outbox=self._outbox,
            tracing=self._tracing,
            wake=self.wake,
        )
        self._tasks: list[Task[None]] = []
        self._errands: set[Task[None]] = set()
        self._ending: list[Task[None]] = []
        """The tasks that end by themselves when the engine is stopped."""
        self._wanted = asyncio.Event()
        self._claims = 1
        self._heard = 0
        """How often something was heard that may bring a command: a claim under way misses it."""
        self._follow_up: TimerHandle | None = None
        self._serving = 0
        """How many tasks claim."""
        self._claiming = 0
        """How many claims are under way."""
        self._begun = 0
        """How many claims were begun so far."""
        self._due_here: dict[int, int] = {}
        """Ids of commands that a claim of this worker may bring, and how many were begun before.

        They were submitted here. So until a later claim has ended, the store is not asked for their
        results: that would be three trips for a command that this very worker is about to run.
        """
        self._drains: set[asyncio.Event] = set()
        self._heartbeat = Heartbeat(store, lanes, self._held, self._has, self._not_renewed)
        self._alarm: TimerHandle | None = None
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._events = EventPublisher(
            store, WORKERS_QUEUE, lanes=lanes, emitter=emitter, spawn=self._spawn, clock=clock
        )
        self._workers = WorkerGroup(
            store,
            lanes,
            own=slots.own,
            wake=self.wake,
            types=lambda: registry.types,
            heard=self._events.look,
            running=self.running,
            catalog=Catalog(store, lanes, registry),
            blocked=lambda: self.loop_watch.blocked_for,
            clock=clock,
            answers=StackAnswers(
                store,
                self.stacks,
                self.loop_watch,
                in_thread=self._threads.run,
                ran=lambda job: (self.bound_loop or self._loop).time() - job.started_at,
            ),
        )
        self._minutes = MinuteWriter(store, lanes, self._workers.store_time)
        self.loop_watch.keeper = self.lease_guard = LeaseGuard(
            store,
            lanes,
            self._held,
            self._heartbeat,
            self._workers.renewal,
            is_late=self._workers.is_late,
            errand=self._workers.errand,
        )

    def add_lane(self, lane: Lane) -> None:
        """As `LaneEngine.add_lane`.

        Raises:
            LimitExceededError: Its name is too long for the store.
            ValueError: As `LaneEngine.add_lane`.
        """
        for partition in lane.partitions:
            check_name("lane", partition.queue, self.store.limits)
            lane.limits = self.store.limits
            partition.caps = caps(partition)
            if self.slots.capacity is None:
                self._prefetch.serve(partition)
        super().add_lane(lane)
        if self.started:
            for partition in lane.partitions:
                self._watch(partition)
            self._workers.look()
            self.wake()

    # Submitting

    async def submit(self, lane: Lane, command: Submitted, terms: SubmitTerms) -> Job:
        """As `LaneEngine.submit`."""
        heard = self._heard
        stored = await self._submissions.put(lane, command, terms, self._tracing)
        job = self._submitted(*stored, terms)
        self._expect_here(job, heard)
        return job

    async def submit_within(
        self, connection: Any, lane: Lane, commands: Sequence[Submitted], terms: SubmitTerms
    ) -> list[Job]:
        """As `LaneEngine.submit_within`."""
        put = self._submissions.put_within(connection, lane, commands, terms, self._tracing)
        stored = await put
        jobs = [self._submitted(*one, terms) for one in stored]
        for job, (_, place, *_) in zip(jobs, stored, strict=True):
            # Until the commit it is not in the store: that is not the end of it.
            job.uncommitted = place.outcome in ("added", "appended", "buffered")
        return jobs

    async def submit_many(
        self, lane: Lane, commands: Sequence[Submitted], terms: SubmitTerms
    ) -> list[Job]:
        """As `LaneEngine.submit_many`."""
        heard = self._heard
        put = self._submissions.put_many(lane, commands, terms, self._tracing)
        stored, refusal = await put
        jobs = [self._submitted(*one, terms) for one in stored]
        for job in jobs:
            self._expect_here(job, heard)
        if refusal is not None:
            raise refusal
        return jobs

    async def submit_chain(
        self,
        lane: Lane,
        command: tuple[str, Any],
        steps: Sequence[WorkflowStep],
        terms: SubmitTerms,
    ) -> Job:
        """As `LaneEngine.submit_chain`."""
        chain = new_chain()
        note = WorkflowNote(chain, steps=tuple(step.written() for step in steps))
        return (await self._submit_parts(lane, [(part_key(chain, 0), *command)], terms, [note]))[0]

    async def _submit_parts(
        self,
        lane: Lane,
        commands: Sequence[Submitted],
        terms: SubmitTerms,
        notes: Sequence[WorkflowNote],
    ) -> list[Job]:
        """Submit commands of a workflow, all of them or none."""
        heard = self._heard
        with self._tracing_many(lane, len(commands)) as carrier:
            _, puts = self._submissions.puts(lane, commands, terms, carrier, notes)
            stored = await self._submissions.put_parts(lane, commands, puts)
        jobs = [self._submitted(*one, terms) for one in stored]
        for job in jobs:
            self._expect_here(job, heard)
        return jobs

    def _tracing_many(
        self, lane: Lane, number: int
    ) -> AbstractContextManager[dict[str, str] | None]:
        if self._tracing is None:
            return nullcontext()
        return self._tracing.submitting_many(lane.id, number)

    async def submit_gather(
        self,
        members: Sequence[tuple[Lane, str, Any]],
        then: tuple[Lane, WorkflowStep | None],
        within: float,
        terms: SubmitTerms,
    ) -> Job:
        """As `LaneEngine.submit_gather`.

        Members of one lane take one trip. If the store takes some and then fails, those that it
        has taken are cancelled, as far as it can be reached.
        """
        gather = new_gather()
        home, step = then
        by_lane: dict[Lane, list[tuple[Submitted, WorkflowNote]]] = {}
        lanes: list[tuple[str, int]] = []
        for number, (lane, kind, command) in enumerate(members):
            note = WorkflowNote(member=Membership(gather, number))
            submitted = part_key(gather, number), kind, command
            by_lane.setdefault(lane, []).append((submitted, note))
            if lanes and lanes[-1][0] == lane.id:
                lanes[-1] = lane.id, lanes[-1][1] + 1
            else:
                lanes.append((lane.id, 1))
        for lane, parts in by_lane.items():  # what cannot be written down is refused before
            self._submissions.puts(lane, [one for one, _ in parts], terms)
        written = None if step is None else step.written()
        gathered = Gathered(gather, len(members), "" if written is None else written.into)
        payload = msgspec.Raw(b"{}") if written is None else written.given
        waiting = gather, members[0][1] if written is None else written.type, payload
        plan = GatherPlan(len(members), home.partition_of(gather).queue, tuple(lanes))
        try:
            await self._workflow.begin_gather(gather, plan, within)
            last = terms._replace(delay=within)
            [job] = await self._submit_parts(
                home, [waiting], last, [WorkflowNote(gathered=gathered)]
            )
            for lane, parts in by_lane.items():
                commands, notes = [one for one, _ in parts], [note for _, note in parts]
                await self._submit_parts(lane, commands, terms, notes)
        except BaseException:
            self._errand(self._give_up_gather(home, gathered))
            raise
        self._errand(self._unless_it_fails(self._workflow.tidy(), "old gathers were not forgotten"))
        return job

    async def _give_up_gather(self, home: Lane, gathered: Gathered) -> None:
        """Take back a gather that was submitted in part."""
        partition = home.partition_of(gathered.gather)
        note = WorkflowNote(gathered=gathered)

        async def give_up() -> None:
            await self.store.settle([Cancel(partition.queue, gathered.gather)])
            await self._workflow.cancelled(note, "", LOST)

        await self._unless_it_fails(give_up(), f"{gathered.gather!r} was submitted in part")

    async def _unless_it_fails(self, work: Awaitable[None], what: str) -> None:
        """Do something that is not tried again."""
        try:
            await work
        except LeasedKeyQError as error:
            logger.warning("%s: %s", what, error)

    def _submitted(  # noqa: PLR0917  # called once for each command, and keywords cost time
        self,
        partition: Partition,
        place: Placed,
        key: str,
        kind: str,
        command: Any,
        terms: SubmitTerms,
    ) -> Job:
        """The job that stands for a command that is in the store now."""
        number = place.id
        job = self._results.jobs.get(number)
        if job is not None and job.status in GIVEN_UP and place.outcome != "added":
            # Its handles were told so, and any process may have requeued its dead letter since.
            # The new command took its place, or joins it: its handle follows what happens now.
            job = None
        if job is None:
            began = self._loop.time()
            if (options := self.registry.options.get(kind)) is not None:
                terms = terms.with_defaults(options)
            priority = terms.priority or 0
            limit = terms.time_limit(partition.lane.timeout)
            job = Job(number, partition, kind, key, command, began, priority, limit, None)
            job.remote = True
            job.coalesces = terms.coalesces
            self._results.jobs[number] = job
            self._results.refresh(partition)
        if place.outcome == "skipped":
            return job
        placed = place.outcome in ("added", "updated")  # one in line waits for the one before it
        if placed and terms.delay is not None and job.status in ("pending", "scheduled"):
            job.status = "scheduled" if terms.delay else "pending"
        lane = partition.lane
        lane.submitted += 1
        if self.emitter.listening:
            self._emit(events.COMMAND_SUBMITTED, job)
        if self._metrics is not None:
            self._metrics.of(lane.id, kind).submitted += 1
        if self._instrument is not None:
            self._tell_submitted(self._instrument, job)
        return job

    def expect(self, job: Job) -> None:
        """As `LaneEngine.expect`."""
        self._watch(job.partition)
        if job.id not in self._due_here:
            self._results.expect(job)

    async def look_at(self, job: Job) -> None:
        """As `LaneEngine.look_at`."""
        self.check_loop()
        await self._results.look_at(job)

    def _find(self, partition: Partition, place: CommandName) -> Job | None:
        """As `LaneEngine.find`. Whether the store has such a command is seen by a look at it."""
        if place.scope:
            return None  # it was in the memory of another manager
        try:
            check_name("key", place.key, self.store.limits)
        except (LeasedKeyQError, ValueError):
            return None
        job = self._results.jobs.get(place.number)
        if job is None:
            began = self._loop.time()
            job = Job(place.number, partition, "", place.key, None, began, 0, None, None)
            job.remote = True
            job.status = "unknown"
            self._results.jobs[place.number] = job
            self._results.refresh(partition)
        return job if job.partition is partition and job.key == place.key else None

    def _expect_here(self, job: Job, heard: int) -> None:
        """Leave a command that was just submitted to the next claim, if there will be one.

        `heard` is how often something had been heard before it was put. The put itself is heard,
        and every claim is begun because something was heard. So if nothing was, a claim follows;
        otherwise it is one that waits to be begun, or is under way, or has ended already.
        """
        if not self._serving or not job.remote or not job.partition.owned:
            return
        if job.kind not in self.registry.types:
            return  # no claim of this worker asks for it
        if self._heard == heard or self._wanted.is_set():
            self._due_here[job.id] = self._begun
        elif self._claiming:
            self._due_here[job.id] = self._begun - 1

    def _not_here(self, begun: int) -> None:
        """Look in the store for commands that the claim with this number should have brought."""
        missing = [number for number, before in self._due_here.items() if before < begun]
        for number in missing:
            del self._due_here[number]
            job = self._results.jobs.get(number)
            if job is not None and job.waiters and job.remote and job.status not in ENDED:
                self._results.expect(job)

    # Starting and stopping

    async def start(self) -> None:
        """As `LaneEngine.start`."""
        self.started = True
        self._plan.open(self._take_given)
        for partition in self.partitions:
            self._watch(partition)
        self._workers.write()
        # With a capacity, lanes take from each other: then one claim is under way at a time.
        calls = self.store.calls_at_a_time
        self._claims = calls if self.slots.capacity is None else 1
        self._ending = [
            *(self._spawn(self._serve(), "claims", self._claims_more) for _ in range(self._claims)),
            self._spawn(self._workers.run(), "worker group", self._claims_more),
        ]
        self._tasks = [
            *self._ending,
            *(self._spawn(self._outbox.run(), "outbox", self._is_open) for _ in range(calls)),
            self._spawn(self._heartbeat.run(), "heartbeat", self._is_open),
        ]
        if self._minutes.kept:
            self._tasks.append(self._spawn(self._minutes.run(), "minute series", self._is_open))
        self.loop_watch.start()
        self.wake()

    def _claims_more(self) -> bool:
        return not self.stopped

    def _is_open(self) -> bool:
        return not self._letting_go

    def _task_failed(self, task: Task[None], why: str, error: BaseException | None = None) -> None:
        if not isinstance(error, StoreClosedError):
            super()._task_failed(task, why, error)
        elif not self.stopped and not self.shutting_down:
            logger.error("the store was closed; no more commands are started")
            self.fail(ManagerClosedError(f"{FAILED}the store was closed"), error)

    def _watch(self, partition: Partition) -> None:
        if partition.queue not in self._unwatch:
            self._unwatch[partition.queue] = self.store.watch(partition.queue, self._hear)

    def _hear(self) -> None:
        """A watched queue has changed: look for commands, results and revoked leases."""
        self._heartbeat.heard = True
        self._results.look()
        self.wake()

    def wake(self, partition: Partition | None = None) -> None:
        """As `LaneEngine.wake`."""
        for changed in self._drains:
            changed.set()
        if partition is None:
            self._prefetch.check()
            self._plan.changed()
        else:
            self._begin_next(partition.lane)
            if self._wanted.is_set() or not self._plan.wants(partition):
                return  # more of them will end soon
            if self._plan.asks(partition):
                if 0 < self._claiming < self._claims and self._plan.may_overlap(partition):
                    self._wanted.set()
                return
        self._heard += 1
        self._wanted.set()

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in a task of its own, for which no caller waits."""
        task = self._spawn(work, "errand")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def pause(self, lane: Lane, paused: bool) -> PendingWrite:
        """As `LaneEngine.pause`, for all workers of the store."""
        written = self._workers.pause(lane, paused)
        self.wake()
        return written

    async def quiet(self) -> None:
        """As `LaneEngine.quiet`; what this worker does not start, other workers may."""
        self.stopped = True
        self._wanted.set()  # so that no claim stays parked
        self._prefetch.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKING_BACK):
                await self._outbox.empty.wait()  # or other workers would begin with later commands
        self._workers.leave()
        await super().quiet()

    async def close(self) -> None:
        """As `LaneEngine.close`."""
        self._wanted.set()  # so that it sees that nothing more is to be started
        self._workers.known.set()
        self._workers.end()
        settled = False
        try:
            async with asyncio.timeout(PATIENCE):
                await self._workers.written()
                if self._tasks and self.failure is None:
                    await asyncio.wait(self._ending)
                    while self._errands or len(self._outbox):
                        # A step of a workflow is settled when the store has what follows it.
                        if self._errands:
                            await asyncio.wait(list(self._errands))
                        await self._outbox.empty.wait()
                    await self.dlq.settled()
                    settled = True
                    await self._minutes.flush()
                    await self._events.flush()
        except TimeoutError:
            if settled:
                logger.warning("the last minute value of lanes is lost: the store does not answer")
            elif not self._errands and not len(self._outbox):
                logger.warning("the worker ends, and cannot tell it: the store does not answer")
            else:
                logger.error(  # noqa: TRY400
                    "%d commands are not settled: the store does not answer; they run again when "
                    "their leases have expired",
                    len(self._outbox),
                )
        self._letting_go = True
        self.loop_watch.stop()
        self._workers.close()
        self._unknown.close()
        tasks = [*self._tasks, *self._errands, *self._workflow.close()]
        tasks += self._results.close(self.closed_error)
        tasks += self._events.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._plan.abandon()
        for timer in (self._alarm, self._follow_up):
            if timer is not None:
                timer.cancel()
        for unwatch in self._unwatch.values():
            unwatch()
        self._unwatch.clear()

    # Claiming

    async def _serve(self) -> None:
        """Claim whenever there is room and something may have come."""
        pause = FIRST_PAUSE
        self._serving += 1
        try:
            await self._workers.known.wait()
            while True:
                await self._wanted.wait()
                if self.stopped:
                    await self._plan.close()
                    return
                self._wanted.clear()
                try:
                    await self._claim()
                except StoreClosedError:
                    raise
                except Exception as error:
                    report("commands could not be claimed", error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    self._wanted.set()
                else:
                    pause = FIRST_PAUSE
        finally:
            self._serving -= 1
            if not self._serving:
                self._not_here(self._begun + 1)

    async def _claim(self) -> None:
        """Claim once, and see to it that more is claimed when there is more."""
        heard = self._heard
        if self._follow_up is not None:
            self._follow_up.cancel()
            self._follow_up = None
        claimed = await self._claim_and_take()
        if claimed is None:
            return
        if claimed:
            await asyncio.sleep(0)  # so that they begin before more is asked for
        if self.emitter.listening:
            await self._look_for_pressure()
        if not self._plan.has_room():
            self._not_here(self._begun + 1)
        # Of two that claim, one may have left to the other what it has heard of.
        elif self._plan.more or (self._claims > 1 and heard != self._heard):
            self._wanted.set()
        elif claimed or len(self._outbox):
            # What is settled now is heard, and leads to another claim.
            self._follow_up = self._loop.call_later(FOLLOW_UP, self._hear)
        else:
            await self._set_alarm()
            self._unknown.look()

    async def _claim_and_take(self) -> int | None:
        """How many commands a claim has brought, which run now; None: it is left to another one."""
        self._begun += 1
        begun = self._begun
        self._claiming += 1
        try:
            claimed = await self._plan.claim()
            if claimed is None:
                self._begun -= 1  # it was none: the one under way counts, and the one after it
                begun = 0
                return None
            since: dict[str, float] = {}
            try:
                if self._metrics is not None or self._instrument is not None:
                    with self._plan.not_taken_yet(claimed):
                        since = await self._available_since([item for _, item in claimed])
            finally:
                for partition, item in claimed:
                    self._take(partition, item, since.get(item.token))
            return len(claimed)
        finally:
            self._claiming -= 1
            if self._due_here:
                self._not_here(begun)

    async def _available_since(self, claimed: Sequence[Claimed]) -> dict[str, float]:
        """For instruments: since when commands could have run that were tried before, by token."""
        by_queue: dict[str, list[Claimed]] = {}
        for item in claimed:
            if item.attempt > 1:
                by_queue.setdefault(item.queue, []).append(item)
        found: dict[str, float] = {}
        try:
            for queue, items in by_queue.items():
                looked_at = await self.store.look(queue, [item.key for item in items])
                for item, stored in zip(items, looked_at, strict=True):
                    moment = available_since(stored[0]) if stored else None
                    if moment is not None and stored[0].id == item.id:
                        found[item.token] = moment
        except LeasedKeyQError as error:
            logger.warning("how long commands have waited could not be read: %s", error)
        return found

    async def _look_for_pressure(self) -> None:
        lanes = [lane for lane in self.lanes.values() if lane.config.pressure_threshold]
        if lanes:
            for lane, counts in (await lane_counts(self.store, lanes)).items():
                waiting = counts.available + self._prefetch.of_lane(lane)
                self._tell_pressure(lane, waiting, counts.in_flight)

    async def _set_alarm(self) -> None:
        """Wake up when the next command comes due, or a limit has a token again."""
        queues = [partition.queue for partition in self.partitions if partition.owned]
        waits = [seconds for seconds in await self.store.sweep(queues) if seconds is not None]
        again = await self._plan.next_try(min(waits, default=inf))
        now = self._loop.time()
        if self._alarm is not None:
            if self._alarm.when() <= now:
                return  # it rings at once, and the claim that follows looks at what is due
            self._alarm.cancel()
            self._alarm = None
        if again < inf:
            self._alarm = self._loop.call_at(now + again, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._hear()

    def _take_given(self, claimed: Claimed) -> None:
        """Run a command that came to a parked claim, and ask for more."""
        partition = next(
            partition for partition in self.partitions if partition.queue == claimed.queue
        )
        if self._tracing is not None:
            self._tracing.claimed(partition.lane.id, 1)
        self._take(partition, claimed)
        self.wake()

    def _take(self, partition: Partition, claimed: Claimed, since: float | None = None) -> None:
        """Run a command that was claimed when it has a slot, unless it cannot be read.

        `since` is when it could have run, if that is known, as Unix time of the store.
        """
        lane = partition.lane
        gone = claimed.id in self._cancelled_lately
        if gone or self.stopped or lane.paused or not partition.owned:  # since the claim was begun
            self._plan.take_back(partition, claimed)
            return
        job = self._results.jobs.get(claimed.id)
        if job is not None and job.lease is not None and job.lease.token in self._held:
            # That lease has expired, and the heartbeat has not noticed it yet.
            self._lose(job, job.lease)
            job = job.latest()
        if job is None:
            began = self._loop.time()
            job = Job(claimed.id, partition, claimed.kind, claimed.key, None, began, 0, None, None)
            self._results.jobs[job.id] = job
        job.remote = False
        job.lease = claimed
        job.kind = claimed.kind
        if self._metrics is not None:
            job.counts = self._metrics.of(partition.lane.id, claimed.kind)
        job.priority = -claimed.priority
        self._held[claimed.token] = job
        try:
            envelope = decode_envelope(claimed.value)
            if envelope.workflow is None:
                job.command = self.registry.decode(claimed.kind, bytes(envelope.payload))
            else:
                self._take_part(job, envelope, envelope.workflow)
        except Exception as error:
            self._failed_unread(job, error)
            return
        job.submitted_at = self._loop.time() - max(0.0, self.clock() - envelope.at)
        job.ready_at = self._ready_at(lane, claimed, envelope, since)
        job.timeout = envelope.timeout or None
        if envelope.timeout is None:
            job.timeout = self._default_timeout(lane, claimed.kind)
        job.carrier = envelope.trace
        job.coalesces = envelope.coalesces
        job.unique_for = envelope.unique_for
        if claimed.attempt > lane.config.max_attempts:
            text = f"was started {claimed.attempt - 1} times, and never ended"
            self._failed_unread(job, self._error(CommandLostError, job, text))
            return
        job.status = "pending"
        job.attempt = claimed.attempt - 1
        if not self._prefetch.must_wait(job):
            self.slots.take(partition)
            job.attempt = claimed.attempt
            self._begin(job)

    def _take_part(self, job: Job, envelope: Envelope, note: WorkflowNote) -> None:
        """Read a command that is a part of a workflow."""
        job.workflow = StorePart(note, envelope.payload)
        if note.gathered is None:
            job.command = self.registry.decode(job.kind, bytes(envelope.payload))
        else:
            job.command = GatheredOutcomes(job.kind)  # which are read when it runs

    def _ready_at(
        self, lane: Lane, claimed: Claimed, envelope: Envelope, since: float | None
    ) -> float:
        """When a command could have started, by the clock of the event loop.

        One that was tried before, and of which that is not known, is taken to be ready now.
        """
        now = (claimed.expires_at or 0.0) - lane.lease_time
        if since is None and claimed.attempt > 1:
            since = now
        elif since is None:
            # One that was put back after it had been given up has no delay any more.
            since = claimed.put_at
            if envelope.after:
                since = max(since, envelope.at + envelope.after)
        here = self._loop.time()
        self._minutes.ahead = now - here
        return here - max(0.0, now - since)

    def _begin_next(self, lane: Lane) -> None:
        """Begin commands that were prefetched, as there is a slot again."""
        while lane.active < lane.most and (partition := self._prefetch.oldest(lane)) is not None:
            job = self._prefetch.next(partition, self._prefetch.lines[partition])
            if job is not None:
                self.slots.take(partition)
                job.attempt = job.lease.attempt
                self._begin(job)

    def _no_longer_running(self, job: Job) -> None:
        ran = (self.bound_loop or self._loop).time() - job.started_at
        line = self._prefetch.lines.get(job.partition)
        if line is not None:
            line.learn(ran)
        self._minutes.ended(job, ran)
        super()._no_longer_running(job)

    def _failed_unread(self, job: Job, error: Exception) -> None:
        job.attempt = job.lease.attempt
        job.interruption = None
        job.partition.lane.failed += 1
        if self.emitter.listening:
            self._emit(events.COMMAND_FAILED, job, error)
        self._give_up(job, error)

    # Settling

    def _send_progress(self, job: Job) -> None:
        """The command of a job is going to be tried again, or given up: store what it told last.

        It goes with the same trip as the change that follows.
        """
        progress, lease = job.untold, job.lease
        if progress is not None and lease.token in self._held:
            lease_time = job.partition.lane.lease_time
            extend = Extend(lease.queue, lease.key, lease.token, lease_time, progress)
            self._outbox.add(extend, lambda _: None)
            job.stored_progress = progress

    def _send(self, job: Job, change: Change, done: Callable[[], None]) -> None:
        """Settle the lease of a job, and then call `done`, unless the lease was lost."""
        if job.lease.token in self._held:
            self._settling.add(job.lease.token)
            self._outbox.add(change, partial(self._told, job, job.lease, done))

    def _told(self, job: Job, lease: Claimed, done: Callable[[], None], answer: Answer) -> None:
        self._settling.discard(lease.token)
        if self._held.pop(lease.token, None) is None:
            return  # it was lost before
        if isinstance(answer, Refusal):
            self._lost(job)
        elif isinstance(answer, LeasedKeyQError):
            logger.error("lane %r: %s", job.partition.lane.id, answer)
            self._lost(job)
        else:
            try:
                done()
            except Exception as error:
                name = job.name
                logger.exception("lane %r: the end of %s failed", job.partition.lane.id, name)
                if job.status not in ENDED:
                    job.end("lost", None, error)

    def _completed(self, job: Job, result: Any) -> None:
        if job.workflow is not None and job.workflow.note.gathered is None:
            self._errand(self._go_on(job, result))
        else:
            self._acknowledge(job, result)

    def _acknowledge(self, job: Job, result: Any) -> None:
        lane, lease = job.partition.lane, job.lease
        keep = max(lane.keep_results, job.unique_for)
        collects = job.workflow is not None and job.workflow.note.collects
        most = self.store.limits.value_size
        kept = ending(result, most, gathered=collects) if keep else None
        self._send(
            job,
            Ack(lease.queue, lease.key, lease.token, kept, keep),
            partial(self._end_completed, job, result),
        )

    def _end_completed(self, job: Job, result: Any) -> None:
        job.partition.lane.completed += 1
        self._finish(job, "completed", result)
        if job.workflow is not None and job.workflow.note.gathered is not None:
            gather = job.workflow.note.gathered.gather
            forgetting = self._workflow.forget(gather)
            self._errand(self._unless_it_fails(forgetting, f"{gather!r} is forgotten later"))

    # Workflows

    async def _complete_arguments(self, job: Job) -> None:
        await self._workflow.complete_arguments(job)

    def _check_result(self, job: Job, result: Any) -> None:
        self._workflow.prepare_next(job, result)

    async def _go_on(self, job: Job, result: Any) -> None:
        """A command of a workflow is done: see to what follows, and acknowledge it then."""
        part: StorePart = job.workflow
        lease: Claimed = job.lease
        if part.note.steps:
            work = partial(self._workflow.put_next, job, lease)
            found, placed = await self._while_held(job, lease, work)
            if found and placed is None:
                self._lose(job, lease)
            elif found and placed is not None:
                self._acknowledge_step(job, placed)
        else:
            outcome = GatherOutcome(result=result)
            if await self._recorded(job, lease, outcome):
                self._acknowledge(job, result)

    def _acknowledge_step(self, job: Job, placed: tuple[Partition, Placed, str, str]) -> None:
        """Acknowledge a step of a chain whose next step is in the store."""
        partition, place, key, kind = placed
        following = self._submitted(partition, place, key, kind, None, PLAIN)
        step = Continuation(partition.lane.id, key, place.id, kind)
        lease: Claimed = job.lease
        keep = max(job.partition.lane.keep_results, CONTINUATION_KEPT)
        ack = Ack(lease.queue, lease.key, lease.token, continued(step), keep)

        def told(answer: Answer) -> None:
            if isinstance(answer, Refusal):  # it was cancelled, or another worker has it
                work = self._workflow.take_back_next(job, step)
                self._errand(self._unless_it_fails(work, f"step {key!r} was not taken back"))
            self._told(job, lease, partial(self._end_step, job, following), answer)

        if lease.token in self._held:
            self._settling.add(lease.token)
            self._outbox.add(ack, told)
        else:
            told(Refusal(lease.key))

    def _end_step(self, job: Job, following: Job) -> None:
        job.partition.lane.completed += 1
        self._results.go_on(job, following)

    async def _recorded(self, job: Job, lease: Claimed, outcome: GatherOutcome[Any]) -> bool:
        """Record the outcome of a member of a gather; returns whether its lease still holds."""
        member = job.workflow.note.member
        if member is None:
            return lease.token in self._held
        raw = self._workflow.written_outcome(job.kind, outcome)
        done, _ = await self._while_held(job, lease, partial(self._workflow.record, member, raw))
        return done

    async def _while_held(
        self, job: Job, lease: Claimed, work: Callable[[], Awaitable[T]]
    ) -> tuple[bool, T | None]:
        """Do something until it works, or until the lease of a job is gone.

        Returns whether the lease still holds, and what the work returned.
        """
        pause = FIRST_PAUSE
        while lease.token in self._held:
            try:
                done = await work()
            except StoreClosedError:
                logger.error("the store was closed; %s is not settled, and runs again", job.name)  # noqa: TRY400
                return False, None
            except Exception as error:
                report(f"key {job.key!r}: its workflow does not go on", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return lease.token in self._held, done
        return False, None

    def _retry(self, job: Job, delay: float, error: BaseException) -> None:
        lease = job.lease
        self._send_progress(job)
        self._send(
            job,
            Release(
                lease.queue,
                lease.key,
                lease.token,
                delay=delay,
                error=storable(retry_note(error_line(error), delay)),
            ),
            partial(self._back, job, "scheduled" if delay else "pending"),
        )

    def _give_up(self, job: Job, error: BaseException) -> None:
        if job.workflow is not None and job.workflow.note.member is not None:
            self._errand(self._give_up_member(job, error))
        else:
            self._bury(job, error)

    async def _give_up_member(self, job: Job, error: BaseException) -> None:
        """Tell the gather of a command that it is given up, and bury it then."""
        status: GatherStatus = "timed_out" if job.interruption == "timeout" else "failed"
        outcome = failed_outcome(status, error, storable(error_line(error)))
        if await self._recorded(job, job.lease, outcome):
            self._bury(job, error)

    def _bury(self, job: Job, error: BaseException) -> None:
        lease = job.lease
        self._send_progress(job)
        timed_out = job.interruption == "timeout"
        text = join(error_line(error), traceback_text(error), error, timed_out=timed_out)
        hold = job.partition.lane.config.on_dead_letter == "pause_key"
        change = Bury(lease.queue, lease.key, lease.token, text, hold)
        self._send(job, change, partial(self._end_failed, job, error))

    def _end_failed(self, job: Job, error: BaseException) -> None:
        self._buried(job, error)
        self.dlq.trim(self._loop)
        timeout = job.interruption == "timeout"
        self._finish(job, "timed_out" if timeout else "failed", None, error)

    def _finish_elsewhere(
        self,
        job: Job,
        status: CommandStatus,
        result: Any = None,
        error: BaseException | None = None,
    ) -> None:
        """A job is over that another process has run: this one hears of its end, too."""
        if job.status == "unknown":
            job.end(status, result, error)  # it ended before this process asked for it
            return
        if self.emitter.listening:
            if status == "timed_out":
                self._emit(events.COMMAND_TIMEOUT, job, error)
            if status in ("timed_out", "failed"):
                self._emit(events.COMMAND_FAILED, job, error)
        self._finish(job, status, result, error)

    def _cancelled(self, job: Job) -> None:
        if job.lease.token not in self._held:
            self._errand(self._cancel_elsewhere(job))
        elif job.workflow is None:
            self._acknowledge_cancelled(job)
        else:
            self._errand(self._cancel_part(job))

    def _acknowledge_cancelled(self, job: Job) -> None:
        lease, keep = job.lease, job.partition.lane.keep_results
        kept = CANCELLED if keep else None
        ack = Ack(lease.queue, lease.key, lease.token, kept, keep, "cancelled")
        self._send(job, ack, partial(self._end_cancelled, job))

    async def _cancel_part(self, job: Job) -> None:
        """A command of a workflow was cancelled while it ran here."""
        note: WorkflowNote = job.workflow.note
        outcome = self._cancelled_outcome(job.partition.lane, job.kind, job.key)
        work = partial(self._workflow.cancelled, note, job.kind, outcome)
        held, _ = await self._while_held(job, job.lease, work)
        if held:
            self._acknowledge_cancelled(job)

    def _cancelled_outcome(self, lane: Lane, kind: str, key: str) -> GatherOutcome[Any]:
        text = f"lane {lane.id!r}: command {kind!r} of key {describe(key)} was cancelled"
        error = CommandCancelledError(text, lane=lane.id, command_type=kind, key=key)
        return failed_outcome("cancelled", error, storable(error_line(error)))

    def _end_cancelled(self, job: Job) -> None:
        job.partition.lane.cancelled += 1
        error = self._error(CommandCancelledError, job, "was cancelled")
        self._finish(job, "cancelled", None, error)

    def _take_back(self, job: Job) -> None:
        lease = job.lease
        self._send_progress(job)
        if lease.token in self._held:
            told = partial(self._told, job, lease, partial(self._back, job, "pending"))
            self._settling.add(lease.token)
            self._plan.take_back(job.partition, lease, told)

    def _leave_to_lease(self, job: Job) -> bool:
        if self._held.pop(job.lease.token, None) is not None:
            self._back(job, "pending")
        return True

    def _back(self, job: Job, status: Any) -> None:
        """The command of a job is in the store again, for any worker."""
        job.status = status
        job.remote = True
        if job.waiters:
            self.expect(job)

    # Leases

    def _has(self, job: Job) -> bool:
        """Whether a job runs, or waits here for a slot."""
        return job in self.running or job in self._prefetch

    def _not_renewed(self, job: Job, lease: Claimed) -> None:
        """The lease of a job is gone. If it is being settled, the answer to that tells more."""
        if lease.token not in self._settling:
            self._lose(job, lease)

    def _lose(self, job: Job, lease: Claimed) -> None:
        if self._held.get(lease.token) is job:
            del self._held[lease.token]
            self._prefetch.remove(job)
            if job in self.running and job.interruption is None:
                self._interrupt(job, "lost")
            self._lost(job)

    def _lost(self, job: Job) -> None:
        """The lease of a job is gone: another worker has the command now, or it was removed.

        Its run may go on for a while, and the command may come back here: so another job stands
        for it from now on.
        """
        if job.status in ENDED:
            return  # it was cancelled
        lane = job.partition.lane.id
        name = job.name
        logger.warning("lane %r: the lease of %s was lost; its result does not count", lane, name)
        if self.emitter.listening:
            payload = {"lane": lane, "command_id": job.command_id, "command_type": job.kind}
            lost = {"key": job.key, "attempt": job.attempt, "error": "the lease was lost"}
            self.emitter.emit(events.COMMAND_CANCELLED, payload | lost)
        successor = Job(
            job.id,
            job.partition,
            job.kind,
            job.key,
            None,
            job.submitted_at,
            job.priority,
            job.timeout,
            None,
        )
        job.follow(successor)
        self._results.jobs[job.id] = successor
        self._back(successor, "pending")

    # From outside

    async def cancel(self, lane: Lane, key: str) -> bool:
        """As `LaneEngine.cancel`."""
        partition = lane.partition_of(key)
        running = self.running
        mine = {
            job.id: job
            for job in running
            if job.key == key and job.partition is partition and job.interruption != "lost"
        }
        part = await self._workflow.part_of(partition, key)
        cancelled = await self._cancel_all(partition, key, mine)
        if cancelled and part is not None:
            note, kind = part
            await self._workflow.cancelled(note, kind, self._cancelled_outcome(lane, kind, key))
        for job in mine.values():
            if job in running:
                self._cancel_run(job)
                cancelled = True
            else:  # it has ended meanwhile, maybe to be tried again
                cancelled |= await self.cancel_job(job.latest())
        return cancelled

    async def cancel_job(self, job: Job) -> bool:
        """As `LaneEngine.cancel_job`."""
        if job.status in ENDED:
            return False
        if job in self.running:
            self._cancel_run(job)
            return True
        if await self._cancel_one(job):
            return True
        if job.remote and may_have_note(job.key):
            await self._results.look_at(job)
            if (last := job.latest()) is not job:  # its chain has gone on elsewhere
                return await self.cancel_job(last)
        return False

    async def _cancel_elsewhere(self, job: Job) -> None:
        """Cancel the command of a job whose lease was lost before: another worker may have it."""
        try:
            await self._cancel_one(job)
        except Exception as error:
            lane = job.partition.lane.id
            logger.warning("lane %r: key %r was not cancelled: %s", lane, job.key, error)

    async def _cancel_one(self, job: Job) -> bool:
        """Cancel the command of a job in the store, whatever there is of its key besides."""
        partition, number = job.partition, job.id

        async def cancel() -> Sequence[int]:
            keep = partition.lane.keep_results
            change = Cancel(partition.queue, job.key, CANCELLED, keep, number)
            [answer] = await self.store.settle([change])
            if isinstance(answer, LeasedKeyQError):
                raise answer
            return [number] if answer else []

        part = await self._workflow.part_of(partition, job.key)
        done = await self._cancel_stored(partition, job.key, lambda other: other == number, cancel)
        if done and part is not None:
            outcome = self._cancelled_outcome(partition.lane, job.kind, job.key)
            await self._workflow.cancelled(part[0], job.kind, outcome)
        return done

    async def _cancel_all(self, partition: Partition, key: str, but: Container[int]) -> bool:
        """Cancel all commands of a key in the store `but` one that runs here.

        A dead letter that holds the key stays, and holds it no more.
        """

        async def cancel() -> Sequence[int]:
            cancelled: list[int] = []

            def work(items: Sequence[StoredItem]) -> list[Put | Change]:
                live = [item.id for item in items if item.state not in ("done", "buried")]
                cancelled.extend(number for number in live if number not in but)
                if not cancelled and not any(item.holds for item in items):
                    return []
                only_line = len(cancelled) < len(live)
                keep = partition.lane.keep_results
                return [Cancel(partition.queue, key, CANCELLED, keep, only_line=only_line)]

            await self.store.edit(partition.queue, work, keys=[key])
            return cancelled

        return await self._cancel_stored(partition, key, lambda number: number not in but, cancel)

    async def _cancel_stored(
        self,
        partition: Partition,
        key: str,
        wanted: Callable[[int], bool],
        cancel: Callable[[], Awaitable[Sequence[int]]],
    ) -> bool:
        """Cancel those items of a key in the store whose ids are wanted; `cancel` returns the ids.

        One that waits here for a slot does not begin meanwhile.
        """
        aside = [job for job in self._prefetch.of_key(partition, key) if wanted(job.id)]
        for job in aside:
            self._prefetch.remove(job)
        try:
            cancelled = await cancel()
        except BaseException:
            for job in aside:
                self._take_back(job)
            raise
        for job in aside:
            if job.id in cancelled:
                self._held.pop(job.lease.token, None)
            else:
                self._take_back(job)
        for number in cancelled:
            self._cancelled_lately[number] = None
            found = self._results.jobs.get(number)
            if found is not None and found.status not in ENDED:
                if found.lease is not None:  # it may have been claimed meanwhile, and have begun
                    self._held.pop(found.lease.token, None)
                self._prefetch.remove(found)
                if found in self.running and found.interruption is None:
                    self._interrupt(found, "lost")
                self._end_cancelled(found)
        while len(self._cancelled_lately) > CANCELLED_LATELY:
            del self._cancelled_lately[next(iter(self._cancelled_lately))]
        return bool(cancelled)

    async def stats(self) -> QueueStats:
        """As `LaneEngine.stats`; waiting and running commands are those of all processes."""
        return await store_stats(self.store, self.lanes, self.clock(), self._prefetch.of_lane)

    def _unfinished_jobs(self) -> list[Job]:
        return [job for job in list(self._results.jobs.values()) if job.status not in ENDED]

    async def idle(self) -> None:
        """As `LaneEngine.idle`."""
        for partition in self.partitions:
            self._watch(partition)
        changed = asyncio.Event()
        self._drains.add(changed)
        try:
            while True:
                changed.clear()
                await self._outbox.empty.wait()
                if not self.running and not await self.unfinished():
                    # Other workers may have run some, whose results are not known here yet.
                    await self._results.look_at_open()
                    await self.dlq.settled()
                    return
                await changed.wait()
        finally:
            self._drains.discard(changed)

    async def unfinished(self) -> dict[str, int]:
        """As `LaneEngine.unfinished`."""
        return await unfinished(self.store, self.lanes)
