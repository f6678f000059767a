"""`CommandQueue`: lanes and the engine that serves them, without the comfort of a manager."""

import asyncio
import logging
import os
import time
from asyncio import Task, get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar, cast

from leasedkeyq import checks
from leasedkeyq.errors import LeasedKeyQError, describe
from leasedkeyq.lanes import events
from leasedkeyq.lanes.commands.command import (
    BatchFunction,
    Command,
    CommandClass,
    CommandRegistry,
    command_type_of,
)
from leasedkeyq.lanes.commands.command_options import NO_OPTIONS
from leasedkeyq.lanes.commands.resources import NO_RESOURCES, NamedLifespan, Resources
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.config import LaneConfig, time_limit
from leasedkeyq.lanes.dead_letters import MAX_SIZE, DeadLetter, DeadLetterQueue
from leasedkeyq.lanes.durable.engine import PATIENCE, StoreEngine
from leasedkeyq.lanes.durable.schedules import StoreSchedules
from leasedkeyq.lanes.errors import (
    CommandPayloadError,
    DeadlineWarning,
    DrainTimeoutError,
    LaneConfigError,
    LifespanError,
    ManagerClosedError,
    ManagerFailedError,
    ResourceError,
    ScheduleError,
    ShuttingDownError,
    UnknownLaneError,
    warn,
)
from leasedkeyq.lanes.events import EventEmitter
from leasedkeyq.lanes.memory import MemoryEngine
from leasedkeyq.lanes.running.engine import FAILED, LaneEngine, Submitted
from leasedkeyq.lanes.running.execution import process_child
from leasedkeyq.lanes.running.execution.loop_watch import MAX_STALL
from leasedkeyq.lanes.running.job import Handle
from leasedkeyq.lanes.running.lane import Lane, Slots
from leasedkeyq.lanes.running.lifespan import WorkerLifespan
from leasedkeyq.lanes.running.middleware import Middleware
from leasedkeyq.lanes.running.pending_write import PendingWrite
from leasedkeyq.lanes.schedules.memory_schedules import MemorySchedules
from leasedkeyq.lanes.schedules.schedule import Schedule, ScheduleKeeper, declaration
from leasedkeyq.lanes.timetable import Cron, MissedPolicy
from leasedkeyq.lanes.workflow.outcome import GATHER_WITHIN, GatherOutcome
from leasedkeyq.lanes.workflow.steps import step_of
from leasedkeyq.stores.store import Store
from leasedkeyq.telemetry.instrument import Instrument, Tracing
from leasedkeyq.telemetry.stats import QueueStats
from leasedkeyq.types import Duration, PresentPolicy

R = TypeVar("R")

KeyedCommands: TypeAlias = Mapping[str, Command[R]] | Iterable[tuple[str, Command[R]]]
"""Commands with their keys."""
PAIR: Final = 2

logger = logging.getLogger("leasedkeyq")

FIRST_LOOK = 2.0
"""Seconds for which a start waits for the first statistics, if there are gauges to be set."""


