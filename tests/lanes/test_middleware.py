"""What runs around commands: middleware."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from leasedkeyq.lanes import (
    CallNext,
    CommandTimeoutError,
    LaneConfig,
    QueueManagerBuilder,
    RetryPolicy,
    RunningCommand,
    current_command,
)
from tests.lanes.support import Build, everywhere, now


def built(build: Build, **config: Any) -> QueueManagerBuilder:
    return build().with_lane("work", LaneConfig(0, 4, **config), 0)


@everywhere
async def test_the_first_middleware_is_the_outermost(build: Build) -> None:
    said: list[str] = []

    async def outermost(command: RunningCommand, call_next: CallNext) -> Any:
        said.append(f"outermost before {command.command_type}")
        result = await call_next()
        said.append(f"outermost after {result}")
        return result

    manager = built(build).with_middleware(outermost).build()

    @manager.middleware
    async def inner(command: RunningCommand, call_next: CallNext) -> Any:
        said.append("inner before")
        try:
            return await call_next() + 1
        finally:
            said.append("inner after")

    @manager.command("double", lane="work")
    async def double(number: int) -> int:
        said.append("double")
        return 2 * number

    async with manager:
        assert await (await double.submit(4)) == 9
    assert said == [
        "outermost before double",
        "inner before",
        "double",
        "inner after",
        "outermost after 9",
    ]
    assert inner.__name__ == "inner"


@everywhere
async def test_middleware_sees_each_attempt_with_its_arguments(build: Build) -> None:
    seen: list[tuple[str, int, dict[str, Any]]] = []
    manager = built(build, retry_policy=RetryPolicy.fixed(2, 1)).build()

    @manager.middleware
    async def watch(command: RunningCommand, call_next: CallNext) -> Any:
        assert command == current_command()
        try:
            return await call_next()
        except ValueError as error:
            seen.append((command.key, command.attempt, {**command.arguments, "error": str(error)}))
            raise

    @manager.command("fails", lane="work", key=lambda number, *, text: f"{number}")
    async def fails(number: int, *, text: str = "why") -> int:
        if current_command().attempt < 3:
            raise ValueError(text)
        return number

    async with manager:
        assert await (await fails.submit(7)) == 7
    arguments = {"number": 7, "text": "why", "error": "why"}
    assert seen == [("7", 1, arguments), ("7", 2, arguments)]


@everywhere
async def test_middleware_decides_how_an_attempt_ends(build: Build) -> None:
    manager = built(build, retry_policy=RetryPolicy.fixed(1, 1)).build()
    ran: list[str] = []

    @manager.middleware
    async def decide(command: RunningCommand, call_next: CallNext) -> Any:
        match command.arguments["what"]:
            case "instead":
                return "not run"
            case "refuse":
                raise PermissionError(f"attempt {command.attempt}")
            case "swallow":
                try:
                    return await call_next()
                except ValueError:
                    return "swallowed"
            case "twice":
                return [await call_next(), await call_next()]
            case _:
                return await call_next()

    @manager.command("work", lane="work")
    async def work(what: str) -> str:
        ran.append(what)
        if what == "swallow":
            raise ValueError(what)
        return what

    async with manager:
        assert await (await work.submit("instead")) == "not run"
        assert await (await work.submit("swallow")) == "swallowed"
        twice: object = await (await work.submit("twice"))
        assert twice == ["twice", "twice"]
        with pytest.raises(PermissionError, match="attempt 2"):
            await (await work.submit("refuse"))
        assert await (await work.submit("plain")) == "plain"
    assert ran == ["swallow", "twice", "twice", "plain"]


@everywhere
async def test_the_time_out_holds_for_middleware_too(build: Build) -> None:
    manager = built(build).build()
    cleaned: list[float] = []

    @manager.middleware
    async def slow(command: RunningCommand, call_next: CallNext) -> Any:
        try:
            await asyncio.sleep(3)
            return await call_next()
        finally:
            cleaned.append(now())

    @manager.command("work", lane="work", timeout=5)
    async def work() -> None:
        await asyncio.sleep(3)

    async with manager:
        with pytest.raises(CommandTimeoutError):
            await (await work.submit())
        handle = await work.submit()
        await asyncio.sleep(1)
        assert await handle.cancel()
        await manager.drain()
    assert cleaned == [pytest.approx(5), pytest.approx(6)]


@everywhere
async def test_middleware_sees_the_fields_of_a_class(build: Build) -> None:
    manager = built(build).build()

    @manager.middleware
    async def show(command: RunningCommand, call_next: CallNext) -> Any:
        return command.arguments, await call_next()

    @manager.command("letter", lane="work")
    @dataclass
    class Letter:
        to: str
        command_type = "letter"

        async def execute(self) -> int:
            return 1

    @manager.command("note", lane="work")
    class Note(msgspec.Struct):
        text: str

        command_type = "note"

        async def execute(self) -> int:
            return 2

    async with manager:
        letter: Any = await (await manager.submit(Letter("Ada")))
        assert letter == ({"to": "Ada"}, 1)
        note: Any = await (await manager.submit(Note("hello")))
        assert note == ({"text": "hello"}, 2)


async def test_middleware_sees_the_attributes_of_any_object_in_memory() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()

    @manager.middleware
    async def show(command: RunningCommand, call_next: CallNext) -> Any:
        return command.arguments, await call_next()

    class Anything:
        command_type = "anything"

        def __init__(self) -> None:
            self.text = "hello"

        async def execute(self) -> int:
            return 3

    async with manager:
        shown: Any = await (await manager.submit("query", Anything()))
    assert shown == ({"text": "hello"}, 3)


def test_bad_middleware_is_refused_with_its_name() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    wrong: Any

    def plain(command: RunningCommand, call_next: CallNext) -> Any: ...

    async def short(command: RunningCommand) -> Any: ...

    for wrong, told in [
        (plain, r"plain: it must be an async function"),
        (7, r"7: it must be an async function"),
        (short, r"short: it is called with the command and with call_next"),
    ]:
        with pytest.raises(TypeError, match=f"middleware .*{told}"):
            manager.middleware(wrong)
        with pytest.raises(TypeError, match=f"middleware .*{told}"):
            QueueManagerBuilder().with_middleware(wrong)


@everywhere
async def test_an_object_with_an_async_call_is_middleware(build: Build) -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        async def __call__(self, command: RunningCommand, call_next: CallNext) -> Any:
            self.count += 1
            return await call_next()

    counter = Counter()
    manager = built(build).with_middleware(counter).build()

    @manager.command("work", lane="work")
    async def work() -> None: ...

    async with manager:
        await manager.submit_many([work() for _ in range(3)])
        await manager.drain()
    assert counter.count == 3
