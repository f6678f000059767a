"""Priorities of commands have the direction of priorities of lanes: lower goes first."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import DeadLetter, LaneConfig, LocalStorage, StoredCommand
from tests.lanes.diary import Diary
from tests.lanes.support import Build, clock, everywhere, in_memory


@everywhere
async def test_lower_goes_first(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary(manager)
    for priority in (3, None, -2, 1, 0, -7):
        await manager.submit("x", diary.note(f"{priority}"), priority=priority)
    await manager.submit_many("x", [diary.note("many"), diary.note("too")], priority=-1)
    async with manager:
        await manager.drain()
    assert diary.names == ["-7", "-2", "many", "too", "None", "0", "1", "3"]


@everywhere
async def test_an_update_moves_a_waiting_command(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary(manager)
    for name in ("a", "b", "c"):
        await manager.submit("x", diary.note(name), key=name)
    await manager.submit("x", diary.note("c"), key="c", if_present="update", priority=-1)
    await manager.submit("x", diary.note("a"), key="a", if_present="update", priority=1)
    async with manager:
        await manager.drain()
    assert diary.names == ["c", "b", "a"]


@everywhere
async def test_a_letter_keeps_the_priority_as_it_was_submitted(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    ran: list[str] = []

    @manager.command("once")
    async def once(name: str) -> None:
        ran.append(name)
        if ran.count(name) == 1:
            raise ValueError(name)

    for priority in (4, -4, 0):
        await manager.submit("x", once(f"{priority}"), priority=priority)
    async with manager:
        await manager.drain()
        kept = {letter.priority: _name(letter) for letter in await manager.dlq.list()}
        assert kept == {-4: "-4", 0: "0", 4: "4"}
        await manager.pause("x")
        assert await manager.dlq.requeue_all() == 3
        await manager.resume("x")
        await manager.drain()
    assert ran == ["-4", "0", "4"] * 2


def _name(letter: DeadLetter) -> Any:
    """The argument: in memory of a struct, on a store of plain values."""
    return letter.payload["name"] if isinstance(letter.payload, dict) else letter.payload.name


async def test_the_items_of_a_store_have_the_priority_of_queues() -> None:
    """There, higher goes first: people who browse the store see the opposite number."""
    store = MemoryStore(clock=clock)
    manager = in_memory().with_storage(store).with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary(manager)
    await manager.submit("x", diary.note("a"), priority=-3)
    assert [item.priority for item in (await store.browse("x")).items] == [3]
    await manager.close()


def test_stored_commands_and_letters_have_the_priority_of_lanes(tmp_path: Path) -> None:
    async def run() -> None:
        storage = LocalStorage(tmp_path)
        for priority in (2, -2, 0):
            command = StoredCommand(lane="x", command_type="note", priority=priority)
            await storage.save_command(command)
        assert [found.priority for found in await storage.load_commands()] == [2, -2, 0]
        assert [item.priority for item in (await storage.store.browse("x")).items] == [-2, 2, 0]
        await storage.save_dead_letter(DeadLetter(lane="x", command_type="note", priority=5))
        assert [letter.priority for letter in await storage.load_dead_letters()] == [5]
        await storage.close()

    asyncio.run(run())


@everywhere
async def test_a_priority_is_a_whole_number(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary(manager)
    with pytest.raises(TypeError, match="priority must be an int"):
        await manager.submit("x", diary.note("a"), priority=True)
