"""What lanes promise, on real clocks: scenarios that measure from outside when commands start.

A machine may be busy, so that anything may take longer than it should. So upper bounds of what runs
hold exactly, and lower bounds only find what stands still: see `STALL`.
"""

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import pytest

from leasedkeyq import KeyAlreadyPresentError
from leasedkeyq.lanes import (
    Alert,
    AlertRule,
    CommandCancelledError,
    CommandTimeoutError,
    LaneConfig,
    LaneEvent,
    MonitorConfig,
    PriorityBoostConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
)
from tests.forks import Program, fork_server
from tests.lanes.real_time import worker
from tests.lanes.real_time.worker import LANE

STALL = 4.0
"""Seconds in which something happens, on a busy machine, too, unless it stands still."""
PATIENCE = 60.0
MOST = 400
"""Commands beyond the burst."""


def _burn() -> None:
    while True:
        pass


@contextmanager
def busy_machine(processes: int) -> Generator[None]:
    """Other processes that take all the time that they get."""
    forked = fork_server()
    burning = [forked.Process(target=_burn, daemon=True) for _ in range(processes)]
    for process in burning:
        process.start()
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.join()


# Rate limits


@dataclass
class Rate:
    """A rate limit, and for how long it is watched."""

    rate: float
    burst: int | None = None
    workers: int = 1
    seconds: float = 2.0
    busy: int = 0

    @property
    def tokens(self) -> int:
        return self.burst or int(self.rate)

    @property
    def commands(self) -> int:
        # With a burst of 1, each start is a trip of its own: a busy machine takes a while.
        return self.tokens + int(min(self.rate * self.seconds, MOST))

    def options(self) -> dict[str, Any]:
        return {"max_concurrency": 20, "rate_limit": [self.rate, self.burst]}

    def __str__(self) -> str:
        name = f"{self.rate:g}/s burst {self.burst or 'default'} {self.workers} workers"
        return f"{name} {self.busy} busy" if self.busy else name

    def check(self, began: float, starts: list[float]) -> None:
        """Look at the moments of all starts; `began` is before the first of them could be."""
        assert len(starts) == self.commands
        for number, start in enumerate(starts, 1):
            most = self.tokens + self.rate * (start - began) * 1.01 + 1
            assert number <= most, f"{number} starts in {start - began:.3f} s, at most {most:.1f}"
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        assert max(gaps) < STALL + 3 / self.rate, f"nothing was started for {max(gaps):.1f} s"
        # Commands start a while after they were granted. So a window may have more than its own.
        for first, start in enumerate(starts):
            last = min(first + 2 * self.tokens + int(3 * self.rate), len(starts) - 1)
            most = self.tokens + self.rate * (starts[last] - start + STALL) + 1
            assert last - first + 1 <= most


def check_rate(rate: Rate, url: str | None) -> None:
    """Commands that were submitted before are started as fast as the limit lets them."""
    with busy_machine(rate.busy):
        if rate.workers == 1:
            began, starts = asyncio.run(_starts_here(rate, url))
        else:
            assert url is not None
            began, starts = _starts_elsewhere(rate, url)
    rate.check(began, sorted(starts))


async def _starts_here(rate: Rate, url: str | None) -> tuple[float, list[float]]:
    manager = worker.build(url, rate.options()).build()
    starts: list[float] = []

    @manager.command("work")
    async def work(number: int) -> None:
        starts.append(time.time())

    await manager.submit_many(LANE, [work(number) for number in range(rate.commands)])
    began = time.time()
    await manager.start()
    try:
        await manager.drain(PATIENCE)
    finally:
        await manager.close()
    return began, starts


def _starts_elsewhere(rate: Rate, url: str) -> tuple[float, list[float]]:
    asyncio.run(_submit(rate, url))
    began = time.time()
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(url, rate.options())) for _ in range(rate.workers)]

        def starts() -> list[float]:
            return [when for worker in workers for what, _, when in worker.told if what == "start"]

        until = time.monotonic() + PATIENCE
        while len(starts()) < rate.commands and time.monotonic() < until:
            time.sleep(0.05)
        return began, starts()


async def _submit(rate: Rate, url: str) -> None:
    manager = worker.build(url, rate.options()).build()
    work = worker.register(manager)
    await manager.submit_many(LANE, [work(number) for number in range(rate.commands)])
    await manager.close()


class Worker:
    """A worker process, and what it has told."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.told: list[tuple[str, str, float]] = []
        self._process = Program("tests.lanes.real_time.worker", url, json.dumps(options))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            what, *rest = line.split()
            if rest:
                self.told.append((what, rest[0], float(rest[1])))

    def kill(self) -> None:
        """End it at once, as it stands."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._thread.join()
            self._process.stdout.close()


