"""Functions that handle many commands at once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, assert_type

import msgspec
import pytest

from leasedkeyq.lanes import (
    BatchFunction,
    CallNext,
    CommandCancelledError,
    CommandExitError,
    CommandPayloadError,
    CommandRegistry,
    CommandTimeoutError,
    Handle,
    LaneConfig,
    LaneConfigError,
    LaneError,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    RunningCommand,
    current_batch,
    current_command,
    resource,
)
from tests.lanes.support import Build, everywhere, now


class Document(msgspec.Struct):
    number: int


def built(build: Build, most: int = 10, **config: Any) -> QueueManager:
    return build().with_lane("index", LaneConfig(0, most, **config), 0).build()


@everywhere
async def test_many_commands_are_one_call_and_each_has_its_result(build: Build) -> None:
    manager = built(build)
    calls: list[list[int]] = []

    @manager.batch("index", size=10, within=0.2, lane="index")
    async def index(items: list[Document]) -> list[str]:
        calls.append([document.number for document in items])
        return [f"indexed {document.number}" for document in items]

    handles = [await index.submit(Document(number)) for number in range(25)]
    async with manager:
        said = [await handle for handle in handles]
        assert said == [f"indexed {number}" for number in range(25)]
        assert calls == [[*range(10)], [*range(10, 20)], [*range(20, 25)]]
        assert now() == pytest.approx(0.2)  # only the last one waited for more
        assert await (await manager.submit("index", index(Document(7)), key="k")) == "indexed 7"
    assert (await manager.stats()).lanes["index"].completed == 26


@everywhere
async def test_a_batch_waits_for_more_as_long_as_it_is_told(build: Build) -> None:
    manager = built(build)
    calls: list[tuple[float, list[int]]] = []

    @manager.batch("index", size=10, within=2, lane="index")
    async def index(items: list[int]) -> None:
        calls.append((now(), items))

    async with manager:
        await index.submit(1)
        await asyncio.sleep(1.5)
        await index.submit(2)
        await asyncio.sleep(1)
        await index.submit(3)
        await manager.drain()
    assert [items for _, items in calls] == [[1, 2], [3]]
    assert [moment for moment, _ in calls] == [pytest.approx(2), pytest.approx(4.5)]


@everywhere
async def test_without_waiting_a_batch_has_what_is_there(build: Build) -> None:
    manager = built(build)
    calls: list[int] = []

    @manager.batch("index", size=10, lane="index")
    async def index(items: list[int]) -> None:
        calls.append(len(items))
        await asyncio.sleep(1)

    await manager.submit_many(index(number) for number in range(7))
    async with manager:
        await asyncio.sleep(0.5)
        assert calls == [7]
        await index.submit(7)  # there are three slots left
        await manager.drain()
    assert calls == [7, 1]


@everywhere
async def test_items_fail_by_themselves_and_are_tried_again_by_themselves(build: Build) -> None:
    manager = built(build, retry_policy=RetryPolicy.fixed(2, 1))
    calls: list[list[tuple[int, int]]] = []

    @manager.batch("index", size=10, lane="index", key=lambda number: f"key {number}")
    async def index(items: list[int]) -> list[int | ValueError]:
        attempts = [command.attempt for command in current_batch()]
        assert [command.key for command in current_batch()] == [f"key {item}" for item in items]
        calls.append(list(zip(items, attempts, strict=True)))
        return [
            ValueError(f"{item} fails") if item % 2 and (item == 3 or attempt == 1) else item * 10
            for item, attempt in zip(items, attempts, strict=True)
        ]

    async with manager:
        handles = await manager.submit_many(index(number) for number in range(4))
        assert [await handles[0], await handles[1], await handles[2]] == [0, 10, 20]
        with pytest.raises(ValueError, match="3 fails"):
            await handles[3]
    assert calls == [[(0, 1), (1, 1), (2, 1), (3, 1)], [(1, 2), (3, 2)], [(3, 3)]]
    assert [handle.attempt for handle in handles] == [1, 2, 1, 3]
    [letter] = await manager.dlq.list()
    assert (letter.key, letter.payload) == ("key 3", {"item": 3})


@everywhere
async def test_a_batch_that_raises_fails_for_all_its_items(build: Build) -> None:
    manager = built(build, retry_policy=RetryPolicy.fixed(1, 1))
    calls: list[list[int]] = []

    @manager.batch("index", size=3, lane="index")
    async def index(items: list[int]) -> None:
        calls.append(items)
        if len(calls) == 1:
            raise ConnectionError("not there")

    @manager.batch("exits", size=3, lane="index", retry_policy=RetryPolicy.none())
    async def exits(items: list[int]) -> None:
        raise SystemExit(len(items))

    async with manager:
        handles = await manager.submit_many(index(number) for number in range(3))
        for handle in handles:
            await handle
        assert [handle.attempt for handle in handles] == [2, 2, 2]
        assert calls == [[0, 1, 2], [0, 1, 2]]
        for handle in await manager.submit_many(exits(number) for number in range(3)):
            with pytest.raises(CommandExitError, match=r"SystemExit\(3\)"):
                await handle


@everywhere
async def test_results_that_do_not_fit_the_items_are_a_failure(build: Build) -> None:
    manager = built(build)

    @manager.batch("short", size=3, lane="index")
    async def short(items: list[int]) -> list[int]:
        return items[1:]

    @manager.batch("strange", size=3, lane="index")
    async def strange(items: list[int]) -> Any:
        return "abc"

    async with manager:
        handles: list[Handle[Any]] = await manager.submit_many(short(n) for n in range(3))
        for handle in handles:
            with pytest.raises(TypeError, match="'short' returned 2 results for 3 items"):
                await handle
        for handle in await manager.submit_many(strange(number) for number in range(3)):
            with pytest.raises(TypeError, match=r"'strange' returned 'abc' for 3 items; return a"):
                await handle


@everywhere
async def test_a_time_out_ends_the_batch_and_counts_from_its_call(build: Build) -> None:
    manager = built(build)
    ended: list[float] = []

    @manager.batch("index", size=3, within=4, lane="index", timeout=5)
    async def index(items: list[int]) -> list[int]:
        try:
            await asyncio.sleep(items[0])
        finally:
            ended.append(now())
            await asyncio.sleep(1)
        return items

    async with manager:
        slow = [await index.submit(100), await index.submit(2)]
        await asyncio.sleep(2)
        for handle in slow:
            with pytest.raises(CommandTimeoutError, match=r"longer than 5\.0 s"):
                await handle
        assert ended == [pytest.approx(9)]
        assert now() == pytest.approx(10)  # a run ends with its batch
        assert await (await index.submit(3)) == 3
        shortest = [await index.submit(100), await manager.submit(index(1), timeout=2)]
        for handle in shortest:
            with pytest.raises(CommandTimeoutError, match=r"longer than 2\.0 s"):
                await handle


@everywhere
async def test_a_retry_has_its_own_time_out_again(build: Build) -> None:
    manager = built(build, retry_policy=RetryPolicy.fixed(1, 5))

    @manager.batch("index", size=2, within=1, lane="index")
    async def index(items: list[int]) -> list[int]:
        await asyncio.sleep(10 * items[0])
        return items

    async with manager:
        patient = await manager.submit(index(1), timeout=20)
        other = await manager.submit(index(0), timeout=2)
        await asyncio.sleep(3)  # both have timed out after 2 s
        assert await other.cancel()
        assert await patient == 1
        assert patient.attempt == 2


@everywhere
async def test_a_cancelled_item_ends_with_its_batch(build: Build) -> None:
    manager = built(build, cancel_grace=60)
    ran: list[list[int]] = []

    @manager.batch("index", size=3, within=5, lane="index")
    async def index(items: list[int]) -> list[int]:
        ran.append([])
        await asyncio.sleep(10)
        ran[-1] = items
        return items

    async with manager:
        handles = await manager.submit_many(index(number) for number in range(3))
        await asyncio.sleep(1)
        assert await handles[1].cancel()
        assert await handles[0] == 0
        assert await handles[2] == 2
        with pytest.raises(CommandCancelledError):
            await handles[1]
        assert ran == [[0, 1, 2]]
        handles = await manager.submit_many(index(number) for number in range(3))
        await asyncio.sleep(1)
        for handle in handles:
            assert await handle.cancel()
        for handle in handles:
            with pytest.raises(CommandCancelledError):
                await handle
        assert ran == [[0, 1, 2], []]
        assert now() == pytest.approx(11)
        handles = await manager.submit_many([index(7), index(8)])
        await asyncio.sleep(1)  # the batch has not begun
        assert await handles[0].cancel()
        assert await handles[1] == 8
        alone = await index.submit(9)
        await asyncio.sleep(1)
        assert await alone.cancel()
        await manager.drain()
        assert await (await index.submit(10)) == 10
    assert ran == [[0, 1, 2], [], [8], [10]]


@everywhere
async def test_the_key_of_a_cancelled_item_stays_taken_until_its_batch_ends(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    manager = built(build, cancel_grace=1)
    order: list[str] = []

    @manager.batch("index", size=2, within=1, lane="index")
    async def index(items: list[int]) -> None:
        order.append(f"{items} begin")
        await asyncio.sleep(10)
        order.append(f"{items} end")

    async with manager:
        cancelled = await manager.submit("index", index(1), key="k")
        other = await manager.submit("index", index(2), key="another")
        following = await manager.submit("index", index(3), key="k")
        await asyncio.sleep(1)
        assert await cancelled.cancel()
        await other
        with pytest.raises(CommandCancelledError):
            await cancelled
        await following
    assert order == ["[1, 2] begin", "[1, 2] end", "[3] begin", "[3] end"]
    assert not caplog.text


@everywhere
async def test_a_batch_that_goes_on_though_all_is_cancelled_is_left_to_itself(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    manager = built(build, cancel_grace=2)

    @manager.batch("index", size=2, within=1, lane="index")
    async def index(items: list[int]) -> None:
        del items
        while now() < 30:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async with manager:
        handles = await manager.submit_many([index(1), index(2)])
        for handle in handles:
            await asyncio.sleep(5)
            assert await handle.cancel()
        for handle in handles:
            with pytest.raises(CommandCancelledError):
                await handle
        assert now() == pytest.approx(12, abs=1)
    assert caplog.text.count("was left to itself") == 2
    await asyncio.sleep(30)


@everywhere
async def test_a_middleware_that_gives_up_an_item_does_not_let_go_of_its_key(build: Build) -> None:
    manager = built(build)
    order: list[str] = []

    @manager.batch("index", size=2, within=1, lane="index")
    async def index(items: list[int]) -> None:
        await asyncio.sleep(10)
        order.append(f"{items} end")

    @manager.middleware
    async def impatient(command: RunningCommand, call_next: CallNext) -> Any:
        try:
            async with asyncio.timeout(3 if command.key == "k" else None):
                return await call_next()
        finally:
            order.append(command.key)

    async with manager:
        given_up = await manager.submit("index", index(1), key="k")
        other = await manager.submit("index", index(2), key="another")
        await asyncio.sleep(5)
        assert await given_up.cancel()
        await other
        with pytest.raises(CommandCancelledError):
            await given_up
    assert order[0] == "[1, 2] end"


@everywhere
async def test_an_item_may_fail_with_any_exception(build: Build) -> None:
    manager = built(build)

    @manager.batch("index", size=3, within=1, lane="index")
    async def index(items: list[int]) -> list[Any]:
        del items
        return [StopIteration(7), asyncio.CancelledError(), "done"]

    async with manager:
        stopped, cancelled, done = await manager.submit_many(index(one) for one in range(3))
        with pytest.raises(Exception, match="StopIteration"):
            await stopped
        with pytest.raises(CommandCancelledError, match="nobody had cancelled it"):
            await cancelled
        assert await done == "done"


@everywhere
async def test_a_manager_that_is_closed_ends_its_batches(build: Build) -> None:
    manager = built(build)
    ended: list[str] = []

    @manager.batch("index", size=3, lane="index")
    async def index(items: list[int]) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("index")

    @manager.batch("waits", size=10, within=1000, lane="index")
    async def waits(items: list[int]) -> None:
        ended.append("never")

    await manager.start()
    await manager.submit_many(index(number) for number in range(3))
    await waits.submit(1)
    await asyncio.sleep(1)
    left = await manager.close()
    assert ended == ["index"]
    assert left == {"index": 4}
    assert now() == pytest.approx(1)


@everywhere
async def test_batches_share_a_lane_with_other_commands(build: Build) -> None:
    manager = built(build, most=3)
    calls: list[Any] = []

    @manager.batch("index", size=3, within=1, lane="index")
    async def index(items: list[int]) -> None:
        calls.append(items)

    @manager.command("plain", lane="index")
    async def plain(seconds: float) -> None:
        calls.append("plain")
        await asyncio.sleep(seconds)

    @manager.batch("other", size=50, within=100)
    async def other(items: list[int]) -> None:
        calls.append(items)

    async with manager:
        await plain.submit(5)
        await manager.submit_many(index(number) for number in range(4))
        await manager.drain()
        assert calls == ["plain", [0, 1], [2, 3]]
        calls.clear()
        began = now()
        await manager.submit_many("index", [other(number) for number in range(6)])
        await manager.drain()
        assert calls == [[0, 1, 2], [3, 4, 5]]  # as many as the lane has slots
        assert now() == began


@everywhere
async def test_commands_of_one_key_are_in_different_batches(build: Build) -> None:
    manager = built(build)
    calls: list[list[int]] = []

    @manager.batch("index", size=10, lane="index", key=lambda number: f"{number % 3}")
    async def index(items: list[int]) -> None:
        calls.append(items)

    await manager.submit_many(index(number) for number in range(7))
    async with manager:
        await manager.drain()
    assert calls == [[0, 1, 2], [3, 4, 5], [6]]


@everywhere
async def test_a_batch_has_resources_and_middleware_around_each_item(build: Build) -> None:
    manager = built(build)

    @manager.lifespan
    async def factor() -> AsyncIterator[float]:
        yield 2.5

    @manager.middleware
    async def note(command: RunningCommand, call_next: CallNext) -> Any:
        return command.arguments["item"], await call_next()

    @manager.batch("index", size=10, lane="index")
    async def index(items: list[int], factor: float = resource()) -> list[float]:
        assert current_batch()[0].resources[float] == factor
        with pytest.raises(LookupError, match="current_batch"):
            current_command()
        with pytest.raises(LaneError, match="would wait for itself"):
            await manager.drain()
        return [item * factor for item in items]

    async with manager:
        handles = await manager.submit_many(index(number) for number in range(3))
        results: list[Any] = [await handle for handle in handles]
    assert results == [(0, 0.0), (1, 2.5), (2, 5.0)]
    with pytest.raises(LookupError, match="current_batch is for code that runs as a batch"):
        current_batch()


@everywhere
async def test_a_batch_that_blocks_the_event_loop_is_named_by_its_first_command(
    build: Build,
) -> None:
    manager = built(build)
    watch = manager.queue()._engine.loop_watch
    blockers: list[str] = []

    @manager.batch("index", size=3, lane="index", key=lambda item: f"key {item}")
    async def index(items: list[int]) -> None:
        blockers.append(str(watch._find(asyncio.get_running_loop())))

    async with manager:
        await manager.submit_many(index(number) for number in range(3))
        await manager.drain()
        assert watch._batches == {}
    named = "lane 'index': command 'index' of key 'key 0' (and 2 others of its batch)"
    assert blockers == [named]


def test_a_plain_function_handles_its_batch_in_a_thread() -> None:
    asyncio.run(run_in_a_thread())


async def run_in_a_thread() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    threads: list[threading.Thread] = []

    @manager.batch("index", size=5, lane="query")
    def index(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        assert len(current_batch()) == len(items)
        return [item * 2 for item in items]

    handles = await manager.submit_many(index(number) for number in range(5))
    async with manager:
        assert [await handle for handle in handles] == [0, 2, 4, 6, 8]
    assert threading.main_thread() not in threads
    assert len(threads) == 1


@everywhere
async def test_type_checkers_know_items_and_results(build: Build) -> None:
    manager = built(build)
    registry = manager.queue().registry

    @manager.batch("some", size=3, lane="index")
    async def some(items: list[Document]) -> list[str | Exception]:
        return [f"{item.number}" for item in items]

    @registry.batch("none", size=3, lane="index")
    async def none(items: list[int]) -> None: ...

    @registry.batch("maybe", size=3, lane="index")
    async def maybe(items: list[int]) -> Sequence[int] | None:
        return items if items[0] else None

    assert_type(some, BatchFunction[Document, str])
    assert_type(none, BatchFunction[int, None])
    assert_type(maybe, BatchFunction[int, int | None])
    assert (some.returns, none.returns, maybe.returns) == (str, type(None), int | None)
    async with manager:
        assert assert_type(await (await some.submit(Document(7))), str) == "7"
        await (await none.submit(1))
        assert await (await maybe.submit(0)) is None
        with pytest.raises(CommandPayloadError, match="'some' do not fit"):
            some("seven")  # type: ignore[arg-type]  # as a type checker says  # pyright: ignore[reportArgumentType]
        assert await some(Document(7)).execute() == "7"


async def test_a_batch_of_one_can_be_run_by_hand() -> None:
    registry = CommandRegistry()

    @registry.batch("fails", size=3)
    async def fails(items: list[int]) -> list[Exception]:
        return [ValueError(f"failure {item}") for item in items]

    with pytest.raises(ValueError, match="failure 7"):
        await fails(7).execute()


# Mistakes


async def nothing(items: list[int]) -> None: ...


@pytest.mark.parametrize(
    "arguments, error, told",
    [
        ({"size": 0}, ValueError, "batch 'index': size must be"),
        ({"size": "many"}, TypeError, "batch 'index': size must be"),
        ({"size": 2, "within": -1}, ValueError, "batch 'index': within must"),
        ({"size": 2, "lanes": "x"}, TypeError, "'index': there is no option 'lanes'"),
        ({"size": 2, "run_in": "process"}, TypeError, "batch 'index': .*cannot run in a process"),
    ],
)
def test_bad_options_are_refused(
    arguments: dict[str, Any], error: type[Exception], told: str
) -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    with pytest.raises(error, match=told):
        manager.batch("index", **arguments)(nothing)


def test_functions_that_take_no_list_are_refused() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    batch: Any = manager.batch("index", size=3)

    async def no_items() -> None: ...

    async def one(item: int) -> None: ...

    async def named(*, items: list[int]) -> None: ...

    async def more(items: list[int], more: int) -> None: ...

    async def default(items: list[int] | None = None) -> None: ...

    async def item(items: list[int], item: int) -> None: ...

    for function, told in [
        (no_items, "its first parameter is the list of items"),
        (one, "item is annotated as <class 'int'>"),
        (named, "its first parameter is passed by position"),
        (more, "what is more of each item"),
        (default, "its first parameter is the list of items"),
        (item, "a parameter cannot be named 'item'"),
    ]:
        with pytest.raises(TypeError, match=f"batch 'index': {told}.*items: list"):
            batch(function)
    with pytest.raises(TypeError, match="batch 'index': a batch is handled by a function"):
        batch(Document)

    async def untyped(items: Any) -> None: ...

    batch(untyped)
    with pytest.raises(LaneConfigError, match="'index' is registered already"):
        batch(untyped)


@pytest.mark.parametrize(
    "config, capacity, told",
    [
        (LaneConfig(0, 4), None, "max_concurrency of lane 'index' is 4"),
        (LaneConfig(0, 10, global_concurrency=5), None, "global_concurrency of lane 'index' is 5"),
        (LaneConfig(0, 10), 6, "capacity of the manager of lane 'index' is 6"),
    ],
)
async def test_a_batch_that_could_never_be_full_is_refused_at_the_start(
    config: LaneConfig, capacity: int | None, told: str
) -> None:
    builder = QueueManagerBuilder().with_lane("index", config, 0)
    if capacity is not None:
        builder.with_capacity(capacity)
    manager = builder.build()

    @manager.batch("index", size=10, lane="index")
    async def index(items: list[int]) -> None: ...

    with pytest.raises(LaneConfigError, match=f"batch 'index': its size is 10, and the {told}"):
        await manager.start()
    await manager.close()
