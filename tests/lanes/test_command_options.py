"""What a type of command says for all its commands: lane, key, priority, time-out, retries."""

import asyncio
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import pytest

from leasedkeyq import connect
from leasedkeyq.lanes import (
    CommandFunction,
    CommandOptions,
    CommandPayloadError,
    CommandRegistry,
    CommandTimeoutError,
    Handle,
    LaneConfig,
    LaneConfigError,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    UnknownLaneError,
    current_command,
)
from tests.lanes.support import Build, everywhere, now, on_a_store


def two_lanes(builder: QueueManagerBuilder, **config: Any) -> QueueManager:
    builder.with_lane("reports", LaneConfig(0, 4, **config), 0)
    return builder.with_lane("other", LaneConfig(0, 4, **config), 1).build()


@everywhere
async def test_a_command_knows_its_lane(build: Build) -> None:
    manager = two_lanes(build())

    @manager.command("report", lane="reports")
    async def report(month: int) -> str:
        return f"{month} in {current_command().lane}"

    @manager.command("letter", lane="other")
    @dataclass
    class Letter:
        to: str
        command_type = "letter"

        async def execute(self) -> str:
            return f"{self.to} in {current_command().lane}"

    async with manager:
        handles = [
            await manager.submit(report(11)),
            await report.submit(12),
            await report.submit(month=1),
            await manager.submit("other", report(2)),
            await manager.queue().submit(report(3)),
        ]
        letter = await manager.submit(Letter("Ada"))
        said = [await handle for handle in handles]
        assert said == [
            "11 in reports",
            "12 in reports",
            "1 in reports",
            "2 in other",
            "3 in reports",
        ]
        assert await letter == "Ada in other"
        assert letter.lane == "other"


@everywhere
async def test_many_commands_go_to_the_lane_that_they_share(build: Build) -> None:
    manager = two_lanes(build())

    @manager.command("report", lane="reports", key=lambda month: f"month {month}")
    async def report(month: int) -> int:
        return month

    @manager.command("summary", lane="reports")
    async def summary() -> str:
        return current_command().lane

    @manager.command("letter", lane="other")
    async def letter() -> None: ...

    async with manager:
        handles = await manager.submit_many(report(month) for month in (1, 2))
        assert [handle.key for handle in handles] == ["month 1", "month 2"]
        mixed: list[Any] = [report(3), summary()]
        assert [await handle for handle in await manager.submit_many(mixed)] == [3, "reports"]
        [keyed] = await manager.submit_many({"mine": report(4)})
        assert (keyed.lane, keyed.key) == ("reports", "mine")
        [named] = await manager.submit_many("other", [report(5)])
        assert (named.lane, named.key) == ("other", "month 5")
        assert await manager.submit_many([]) == []
        mixed = [report(6), letter()]
        with pytest.raises(LaneConfigError, match=r"'report'.*'reports'.*'letter'.*'other'"):
            await manager.submit_many(mixed)
        assert [await handle for handle in (*handles, keyed, named)] == [1, 2, 4, 5]


@everywhere
async def test_a_command_without_a_lane_says_what_to_write(build: Build) -> None:
    manager = two_lanes(build())

    @manager.command("report")
    async def report(month: int) -> int:
        return month

    @manager.command("lost", lane="nowhere")
    async def lost() -> None: ...

    told = r"command 'report' has no default lane: .*@manager.command\('report', lane=\.\.\.\)"
    with pytest.raises(LaneConfigError, match=told):
        await manager.submit(report(11))
    with pytest.raises(LaneConfigError, match=told):
        await report.submit(11)
    with pytest.raises(LaneConfigError, match=told):
        await manager.submit_many([report(11)])
    with pytest.raises(UnknownLaneError, match=r"'lost' has the default lane 'nowhere'.*other"):
        await lost.submit()
    wrong: Any = 7
    with pytest.raises(UnknownLaneError, match="there is no lane 7"):
        await manager.submit(wrong, report(11))
    with pytest.raises(UnknownLaneError, match="there is no lane 7"):
        await manager.submit_many(wrong, [report(11)])
    for wrong in (7, None):
        with pytest.raises(TypeError, match="a command has an attribute command_type"):
            await manager.submit(wrong)
    with pytest.raises(TypeError, match=r"commands must be commands, .* got None$"):
        await manager.submit_many(wrong)
    wrong = "reports"
    with pytest.raises(TypeError, match=r"submit_many\('reports'\) has a lane and no commands"):
        await manager.submit_many(wrong)


