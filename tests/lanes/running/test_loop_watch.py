"""`LoopWatch`: what blocks an event loop is named, and one that is stuck for good is given up."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.lanes.running.execution.loop_watch import MAX_STALL, TICK, Blocker, LoopWatch
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.testing import ManualClock

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """What threads still write to the log belongs to the test that began them."""
    yield
    for thread in threading.enumerate():
        if thread.name in ("leasedkeyq loop watch", "leasedkeyq log"):
            thread.join(PATIENCE)


def until(true: Callable[[], bool]) -> None:
    """Block this thread, and the event loop in it, until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [line for line in list(caplog.messages) if text in line]


# In real time: a blocked command waits until the log names it


def test_the_log_names_the_command_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    manager = QueueManagerBuilder().with_lane("mail", LaneConfig(0, 2), 0).build()

    @manager.command("send")
    async def send(to: str) -> str:
        await asyncio.sleep(0)
        until(lambda: bool(logged(caplog, "has not given way")))
        return to

    async def main() -> None:
        async with manager:
            assert await (await manager.submit("mail", send("ada"), key="k")) == "ada"
            async with asyncio.timeout(PATIENCE):
                while not logged(caplog, "without giving way"):
                    await asyncio.sleep(0.02)

    asyncio.run(main())
    [first] = logged(caplog, "has not given way")
    assert first.startswith("lane 'mail': command 'send' of key 'k' has not given way to the event")
    assert f"{Path(__file__).name}:" in first
    assert " in until" in first
    [last] = logged(caplog, "without giving way")
    assert "lane 'mail': command 'send' of key 'k' ran " in last
    assert "make it a plain function (def), or use a thread: await asyncio.to_thread(...)" in last
    record = next(record for record in caplog.records if "without giving way" in record.message)
    told = vars(record)
    assert (record.levelname, told["lane"], told["command_type"]) == ("WARNING", "mail", "send")
    assert (told["key"], told["seconds"] >= 1.9) == ("k", True)


def test_the_log_names_what_blocks_and_is_no_command(caplog: pytest.LogCaptureFixture) -> None:
    manager = QueueManagerBuilder().with_lane("mail", LaneConfig(0, 2), 0).build()
    begun = asyncio.Event()

    @manager.command("wait")
    async def wait() -> None:
        begun.set()
        await asyncio.sleep(0.1)

    async def elsewhere() -> None:
        until(lambda: bool(logged(caplog, "no command of a lane; commands wait")))

    async def main() -> None:
        async with manager:
            handle = await manager.submit("mail", wait())
            await begun.wait()
            await asyncio.create_task(elsewhere(), name="report")
            await handle

    asyncio.run(main())
    [line] = logged(caplog, "no command of a lane; commands wait")
    assert "by task 'report', at " in line
    assert f"{Path(__file__).name}:" in line


def test_a_task_that_a_command_has_begun_is_that_command(caplog: pytest.LogCaptureFixture) -> None:
    manager = QueueManagerBuilder().with_lane("mail", LaneConfig(0, 2), 0).build()

    async def part() -> None:
        until(lambda: bool(logged(caplog, "blocked for") + logged(caplog, "has not given way")))

    @manager.command("send")
    async def send() -> None:
        await asyncio.create_task(part(), name="part")

    async def main() -> None:
        async with manager:
            await (await manager.submit("mail", send()))

    asyncio.run(main())
    if sys.version_info >= (3, 12):
        assert logged(caplog, "command 'send'")
    else:  # Python 3.11 does not tell whose task it is
        assert logged(caplog, "task 'part'")


# By hand


class Loop:
    """An event loop that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.closed = False
        self.runs = True

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        self.asked.append((call, arguments))

    def answer(self) -> None:
        for call, arguments in self.asked:
            call(*arguments)
        self.asked.clear()

    def is_closed(self) -> bool:
        return self.closed

    def is_running(self) -> bool:
        return self.runs


class Keeper:
    """Counts how often leases are kept."""

    tick = TICK
    notice = 2.0

    def __init__(self) -> None:
        self.kept = 0
        self.let_gone = 0

    def is_needed(self) -> bool:
        return True

    def keep(self) -> None:
        self.kept += 1

    def let_go(self) -> None:
        self.let_gone += 1


class Scripted(LoopWatch):
    """A watch of an event loop that runs what the test says."""

    def __init__(self, *, keeper: bool = True) -> None:
        self.time = ManualClock()
        super().__init__(set(), clock=self.time)
        self.loop = Loop()
        self.jobs: list[Job | None] = [None]
        self.kept = Keeper()
        self.keeper = self.kept if keeper else None
        self.ends = 0
        self.when_stuck = self.end
        self.bind(cast("asyncio.AbstractEventLoop", self.loop))
        self.look()

    def end(self) -> None:
        self.ends += 1

    def _find(self, loop: Any) -> Blocker:
        job = self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]
        return Blocker(job, "some task", "app.py:7 in work")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and look as often as the thread would."""
        for _ in range(round(seconds / TICK)):
            self.time.advance(TICK)
            self.look()


def job(kind: str, timeout: float | None = None) -> Job:
    partition = Lane("mail", 0, LaneConfig(), 0).partitions[0]
    return Job(7, partition, kind, "k", None, 0.0, 0, timeout, None)


