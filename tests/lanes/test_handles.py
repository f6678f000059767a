"""Handles from anywhere: the id of a command, and what a handle made from it tells."""

import asyncio
import re
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandLostError,
    CommandTimeoutError,
    EventEmitter,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    UnknownCommandError,
    current_command,
)
from leasedkeyq.lanes import memory as lanes_in_memory
from leasedkeyq.lanes.running.command_id import command_id, number_of, parse_command_id
from tests.lanes.support import Build, clock, everywhere, in_memory, on_a_store

ONCE: dict[str, Any] = {"retry_policy": RetryPolicy.none()}
URL_SAFE = re.compile(r"[A-Za-z0-9._~-]+")
ODD_KEYS = [
    "a.b",
    "ünï",
    "a/b?c#d",
    "~",
    "~7e",
    " ",
    "日本",
    "a" * 500,
    "-",
    "..",
    "1.x.y",
    "\ud800",
]


def built(builder: QueueManagerBuilder, **options: Any) -> tuple[QueueManager, Any]:
    """A manager with the lane "x", and a command that sleeps and returns a number."""
    manager = builder.with_lane("x", LaneConfig(0, 2, **options), 0).build()

    @manager.command("work")
    async def work(number: int, seconds: float = 1.0) -> int:
        await asyncio.sleep(seconds)
        if number < 0:
            raise LookupError(f"number {number}")
        return number

    return manager, work


# Ids


@pytest.mark.parametrize("key", ODD_KEYS)
@pytest.mark.parametrize("scope", ["", "0f"])
def test_an_id_names_any_key_in_characters_of_urls(key: str, scope: str) -> None:
    for queue in ("x", "x#3", "a.b", "é"):
        text = command_id(7, queue, key, scope)
        assert URL_SAFE.fullmatch(text), text
        assert parse_command_id(text) == (7, queue, key, scope)
        assert number_of(text) == 7


def test_an_id_of_plain_names_is_short_and_can_be_read() -> None:
    assert command_id(42, "mail", "0011223344556677-1f") == "42.mail.0011223344556677-1f"
    assert number_of("42") == 42  # as older versions wrote it


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "x",
        "7.x",
        "7.x.",
        "7..k",
        "07.x.k",
        "-7.x.k",
        "7.x.~6b",
        "7.x.~ff",
        "7.x.~6",
        "7.x.k ",
        "7.x.k\n",
        "7.x.a/b",
        f"{2**53}.x.k",
        "9" * 5000,
        "7-.x.k",
        "\u0667.x.k",  # a digit, but none of ASCII
    ],
)
@everywhere
async def test_what_is_no_id_is_refused(build: Build, text: str) -> None:
    manager, _ = built(build())
    with pytest.raises(UnknownCommandError, match="is not the id of a command") as caught:
        manager.handle(text)
    assert isinstance(caught.value, LookupError)
    assert number_of(text) in (None, 7)
    await manager.close()


@everywhere
async def test_an_id_that_is_no_text_is_refused(build: Build) -> None:
    manager, _ = built(build())
    number: Any = 7
    with pytest.raises(TypeError, match="id must be a str, got int"):
        manager.handle(number)
    await manager.close()


@everywhere
async def test_an_id_of_another_lane_is_refused(build: Build) -> None:
    manager, work = built(build())
    handle = await manager.submit("x", work(1), key="k")
    with pytest.raises(UnknownCommandError, match=r"queue 'y', which no lane.*lanes are: x"):
        manager.handle(handle.id.replace(".x.", ".y."))
    await manager.close()


@everywhere
async def test_one_id_everywhere(build: Build) -> None:
    """Handles, events, the command itself and its dead letter tell the same id."""
    manager = build().with_lane("x", LaneConfig(0, 1, **ONCE), 0).build()
    told: list[str] = []

    @manager.command("fail")
    async def fail() -> None:
        told.append(current_command().id)
        raise LookupError

    wanted = manager.subscribe_filtered(lambda event: "command_id" in event.payload)
    async with wanted as events, manager:
        handle = await manager.submit("x", fail(), key="a/b")
        with pytest.raises(LookupError):
            await handle
        [letter] = await manager.dlq.list()
        heard = {(await events.recv()).payload["command_id"] for _ in range(4)}
    assert {handle.id, letter.id, *told} == heard == {handle.id}


# Handles