@everywhere
async def test_keys_of_commands_are_made_of_their_arguments(build: Build) -> None:
    manager = two_lanes(build())
    running: list[str] = []

    async def run(name: str) -> None:
        assert name not in running, "two commands of one key run at a time"
        running.append(name)
        await asyncio.sleep(1)
        running.remove(name)

    @manager.command("report", lane="reports", key=lambda month, *, year: f"{year}-{month}")
    async def report(month: int, *, year: int = 2026) -> None:
        await run(current_command().key)

    @manager.command("letter", lane="reports", key=lambda letter: letter.to)
    @dataclass
    class Letter:
        to: str

        async def execute(self) -> None:
            await run(current_command().key)

    async with manager:
        handles = [await report.submit(11), await report.submit(11), await report.submit(12)]
        assert [handle.key for handle in handles] == ["2026-11", "2026-11", "2026-12"]
        letter: Any = Letter("Ada")
        written = await manager.submit(letter)
        assert written.key == "Ada"
        assert (await manager.submit(report(11), key="mine")).key == "mine"
        await manager.drain()
        assert now() == pytest.approx(2)


@everywhere
async def test_a_key_function_that_fails_is_named(build: Build) -> None:
    manager = two_lanes(build())

    @manager.command("number", lane="reports", key=lambda month: month)
    async def number(month: int) -> None: ...

    @manager.command("nothing", lane="reports", key=lambda: "")
    async def nothing() -> None: ...

    @manager.command("fails", lane="reports", key=lambda month: {}[month])
    async def fails(month: int) -> None: ...

    with pytest.raises(CommandPayloadError, match="'number': its key function must return a str"):
        await number.submit(11)
    with pytest.raises(CommandPayloadError, match="'nothing': its key function must return a str"):
        await nothing.submit()
    with pytest.raises(CommandPayloadError, match="'fails': its key function raised KeyError"):
        await manager.submit_many([fails(11)])
    assert (await manager.stats()).total_pending == 0


@everywhere
async def test_priorities_of_types_order_a_lane(build: Build) -> None:
    manager = build().with_lane("reports", LaneConfig(0, 1), 0).build()
    ran: list[str] = []

    @manager.command("urgent", lane="reports", priority=-5)
    async def urgent(name: str) -> None:
        ran.append(name)

    @manager.command("slow", lane="reports", priority=5)
    async def slow(name: str) -> None:
        ran.append(name)

    @manager.command("plain", lane="reports")
    async def plain(name: str) -> None:
        ran.append(name)

    await slow.submit("last")
    await manager.submit_many([plain("third"), urgent("first"), slow("very last")])
    await urgent.submit("second")
    await manager.submit(slow("before all"), priority=-9)
    async with manager:
        await manager.drain()
    assert ran == ["before all", "first", "second", "third", "last", "very last"]


@everywhere
async def test_policies_of_a_command_go_before_those_of_its_lane(build: Build) -> None:
    lanes = {"retry_policy": RetryPolicy.fixed(1, 100), "timeout": 50}
    manager = two_lanes(build(), **lanes)
    attempts: list[int] = []

    @manager.command("fails", lane="reports", retry_policy=RetryPolicy.fixed(3, 1))
    async def fails() -> None:
        attempts.append(current_command().attempt)
        raise ValueError("failure")

    @manager.command("once", lane="reports", retry_policy=RetryPolicy.none(), timeout=2)
    async def once(seconds: float) -> float | None:
        await asyncio.sleep(seconds)
        return current_command().timeout

    @manager.command("long", lane="reports", retry_policy=RetryPolicy.none(), timeout=float("inf"))
    async def long(seconds: float) -> float | None:
        await asyncio.sleep(seconds)
        return current_command().timeout

    async with manager:
        with pytest.raises(ValueError, match="failure"):
            await (await fails.submit())
        assert attempts == [1, 2, 3, 4]
        assert now() == pytest.approx(3)
        with pytest.raises(CommandTimeoutError, match=r"longer than 2\.0 s"):
            await (await once.submit(100))
        assert now() == pytest.approx(5)
        assert await (await manager.submit(once(9), timeout=50)) == 50  # as the lane has it, too
        assert await (await once.submit(1)) == 2
        assert await (await long.submit(70)) is None
        assert await (await manager.submit(long(1), timeout=3)) == 3