def test_an_event_loop_that_answers_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    watch = Scripted()
    for _ in range(1000):
        watch.loop.answer()
        watch.pass_time(TICK)
    assert (watch.kept.kept, watch.ends, caplog.messages) == (0, 0, [])


def test_leases_are_kept_while_the_loop_is_blocked_until_it_is_stuck(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Scripted()
    watch.jobs = [job("resize", timeout=10.0)]
    watch.pass_time(MAX_STALL + 9)
    kept = watch.kept.kept
    assert kept == round((MAX_STALL + 9) / TICK)
    assert watch.ends == 0
    watch.pass_time(2)
    assert watch.ends == 1
    [line] = logged(caplog, "stuck")
    assert line.startswith("the event loop has been stuck for 70.0 s, in lane 'mail': command ")
    assert "at app.py:7 in work; its leases are not renewed any more" in line
    kept = watch.kept.kept
    watch.pass_time(1000)
    assert (watch.kept.kept, watch.ends) == (kept, 1)
    # Should it go on after all, leases are kept the next time.
    watch.loop.answer()
    watch.pass_time(TICK)
    assert logged(caplog, "command 'resize' of key 'k' ran 1071.0 s without giving way")
    watch.pass_time(5)
    assert watch.kept.kept > kept


def test_a_loop_may_be_blocked_for_ever_if_that_is_wanted() -> None:
    watch = Scripted()
    watch.max_stall = None
    watch.pass_time(100 * MAX_STALL)
    assert (watch.ends, watch.kept.kept) == (0, round(100 * MAX_STALL / TICK))


def test_without_leases_a_blocked_loop_is_only_named(caplog: pytest.LogCaptureFixture) -> None:
    watch = Scripted(keeper=False)
    watch._running = {job("resize")}
    watch.look()
    watch.pass_time(10 * MAX_STALL)
    assert watch.ends == 0
    assert len(logged(caplog, "which is no command of a lane; commands wait for it")) == 1


def test_the_time_in_which_the_whole_process_stood_still_blames_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Scripted()
    watch.jobs = [job("resize")]
    watch.pass_time(1)
    kept = watch.kept.kept
    watch.time.advance(10 * MAX_STALL)  # SIGSTOP, or the lid of a laptop
    watch.look()
    assert (watch.ends, watch.kept.kept) == (0, kept)
    [line] = logged(caplog, "stood still for")
    assert "the whole process stood still for 599.8 s" in line
    watch.loop.answer()
    watch.pass_time(1)
    assert not logged(caplog, "giv")
    # It was stopped while nothing ran: nobody cares.
    caplog.clear()
    watch.keeper = None
    watch.loop.answer()
    watch.pass_time(1)
    watch.time.advance(10 * MAX_STALL)
    watch.look()
    assert caplog.messages == []


def test_commands_that_block_in_turn_are_named_together(caplog: pytest.LogCaptureFixture) -> None:
    watch = Scripted()
    watch.jobs = [job(f"c{number}") for number in range(8)]
    watch.pass_time(3)
    watch.loop.answer()
    watch.pass_time(TICK)
    [line] = logged(caplog, "in turn by")
    assert line.startswith("the event loop was blocked for 3.0 s, in turn by lane 'mail': command ")
    assert "command 'c4'" in line
    assert line.endswith("; and 3 more")


def test_an_event_loop_that_does_not_run_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    watch = Scripted()
    watch.loop.runs = False
    watch.pass_time(10 * MAX_STALL)
    assert (watch.kept.kept, watch.ends, caplog.messages) == (0, 0, [])
    watch.loop.closed = True
    assert watch.look() is None


def test_a_log_that_is_blocked_itself_does_not_block_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leasedkeyq.lanes.running.execution.loop_watch.LOG_PATIENCE", 0.01)

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            until(lambda: watch.ends > 0)

    watch = Scripted()
    handler = Full()
    logger = logging.getLogger("leasedkeyq")
    logger.addHandler(handler)
    try:
        watch.pass_time(MAX_STALL + 1)
    finally:
        for thread in threading.enumerate():
            if thread.name == "leasedkeyq log":
                thread.join(PATIENCE)  # or another test would find what it writes
        logger.removeHandler(handler)
    assert watch.ends == 1


def test_max_stall_must_be_a_time() -> None:
    builder = QueueManagerBuilder().with_lane("mail", LaneConfig(), 0)

    def limit_of(manager: QueueManager) -> float | None:
        return manager.queue()._engine.loop_watch.max_stall

    assert limit_of(builder.build()) == MAX_STALL
    assert limit_of(builder.with_max_stall(5).build()) == 5.0
    assert limit_of(builder.with_max_stall(None).build()) is None
    manager = builder.build()
    manager.queue().limit_stall(7)
    assert limit_of(manager) == 7.0
    with pytest.raises(ValueError, match="max_stall"):
        manager.queue().limit_stall(0)
    with pytest.raises(ValueError, match="max_stall"):
        builder.with_max_stall(0)
    with pytest.raises(ValueError, match="max_stall"):
        builder.with_max_stall(-1)
