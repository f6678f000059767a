"""Plain functions as commands: they run in threads, and a thread cannot be ended from outside."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandExitError,
    CommandTimeoutError,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    current_command,
)
from tests.lanes.real_clock import PATIENCE, eventually, run

Build = Callable[[], QueueManagerBuilder]
everywhere = pytest.mark.parametrize(
    "build",
    [
        QueueManagerBuilder,
        lambda: QueueManagerBuilder().with_storage(MemoryStore()),
    ],
    ids=["memory", "store"],
)


def lane(build: Build, config: LaneConfig | None = None) -> QueueManager:
    return build().with_lane("x", config or LaneConfig(0, 4), 0).build()


@everywhere
def test_a_plain_function_runs_in_a_thread_of_its_own_pool(build: Build) -> None:
    manager = lane(build)

    @manager.command("add")
    def add(left: int, right: int = 1) -> int:
        where.append(threading.current_thread())
        return left + right

    where: list[threading.Thread] = []

    async def main() -> None:
        async with manager:
            assert await (await manager.submit("x", add(2))) == 3
            assert await (await manager.submit("x", add(2, right=5))) == 7

    run(main())
    assert threading.main_thread() not in where
    assert all(thread.daemon and "leasedkeyq" in thread.name for thread in where)
    assert len(set(where)) == 1, "one thread is enough for one command after the other"


def test_a_plain_function_runs_on_a_durable_store(tmp_path: Path) -> None:
    async def main() -> None:
        for turn in range(2):
            url = f"sqlite:///{tmp_path}/jobs.db"
            manager = QueueManagerBuilder().with_storage(url).with_lane("x", LaneConfig(), 0)
            built = manager.build()
            double = built.command("double", _double)
            if turn == 0:
                await built.submit("x", double(4), key="k")
                await built.close()
            else:
                async with built:
                    assert await (await built.submit("x", double(5), key="k")) == 10
                    await built.drain(PATIENCE)

    run(main())


def _double(number: int) -> int:
    return 2 * number


@everywhere
def test_as_many_threads_as_the_lane_allows_run_at_a_time(build: Build) -> None:
    many = 40  # more than the default executor of the event loop has on small machines
    manager = lane(build, LaneConfig(0, many))
    together = threading.Barrier(many)

    @manager.command("meet")
    def meet() -> None:
        together.wait(PATIENCE)

    async def main() -> None:
        async with manager:
            for handle in await manager.submit_many("x", [meet() for _ in range(many)]):
                await handle

    run(main())


COLOUR: ContextVar[str] = ContextVar("colour", default="none")


@everywhere
def test_context_and_current_command_are_carried_over(build: Build) -> None:
    manager = lane(build, LaneConfig(0, 1, timeout=50))
    seen: list[Any] = []

    @manager.command("look")
    def look() -> None:
        command = current_command()
        seen.append((COLOUR.get(), command.lane, command.key, command.command_type))
        seen.append((command.attempt, command.timeout, command.cancelled))
        COLOUR.set("changed")  # in the context of this command alone

    async def main() -> None:
        COLOUR.set("red")
        async with manager:
            for _ in range(2):
                handle = await manager.submit("x", look(), key="k")
                await handle

    run(main())
    assert seen == 2 * [("red", "x", "k", "look"), (1, 50, False)]


class ShopError(Exception):
    pass


@everywhere
def test_what_a_plain_function_raises_is_its_failure(build: Build) -> None:
    manager = lane(build, LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 0)))
    attempts: list[int] = []

    @manager.command("fail")
    def fail() -> None:
        attempts.append(current_command().attempt)
        raise ShopError("closed")

    @manager.command("leave")
    def leave() -> None:
        raise SystemExit(3)

    async def main() -> None:
        async with manager:
            with pytest.raises(ShopError, match="closed"):
                await (await manager.submit("x", fail()))
            with pytest.raises(CommandExitError, match="SystemExit"):
                await (await manager.submit("x", leave()))
            [letter, _] = await manager.dlq.list()
            assert "ShopError: closed" in letter.error
            assert "in fail" in letter.traceback

    run(main())
    assert attempts == [1, 2]


# Time-outs and cancellations


@everywhere
def test_a_command_that_looks_whether_it_is_cancelled_ends_in_time(build: Build) -> None:
    manager = lane(build, LaneConfig(0, 1, cancel_grace=PATIENCE))
    begun, ended = threading.Event(), threading.Event()

    @manager.command("poll")
    def poll() -> str:
        begun.set()
        command = current_command()
        while not command.cancelled:
            ended.wait(0.005)
        ended.set()
        return "too late"

    async def main() -> None:
        async with manager:
            with pytest.raises(CommandTimeoutError, match=r"longer than 0\.05 s"):
                await (await manager.submit("x", poll(), timeout=0.05))
            assert ended.is_set()
            begun.clear()
            handle = await manager.submit("x", poll())
            await eventually(begun.is_set)
            assert await handle.cancel()
            with pytest.raises(CommandCancelledError):
                await handle

    run(main())


@everywhere
def test_its_key_and_its_slot_stay_taken_until_the_thread_returns(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    manager = lane(build, LaneConfig(0, 2, cancel_grace=0.01))
    go_on = threading.Event()
    order: list[str] = []

    @manager.command("stuck")
    def stuck() -> str:
        go_on.wait(PATIENCE)
        order.append("the thread has returned")
        return "does not count"

    @manager.command("next")
    def following() -> None:
        order.append("the next one has begun")

    async def main() -> None:
        async with manager:
            first = await manager.submit("x", stuck(), key="k", timeout=0.01)
            second = await manager.submit("x", following(), key="k")
            other = await manager.submit("x", following(), key="another")
            await other
            await eventually(lambda: "stay taken until it returns" in caplog.text)
            assert first.status == "running"
            assert second.status == "pending"
            assert (await manager.stats()).lanes["x"].active == 1
            order.clear()
            go_on.set()
            with pytest.raises(CommandTimeoutError):
                await first
            await second

    with caplog.at_level(logging.ERROR, logger="leasedkeyq"):
        run(main())
    assert order == ["the thread has returned", "the next one has begun"]
    assert "command 'stuck' of key 'k'" in caplog.text
    assert "current_command().cancelled" in caplog.text


def test_the_log_tells_that_a_thread_without_a_lease_does_not_keep_its_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    go_on = threading.Event()
    begun = threading.Event()
    config = LaneConfig(0, 1, cancel_grace=0.01)
    worker, other = (
        QueueManagerBuilder().with_storage(store).with_lane("x", config, 0).build()
        for _ in range(2)
    )

    def stuck() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    worker.command("stuck", stuck)
    command = other.command("stuck", stuck)

    async def main() -> None:
        async with worker:
            handle = await other.submit("x", command(), key="k")
            await eventually(begun.is_set)
            assert await handle.cancel()
            await eventually(lambda: "its slot stays taken until it returns" in caplog.text)
            go_on.set()
        await other.close()
        await store.close()

    with caplog.at_level(logging.ERROR, logger="leasedkeyq"):
        run(main())
    assert "the next command of its key may run beside it" in caplog.text


@everywhere
def test_a_time_out_of_a_thread_is_retried_when_it_has_returned(build: Build) -> None:
    retries = RetryPolicy.fixed(50, 0)  # on a busy machine, more than the first may take too long
    manager = lane(build, LaneConfig(0, 1, timeout=0.05, cancel_grace=0.01, retry_policy=retries))
    at_once = 0

    @manager.command("slow")
    def slow() -> int:
        nonlocal at_once
        command = current_command()
        at_once += 1
        assert at_once == 1, "two attempts ran at a time"
        while command.attempt == 1 and not command.cancelled:
            threading.Event().wait(0.005)
        if command.attempt == 1:
            threading.Event().wait(0.1)  # longer than cancel_grace
        at_once -= 1
        return command.attempt

    async def main() -> None:
        async with manager:
            assert await (await manager.submit("x", slow())) >= 2

    run(main())


def test_closing_does_not_wait_for_a_thread_for_ever_and_keeps_its_command() -> None:
    store = MemoryStore()
    go_on = threading.Event()
    begun = threading.Event()
    builder = QueueManagerBuilder().with_storage(store)
    manager = builder.with_lane("x", LaneConfig(0, 1, cancel_grace=0.01), 0).build()

    @manager.command("stuck")
    def stuck() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    async def main() -> None:
        await manager.start()
        await manager.submit("x", stuck(), key="k")
        await eventually(begun.is_set)
        assert await manager.close() == {"x": 1}
        [[item]] = await store.look("x", ["k"])
        # No other worker may take it while the thread runs: its lease has to expire first.
        assert item.state == "in_flight"
        go_on.set()
        await store.close()

    run(main())


def test_closing_leaves_a_thread_that_has_timed_out_before_to_its_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    go_on = threading.Event()
    builder = QueueManagerBuilder().with_storage(store)
    manager = builder.with_lane("x", LaneConfig(0, 1, cancel_grace=0.01), 0).build()

    @manager.command("stuck")
    def stuck() -> None:
        go_on.wait(PATIENCE)

    async def main() -> None:
        await manager.start()
        await manager.submit("x", stuck(), key="k", timeout=0.01)
        await manager.submit("x", stuck(), key="k")
        await eventually(lambda: "stay taken" in caplog.text)
        assert await manager.close() == {"x": 2}
        # Neither this one nor the next of its key may run elsewhere while the thread runs.
        [[first, second]] = await store.look("x", ["k"])
        assert (first.state, second.state) == ("in_flight", "in_line")
        go_on.set()
        await store.close()

    with caplog.at_level(logging.ERROR, logger="leasedkeyq"):
        run(main())


def test_closing_ends_a_wait_for_a_thread_that_has_timed_out_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = lane(QueueManagerBuilder, LaneConfig(0, 1, cancel_grace=0.01))
    go_on = threading.Event()

    @manager.command("stuck")
    def stuck() -> None:
        go_on.wait(PATIENCE)

    async def main() -> None:
        await manager.start()
        handle = await manager.submit("x", stuck(), timeout=0.01)
        await eventually(lambda: "stay taken" in caplog.text)
        await manager.close()
        with pytest.raises(CommandTimeoutError, match="left to itself"):
            await handle
        go_on.set()

    with caplog.at_level(logging.ERROR, logger="leasedkeyq"):
        run(main())


def test_threads_end_with_the_manager() -> None:
    manager = lane(QueueManagerBuilder)
    threads: list[threading.Thread] = []

    @manager.command("look")
    def look() -> None:
        threads.append(threading.current_thread())

    async def main() -> None:
        async with manager:
            await (await manager.submit("x", look()))

    run(main())
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()


# What is called where


def test_what_returns_something_to_await_is_awaited_in_the_event_loop() -> None:
    manager = lane(QueueManagerBuilder)
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> int:
        loops.append(asyncio.get_running_loop())
        return 7

    def announced() -> Awaitable[int]:
        loops.append(asyncio.get_running_loop())
        return work()

    commands: list[Any] = [
        manager.command("announced", announced)(),
        manager.command("lambda", lambda: asyncio.sleep(0, 7))(),
        manager.command("decorated", _undeclared(work))(),
    ]
    assert [command.function.run_in for command in commands] == ["loop", "thread", "thread"]
    assert commands[0].function.returns is int

    async def main() -> None:
        async with manager:
            for command in commands:
                assert await (await manager.submit("x", command)) == 7
        assert set(loops) == {asyncio.get_running_loop()}

    run(main())


@dataclass
class TaskReport:
    done: bool


def task_report() -> TaskReport:
    return TaskReport(threading.current_thread() is not threading.main_thread())


def test_only_what_can_be_awaited_is_called_in_the_event_loop() -> None:
    manager = lane(QueueManagerBuilder)
    command = manager.command("report", task_report)

    async def main() -> None:
        async with manager:
            assert await (await manager.submit("x", command())) == TaskReport(done=True)

    run(main())


def _undeclared(function: Callable[[], Any]) -> Callable[[], Any]:
    """A decorator that does not say what it wraps."""

    def call() -> Any:
        return function()

    return call


def test_the_command_of_a_plain_function_can_be_executed_by_hand() -> None:
    manager = lane(QueueManagerBuilder)
    double = manager.command("double", _double)

    async def main() -> None:
        assert await double(4).execute() == 8

    run(main())
    assert double.function(4) == 8


def test_generators_and_things_that_cannot_be_called_are_refused() -> None:
    manager = lane(QueueManagerBuilder)

    def numbers() -> Any:
        yield 1

    async def letters() -> Any:
        yield "a"

    anything: Any = "no function"
    with pytest.raises(TypeError, match=r"'numbers': numbers is a generator"):
        manager.command("numbers", numbers)
    with pytest.raises(TypeError, match=r"'letters': letters is a generator"):
        manager.command("letters", letters)
    with pytest.raises(TypeError, match=r"'x': str is neither a function nor a class"):
        manager.command("x", anything)
    with pytest.raises(TypeError, match=r"'iter'.*named parameters"):
        manager.command("iter", iter)
