"""How commands end, whatever they do."""

import asyncio
from typing import Any

import pytest

from leasedkeyq.lanes import CommandCancelledError, CommandExitError, LaneConfig, RetryPolicy
from tests.lanes.support import Build, everywhere


class OddError(BaseException):
    """Neither an `Exception` nor a way to leave the program."""


@everywhere
async def test_any_base_exception_is_the_failure_of_its_command(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("odd")
    async def odd(which: int) -> None:
        raise [OddError("odd"), GeneratorExit(), BaseExceptionGroup("many", [OddError()])][which]

    async with manager:
        for which in range(3):
            with pytest.raises(CommandExitError) as caught:
                await (await manager.submit("x", odd(which)))
            assert caught.value.__cause__ is not None
        await manager.drain(1)
        assert await manager.dlq.len() == 3


@everywhere
async def test_a_command_that_cancels_its_own_task_has_failed(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    runs = 0

    @manager.command("suicide")
    async def suicide() -> None:
        nonlocal runs
        runs += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with manager:
        handle = await manager.submit("x", suicide())
        with pytest.raises(CommandCancelledError):
            await handle
        assert runs == 1


@everywhere
@pytest.mark.parametrize("answer", ["soon", float("inf"), float("nan"), [], True])
async def test_a_retry_policy_that_answers_nonsense_ends_the_command(
    build: Build, answer: Any
) -> None:
    class Policy:
        def delay(self, attempt: int, error: BaseException) -> Any:
            return answer

    manager = build().with_lane("x", LaneConfig(0, 1, retry_policy=Policy()), 0).build()

    @manager.command("fail")
    async def fail() -> None:
        raise ValueError("no")

    async with manager:
        handle = await manager.submit("x", fail())
        with pytest.raises(ValueError, match="no"):
            await handle
        await manager.drain(1)


@everywhere
async def test_a_command_that_is_cancelled_while_it_times_out_is_not_retried(build: Build) -> None:
    config = LaneConfig(0, 1, timeout=1, retry_policy=RetryPolicy.fixed(5, 1), cancel_grace=10)
    manager = build().with_lane("x", config, 0).build()
    runs = 0

    @manager.command("slow")
    async def slow() -> None:
        nonlocal runs
        runs += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(2)  # cleaning up takes its time
            raise

    async with manager:
        handle = await manager.submit("x", slow(), key="k")
        await asyncio.sleep(2)
        assert await manager.cancel("x", "k")
        with pytest.raises(CommandCancelledError):
            await handle
        await manager.drain(60)
        assert runs == 1


@everywhere
async def test_what_an_error_says_on_several_lines_is_told_in_one(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("fail")
    async def fail() -> None:
        raise ValueError("first\nsecond")

    async with manager:
        with pytest.raises(ValueError, match="second"):
            await (await manager.submit("x", fail()))
        (letter,) = await manager.dlq.list()
        assert letter.error == "ValueError: first second"
        assert letter.traceback.startswith("Traceback")


@everywhere
async def test_no_time_out_at_all_overrides_that_of_the_lane(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1, timeout=1), 0).build()

    @manager.command("slow")
    async def slow() -> str:
        await asyncio.sleep(5)
        return "done"

    async with manager:
        assert await (await manager.submit("x", slow(), timeout=float("inf"))) == "done"
