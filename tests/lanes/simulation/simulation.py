"""A simulation of lanes on a virtual clock: random commands, failures, cancellations, deaths.

Everything random comes from one seed, and time is virtual, so a seed replays exactly. The checks
are made from outside: commands tell when they start and end, and the simulation knows what it
submitted. What may start is worked out here anew, not taken from the scheduler.
"""

import asyncio
import logging
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from leasedkeyq import MemoryStore
from leasedkeyq.errors import KeyAlreadyPresentError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandQueue,
    CommandRegistry,
    Handle,
    LaneConfig,
    ManagerClosedError,
    PriorityBoostConfig,
    RateLimitConfig,
    RetryPolicy,
)
from leasedkeyq.lanes.durable.engine import StoreEngine
from leasedkeyq.lanes.durable.prefetch import Prefetch
from leasedkeyq.lanes.durable.schedules import StoreSchedules
from leasedkeyq.lanes.errors import CommandLostError, DeadlineWarning, RemoteCommandError
from leasedkeyq.lanes.memory import MemoryEngine
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Partition
from leasedkeyq.model.requests import Answer, Change, Claim, Claimed
from leasedkeyq.testing import VirtualTimeLoop
from leasedkeyq.types import PresentPolicy

EPOCH = 1_800_000_000.0
ENDS = ("completed", "failed", "timed_out", "cancelled")


@dataclass
class Task:
    """One submitted command: what it will do at each attempt, and what became of it."""

    number: int
    lane: str
    key: str | None
    steps: list[str]
    policy: PresentPolicy | None = None
    handle: Handle[Any] | None = None
    starts: int = 0
    done: bool = False
    revoked: bool = False
    log: list[str] = field(default_factory=list)


class CommandFailedOnPurpose(Exception):  # noqa: N818
    """What failing commands raise."""


class FarStore(MemoryStore):
    """A store to which claims and settlements take a while.

    Of a settlement, its answer comes at once: who dies meanwhile has settled nothing.
    """

    trip = 0.0

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        if self.trip:
            await asyncio.sleep(self.trip / 2)
        found = await super().do_claim(requests)
        if self.trip:
            await asyncio.sleep(self.trip / 2)
        return found

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        if self.trip:
            await asyncio.sleep(self.trip)
        return await super().do_settle(requests)