@everywhere
async def test_a_handle_from_an_id_tells_status_and_result(build: Build) -> None:
    manager, work = built(build())
    first = await manager.submit("x", work(5), key="k")
    found = manager.handle(first.id)
    assert await found.refresh() == "pending"
    assert (found.status, found.id, found.key, found.lane) == ("pending", first.id, "k", "x")
    async with manager:
        await asyncio.sleep(0.5)
        assert await manager.handle(first.id).refresh() == "running"
        assert await manager.handle(first.id) == 5
        again = manager.handle(first.id)
        await again.refresh()
        assert (again.status, again.command_type, again.attempt) == ("completed", "work", 1)


@everywhere
async def test_commands_in_line_are_found(build: Build) -> None:
    manager, work = built(build())
    handles = [await manager.submit("x", work(number), key="k") for number in range(5)]
    again = [manager.handle(handle.id) for handle in handles]
    assert [await handle.refresh() for handle in again] == ["pending"] * 5
    async with manager:
        assert [await handle for handle in again] == [0, 1, 2, 3, 4]


@everywhere
async def test_a_handle_from_an_id_cancels(build: Build) -> None:
    manager, work = built(build())
    async with manager:
        running = await manager.submit("x", work(5, 60.0))
        await asyncio.sleep(1)
        assert await manager.handle(running.id).cancel()
        with pytest.raises(CommandCancelledError):
            await running
        assert not await manager.handle(running.id).cancel()
        assert await manager.handle(running.id).refresh() == "cancelled"


@everywhere
async def test_a_handle_from_an_id_raises_what_the_command_raised(build: Build) -> None:
    manager, work = built(build(), **ONCE)
    async with manager:
        failed = (await manager.submit("x", work(-1))).id
        late = (await manager.submit("x", work(1, 60.0), timeout=2.0)).id
        with pytest.raises(LookupError, match="number -1"):
            await manager.handle(failed)
        with pytest.raises(CommandTimeoutError):
            await manager.handle(late).result(timeout=30)
        assert manager.handle(failed).status == "failed"


@everywhere
async def test_result_waits_for_a_while(build: Build) -> None:
    manager, work = built(build())
    async with manager:
        handle = await manager.submit("x", work(5, 10.0), key="k")
        with pytest.raises(TimeoutError, match=r"'work' of key 'k' is not done after 4 s") as late:
            await handle.result(timeout=4)
        assert handle.id in str(late.value)
        assert "it goes on" in str(late.value)
        assert type(late.value) is TimeoutError
        with pytest.raises(TimeoutError, match="after 0 s"):
            await manager.handle(handle.id).result(timeout=0)
        assert handle.status == "running"
        assert await handle.result(timeout=7) == 5
        assert await handle.result() == 5
        assert await handle.result(timeout=0) == 5
        with pytest.raises(ValueError, match="timeout"):
            await handle.result(timeout=-1)


@everywhere
async def test_result_tells_the_time_out_of_the_command_from_its_own(build: Build) -> None:
    manager, work = built(build(), **ONCE)
    async with manager:
        handle = await manager.submit("x", work(5, 10.0), timeout=2.0)
        with pytest.raises(CommandTimeoutError):
            await handle.result(timeout=5)
        assert handle.done()


@everywhere
async def test_a_cancelled_wait_for_a_result_cancels_nothing(build: Build) -> None:
    manager, work = built(build())
    async with manager:
        handle = await manager.submit("x", work(5, 10.0))
        waiting = asyncio.create_task(handle.result(timeout=60))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await handle == 5


# On a store


async def test_a_web_process_need_not_be_started() -> None:
    """One manager submits and looks, another one runs."""
    store = MemoryStore(clock=clock)
    web, work = built(QueueManagerBuilder(clock=clock).with_storage(store))
    worker, _ = built(QueueManagerBuilder(clock=clock).with_storage(store))
    text = (await web.submit("x", work(5, 3.0))).id
    unknown = web.handle("999.x.nothing")
    assert (unknown.status, unknown.command_type) == ("unknown", "")
    async with worker:
        await asyncio.sleep(1)
        assert await web.handle(text).refresh() == "running"
        assert await web.handle(text).result(timeout=10) == 5
        assert await worker.handle(text).result(timeout=0) == 5
    # A third process, after a restart.
    later, _ = built(QueueManagerBuilder(clock=clock).with_storage(store))
    assert await later.handle(text).result(timeout=0) == 5
    for manager in (web, later):
        await manager.close()