# Other promises


@dataclass
class Diary:
    """When commands were submitted, started and ended, by number."""

    submitted: dict[int, float] = field(default_factory=dict[int, float])
    started: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[int, float] = field(default_factory=dict[int, float])

    def register(self, manager: QueueManager) -> Any:
        @manager.command("work")
        async def work(number: int, seconds: float = 0.0, failures: int = 0) -> int:
            self.started[number].append(time.time())
            try:
                await asyncio.sleep(seconds)
                if len(self.started[number]) <= failures:
                    raise LookupError(f"number {number}")
            finally:
                self.ended[number] = time.time()
            return number

        return work

    def most_at_a_time(self) -> int:
        """How many commands ran beside each other; each has run once."""
        steps = [(runs[0], 1) for runs in self.started.values()]
        steps += [(when, -1) for when in self.ended.values()]
        running = most = 0
        for _, step in sorted(steps):
            running += step
            most = max(most, running)
        return most


def lane(url: str | None, config: LaneConfig) -> QueueManagerBuilder:
    builder = QueueManagerBuilder().with_lane(LANE, config, 0).with_drain_timeout(PATIENCE)
    return builder if url is None else builder.with_storage(url)


async def dead_letters(url: str | None) -> None:
    """Sixty failures at once leave as many dead letters as there may be."""
    config = LaneConfig(0, 60, retry_policy=RetryPolicy.none())
    manager = lane(url, config).with_dlq(3).build()
    work = Diary().register(manager)
    await manager.start()
    for turn in range(3):
        numbers = range(60 * turn, 60 * turn + 60)
        await manager.submit_many(LANE, [work(number, failures=9) for number in numbers])
        await manager.drain(PATIENCE)
        assert await manager.dlq.len() == 3
    letters = [letter.payload["number"] for letter in await manager.dlq.list()]
    assert all(number >= 120 for number in letters), "an older letter was kept"
    assert (await manager.stats()).lanes[LANE].dead_lettered == 180
    await manager.close()


async def time_outs(url: str | None) -> None:
    """A command that takes too long is cancelled in time, tried again, and given up."""
    config = LaneConfig(0, 1, timeout=0.3, retry_policy=RetryPolicy.fixed(1, 0.2))
    manager, diary = lane(url, config).build(), Diary()
    work = diary.register(manager)
    async with manager:
        handle = await manager.submit(LANE, work(1, 30.0))
        after = await manager.submit(LANE, work(2))
        try:
            await handle
        except CommandTimeoutError:
            pass
        else:
            raise AssertionError("it was not ended")
        await after
    assert handle.status == "timed_out"
    first, second = diary.started[1]
    assert 0.5 <= second - first < 0.5 + STALL
    assert 0.3 <= diary.ended[1] - second < 0.3 + STALL
    assert first + 0.3 <= diary.started[2][0] < second + STALL, "the slot was not free meanwhile"


async def boosts(url: str | None) -> None:
    """A command whose deadline comes near goes before those of a lane above."""
    builder = QueueManagerBuilder().with_capacity(1).with_drain_timeout(PATIENCE)
    boosted = LaneConfig(0, 1, priority_boost=PriorityBoostConfig.aggressive(0.8))
    builder.with_lane("high", LaneConfig(0, 1), 0).with_lane("low", boosted, 1)
    manager = (builder if url is None else builder.with_storage(url)).build()
    diary = Diary()
    work = diary.register(manager)
    async with manager:
        await manager.submit_many("high", [work(number, 0.1) for number in range(30)])
        submitted = time.time()
        await manager.submit("low", work(1000))
    start = diary.started[1000][0]
    before = sum(runs[0] < start for runs in diary.started.values())
    assert 1 <= before < 30, "it was not the least urgent, and then the most urgent"
    assert start - submitted < 0.8 + STALL
    assert diary.most_at_a_time() == 1


async def partitions(url: str | None) -> None:
    """All partitions of a lane together run as many commands at a time as the lane may."""
    manager, diary = lane(url, LaneConfig(0, 2, partitions=4)).build(), Diary()
    work = diary.register(manager)
    async with manager:
        for number in range(24):
            await manager.submit(LANE, work(number, 0.05), key=f"key {number}")
    assert len(diary.ended) == 24
    assert diary.most_at_a_time() == 2