class CommandQueue:
    """Commands in lanes. `QueueManagerBuilder` makes one, and `QueueManager` runs it.

    Args:
        emitter: Told of what happens; a new one by default.
        dlq: Keeps the commands that are given up, in memory; one of `max_dead_letters` letters
            by default. A store keeps them itself.
        capacity: How many commands may run at a time in all lanes together. None: as many as
            the lanes allow.
        store: Keeps the commands; in memory by default.
        registry: The types of commands that can be read back from a store.
        max_dead_letters: How many dead letters are kept. None: 1,000 in memory, and as many as
            its limits allow on a store.
        instruments: Told the numbers.
        tracing: Told the spans.
        max_stall: As in `QueueManagerBuilder.with_max_stall`.
        clock: Unix time, for tests.

    Raises:
        ValueError: `dlq` is given together with `store` or with `max_dead_letters`.

    Attributes:
        interrupted: How many commands still ran when it was closed, and were ended by that.
        cross_process: Whether other processes can use the same lanes.
        schedules: Keeps the schedules, and fires their ticks.
    """

    def __init__(
        self,
        emitter: EventEmitter | None = None,
        *,
        dlq: DeadLetterQueue | None = None,
        capacity: int | None = None,
        store: Store | None = None,
        registry: CommandRegistry | None = None,
        max_dead_letters: int | None = None,
        instruments: Sequence[Instrument] = (),
        tracing: Tracing | None = None,
        max_stall: Duration | None = MAX_STALL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if capacity is not None:
            checks.whole("capacity", capacity, 1)
        if max_dead_letters is not None:
            checks.whole("max_dead_letters", max_dead_letters, 1)
        if dlq is not None and store is not None:
            raise ValueError(
                "dlq is for commands in memory: a store keeps its dead letters itself, and shows "
                "them as queue.dlq; leave dlq out, and limit their number with max_dead_letters"
            )
        if dlq is not None and max_dead_letters is not None:
            raise ValueError("dlq has a max_size of its own; leave max_dead_letters out")
        self.emitter = emitter or EventEmitter()
        self.registry = registry or CommandRegistry()
        self.lanes: dict[str, Lane] = {}
        self._slots = Slots(capacity)
        self.cross_process = store is not None and store.capabilities.cross_process
        self._shutting_down = False
        self.interrupted = 0
        self._closing: Task[dict[str, int]] | None = None
        self._lifespans: Sequence[NamedLifespan] = ()
        self._lifespan: WorkerLifespan | None = None
        self._start_lock = asyncio.Lock()
        self._engine: LaneEngine
        self.schedules: ScheduleKeeper
        if store is None:
            if dlq is None:
                dlq = DeadLetterQueue(max_dead_letters or MAX_SIZE)
            self.dlq = dlq
            self._engine = memory = MemoryEngine(
                self.lanes,
                slots=self._slots,
                emitter=self.emitter,
                dlq=self.dlq,
                registry=self.registry,
                instruments=instruments,
                tracing=tracing,
                clock=clock,
            )
            self.dlq.attach(self._resubmit, memory.let_go)
            self.schedules = MemorySchedules(memory, self._open_lane)
        else:
            engine = StoreEngine(
                self.lanes,
                slots=self._slots,
                emitter=self.emitter,
                store=store,
                registry=self.registry,
                max_dead_letters=max_dead_letters,
                instruments=instruments,
                tracing=tracing,
                clock=clock,
            )
            self.dlq = engine.dlq
            self._engine = engine
            self.schedules = StoreSchedules(engine, self._open_lane)
        self._engine.loop_watch.max_stall = time_limit("max_stall", max_stall)

    @classmethod
    def with_dlq(cls, emitter: EventEmitter, dlq: DeadLetterQueue) -> "CommandQueue":
        """A queue in memory whose dead letters go to `dlq`."""
        return cls(emitter, dlq=dlq)

    def add_lane(
        self,
        id: str,  # noqa: A002  # as in the builder
        config: LaneConfig,
        priority: int,
        *,
        owned: Sequence[int] | None = None,
        shared: bool | None = None,
    ) -> None:
        """Add a lane. A lower `priority` goes first.

        Args:
            id: Its name.
            config: Its policy.
            priority: Its place among the lanes.
            owned: Which of its partitions this process runs; all by default.
            shared: Whether the workers of the store share out the partitions among them. By
                default they do where several processes can use the store and `owned` is None.

        Raises:
            LaneConfigError: The name is taken, or the minima of all lanes exceed the capacity.
        """
        if not isinstance(id, str) or not id or "#" in id:
            raise TypeError(f"the id of a lane is a name without #, got {describe(id)}")
        if not isinstance(config, LaneConfig):
            raise TypeError(f"config must be a LaneConfig, got {type(config).__name__}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an int, got {type(priority).__name__}")
        if id in self.lanes:
            raise LaneConfigError(f"there are two lanes of the name {id!r}", lane=id)
        lane = Lane(id, len(self.lanes), config, priority)
        if owned is not None:
            wrong = [part for part in owned if part not in range(config.partitions)]
            if wrong:
                raise LaneConfigError(
                    f"lane {id!r} has {config.partitions} partitions, counted from 0; there is no "
                    f"{wrong[0]}",
                    lane=id,
                )
            for partition in lane.partitions:
                partition.owned = partition.index in owned
        if shared is None:
            shared = owned is None and self.cross_process
        lane.shared = shared and config.partitions > 1 and self.durable
        minimum = config.min_concurrency if lane.runs_here else 0
        capacity = self._slots.capacity
        if capacity is not None and self._slots.reserved + self._slots.active + minimum > capacity:
            raise LaneConfigError(
                f"the minima of the lanes up to {id!r} are more than the capacity of {capacity}; "
                "lower min_concurrency or raise the capacity",
                lane=id,
            )
        self._engine.add_lane(lane)
        self.lanes[id] = lane
        if lane.boost.deadline is not None and capacity is None:
            warn(
                f"lane {id!r}: the deadline of its priority_boost lifts it above other lanes, and "
                "here no lane takes slots from another; share them with with_capacity, or give "
                "deadlines to commands, which they lift within their lane: submit(deadline=...)",
                DeadlineWarning,
            )

    def check_lanes(self) -> None:
        """Find lanes that could never run anything.

        Raises:
            LaneConfigError: The minima of others take the whole capacity.
        """
        lanes = [lane for lane in self.lanes.values() if lane.runs_here]
        if self._slots.capacity == sum(lane.reserved for lane in lanes):
            for lane in lanes:
                if not lane.reserved:
                    raise LaneConfigError(
                        f"lane {lane.id!r} has no minimum, and the minima of the other lanes take "
                        f"the whole capacity of {self._slots.capacity}, so it could never run; "
                        "raise the capacity",
                        lane=lane.id,
                    )

    def lane(self, lane_id: str) -> Lane:
        """The lane of this name.

        Raises:
            UnknownLaneError: There is none.
        """
        lane = self.lanes.get(lane_id)
        if lane is None:
            known = ", ".join(sorted(self.lanes)) or "none"
            raise UnknownLaneError(
                f"there is no lane {lane_id!r}; the lanes are: {known}", lane=str(lane_id)
            )
        return lane

    def surround(
        self, middleware: Sequence[Middleware], lifespans: Sequence[NamedLifespan]
    ) -> None:
        """Run commands within `middleware`, and keep `lifespans` open while they run.

        Both may grow: the lifespans until the start.
        """
        self._engine.middleware = middleware
        self._lifespans = lifespans

    def limit_processes(self, most: int) -> None:
        """Let at most so many processes run commands; see `QueueManagerBuilder.with_processes`."""
        self._engine.limit_processes(checks.whole("most", most, 1))

    def limit_stall(self, max_stall: Duration | None) -> None:
        """How long the event loop may be blocked; see `QueueManagerBuilder.with_max_stall`."""
        self._engine.loop_watch.max_stall = time_limit("max_stall", max_stall)

    def add_instrument(self, instrument: Instrument) -> None:
        """Tell the numbers to one more."""
        self._engine.add_instrument(instrument)

    def when_stuck(self, end: Callable[[], None]) -> None:
        """Have `end` called, in another thread, once the event loop is stuck for good.

        That is after the time that `QueueManagerBuilder.with_max_stall` says, of lanes on a store.
        No lease is renewed any more by then. ``leasedkeyq worker`` ends its process.
        """
        self._engine.loop_watch.when_stuck = end

    def leases_overdue(self) -> float:
        """Seconds for which leases of running commands may have run out; 0 or less: none has.

        Any thread may ask, also while the event loop is blocked.
        """
        engine = self._engine
        return engine.lease_guard.overdue() if isinstance(engine, StoreEngine) else 0.0

    @property
    def store(self) -> Store | None:
        """Where its commands are; None: in memory."""
        engine = self._engine
        return engine.store if isinstance(engine, StoreEngine) else None

    @property
    def durable(self) -> bool:
        """Whether commands are kept in a store."""
        return isinstance(self._engine, StoreEngine)

    async def submit(
        self,
        lane_id: str | Command[R],
        command: Command[R] | None = None,
        *,
        key: str | None = None,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> Handle[R]:
        """Submit a command, to a lane or to that of its type; see `QueueManager.submit`."""
        if at is not None:
            delay = self.delay_until(at, delay)
        terms = SubmitTerms.checked(
            if_present, priority, delay, deadline, timeout, unique_for=unique_for
        )
        return await self.submit_on(lane_id, command, key, terms, connection)

    async def submit_on(
        self,
        lane_id: str | Command[R] | None,
        command: Command[R] | None,
        key: str | None,
        terms: SubmitTerms,
        connection: Any = None,
    ) -> Handle[R]:
        """Submit a command on terms that were checked."""
        if not isinstance(lane_id, str):
            lane_id, command = self._with_default_lane(lane_id, command)
        lane = self._open_lane(lane_id)
        kind = command_type_of(command)
        if key is not None:
            _check_key(key)
        elif kind in self.registry.options:
            key = self.registry.default_key(kind, command)
        if terms.deadline is not None:
            _warn_of_deadline(lane)
        engine = self._engine
        if connection is not None:
            [job] = await engine.submit_within(connection, lane, [(key, kind, command)], terms)
            return Handle(job, engine)
        return Handle(await engine.submit(lane, (key, kind, command), terms), engine)

    async def submit_many(
        self,
        lane_id: "str | KeyedCommands[R] | Iterable[Command[R]]",
        commands: "KeyedCommands[R] | Iterable[Command[R]] | None" = None,
        *,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> list[Handle[R]]:
        """Submit many commands; see `QueueManager.submit_many`."""
        if at is not None:
            delay = self.delay_until(at, delay)
        terms = SubmitTerms.checked(
            if_present, priority, delay, deadline, timeout, unique_for=unique_for
        )
        return await self.submit_many_on(lane_id, commands, terms, connection)

    async def submit_many_on(
        self,
        lane_id: "str | KeyedCommands[R] | Iterable[Command[R]] | None",
        commands: "KeyedCommands[R] | Iterable[Command[R]] | None",
        terms: SubmitTerms,
        connection: Any = None,
    ) -> list[Handle[R]]:
        """Submit many commands on terms that were checked."""
        if not isinstance(lane_id, str):
            # Commands may come from an iterator: they are read once.
            some = _with_types(lane_id if commands is None else commands)
            if commands is not None and lane_id is not None:
                self.lane(cast("Any", lane_id))
            if not some:
                return []
            lane = self._open_lane(self._common_lane(some))
        else:
            lane = self._open_lane(lane_id)
            if commands is None:
                raise TypeError(
                    f"submit_many({lane_id!r}) has a lane and no commands; give them behind it: "
                    f"submit_many({lane_id!r}, [command, ...])"
                )
            some = _with_types(commands)
        if terms.deadline is not None:
            _warn_of_deadline(lane)
        if self.registry.options:
            some = [self._with_default_key(one) for one in some]
        engine = self._engine
        if not some:
            jobs = []
        elif connection is not None:
            jobs = await engine.submit_within(connection, lane, some, terms)
        else:
            jobs = await engine.submit_many(lane, some, terms)
        return [Handle(job, engine) for job in jobs]

    def schedule(
        self,
        *,
        name: str,
        expression: str | None,
        command: Command[Any] | None,
        every: Duration | None,
        lane: str | None,
        tz: str | None,
        missed: MissedPolicy,
        jitter: Duration | None,
        key: str | None,
        if_present: PresentPolicy | None,
        priority: int | None,
        timeout: Duration | None,
    ) -> Schedule:
        """Declare a schedule; see `QueueManager.schedule`."""
        if self._closing is not None:
            raise ManagerClosedError(f"schedule {name!r}: the manager was closed; build another")
        if self._engine.started:
            self._engine.check_loop()
        if command is None:
            raise TypeError(
                f"schedule {name!r} has no command; write schedule({name!r}, '0 3 * * *', command) "
                f"or schedule({name!r}, command, every=timedelta(minutes=5))"
            )
        kind = command_type_of(command)
        lane = self._default_lane(kind) if lane is None else self.lane(lane).id
        if kind in self.registry.options:
            key = self.registry.default_key(kind, command) if key is None else key
            priority = self.registry.options[kind].priority if priority is None else priority
        declared = declaration(
            name,
            expression,
            command,
            kind,
            every=every,
            lane=lane,
            tz=tz,
            missed=missed,
            jitter=jitter,
            key=key,
            if_present=if_present,
            priority=priority,
            timeout=timeout,
        )
        return self.schedules.declare(declared)

    def delay_until(self, at: datetime, delay: Duration | None = None) -> float:
        """How long a command waits that is to start at a moment; see `QueueManager.submit`.

        Raises:
            ValueError: It has no time zone, or there is a `delay`, too.
            TypeError: It is no datetime.
        """
        moment = checks.moment("at", at)
        if delay is not None:
            raise ValueError(
                "at and delay exclude each other: one says when, the other how long from now"
            )
        return max(0.0, moment - self._engine.clock())

    def _with_default_lane(
        self, given: "str | Command[R] | None", command: "Command[R] | None"
    ) -> tuple[str, "Command[R]"]:
        """What ``submit(command)`` means: the lane of the type of the command, and the command.

        Raises:
            UnknownLaneError: There is no such lane, or what was `given` as one is none.
            LaneConfigError: The type has no lane.
        """
        if command is not None and given is not None:
            self.lane(cast("Any", given))
        found = cast("Command[R]", given if command is None else command)
        return self._default_lane(command_type_of(found)), found

    def _default_lane(self, kind: str) -> str:
        lane = self.registry.default_lane(kind)
        if lane not in self.lanes:
            known = ", ".join(sorted(self.lanes)) or "none"
            raise UnknownLaneError(
                f"command {kind!r} has the default lane {lane!r}, which there is not; the lanes "
                f"are: {known}",
                lane=lane,
            )
        return lane

    def _common_lane(self, commands: Sequence[Submitted]) -> str:
        """The default lane of all these commands, of which there is at least one."""
        kinds = {kind: self._default_lane(kind) for _, kind, _ in commands}
        first = next(iter(kinds))
        for kind, lane in kinds.items():
            if lane != kinds[first]:
                raise LaneConfigError(
                    f"command {first!r} goes to lane {kinds[first]!r} and command {kind!r} to lane "
                    f"{lane!r}, and submit_many submits to one lane, all or nothing; submit those "
                    "of each lane by themselves, or name a lane for all",
                    lane=lane,
                )
        return kinds[first]

    def _with_default_key(self, submitted: Submitted) -> Submitted:
        key, kind, command = submitted
        if key is None:
            key = self.registry.default_key(kind, command)
        return key, kind, command

    def handle(self, id: str) -> Handle[Any]:  # noqa: A002  # as in `Handle`
        """The handle of a command that was submitted before; see `QueueManager.handle`."""
        self._engine.check_loop()
        return Handle(self._engine.find(id), self._engine)

    async def chain(
        self,
        first: Command[Any],
        steps: Sequence[object],
        *,
        lane: "str | Sequence[str] | None" = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[Any]:
        """Submit a command and those that follow it; see `QueueManager.chain`."""
        terms = SubmitTerms.checked(None, priority, delay, None, None)
        kind = command_type_of(first)
        bound = [
            step_of(self.registry, step, f"step {number} of the chain")
            for number, step in enumerate(steps, 2)
        ]
        types = [kind, *(step.command_type for step in bound)]
        lanes = self._lanes_of("chain", lane, types)
        for step, home in zip(bound, lanes[1:], strict=True):
            step.lane = home.id
            options = self.registry.options.get(step.command_type, NO_OPTIONS)
            step.priority = options.priority if priority is None else priority
        engine = self._engine
        if not bound:
            return Handle(await engine.submit(lanes[0], (None, kind, first), terms), engine)
        return Handle(await engine.submit_chain(lanes[0], (kind, first), bound, terms), engine)

    async def gather(
        self,
        commands: Iterable[Command[Any]],
        *,
        then: object = None,
        lane: str | None = None,
        then_lane: str | None = None,
        within: Duration = GATHER_WITHIN,
        priority: int | None = None,
    ) -> Handle[Any]:
        """Submit commands and one that gets their outcomes; see `QueueManager.gather`."""
        terms = SubmitTerms.checked(None, priority, None, None, None)
        seconds = checks.delay_time("within", within)
        if not seconds:
            raise ValueError("within must be above 0: it is the time that the commands have")
        step = None if then is None else step_of(self.registry, then, "then")
        if not hasattr(commands, "__iter__"):
            raise TypeError(f"commands must be commands, got {describe(repr(commands))}")
        members = [(command_type_of(command), command) for command in commands]
        homes = self._lanes_of("gather", lane, [kind for kind, _ in members])
        engine = self._engine
        if step is None:
            if not members:
                raise ValueError("a gather of no commands has nothing to tell; give it then=")
            [home] = homes[:1] if then_lane is None else self._lanes_of("gather", then_lane, [""])
        else:
            where = lane if then_lane is None else then_lane
            [home] = self._lanes_of("gather", where, [step.command_type])
            step.lane = home.id
            if not members:
                nothing: list[GatherOutcome[Any]] = []
                command = None, step.command_type, step.command(nothing)
                return Handle(await engine.submit(home, command, terms), engine)
        placed = [(home, *member) for home, member in zip(homes, members, strict=True)]
        job = await engine.submit_gather(placed, (home, step), seconds, terms)
        return Handle(job, engine)

    def _lanes_of(
        self, what: str, lane: "str | Sequence[str] | None", types: Sequence[str]
    ) -> list[Lane]:
        """The lanes of commands of these types: one for all, or one for each.

        Raises:
            LaneConfigError: It is not said in which lane one of them runs.
            UnknownLaneError: There is no such lane.
        """
        if lane is None:
            names = [self._default_lane(kind) for kind in types]
        elif isinstance(lane, str):
            names = [lane] * len(types)
        else:
            names = list(lane)
            if len(names) != len(types):
                raise LaneConfigError(
                    f"a {what} of {len(types)} commands has {len(names)} lanes; give one for all, "
                    "or one for each"
                )
        by_name = {name: self._open_lane(name) for name in dict.fromkeys(names)}
        return [by_name[name] for name in names]

    def _open_lane(self, lane_id: str) -> Lane:
        """The lane of this name, for a new command."""
        lane = self.lanes.get(lane_id) or self.lane(lane_id)
        if self._engine.failure is not None:
            raise self._engine.failure
        if self._shutting_down:
            raise ShuttingDownError(
                f"lane {lane_id!r}: the manager is shutting down and takes no more commands",
                lane=lane_id,
            )
        if self._engine.bound_loop is not get_running_loop():
            self._engine.check_loop()
        return lane

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._engine.started

    async def start(self) -> None:
        """Begin to run commands; see `QueueManager.start`."""
        if process_child.importing:
            raise LaneConfigError(
                "a process of the pool imports the module of a command, and the module starts a "
                'manager; let it do so only under if __name__ == "__main__":'
            )
        if self._closing is not None:
            raise ManagerClosedError("the manager was closed; build another")
        self._engine.check_loop()
        self._engine.check_failure()
        self.check_lanes()
        self._check_batches()
        async with self._start_lock:
            if not self._engine.started:
                self._declare_schedules()  # what is refused is so before anything is opened
                if any(lane.runs_here for lane in self.lanes.values()):
                    await self._open_resources()
                await self._engine.start()
                await self.schedules.start()
                await self._tell_first_gauges()

    def _declare_schedules(self) -> None:
        """Declare the schedules of types of commands, but those that were declared otherwise.

        Raises:
            LaneError: One cannot be: its command needs arguments, or its lane is not there.
        """
        for kind, registered in self.registry.types.items():
            timing = registered.options.timing
            if timing is None or kind in self.schedules.declared:
                continue
            make: Any = registered.cls if isinstance(registered, CommandClass) else registered
            try:
                command = make()
            except (CommandPayloadError, TypeError) as error:
                raise ScheduleError(
                    f"schedule {kind!r}: its command is submitted without arguments, and cannot be "
                    f"made so: {error}; give its parameters default values, or declare it with "
                    f"manager.schedule({kind!r}, ..., command)",
                    schedule=kind,
                ) from error
            self.schedule(
                name=kind,
                expression=timing.expression if isinstance(timing, Cron) else None,
                command=command,
                every=None if isinstance(timing, Cron) else timing.interval,
                lane=None,
                tz=timing.tz if isinstance(timing, Cron) else None,
                missed=timing.missed,
                jitter=timing.jitter,
                key=None,
                if_present=None,
                priority=None,
                timeout=None,
            )

    def _check_batches(self) -> None:
        """Find batches that could never be full, as each of their commands takes a slot.

        Raises:
            LaneConfigError: The lane of a batch has less slots than the batch has items.
        """
        for kind, function in self.registry.types.items():
            lane = self.lanes.get(function.options.lane or "")
            if isinstance(function, BatchFunction) and lane is not None and lane.runs_here:
                limits = {
                    "max_concurrency": lane.most,
                    "global_concurrency": lane.config.global_concurrency,
                    "capacity of the manager": self._slots.capacity,
                }
                for name, most in limits.items():
                    if most is not None and most < function.size:
                        raise LaneConfigError(
                            f"batch {kind!r}: its size is {function.size}, and the {name} of lane "
                            f"{lane.id!r} is {most}, so that no batch could be full: each item "
                            "takes a slot; raise the one or lower the other",
                            lane=lane.id,
                        )

    async def _open_resources(self) -> None:
        """Enter the lifespans, and see that each command has the resources that it takes.

        Raises:
            LifespanError: A lifespan failed. Those before it have been left.
            ResourceError: A command takes a resource that there is not. They have been left.
        """
        resources = NO_RESOURCES
        if self._lifespans:
            self._lifespan = lifespan = WorkerLifespan(self._lifespans, self._lifespan_ended)
            resources = await lifespan.enter()
        try:
            self._check_resources(resources)
        except ResourceError:
            if self._lifespan is not None:
                await self._lifespan.leave()
            raise
        if self._closing is not None:
            raise ManagerClosedError("the manager was closed while it opened its resources")
        if resources:
            self._engine.give_resources(resources)

    def _check_resources(self, resources: Resources) -> None:
        missing: list[str] = []
        for kind, registered in self.registry.types.items():
            for parameter in registered.resources:
                try:
                    resources.of(parameter)
                except ResourceError as error:
                    missing.append(f"command {kind!r} takes the resource {parameter}, but {error}")
        if missing:
            raise ResourceError("; ".join(missing))

    def _lifespan_ended(self, error: LifespanError) -> None:
        logger.error("%s", error, exc_info=error)
        self._engine.fail(ManagerFailedError(f"{FAILED}{error}"), error)

    async def _tell_first_gauges(self) -> None:
        """Let gauges exist before statistics are asked for; a store in trouble delays no start."""
        if self._engine.measured:
            try:
                async with asyncio.timeout(FIRST_LOOK):
                    await self.stats()
            except (LeasedKeyQError, TimeoutError) as error:
                why = str(error) or "the store does not answer"
                logger.warning("the gauges are not known before the next stats(): %s", why)

    def pause(self, lane_id: str) -> PendingWrite:
        """Start no more commands of a lane; see `QueueManager.pause`."""
        return self._engine.pause(self.lane(lane_id), paused=True)

    def resume(self, lane_id: str) -> PendingWrite:
        """Start commands of a paused lane again; see `QueueManager.resume`."""
        return self._engine.pause(self.lane(lane_id), paused=False)

    async def cancel(self, lane_id: str, key: str) -> bool:
        """Cancel all commands of a key, waiting or running; returns whether there was one."""
        lane = self.lane(lane_id)
        self._engine.check_loop()
        return await self._engine.cancel(lane, key)

    async def stats(self) -> QueueStats:
        """How many commands wait and run, and what became of the others."""
        self._engine.check_loop()
        stats = await self._engine.stats()
        self._engine.tell_gauges(stats)
        return stats

    async def shutdown(self) -> None:
        """Take no more commands. What was submitted is still run.

        Raises:
            ManagerClosedError: It is not: a task of the manager failed, or its store was closed.
        """
        if not self._shutting_down:
            self._shutting_down = True
            self._engine.shutting_down = True
            self.schedules.stop()
            if self.emitter.listening:
                self.emitter.emit(events.SHUTDOWN_STARTED, {})
        self._engine.check_failure()

    async def unless_failed(self, work: Awaitable[object]) -> None:
        """Wait for something, or until a task of the manager fails, which is raised."""
        await self._engine.unless_failed(work)

    def is_shutting_down(self) -> bool:
        """Whether `shutdown` was called."""
        return self._shutting_down

    async def drain(self, timeout: Duration | None = None) -> None:
        """Wait until no command waits, runs, is delayed or waits for a retry.

        Commands behind a dead letter that holds their key are not waited for.

        Raises:
            DrainTimeoutError: That took longer than `timeout`. It says what is left, where.
            LaneError: It was called by a command, which would wait for itself.
            ManagerClosedError: A task of the manager has failed, or its store was closed.
        """
        limit = checks.wait_time("timeout", timeout)
        self._engine.check_loop()
        self._engine.check_outside()
        try:
            async with asyncio.timeout(limit):
                await self._engine.unless_failed(self._engine.idle())
        except TimeoutError:
            left = await self._engine.unfinished()
            if not left:
                return
            each = ", ".join(f"{number} in lane {lane!r}" for lane, number in left.items())
            raise DrainTimeoutError(
                f"{sum(left.values())} commands are not done after {limit} s: {each}", left=left
            ) from None

    async def settle_down(self, timeout: Duration | None = None) -> None:
        """Start nothing more, and wait for the commands that run.

        Raises:
            TimeoutError: They took longer than `timeout`.
            ManagerClosedError: A task of the manager has failed, or its store was closed.
        """
        limit = checks.wait_time("timeout", timeout)
        async with asyncio.timeout(limit):
            await self._engine.unless_failed(self._engine.quiet())

    async def close(self) -> dict[str, int]:
        """End what runs, and let go of everything. Returns how many commands each lane has left.

        In memory, those are lost, and tasks that wait for them are told so. In a store, they stay
        for the next process. A cancelled call goes on by itself; further calls wait for the same
        end.

        Raises:
            LifespanError: A lifespan failed to end. Everything else has ended.
        """
        self._shutting_down = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> dict[str, int]:
        self.interrupted = len(self._engine.running)
        self.schedules.stop()
        await self._engine.stop()
        await self.schedules.close()
        left: dict[str, int] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                left = await self._engine.unfinished()
        except (LeasedKeyQError, TimeoutError) as error:
            why = str(error) or "the store does not answer"
            logger.warning("how many commands are left is not known: %s", why)
        try:
            await self._engine.close()
        finally:
            if self._lifespan is not None:
                await self._lifespan.leave()
        return left

    def has(self, handle: Handle[Any]) -> bool:
        """Whether a handle is one of these lanes, and not of others on the same store."""
        return handle.engine is self._engine

    async def let_go(self) -> None:
        """Let go of everything without a look at what is left; for lanes that were not started."""
        self._shutting_down = True
        await self._engine.stop()
        await self._engine.close()

    @property
    def running_loop(self) -> "asyncio.AbstractEventLoop | None":
        """The event loop that the lanes belong to, if it runs in this process."""
        engine = self._engine
        loop = engine.bound_loop
        if loop is None or engine.bound_process != os.getpid() or not loop.is_running():
            return None
        return loop

    async def _resubmit(self, letter: DeadLetter) -> bool:
        command: Any = letter.command
        if command is None:
            command = self.registry.rebuild(letter.command_type, letter.payload)
        lane = self._open_lane(letter.lane)
        if letter.holds and await self._engine.resubmit_held(lane, letter, command):
            return True
        key = letter.key or None
        priority, timeout = letter.priority or None, letter.timeout
        terms = SubmitTerms.checked(None, priority, None, None, timeout)
        job = await self._engine.submit(lane, (key, letter.command_type, command), terms)
        job.workflow = letter.workflow  # it has not begun: in memory, a submission does not wait
        return True


def _warn_of_deadline(lane: Lane) -> None:
    """Warn if the deadline of a command has no effect."""
    if not lane.boost.enabled:
        warn(
            f"lane {lane.id!r}: its priority_boost is disabled, so this deadline has no effect; "
            "leave the deadline out, or give the lane PriorityBoostConfig.standard(None)",
            DeadlineWarning,
        )


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise TypeError(f"key must be a str that is not empty, got {describe(key)}")


def _with_types(
    commands: "str | KeyedCommands[Any] | Iterable[Command[Any]] | None",
) -> list[Submitted]:
    """Commands with their types, and with their keys where they come by key."""
    if isinstance(commands, Mapping):
        by_key = cast("Mapping[str, Command[Any]]", commands)
        return [_with_key(key, command) for key, command in by_key.items()]
    if not hasattr(commands, "__iter__"):
        got = describe(commands)
        raise TypeError(f"commands must be commands, or a mapping of keys to them, got {got}")
    return [_submitted(command) for command in cast("Iterable[Any]", commands)]


def _submitted(command: Any) -> Submitted:
    """A command, or a pair of a key and a command."""
    if _is_pair(command):
        return _with_key(command[0], command[1])
    return None, command_type_of(command), command


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(cast("tuple[object, ...]", value)) == PAIR


def _with_key(key: str, command: Command[Any]) -> Submitted:
    _check_key(key)
    return key, command_type_of(command), command