class Simulation:
    """One run from a seed. `run` raises where a promise is broken."""

    def __init__(self, seed: int, *, on_store: bool, trip: float = 0.0) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.trip = trip
        self.on_store = on_store
        self.running: dict[tuple[str, str], int] = {}
        self.latest: dict[tuple[str, str], int] = {}
        """The command of each key that has started last."""
        self.active: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.tasks: dict[int, Task] = {}
        self.configs: dict[str, tuple[LaneConfig, int]] = {}
        self.capacity: int | None = None
        self.started_in: dict[str, list[int]] = defaultdict(list)
        self.workers: list[CommandQueue] = []
        self.store: MemoryStore | None = None
        self.trace: list[str] = []
        self.checked_starts = 0
        self.faults: list[Exception] = []

    # Making things up

    def config(self) -> LaneConfig:
        random = self.random
        most = random.randint(1, 4)
        return LaneConfig(
            random.randint(0, min(1, most)),
            most,
            timeout=random.choice([None, None, 0.5, 3.0]),
            retry_policy=random.choice(
                [
                    RetryPolicy.none(),
                    RetryPolicy.fixed(2, 0.3),
                    RetryPolicy.fixed(1, 0),
                    RetryPolicy.exponential(3).with_initial_delay(0.1),
                ]
            ),
            rate_limit=random.choice([None, None, None, RateLimitConfig.per_second(5, burst=2)]),
            key_rate_limit=random.choice([None] * 5 + [RateLimitConfig.per_second(2, burst=1)]),
            priority_boost=random.choice(
                [None, None, PriorityBoostConfig.standard(4.0), PriorityBoostConfig.disabled()]
            ),
            partitions=random.choice([1, 1, 1, 2, 3]),
            lease_time=2.0,
            cancel_grace=1.0,
            on_dead_letter=random.choice(["continue", "continue", "pause_key"]),
        )

    def build(self) -> None:
        random = self.random
        names = [f"lane{number}" for number in range(random.randint(1, 4))]
        self.configs = {name: (self.config(), random.randint(0, 3)) for name in names}
        minima = sum(c.min_concurrency * c.partitions for c, _ in self.configs.values())
        if random.random() < 0.6:
            self.capacity = minima + random.randint(1, 4)
        loop = asyncio.get_running_loop()
        if self.on_store:
            self.store = FarStore(clock=lambda: EPOCH + loop.time())
            self.store.trip = self.trip

    def worker(self, number: int) -> CommandQueue:
        """A process, as it were."""
        loop = asyncio.get_running_loop()
        registry = CommandRegistry()

        @registry.register("work")
        async def work(task: int) -> int:
            return await self.execute(number, task)

        self.work = work
        queue = CommandQueue(
            capacity=self.capacity,
            store=self.store,
            registry=registry,
            clock=lambda: EPOCH + loop.time(),
        )
        for name, (config, priority) in self.configs.items():
            queue.add_lane(name, config, priority)
        # It goes by the real clock: a busy machine would make it renew leases that are to expire.
        queue._engine.loop_watch.start = lambda: None  # type: ignore[method-assign]  # as said
        self.watch_order(queue)
        return queue

    # The commands

    async def execute(self, worker: int, number: int) -> int:
        try:
            partition = self.begin(worker, number)
        except Exception as error:
            self.faults.append(error)  # as a failure of the command it would be lost
            raise
        task = self.tasks[number]
        try:
            return await self.act(task)
        finally:
            self.active[worker][partition.queue] -= 1
            if self.running.get((task.lane, self.key(task))) == number:
                del self.running[task.lane, self.key(task)]
            self.note(f"w{worker} end {number}")

    def key(self, task: Task) -> str:
        return f"{task.key}{task.number}" if task.key is None else task.key

    def begin(self, worker: int, number: int) -> Partition:
        """A command starts: check what must hold."""
        task = self.tasks[number]
        lane = task.lane
        config, _ = self.configs[lane]
        attempt = task.starts
        task.starts += 1
        partition = self.partition(worker)
        self.note(f"w{worker} start {number} in {partition.queue} ({attempt + 1})")
        assert not task.done, f"{number} runs after its success"
        slot = (lane, self.key(task))
        other = self.running.get(slot)
        # A claim may be under way while its command is cancelled elsewhere: such a run starts yet.
        free = other is None or task.revoked or self.tasks[other].revoked
        assert free, f"{other} and {number} of key {slot} run at once"
        self.running[slot] = number
        latest = self.latest.get(slot, number)
        assert latest <= number or task.revoked, f"{number} of key {slot} starts after {latest}"
        self.latest[slot] = max(latest, number)
        active = self.active[worker]
        active[partition.queue] += 1
        assert active[partition.queue] <= config.max_concurrency, (
            f"{partition.queue} is above its maximum"
        )
        if self.capacity is not None:
            assert sum(active.values()) <= self.capacity, "above the capacity"
        return partition

    async def act(self, task: Task) -> int:
        step = task.steps.pop(0) if len(task.steps) > 1 else task.steps[0]
        duration = float(step.partition(" ")[2] or 0)
        match step.partition(" ")[0]:
            case "sleep":
                await asyncio.sleep(duration)
            case "fail":
                await asyncio.sleep(duration)
                raise CommandFailedOnPurpose(step)
            case "exit":
                raise SystemExit(3)
            case "cancel-itself":
                raise asyncio.CancelledError
            case "slow-to-stop":
                try:
                    await asyncio.sleep(duration)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.2)
                    raise
            case _:
                raise AssertionError(step)
        task.done = True
        return task.number

    def partition(self, worker: int) -> Partition:
        engine = self.workers[worker]._engine
        for job in engine.running:
            if job.task is asyncio.current_task():
                return job.partition
        raise AssertionError("a command runs that its engine does not know")

    def steps(self) -> list[str]:
        random = self.random
        ends = ["sleep 0", "sleep 0.1", "sleep 1", "sleep 6", "slow-to-stop 4"]
        failures = ["fail 0", "fail 0.2", "exit", "cancel-itself"]
        steps = [random.choice(failures) for _ in range(random.choice([0, 0, 0, 1, 2, 6]))]
        return [*steps, random.choice(ends)]

    # What happens

    async def submit(self) -> None:
        random = self.random
        lane = random.choice(list(self.configs))
        key = random.choice([None, "a", "a", "b", "c"])
        number = len(self.tasks)
        task = self.tasks[number] = Task(number, lane, key, self.steps())
        worker = random.choice(self.workers)
        policies: list[PresentPolicy | None] = [None, None, "append", "update", "skip", "reject"]
        policy = task.policy = random.choice(policies)
        try:
            task.handle = await worker.submit(
                lane,
                self.work(number),
                key=self.key(task),
                if_present=policy,
                unique_for=random.choice([None, 1.0]) if policy == "skip" else None,
                priority=random.choice([None, None, None, 1, -1]),
                delay=random.choice([None, None, None, 0.5]),
                deadline=random.choice([None, None, 2.0]),
            )
        except KeyAlreadyPresentError:
            task.handle = None
            return
        self.note(f"submit {number} {lane} {task.handle.key} {policy} {task.steps}")

    def note(self, text: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():8.3f} {text}")

    async def cancel(self) -> None:
        if self.tasks:
            task = self.random.choice(list(self.tasks.values()))
            if task.handle is not None:
                cancelled = await task.handle.cancel()
                self.note(f"cancel {task.number}: {cancelled}")
                if cancelled and self.on_store:
                    # Another process may run it, which hears of its cancellation later.
                    task.revoked = True
                    slot = task.lane, self.key(task)
                    running = self.tasks[self.running.get(slot, task.number)]
                    joined = "update" in (task.policy, running.policy) or task.policy == "skip"
                    if running is task or joined:
                        self.running.pop(slot, None)
                        running.revoked = True

    async def cancel_key(self) -> None:
        if self.tasks:
            chosen = self.random.choice(list(self.tasks.values()))
            slot = chosen.lane, self.key(chosen)
            cancelled = await self.random.choice(self.workers).cancel(*slot)
            self.note(f"cancel {slot}: {cancelled}")
            if cancelled and self.on_store:
                self.running.pop(slot, None)
                for task in self.tasks.values():
                    if (task.lane, self.key(task)) == slot:
                        task.revoked = True

    async def operate(self) -> None:
        """Somebody looks after the dead letters that hold their keys."""
        worker = self.random.choice(self.workers)
        letters = [letter for letter in await worker.dlq.list() if letter.holds]
        if letters and self.random.random() < 0.7:
            letter = self.random.choice(letters)
            self.tasks[letter.payload["task"]].revoked = True  # it was told as failed
            self.note(f"requeue {letter.payload}")
            await worker.dlq.requeue(letter)
        elif letters:
            self.note(f"drop {await worker.dlq.pop()}")

    async def pause(self) -> None:
        lane = self.random.choice(list(self.configs))
        worker = self.random.choice(self.workers)
        (worker.resume if worker.lanes[lane].paused else worker.pause)(lane)

    async def die(self) -> None:
        """A process dies: nothing of it runs on, nothing is settled, and no lease is renewed."""
        if not self.on_store or len(self.workers) < 2:
            return
        number = self.random.randrange(len(self.workers))
        worker = self.workers[number]
        engine = worker._engine
        assert isinstance(engine, StoreEngine)
        self.note(f"w{number} dies")
        engine._letting_go = True  # its tasks end now, and that is no failure of theirs
        lost: set[int] = set()
        for job in list(engine.running):
            lost.add(job.command.arguments.task)
            job.lease = None
            if job.task is not None:
                job.task.cancel()
        for timer in (
            engine._limit_alarm,
            engine._alarm,
            engine._follow_up,
            engine._results._soon,
        ):
            if timer is not None:
                timer.cancel()
        for job in engine._held.values():
            self.tasks[job.command.arguments.task].done = False  # nobody was told
        refreshing = engine._results._refreshing
        assert isinstance(worker.schedules, StoreSchedules)
        others = refreshing, worker.schedules._task
        for work in (*engine._tasks, *(task for task in others if task is not None)):
            work.cancel()
        engine._unknown.close()
        for unwatch in engine._unwatch.values():
            unwatch()
        engine._unwatch.clear()
        engine._tasks.clear()
        engine._outbox._waiting.clear()
        engine._prefetch = engine._plan._prefetch = Prefetch(lambda: engine._loop, lambda job: None)
        engine._outbox.empty.set()
        engine.stopped = True
        for task in self.tasks.values():
            if task.handle is not None and task.handle._engine is engine:
                task.handle = None  # it is gone with its process
        replacement = self.workers[number] = self.worker(number)
        await asyncio.sleep(0)
        self.active[number].clear()
        for slot, holder in list(self.running.items()):
            if holder in lost:
                del self.running[slot]
        await replacement.start()

    # Checks

    def check(self) -> None:
        """Nothing that could start is left waiting, when everybody waits."""
        for worker in self.workers:
            engine = worker._engine
            slots = engine.slots
            assert slots.active == len(engine.running)
            assert slots.active == sum(partition.active for partition in engine.partitions)
            lanes = engine.lanes.values()
            unfilled = sum(max(0, lane.reserved - lane.active) for lane in lanes)
            assert slots.reserved == unfilled
            for lane in lanes:
                assert lane.active == sum(partition.active for partition in lane.partitions)
                assert lane.active <= lane.most, f"{lane.id} is above its maximum"
            if isinstance(engine, MemoryEngine) and engine.started:
                for partition in engine.partitions:
                    assert not self.could_start(engine, partition), f"{partition.queue} could start"

    def could_start(self, engine: MemoryEngine, partition: Partition) -> bool:
        now = asyncio.get_running_loop().time()
        lane = partition.lane
        if (
            lane.paused
            or not len(partition.state.ready)
            or lane.active >= lane.config.max_concurrency
        ):
            return False
        if lane.rate_limiter is not None and lane.rate_limiter.free_at(now) > now:
            return False
        total = sum(other.active for other in engine.lanes.values())
        kept = sum(
            max(0, other.config.min_concurrency - other.active)
            for other in engine.lanes.values()
            if other is not lane
        )
        return self.capacity is None or total + kept < self.capacity

    def watch_order(self, queue: CommandQueue) -> None:
        """Check every start: nothing more urgent could have started instead."""
        engine = queue._engine
        begin = engine._begin

        def checked(job: Job) -> None:
            if isinstance(engine, MemoryEngine):
                self.check_urgency(engine, job)
            begin(job)

        engine._begin = checked  # type: ignore[method-assign]  # to see every start

    def check_urgency(self, engine: MemoryEngine, job: Job) -> None:
        now = asyncio.get_running_loop().time()
        self.checked_starts += 1
        partition = job.partition
        lane = partition.lane
        up = lane.boost.levels(job.submitted_at, job.deadline, now)
        first: Any = partition.state.ready.first()
        hurried = (
            first is not None
            and job.deadline is not None
            and up > lane.boost.levels(first.value.submitted_at, first.value.deadline, now)
        )
        for item in partition.state.ready:
            assert (
                hurried
                or item.priority < -job.priority
                or (item.priority == -job.priority and item.position > 0)
                or item.value.submitted_at >= job.submitted_at
                or item.attempt
            ), "not first in, first out"
        if self.capacity is None:
            return
        mine = effective_priority(job, now)
        lane.active -= 1  # as it was before this start
        try:
            if lane.active < lane.config.min_concurrency:
                return
            for other in engine.partitions:
                if other.lane is not lane and self.could_start(engine, other):
                    head: Any = engine._first(other)
                    theirs = effective_priority(head.value, now)
                    assert theirs >= mine, f"{other.queue} was more urgent than {partition.queue}"
        finally:
            lane.active += 1

    # The run

    async def run(self) -> None:
        random = self.random
        self.build()
        for _ in range(random.randint(1, 3) if self.on_store else 1):
            self.workers.append(self.worker(len(self.workers)))
        for _ in range(random.randint(0, 6)):
            await self.submit()
        for queue in self.workers:
            await queue.start()
        events = [self.submit] * 12 + [self.cancel, self.pause, self.pause, self.die]
        events += [self.cancel_key, self.operate]
        for _ in range(random.randint(5, 60)):
            await random.choice(events)()
            if random.random() < 0.5:
                await asyncio.sleep(random.choice([0, 0, 0.05, 0.4, 2.5]))
                self.check()
        await self.finish()

    async def finish(self) -> None:
        for queue in self.workers:
            await queue.shutdown()
            for lane in queue.lanes:
                queue.resume(lane)
        await self.workers[0].drain(300)
        while any(letter.holds for letter in await self.workers[0].dlq.list()):
            await self.workers[0].dlq.clear()
            await self.workers[0].drain(300)
        for task in self.tasks.values():
            await self.judge(task)
        for queue in self.workers:
            # A worker may still be ending a run whose command was cancelled by another one.
            await queue.drain(300)
        assert not self.running
        for queue in self.workers:
            assert not queue._engine.running, "drain left something running"
            assert await queue.close() == {}
        if self.faults:
            raise self.faults[0]
        for _ in range(5):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks were leaked: {left}"

    async def judge(self, task: Task) -> None:
        """Every command has ended, as it should."""
        handle = task.handle
        if handle is None:
            return
        try:
            async with asyncio.timeout(100):
                result = await handle
        except (CommandCancelledError, CommandLostError, ManagerClosedError, RemoteCommandError):
            result = None
        except Exception:
            result = None
        else:
            assert result is not None
        assert handle.status in (*ENDS, "lost"), f"{task.number} is {handle.status}"
        if handle.status == "completed":
            assert result is not None
            told = self.tasks[result]
            assert told.done
            assert self.key(told) == handle.key
            # A newer command of its key may have taken its place, or it gave way to an older one.
            replaced = told.policy == "update" and result > task.number
            own = result == task.number
            assert own or replaced or task.policy == "skip", f"{task.number} tells {result}"
        else:
            assert not task.done or task.revoked, f"{task.number} is told as {handle.status}"


def simulate(seed: int, *, on_store: bool, trip: float = 0.0) -> Simulation:
    """Run one seed; what is broken is raised together with what happened."""
    logger = logging.getLogger("leasedkeyq")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    simulation = Simulation(seed, on_store=on_store, trip=trip)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadlineWarning)  # it gives deadlines to any lane
        try:
            runner.run(simulation.run())
        except BaseException as error:
            first = simulation.faults[0] if simulation.faults else error  # the others follow it
            story = "\n".join(simulation.trace[-60:])
            raise AssertionError(
                f"seed {seed}, {'on a store' if on_store else 'in memory'}: {first!r}\n{story}"
            ) from first
        finally:
            logger.setLevel(level)
    return simulation


def effective_priority(job: Job, now: float) -> int:
    """The priority of a lane while this is its next command: lower goes first."""
    lane = job.partition.lane
    return lane.priority - lane.boost.levels(job.submitted_at, job.deadline, now)
