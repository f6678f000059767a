"""Chains: each command gets the result of the one before, in memory and on a store alike."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_type

import msgspec
import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandPayloadError,
    GatherOutcome,
    Handle,
    LaneConfig,
    LaneConfigError,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    UnknownLaneError,
    UnregisteredCommandError,
    current_command,
)
from leasedkeyq.lanes.running.job import CURRENT
from tests.lanes.support import Build, clock, everywhere, in_memory, on_a_store

QUICK = LaneConfig(0, 4, retry_policy=RetryPolicy.none())


def manager_of(build: Build) -> QueueManager:
    return build().with_lane("a", QUICK, 0).with_lane("b", QUICK, 1).build()


def store_manager(store: MemoryStore) -> QueueManager:
    builder = QueueManagerBuilder(clock=clock).with_lane("a", QUICK, 0).with_lane("b", QUICK, 1)
    return builder.with_storage(store).build()


class Page(msgspec.Struct):
    """What is handed on in a test."""

    url: str
    size: int = 0


class Commands:
    """The commands of the tests, and what they were called with."""

    def __init__(self, manager: QueueManager) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.lanes: list[str] = []
        self.broken = True

        @manager.command("fetch")
        async def fetch(url: str) -> Page:
            self._called("fetch", url)
            return Page(url, len(url))

        @manager.command("measure")
        async def measure(page: Page, factor: int = 1) -> int:
            self._called("measure", page)
            return page.size * factor

        @manager.command("show")
        async def show(number: int) -> str:
            self._called("show", number)
            return f"{number} bytes"

        @manager.command("fail")
        async def fail(number: int) -> int:
            self._called("fail", number)
            if self.broken:
                raise LookupError("nothing there")
            return number

        @manager.command("wait")
        async def wait(number: int) -> int:
            self._called("wait", number)
            await asyncio.sleep(100)
            return number

        @manager.command("odd")
        async def odd(number: int) -> Any:
            self._called("odd", number)
            return object() if self.broken else number

        self.fetch, self.measure, self.show = fetch, measure, show
        self.fail, self.wait, self.odd = fail, wait, odd

    def _called(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        self.lanes.append(current_command().lane)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@everywhere
async def test_each_step_gets_the_result_of_the_one_before(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        handle = await manager.chain(
            commands.fetch("leasedkeyq"), commands.measure, commands.show, lane="a"
        )
        assert await handle == "10 bytes"
        assert await handle == "10 bytes"
    assert commands.calls == [
        ("fetch", "leasedkeyq"),
        ("measure", Page("leasedkeyq", 10)),
        ("show", 10),
    ]
    assert (handle.status, handle.done()) == ("completed", True)


@everywhere
async def test_type_checkers_know_what_comes_of_it(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    first = commands.fetch("abc")
    async with manager:
        assert_type(await manager.chain(first, lane="a"), Handle[Page])
        assert_type(await manager.chain(first, commands.measure, lane="a"), Handle[int])
        handle = await manager.chain(first, commands.measure, commands.show, lane="a")
        assert_type(handle, Handle[str])
        gathered = await manager.gather([first, first], lane="a")
        assert_type(gathered, Handle[list[GatherOutcome[Page]]])
        # Each of these is a mistake that a type checker finds.
        await manager.chain(first, commands.show, lane="a")  # type: ignore[arg-type]  # no number  # pyright: ignore[reportArgumentType]
        await manager.gather([first], then=commands.show, lane="a")  # type: ignore[arg-type]  # no list  # pyright: ignore[reportArgumentType, reportCallIssue]


@everywhere
async def test_partitions_are_no_matter(build: Build) -> None:
    config = LaneConfig(0, 4, partitions=3)
    manager = build().with_lane("a", config, 0).build()
    commands = Commands(manager)
    async with manager:
        steps = commands.measure, commands.show
        chains = [await manager.chain(commands.fetch("x" * n), *steps, lane="a") for n in range(9)]
        gathered = await manager.gather([commands.show(n) for n in range(9)], lane="a")
        assert [await chain for chain in chains] == [f"{n} bytes" for n in range(9)]
        assert [one.result for one in await gathered] == [f"{n} bytes" for n in range(9)]


@everywhere
async def test_other_arguments_of_a_step_come_by_partial(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        times = partial(commands.measure, factor=3)
        assert await (await manager.chain(commands.fetch("abc"), times, lane="a")) == 9


@everywhere
async def test_a_registered_class_can_be_a_step(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)

    @manager.command("scale")
    @dataclass
    class Scale:
        page: Page
        factor: int = 1
        command_type = "scale"

        async def execute(self) -> int:
            return self.page.size * self.factor

    async with manager:
        assert await (await manager.chain(commands.fetch("abc"), Scale, lane="a")) == 3
        five = partial(Scale, factor=5)
        assert await (await manager.chain(commands.fetch("abc"), five, lane="a")) == 15


@everywhere
async def test_a_class_whose_fields_have_other_names_in_json_can_be_a_step(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)

    @manager.command("scale")
    class Scale(msgspec.Struct, rename="camel"):
        web_page: Page
        times_so_much: int = 1
        command_type = "scale"

        async def execute(self) -> int:
            return self.web_page.size * self.times_so_much

    @manager.command("count")
    class Count(msgspec.Struct, rename={"all_pages": "pages"}):
        all_pages: list[GatherOutcome[Page]]
        command_type = "count"

        async def execute(self) -> int:
            return len(self.all_pages)

    five: Any = partial(Scale, times_so_much=5)
    async with manager:
        assert await (await manager.chain(commands.fetch("abc"), five, lane="a")) == 15
        fetched = [commands.fetch("a"), commands.fetch("b")]
        assert await (await manager.gather(fetched, then=Count, lane="a")) == 2


@everywhere
async def test_each_step_has_its_lane(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        steps = commands.fetch("abc"), commands.measure, commands.show
        assert await (await manager.chain(*steps, lane=["a", "b", "a"])) == "3 bytes"
        assert await (await manager.chain(commands.fetch("xy"), lane="b")) == Page("xy", 2)
    assert commands.lanes == ["a", "b", "a", "b"]


@everywhere
async def test_types_have_default_lanes_and_priorities(build: Build) -> None:
    manager = manager_of(build)
    seen: list[tuple[str, int]] = []

    @manager.command("begin", lane="a")
    async def begin() -> int:
        return 1

    @manager.command("end", lane="b", priority=7)
    async def end(number: int) -> int:
        job = CURRENT.get()
        seen.append((current_command().lane, job.priority))
        return number

    @manager.command("all", lane="b")
    async def count(outcomes: list[GatherOutcome[int]]) -> int:
        return len(outcomes)

    async with manager:
        assert await (await manager.chain(begin(), end)) == 1
        assert await (await manager.chain(begin(), end, priority=3)) == 1
        assert await (await manager.chain(begin(), end, lane="a")) == 1
        handle = await manager.gather([begin(), end(5)], then=count)
        assert (handle.lane, await handle) == ("b", 2)
    assert seen == [("b", 7), ("b", 3), ("a", 7), ("b", 7)]


@everywhere
async def test_drain_waits_for_the_whole_chain(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        handle = await manager.chain(
            commands.fetch("abc"), commands.measure, commands.wait, commands.show, lane="a"
        )
        await manager.drain()
        assert handle.status == "completed"
    assert commands.names == ["fetch", "measure", "wait", "show"]


@everywhere
async def test_a_failed_step_ends_the_chain_and_its_dead_letter_goes_on(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        handle = await manager.chain(
            commands.fetch("abc"), commands.measure, commands.fail, commands.show, lane="a"
        )
        with pytest.raises(LookupError, match="nothing there"):
            await handle
        assert handle.status == "failed"
        [letter] = await manager.dlq.list()
        assert (letter.command_type, letter.payload) == ("fail", {"number": 3})
        commands.broken = False
        assert await manager.dlq.requeue(letter)
        await manager.drain()
    assert commands.names == ["fetch", "measure", "fail", "fail", "show"]


@everywhere
async def test_a_step_is_retried_as_its_lane_says(build: Build) -> None:
    config = LaneConfig(0, 4, retry_policy=RetryPolicy.fixed(3, 10.0))
    manager = build().with_lane("a", config, 0).build()
    commands = Commands(manager)
    async with manager:
        handle = await manager.chain(
            commands.fetch("abc"), commands.measure, commands.fail, commands.show, lane="a"
        )
        await asyncio.sleep(5)
        commands.broken = False
        assert await handle == "3 bytes"
    assert commands.names == ["fetch", "measure", "fail", "fail", "show"]


@everywhere
@pytest.mark.parametrize("lanes", [["a", "a", "a", "a"], ["a", "a", "b", "a"]], ids=str)
async def test_a_cancelled_chain_does_not_go_on(build: Build, lanes: list[str]) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        handle = await manager.chain(
            commands.fetch("abc"), commands.measure, commands.wait, commands.show, lane=lanes
        )
        await asyncio.sleep(10)
        assert handle.status == "running"
        assert await handle.cancel()
        with pytest.raises(CommandCancelledError):
            await handle
        late = await manager.chain(commands.fetch("x"), commands.measure, lane=lanes[:2], delay=10)
        assert late.status == "scheduled"
        assert await late.cancel()
        await manager.drain()
    assert commands.names == ["fetch", "measure", "wait"]


@everywhere
async def test_all_steps_have_the_priority_of_the_chain(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.none())
    manager = build().with_lane("a", config, 0).with_lane("b", config, 1).build()
    commands = Commands(manager)
    async with manager:
        await manager.pause("b")
        await manager.submit("b", commands.measure(Page("x", 9)), priority=9)
        chain = commands.fetch("abc"), commands.measure
        await manager.chain(*chain, lane=["a", "b"], priority=5)
        await manager.submit("b", commands.measure(Page("x", 1)), priority=1)
        await asyncio.sleep(10)
        await manager.resume("b")
    assert [page.size for name, page in commands.calls if name == "measure"] == [1, 3, 9]


@everywhere
async def test_a_result_that_does_not_fit_fails_the_step_that_it_does_not_fit(
    build: Build,
) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    show: Any = commands.show
    async with manager:
        handle = await manager.chain(commands.fetch("abc"), show, commands.measure, lane="a")
        with pytest.raises(CommandPayloadError, match="'show' do not fit"):
            await handle
        [letter] = await manager.dlq.list()
        assert letter.command_type == "show"
    assert commands.names == ["fetch"]


@everywhere
async def test_a_class_that_refuses_a_result_fails_its_own_step(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)

    @manager.command("scale")
    @dataclass
    class Scale:
        page: Page
        command_type = "scale"

        def __post_init__(self) -> None:
            if not self.page.size:
                raise ValueError("an empty page")

        async def execute(self) -> int:
            return self.page.size

    async with manager:
        with pytest.raises(CommandPayloadError, match=r"'scale' .*: an empty page"):
            await (await manager.chain(commands.fetch(""), Scale, lane="a"))
        assert await (await manager.chain(commands.fetch("abc"), Scale, lane="a")) == 3


async def test_a_result_that_cannot_be_written_down_fails_its_own_step() -> None:
    manager = manager_of(on_a_store)
    commands = Commands(manager)
    async with manager:
        handle = await manager.chain(commands.odd(3), commands.show, lane="a")
        with pytest.raises(CommandPayloadError, match="the result of command 'odd' cannot be"):
            await handle
        [letter] = await manager.dlq.list()
        commands.broken = False
        assert await manager.dlq.requeue(letter)
        await manager.drain()
    assert commands.names == ["odd", "odd", "show"]


@everywhere
async def test_what_cannot_be_a_step_is_refused_and_nothing_is_submitted(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    chain: Any = manager.chain
    first = commands.fetch("abc")

    @manager.command("nothing")
    async def nothing() -> None: ...

    @manager.command("two")
    async def pair(page: Page, other: int) -> None: ...

    two: Any = pair

    @QueueManagerBuilder().with_default_lanes().build().command("foreign")
    async def foreign(page: Page) -> None: ...

    async def plain(page: Page) -> None: ...

    @manager.command("listed")
    class Listed(msgspec.Struct, array_like=True):
        page: Page
        command_type = "listed"

        async def execute(self) -> None: ...

    for mistake, error, text in [
        ((commands.measure(Page("x")),), TypeError, "step 2 of the chain is <measure"),
        ((commands.measure, plain), TypeError, "step 3 of the chain must be a registered command"),
        ((foreign,), UnregisteredCommandError, "'foreign', which is not registered"),
        ((nothing,), CommandPayloadError, "'nothing' do not fit: no parameter is left"),
        ((two,), CommandPayloadError, "page takes the result, and other has no value"),
        ((partial(two, other="x"),), CommandPayloadError, "Expected `int`, got `str`"),
        ((partial(two, page=1, other=2),), CommandPayloadError, "page given twice"),
        ((partial(two, others=2),), CommandPayloadError, "no parameter others"),
        ((Listed,), CommandPayloadError, "its class is array_like"),
    ]:
        with pytest.raises(error, match=text):
            await chain(first, *mistake, lane="a")
    with pytest.raises(TypeError, match="'fetch' is a type of command; call it"):
        await chain(commands.fetch, commands.measure, lane="a")
    with pytest.raises(LaneConfigError, match="command 'fetch' has no default lane"):
        await chain(first, commands.measure)
    with pytest.raises(LaneConfigError, match="a chain of 2 commands has 1 lanes"):
        await chain(first, commands.measure, lane=["a"])
    with pytest.raises(UnknownLaneError, match="there is no lane 'c'"):
        await chain(first, commands.measure, lane=["a", "c"])
    assert (await manager.stats()).total_pending == 0
    await manager.close()


async def test_arguments_of_steps_that_cannot_be_written_down_are_refused() -> None:
    manager = manager_of(on_a_store)
    commands = Commands(manager)

    @manager.command("any")
    async def anything(page: Page, other: Any) -> None: ...

    with pytest.raises(CommandPayloadError, match="an argument of command 'any' cannot be written"):
        await manager.chain(commands.fetch("a"), partial(anything, other=object()), lane="a")
    assert (await manager.stats()).total_pending == 0
    await manager.close()


async def test_another_manager_follows_a_chain_by_what_its_steps_have_left() -> None:
    """The handle is of a manager that runs nothing: the steps tell it as what the chain goes on."""
    store = MemoryStore(clock=clock)
    managers = [store_manager(store) for _ in range(2)]
    submitter, worker = managers
    mine, theirs = (Commands(manager) for manager in managers)
    handle: Handle[str] = await submitter.chain(
        mine.fetch("abc"), mine.measure, mine.show, lane=["a", "b", "a"]
    )
    idle = await submitter.chain(mine.fetch("abcd"), mine.measure, lane="a")
    failing = await submitter.chain(mine.fetch("abcd"), mine.measure, mine.fail, lane="a")
    await worker.start()
    assert await handle == "3 bytes"
    with pytest.raises(LookupError, match="nothing there"):
        await failing
    await submitter.drain()
    assert (idle.status, await idle) == ("completed", 4)
    assert mine.calls == []
    assert len(theirs.calls) == 8
    await worker.close()
    await submitter.close()


async def test_a_chain_is_found_by_the_id_of_any_of_its_steps() -> None:
    store = MemoryStore(clock=clock)
    managers = [store_manager(store) for _ in range(3)]
    submitter, worker, other = managers
    mine, theirs, _ = (Commands(manager) for manager in managers)
    handle = await submitter.chain(
        mine.fetch("abc"), mine.measure, mine.wait, mine.show, lane=["a", "b", "b", "a"]
    )
    first = handle.id
    await worker.start()
    await asyncio.sleep(10)
    running = other.handle(first)
    await running.refresh()
    assert (running.status, running.command_type) == ("running", "fetch")
    assert running.id != first
    assert await other.handle(first) == "3 bytes"
    assert await other.handle(running.id) == "3 bytes"

    cancelled = await submitter.chain(mine.fetch("x"), mine.measure, mine.wait, lane="a")
    first = cancelled.id
    await asyncio.sleep(10)
    assert await other.handle(first).cancel()
    with pytest.raises(CommandCancelledError):
        await cancelled
    gathered = await submitter.gather([mine.fetch(url) for url in ("a", "b")], lane="a")
    outcomes = await other.handle(gathered.id)
    assert [one.result for one in outcomes] == [Page("a", 1), Page("b", 1)]
    assert theirs.names.count("wait") == 2
    for manager in managers:
        await manager.close()


async def test_plain_commands_are_stored_as_before() -> None:
    store = MemoryStore(clock=clock)
    manager = QueueManagerBuilder(clock=clock).with_lane("a", QUICK, 0).with_storage(store).build()
    commands = Commands(manager)
    await manager.submit("a", commands.fetch("abc"), key="plain")
    [[item]] = await store.look("a", ["plain"])
    assert b"workflow" not in item.value
    await manager.close()


async def test_chains_in_memory_hand_on_objects_as_they_are() -> None:
    manager = manager_of(in_memory)
    thing = object()

    @manager.command("make")
    async def make() -> object:
        return thing

    @manager.command("take")
    async def take(value: Any) -> bool:
        return value is thing

    async with manager:
        assert await (await manager.chain(make(), take, lane="a"))


@everywhere
async def test_steps_may_be_batches_and_plain_functions(build: Build) -> None:
    manager = manager_of(build)
    batches: list[int] = []

    @manager.batch("double", size=10, within=1.0)
    async def double(numbers: list[int]) -> list[int]:
        batches.append(len(numbers))
        return [2 * number for number in numbers]

    @manager.command("add")
    async def add(number: int) -> int:
        return number + 1

    async with manager:
        chains = [await manager.chain(add(n), double, add, lane="a") for n in range(3)]
        assert [await chain for chain in chains] == [3, 5, 7]
        outcomes = await (await manager.gather([double(n) for n in range(3)], lane="a"))
        assert [outcome.result for outcome in outcomes] == [0, 2, 4]
    assert sum(batches) == 6
