"""What is wrong with a command is said when it is registered or submitted, not when it runs."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from math import inf, nan
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    AnnotationWarning,
    CommandPayloadError,
    CommandQueue,
    CommandRegistry,
    DeadLetter,
    DeadLetterQueue,
    LaneConfig,
    LocalStorage,
    QueueManager,
    RemoteCommandError,
    RetryPolicy,
    StoredCommand,
)
from tests.lanes.support import Work, clock, everywhere, in_memory, nothing, on_a_store

if TYPE_CHECKING:
    from decimal import Decimal
    from pathlib import Path

    from tests.lanes.support import Build

# Commands that are not async


class Blocking:
    """What somebody writes who has not read that commands are async."""

    command_type = "blocking"

    def execute(self) -> int:
        return 1


class ReturnsAwaitable:
    command_type = "returns"

    def execute(self) -> Awaitable[int]:
        return asyncio.sleep(0, 1)


def decorated(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Decorated:
    command_type = "decorated"

    @decorated
    async def execute(self) -> int:
        return 1


class CallObject:
    def __call__(self) -> Awaitable[None]:
        return nothing()


@everywhere
async def test_execute_that_is_not_async_is_refused_when_it_is_submitted(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(2, 0))
    manager = build().with_lane("x", config, 0).build()
    said = r"'blocking': Blocking.execute is not async.*register a plain function"
    blocking: Any = Blocking()
    async with manager:
        with pytest.raises(TypeError, match=said):
            await manager.submit("x", blocking)
        with pytest.raises(TypeError, match=said):
            await manager.submit_many("x", [blocking])
        with pytest.raises(TypeError, match=said):
            await manager.submit_many("x", {"k": blocking})
        with pytest.raises(TypeError, match="execute is not async"):
            await manager.submit("x", Work(plain))
        assert (await manager.stats()).lanes["x"].submitted == 0


def plain() -> None:
    return None


def test_a_class_whose_execute_is_not_async_cannot_be_registered() -> None:
    registry = CommandRegistry()
    with pytest.raises(TypeError, match=r"Blocking.execute is not async"):
        registry.register("blocking")(Blocking)
    assert not registry.types


async def test_whatever_returns_something_to_await_is_a_command() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 1), 0).build()
    good: list[Any] = [
        Work(nothing),
        Work(lambda: asyncio.sleep(0)),
        Work(partial(asyncio.sleep, 0)),
        Work(CallObject()),
        ReturnsAwaitable(),
        Decorated(),
    ]
    async with manager:
        for handle in await manager.submit_many("x", good):
            await handle


# Numbers that JSON does not have


class Point(msgspec.Struct):
    x: float
    y: float | None = None


@dataclass
class Move:
    """A command by its fields."""

    way: list[Point]
    speed: float = 1.0
    names: dict[str, float] = field(default_factory=dict[str, float])
    command_type = "move"

    async def execute(self) -> None: ...


def take_anything(manager: QueueManager) -> Callable[[Any], Any]:
    async def anything(value: Any) -> None: ...

    return manager.command("anything", anything)


@pytest.mark.parametrize(
    "value, where",
    [
        (nan, "value is nan"),
        (inf, "value is inf"),
        (-inf, "value is -inf"),
        ([0.0, None, nan], r"value\[2\] is nan"),
        ({"a": [{"b c": inf}]}, r"value\.a\[0\]\['b c'\] is inf"),
        (Point(0.5, nan), r"value\.y is nan"),
        ((Point(1.0), Point(nan)), r"value\[1\]\.x is nan"),
        (Move([], nan), r"value\.speed is nan"),
    ],
)
async def test_nan_and_infinity_are_refused_on_a_store(value: Any, where: str) -> None:
    manager = on_a_store().with_lane("x", LaneConfig(0, 1), 0).build()
    anything = take_anything(manager)
    async with manager:
        with pytest.raises(CommandPayloadError, match=f"'anything'.*{where}.*JSON has no such"):
            await manager.submit("x", anything(value))
        with pytest.raises(CommandPayloadError, match=where):
            await manager.submit_many("x", [anything(1), anything(value)])
        assert (await manager.stats()).lanes["x"].submitted == 0


async def test_nan_in_the_fields_of_a_command_is_refused_on_a_store() -> None:
    manager = on_a_store().with_lane("x", LaneConfig(0, 1), 0).build()
    manager.command("move")(Move)
    async with manager:
        for move, where in (
            (Move([Point(nan)]), r"way\[0\]\.x is nan"),
            (Move([], inf), "speed is inf"),
            (Move([], names={"a": nan}), r"names\.a is nan"),
        ):
            with pytest.raises(CommandPayloadError, match=where):
                await manager.submit("x", move)
        await (await manager.submit("x", Move([Point(1.0)])))


async def test_in_memory_nothing_is_written_down_and_nan_stays_nan() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("same")
    async def same(value: float) -> float:
        return value

    async with manager:
        assert await (await manager.submit("x", same(inf))) == inf


async def test_a_result_with_nan_cannot_be_written_down() -> None:
    store = MemoryStore(clock=clock)
    there = in_memory().with_storage(store).with_lane("x", LaneConfig(0, 1), 0).build()
    here = in_memory().with_storage(store).with_lane("x", LaneConfig(0, 1), 0).build()

    async def measure() -> list[float]:
        return [nan]

    command = here.command("measure", measure)
    there.command("measure", measure)
    handle = await here.submit("x", command())
    async with there:
        with pytest.raises(RemoteCommandError, match="its result could not be written down"):
            await handle
    await here.close()


def test_nan_in_stored_commands_and_letters_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        storage = LocalStorage(tmp_path)
        command = StoredCommand(lane="x", command_type="c", payload={"a": nan})
        letter = DeadLetter(lane="x", command_type="c", payload=[inf])
        with pytest.raises(CommandPayloadError, match="a is nan"):
            await storage.save_command(command)
        with pytest.raises(CommandPayloadError, match=r"\[0\] is inf"):
            await storage.save_dead_letter(letter)
        assert await storage.load_commands() == []
        await storage.close()

    asyncio.run(run())


# Annotations that cannot be resolved


def test_an_annotation_that_cannot_be_resolved_is_said_and_only_that_goes_unchecked() -> None:
    class Local:
        """A class that nobody outside of this function can name."""

    async def work(count: int, thing: Local, price: Decimal) -> Local:
        return thing

    registry = CommandRegistry()
    with pytest.warns(AnnotationWarning) as caught:
        command = registry.register("work", work)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 3
    assert "command 'work': the annotation 'Local' of parameter 'thing'" in texts[0]
    assert "name 'Local' is not defined" in texts[0]
    assert "values for it are not checked; define what it names at the top" in texts[0]
    assert "the annotation 'Decimal' of parameter 'price'" in texts[1]
    assert "the annotation 'Local' of the result" in texts[2]
    assert {warning.filename for warning in caught} == {__file__}

    wrong: Any = "three"
    with pytest.raises(CommandPayloadError, match=r"Expected `int`, got `str` - at `\$.count`"):
        command(wrong, Local(), wrong)
    assert command(3, Local(), wrong).command_type == "work"


def test_annotations_that_can_be_resolved_say_nothing() -> None:
    registry = CommandRegistry()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.register("anything", take_point)
        registry.register("move")(Move)


async def take_point(point: Point) -> Point:
    return point


def test_a_class_with_a_field_that_cannot_be_resolved_is_refused() -> None:
    class Local: ...

    @dataclass
    class Holds:
        thing: Local

        async def execute(self) -> None: ...

    with pytest.raises(TypeError, match=r"an annotation of Holds cannot be resolved.*'Local'"):
        CommandRegistry().register("holds")(Holds)


def test_a_result_of_a_class_that_cannot_be_resolved_is_said() -> None:
    class Local: ...

    @dataclass
    class Makes:
        count: int

        async def execute(self) -> Local:
            return Local()

    with pytest.warns(AnnotationWarning, match="of the result cannot be resolved"):
        CommandRegistry().register("makes")(Makes)


@everywhere
async def test_a_function_can_be_a_command_of_several_managers(build: Build) -> None:
    first, second = (build().with_lane("x", LaneConfig(), 0).build() for _ in range(2))

    @second.command("double", lane="x")
    @first.command("double", lane="x")
    async def double(number: int) -> int:
        return 2 * number

    @first.command("plain")
    def plain() -> int:
        return 7

    @first.batch("many", size=1, within=0)
    async def many(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    untyped: tuple[Any, Any, Any] = (double, plain, many)
    batch = second.batch("many", size=1, within=0, lane="x")(untyped[2])
    async with second:
        assert await (await second.submit(untyped[0](4))) == 8
        assert await (await second.submit(batch(5))) == 10
    # Virtual time would run away from a thread.
    assert second.command("plain", untyped[1]).function is plain.function


# Dead letters of a command queue


async def test_a_dead_letter_queue_beside_a_store_is_refused() -> None:
    store = MemoryStore(clock=clock)
    with pytest.raises(
        ValueError, match=r"a store keeps its dead letters itself.*max_dead_letters"
    ):
        CommandQueue(dlq=DeadLetterQueue(), store=store)
    with pytest.raises(ValueError, match="a max_size of its own"):
        CommandQueue(dlq=DeadLetterQueue(), max_dead_letters=3)
    assert CommandQueue(store=store, max_dead_letters=3).dlq.max_size == 3
    assert CommandQueue(max_dead_letters=3).dlq.max_size == 3
    own = DeadLetterQueue(5)
    assert CommandQueue(dlq=own).dlq is own
    assert in_memory().with_lane("x", LaneConfig(), 0).with_dlq(4).build().dlq.max_size == 4


@everywhere
async def test_the_number_of_dead_letters_is_awaited_everywhere(build: Build) -> None:
    dlq = build().with_lane("x", LaneConfig(), 0).build().dlq
    with pytest.raises(TypeError, match=r"use await dlq\.len\(\)"):
        len(dlq)
    assert await dlq.len() == 0
    assert dlq