async def drains(url: str | None) -> None:
    """A drain waits for what runs, waits, is delayed and is tried again, and for nothing else."""
    config = LaneConfig(0, 2, retry_policy=RetryPolicy.fixed(2, 0.3))
    manager, diary = lane(url, config).build(), Diary()
    work = diary.register(manager)
    await manager.start()
    await manager.submit_many(LANE, [work(number, 0.1) for number in range(6)])
    await manager.submit(LANE, work(6, failures=2))
    late = time.time() + 0.8
    await manager.submit(LANE, work(7), delay=0.8)
    await manager.shutdown()
    await manager.drain(PATIENCE)
    drained = time.time()
    assert len(diary.started[6]) == 3
    assert late - 0.01 <= diary.started[7][0] < late + STALL
    assert max(diary.ended.values()) <= drained < max(diary.ended.values()) + STALL
    await manager.close()


async def events(url: str | None) -> None:
    """Events tell what happens to a command, in its order and at its time."""
    config = LaneConfig(0, 4, timeout=5, retry_policy=RetryPolicy.fixed(1, 0.1))
    manager, diary = lane(url, config).with_dlq(100).build(), Diary()
    work = diary.register(manager)
    heard: dict[str, list[LaneEvent]] = defaultdict(list)

    def hear(event: LaneEvent) -> bool:
        if "command_id" in event.payload:
            heard[event.payload["command_id"]].append(event)
        return False

    subscription = manager.subscribe_filtered(hear)
    kept: dict[str, int] = {}
    async with manager:
        for number in range(30):
            handle = await manager.submit(LANE, work(number, 0.01, failures=number % 3))
            kept[handle.id] = number
    subscription.close()
    ends = [
        ["submitted", "started", "completed"],
        ["submitted", "started", "retry", "started", "completed"],
        ["submitted", "started", "retry", "started", "failed", "dead_lettered"],
    ]
    for name, number in kept.items():
        told = [event.key.removeprefix("queue.command.") for event in heard[name]]
        assert told == ends[number % 3], f"number {number}: {told}"
        starts = [event.timestamp for event in heard[name] if event.key.endswith("started")]
        for said, seen in zip(starts, diary.started[number], strict=True):
            assert abs(said - seen) < STALL