async def test_what_a_store_does_not_have_is_lost() -> None:
    store = MemoryStore(clock=clock)
    manager, work = built(QueueManagerBuilder(clock=clock).with_storage(store), keep_results=60.0)
    web, _ = built(QueueManagerBuilder(clock=clock).with_storage(store))
    async with manager:
        text = (await manager.submit("x", work(5), key="k")).id
        assert await manager.handle(text) == 5
        await asyncio.sleep(120)
        for gone in (text, "999.x.k"):
            handle = web.handle(gone)
            assert await handle.refresh() == handle.status == "lost"
            with pytest.raises(CommandLostError, match=re.escape(repr(gone))):
                await handle
    await web.close()


async def test_an_id_that_was_made_up_shows_no_other_command() -> None:
    """A number with another key is not the command of that number."""
    store = MemoryStore(clock=clock)
    web, _ = built(QueueManagerBuilder(clock=clock).with_storage(store))
    worker, work = built(QueueManagerBuilder(clock=clock).with_storage(store))
    async with worker:
        handle = await worker.submit("x", work(5), key="secret")
        await handle
        forged = handle.id.replace("secret", "mine")
        with pytest.raises(CommandLostError):
            await web.handle(forged)
        with pytest.raises(UnknownCommandError, match="there is no command"):
            worker.handle(forged)  # this one knows the right one
        with pytest.raises(UnknownCommandError):
            web.handle(handle.id.replace("secret", "long" * 1000))
    await web.close()


async def test_looking_again_and_again_tells_no_end_twice() -> None:
    """A process that only looks hears nothing of commands that ended before it looked."""
    store = MemoryStore(clock=clock)
    emitter = EventEmitter()
    web, _ = built(QueueManagerBuilder(emitter, clock=clock).with_storage(store))
    worker, work = built(QueueManagerBuilder(clock=clock).with_storage(store))
    async with worker, emitter.subscribe() as events:
        handle = await worker.submit("x", work(5))
        await handle
        for _ in range(3):
            assert await web.handle(handle.id) == 5
        emitter.close()
        assert [event.key async for event in events] == []
    await web.close()


async def test_partitions_are_found() -> None:
    manager, work = built(on_a_store(), partitions=8)
    async with manager:
        handles = [await manager.submit("x", work(number), key=str(number)) for number in range(9)]
        assert [await manager.handle(handle.id) for handle in handles] == [*range(9)]
        assert "~23" in handles[0].id


# In memory


async def test_in_memory_a_command_is_known_for_a_while() -> None:
    manager, work = built(in_memory(), keep_results=60.0)
    async with manager:
        handle = await manager.submit("x", work(5))
        text = handle.id
        unseen = await manager.submit("x", work(6), key="k")
        await asyncio.gather(handle.wait(), unseen.wait())
        del handle
        await asyncio.sleep(59)
        assert await manager.handle(text) == 5
        with pytest.raises(UnknownCommandError, match="keep_results after its end"):
            manager.handle(text.replace(text.rpartition(".")[2], "k").replace("1-", "2-"))
        await asyncio.sleep(2)
        with pytest.raises(UnknownCommandError):
            manager.handle(text)


async def test_in_memory_another_manager_knows_nothing() -> None:
    """After a restart, numbers and keys are used again, and an old id is still of no command."""
    before, work = built(in_memory())
    text = (await before.submit("x", work(5), key="k")).id
    await before.close()
    for builder in (in_memory(), on_a_store()):
        manager, work = built(builder)
        assert (await manager.submit("x", work(5), key="k")).id != text
        with pytest.raises(UnknownCommandError, match="there is no command"):
            manager.handle(text)
        await manager.close()


async def test_in_memory_not_all_commands_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_in_memory, "MOST_NAMED", 3)
    manager, work = built(in_memory(), keep_results=3600.0)
    async with manager:
        handles = [await manager.submit("x", work(number)) for number in range(6)]
        texts = [handle.id for handle in handles]
        for handle in handles:
            await handle
        engine: Any = manager.queue()._engine
        assert not engine._named
        assert len(engine._named_ended) == 3
        assert await manager.handle(texts[-1]) == 5
        with pytest.raises(UnknownCommandError):
            manager.handle(texts[0])
        assert handles[0].id == texts[0]  # asked again, it is shown again
        assert await manager.handle(texts[0]) == 0


async def test_in_memory_a_replaced_command_leads_to_the_newer_one() -> None:
    manager, work = built(in_memory(), retry_policy=RetryPolicy.fixed(3, 1.0))
    async with manager:
        first = await manager.submit("x", work(-1, 2.0), key="k")
        text = first.id
        await asyncio.sleep(1)
        newer = await manager.submit("x", work(7), key="k", if_present="update")
        assert await newer == 7
        assert await manager.handle(text) == 7