@everywhere
async def test_the_attempts_of_the_lane_stay_the_limit(build: Build) -> None:
    manager = two_lanes(build(), max_attempts=2)
    attempts: list[int] = []

    @manager.command("fails", lane="reports", retry_policy=RetryPolicy.fixed(9, 1))
    async def fails() -> None:
        attempts.append(current_command().attempt)
        raise ValueError("failure")

    async with manager:
        with pytest.raises(ValueError, match="failure"):
            await (await fails.submit())
    assert attempts == [1, 2]


@everywhere
async def test_a_retry_policy_of_a_command_that_fails_is_named(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def delay(self, attempt: int, error: BaseException) -> float:
            raise RuntimeError("broken")

    manager = two_lanes(build())

    @manager.command("fails", lane="reports", retry_policy=Broken())
    async def fails() -> None:
        raise ValueError("failure")

    async with manager:
        with pytest.raises(ValueError, match="failure"):
            await (await fails.submit())
    assert "command 'fails': its retry policy failed" in caplog.text


@pytest.mark.parametrize("held", [False, True])
async def test_a_requeued_command_has_its_time_out_again(held: bool) -> None:
    on_dead_letter: Any = "pause_key" if held else "continue"
    config = LaneConfig(0, 1, timeout=50, on_dead_letter=on_dead_letter)
    manager = QueueManagerBuilder().with_lane("reports", config, 0).build()
    timeouts: list[float | None] = []

    @manager.command("fails", lane="reports", timeout=7, key=lambda: "one")
    async def fails() -> None:
        timeouts.append(current_command().timeout)
        if len(timeouts) < 3:
            raise ValueError("failure")

    async with manager:
        await manager.submit(fails(), timeout=50)
        await manager.drain()
        [letter] = await manager.dlq.list()
        assert letter.timeout == 50
        await manager.dlq.requeue(letter)
        await manager.drain()
        await manager.dlq.clear()
        await fails.submit()
        await manager.drain()
    assert timeouts == [50, 50, 7]


def test_the_worker_that_runs_a_command_decides_about_retries_and_time(tmp_path: Path) -> None:
    asyncio.run(run_elsewhere(tmp_path))


async def run_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    attempts: list[tuple[int, float | None]] = []

    def built() -> QueueManagerBuilder:
        return QueueManagerBuilder().with_lane("reports", LaneConfig(0, 1), 0)

    async with connect(url) as here, connect(url) as there:
        web = built().with_storage(here).run_only().build()
        worker = built().with_storage(there).build()

        @web.command("report", lane="reports", timeout=1, key=lambda month: f"web {month}")
        async def report(month: int) -> str:
            raise AssertionError("it runs elsewhere")

        @worker.command("report", timeout=7, retry_policy=RetryPolicy.fixed(2, 0))
        async def run(month: int) -> str:
            attempts.append((current_command().attempt, current_command().timeout))
            if len(attempts) < 3:
                raise ValueError("failure")
            return current_command().key

        async with worker, web:
            assert await asyncio.wait_for((await report.submit(11)).wait(), 60) == "web 11"
    assert attempts == [(1, 7), (2, 7), (3, 7)]


# Which manager a command submits itself to


async def test_a_command_submits_itself_to_the_manager_that_registered_it() -> None:
    builder = on_a_store().with_lane("reports", LaneConfig(0, 1), 0)
    first, second = builder.build(), builder.build()

    @second.command("report", lane="reports")
    async def report(month: int) -> int:
        return month

    async with second:
        handle = await report.submit(11)
        assert await handle == 11
    stats = await first.stats()
    assert stats.lanes["reports"].completed == 0
    await first.close()


def test_a_rebuilt_manager_still_gets_its_commands(tmp_path: Path) -> None:
    asyncio.run(rebuild_and_submit(tmp_path))


async def rebuild_and_submit(tmp_path: Path) -> None:
    builder = QueueManagerBuilder().with_lane("reports", LaneConfig(0, 1), 0)
    manager = builder.build()

    @manager.command("report", lane="reports")
    async def report(month: int) -> int:
        return month

    builder.with_storage(f"sqlite:///{tmp_path}/jobs.db")
    await builder.rebuild(manager)
    async with manager:
        assert manager.queue().durable
        assert await (await report.submit(11)) == 11


async def test_a_command_of_a_registry_finds_the_only_manager() -> None:
    registry = CommandRegistry()

    @registry.register("report", lane="reports")
    async def report(month: int) -> int:
        return month

    builder = on_a_store().with_lane("reports", LaneConfig(0, 1), 0).with_commands(registry)
    with pytest.raises(LaneConfigError, match=r"'report': no manager uses .*manager\.submit\("):
        await report.submit(11)
    first = builder.build()
    assert isinstance(await report.submit(11), object)
    second = builder.build()
    with pytest.raises(LaneConfigError, match=r"'report': 2 managers use .*manager\.submit\("):
        await report.submit(11)
    async with first:
        assert await (await first.submit(report(12))) == 12
    async with second:  # the first one takes no more commands
        assert await (await report.submit(13)) == 13
    del first, second
    gc.collect()


async def test_a_function_without_a_registry_says_what_to_write() -> None:
    async def plain(month: int) -> int:
        return month

    alone: CommandFunction[[int], int] = CommandFunction("report", plain)
    with pytest.raises(LaneConfigError, match=r"'report' belongs to no manager; .*plain\("):
        await alone.submit(11)


# Types


@everywhere
async def test_type_checkers_know_what_a_command_takes_and_returns(build: Build) -> None:
    manager = two_lanes(build())

    @manager.command("report", lane="reports", timeout=5, key=lambda month, year: f"{year}-{month}")
    async def report(month: int, year: int = 2026) -> str:
        return f"{year}-{month}"

    async def plain(month: int) -> float:
        return month / 2

    halved = manager.command("halved", plain, lane="reports")
    async with manager:
        assert_type(await report.submit(11), Handle[str])
        assert_type(await report.submit(11, year=2025), Handle[str])
        assert_type(await manager.submit(report(11)), Handle[str])
        assert_type(await manager.submit("other", report(11), delay=1), Handle[str])
        assert_type(await manager.submit_many([report(11)]), list[Handle[str]])
        assert_type(await manager.submit_many("other", {"a": report(11)}), list[Handle[str]])
        assert assert_type(await (await halved.submit(3)), float) == 1.5
    for wrong in ("eleven", 1.5):
        with pytest.raises(CommandPayloadError, match="'report' do not fit"):
            await report.submit(wrong)  # type: ignore[arg-type]  # as a type checker says  # pyright: ignore[reportArgumentType]


# Bad options


@pytest.mark.parametrize(
    "options, error, told",
    [
        ({"lanes": "reports"}, TypeError, "no option 'lanes'; the options are: lane, retry_policy"),
        ({"lane": 7}, TypeError, "lane must be the name of a lane, got 7"),
        ({"lane": ""}, TypeError, "lane must be the name of a lane"),
        ({"retry_policy": 3}, TypeError, r"method delay\(attempt, error\), got int"),
        ({"timeout": 0}, ValueError, "timeout must be greater than 0"),
        ({"timeout": "7"}, TypeError, "timeout"),
        ({"priority": 1.5}, TypeError, "priority must be an int"),
        ({"key": "month"}, TypeError, "key must be a function of the arguments"),
        ({"key": lambda: "x"}, TypeError, "its key function is called with the arguments"),
        ({"key": lambda month, year: "x"}, TypeError, "its key function is called with"),
    ],
)
def test_bad_options_are_refused_with_the_name_of_the_command(
    options: dict[str, Any], error: type[Exception], told: str
) -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()

    async def report(month: int) -> int:
        return month

    with pytest.raises(error, match=f"command 'report': .*{told}"):
        manager.command("report", report, **options)
    with pytest.raises(error, match=f"command 'report': .*{told}"):
        manager.queue().registry.register("report", **options)(report)
    assert "report" not in manager.queue().registry.types


def test_an_async_key_function_is_refused() -> None:
    async def key(month: int) -> str:
        return str(month)

    wrong: Any = key
    with pytest.raises(TypeError, match="key must be a plain function"):
        CommandOptions(key=wrong)


def test_the_key_function_of_a_class_takes_the_command() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    with pytest.raises(TypeError, match="'letter': its key function is called with"):

        @manager.command("letter", key=lambda: "x")
        @dataclass
        class Letter:
            to: str

            async def execute(self) -> None: ...


def test_a_key_function_in_c_need_not_tell_its_parameters() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()

    @manager.command("report", key=str)
    async def report(month: int) -> int:
        return month

    assert manager.queue().registry.default_key("report", report(11)) == "11"