async def metrics(url: str | None) -> None:
    """What is measured is what a clock beside it says."""
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 0.5))
    manager, diary = lane(url, config).with_metrics().build(), Diary()
    work = diary.register(manager)
    await manager.start()
    submitted = time.time()
    await manager.submit_many(
        LANE, [work(number, 0.1, failures=number // 9) for number in range(10)]
    )
    took = time.time() - submitted
    await manager.drain(PATIENCE)
    assert manager.metrics is not None
    [series] = manager.metrics.snapshot().series
    assert (series.submitted, series.started, series.completed) == (10, 11, 10)
    assert (series.retried, series.failed) == (1, 0)
    waits = [runs[0] - submitted for runs in diary.started.values()]
    first_end = diary.started[9][0] + 0.1
    waits.append(max(0.0, diary.started[9][1] - first_end - 0.5))
    # The histogram is exact to a few percent, and the two clocks are read at two moments. When in
    # that time the commands were submitted is not known.
    most = sum(waits)
    least = most - 10 * took
    assert 0.9 * least - 0.3 < series.waiting.total < 1.1 * most + 0.3
    assert 11 * 0.1 <= series.running.total < 11 * 0.1 + STALL
    await manager.close()


async def alerts(url: str | None) -> None:
    """An alert comes when its threshold is reached, and once more when it is over."""
    told: list[tuple[float, Alert]] = []

    async def tell(alert: Alert) -> None:
        told.append((time.time(), alert))

    rules = [AlertRule.queue_depth(warning=5, lane=LANE)]
    builder = lane(url, LaneConfig(0, 1))
    manager = builder.with_alerts(rules, tell, monitor=MonitorConfig(interval=0.1)).build()
    work = Diary().register(manager)
    async with manager:
        began = time.time()
        await manager.submit_many(LANE, [work(number, 0.1) for number in range(12)])
        await manager.drain(PATIENCE)
        until = time.monotonic() + STALL
        while len(told) < 2 and time.monotonic() < until:
            await asyncio.sleep(0.05)
    assert [alert.level for _, alert in told] == ["warning", "ok"]
    assert told[0][0] - began < STALL


async def lines(url: str | None) -> None:
    """All commands of a key run in order: through retries, cancellations, and beside other keys."""
    config = LaneConfig(0, 4, retry_policy=RetryPolicy.fixed(1, 0.2))
    manager, diary = lane(url, config).build(), Diary()
    work = diary.register(manager)
    async with manager:
        hooks = [await manager.submit(LANE, work(number, 0.01), key="acme") for number in range(6)]
        assert [await handle for handle in hooks] == [0, 1, 2, 3, 4, 5]
        pairs = [("a", work(10 + n, 0.02, 1 if n == 1 else 0)) for n in range(5)]
        pairs += [("b", work(20 + n, 0.02)) for n in range(5)]
        many = await manager.submit_many(LANE, pairs)
        assert await many[2].cancel()
        left = [handle for handle in many if handle is not many[2]]
        assert [await handle for handle in left] == [10, 11, 13, 14, 20, 21, 22, 23, 24]
        stuck = [await manager.submit(LANE, work(30 + n, 60), key="stuck") for n in range(3)]
        while 30 not in diary.started:
            await asyncio.sleep(0.01)
        assert await manager.cancel(LANE, "stuck")
        for handle in stuck:
            with pytest.raises(CommandCancelledError):
                await handle
    in_order(diary, [range(6), (10, 11, 13, 14), range(20, 25)])
    assert not {12, 31, 32} & set(diary.started)
    retry = diary.started[11]
    assert len(retry) == 2
    assert diary.started[13][0] > retry[1], "one behind it ran before the retry"
    assert diary.ended[24] < diary.ended[14], "another key waited for the retry"


def in_order(diary: Diary, keys: Iterable[Iterable[int]]) -> None:
    """The commands of each key ran one at a time, in order."""
    for numbers in keys:
        for before, after in pairwise(numbers):
            assert diary.ended[before] <= diary.started[after][0], f"{after} ran beside {before}"


async def policies(url: str | None) -> None:
    """A command replaces another of its key, gives way to it, or is refused, as it was said."""
    manager, diary = lane(url, LaneConfig(0, 4, keep_results=0)).build(), Diary()
    work = diary.register(manager)
    async with manager:
        first = await manager.submit(LANE, work(0, 0.5), key="k", if_present="update")
        while not diary.started:
            await asyncio.sleep(0.01)
        handles = [
            await manager.submit(LANE, work(number), key="k", if_present="update")
            for number in range(1, 5)
        ]
        skipped = await manager.submit(LANE, work(5), key="k", if_present="skip")
        with pytest.raises(KeyAlreadyPresentError, match="'k'"):
            await manager.submit(LANE, work(6), key="k", if_present="reject")
        assert [await first, *[await handle for handle in handles], await skipped] == [0, *[4] * 5]
        assert sorted(diary.started) == [0, 4]
        once: dict[str, Any] = {"key": "unique", "if_present": "skip", "unique_for": 2.0}
        done = await manager.submit(LANE, work(10), **once)
        assert await done == 10
        again = await manager.submit(LANE, work(11), **once)
        assert (again.id, await again) == (done.id, 10)
        await asyncio.sleep(2.5)
        assert await (await manager.submit(LANE, work(12), **once)) == 12


async def held_keys(url: str | None) -> None:
    """The commands behind a dead letter wait until it is put back, or dropped."""
    config = LaneConfig(0, 4, on_dead_letter="pause_key")
    manager, diary = lane(url, config).build(), Diary()
    work = diary.register(manager)
    async with manager:
        pairs = [("a", work(n, 0.0, 1 if n == 1 else 0)) for n in range(4)]
        pairs += [("b", work(10 + n, 0.0, 9 if n == 1 else 0)) for n in range(4)]
        handles = await manager.submit_many(LANE, pairs)
        await manager.drain(PATIENCE)
        await asyncio.sleep(0.3)
        stats = (await manager.stats()).lanes[LANE]
        assert (stats.held, stats.pending) == (4, 0)
        assert sorted(diary.started) == [0, 1, 10, 11]
        letters = {letter.key: letter for letter in await manager.dlq.list()}
        assert [letters[key].holds for key in "ab"] == [True, True]
        await manager.dlq.requeue(letters["a"])
        assert [await handles[number] for number in (2, 3)] == [2, 3]
        assert diary.started[1][1] < diary.started[2][0]
        assert await manager.dlq.clear() == 1
        assert [await handles[number] for number in (6, 7)] == [12, 13]
        assert len(diary.started[11]) == 1
    in_order(diary, [range(4), range(10, 14)])


SCENARIOS: list[Callable[[str | None], Coroutine[Any, Any, None]]] = [
    lines,
    policies,
    held_keys,
    dead_letters,
    time_outs,
    boosts,
    partitions,
    drains,
    events,
    metrics,
    alerts,
]
