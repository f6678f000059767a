"""Storages: the seven methods on every store, and storages of other people."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import (
    CommandStorage,
    DeadLetter,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    Storage,
    StoredCommand,
    StoredDeadLetter,
)
from leasedkeyq.lanes.storage_store import StorageStore
from leasedkeyq.stores import Store
from leasedkeyq.testing import Place, StoreConformance
from tests.lanes.support import clock, now
from tests.lanes.trouble import soon
from tests.servers.urls import KINDS, empty_store


class ListStorage:
    """A storage as somebody would write it who has read the specification."""

    def __init__(self) -> None:
        self.commands: dict[str, StoredCommand] = {}
        self.letters: list[StoredDeadLetter] = []
        self.failing: Exception | None = None
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.failing is not None:
            raise self.failing

    async def save_command(self, command: StoredCommand) -> None:
        self._called("save_command")
        self.commands[command.id] = command

    async def load_commands(self) -> list[StoredCommand]:
        self._called("load_commands")
        return list(self.commands.values())

    async def remove_command(self, command_id: str) -> None:
        self._called("remove_command")
        self.commands.pop(command_id, None)

    async def save_dead_letter(self, letter: StoredDeadLetter) -> None:
        self._called("save_dead_letter")
        self.letters.append(letter)

    async def load_dead_letters(self) -> list[StoredDeadLetter]:
        self._called("load_dead_letters")
        return list(self.letters)

    async def clear_dead_letters(self) -> None:
        self._called("clear_dead_letters")
        self.letters.clear()

    async def clear_all(self) -> None:
        self._called("clear_all")
        self.commands.clear()
        self.letters.clear()


class App:
    """A manager on a storage, and what its commands did."""

    def __init__(self, storage: Storage, config: LaneConfig | None = None) -> None:
        builder = QueueManagerBuilder(clock=clock).with_storage(storage)
        self.manager = builder.with_lane("api", config or LaneConfig(0, 1), 0).build()
        self.ran: list[str] = []

        @self.manager.command("work")
        async def work(name: str, seconds: float = 0.0, fails: bool = False) -> str:
            self.ran.append(name)
            await asyncio.sleep(seconds)
            if fails:
                raise ValueError(f"{name} failed")
            return name

        self.work = work


async def test_a_storage_has_what_is_not_done() -> None:
    storage = ListStorage()
    app = App(storage)
    handle = await app.manager.submit("api", app.work("a", 5), key="k", priority=-3)
    await app.manager.submit("api", app.work("b"), delay=60, timeout=9, deadline=100)
    first, second = storage.commands.values()
    assert (first.lane, first.command_type, first.key, first.priority) == ("api", "work", "k", -3)
    assert (first.payload["name"], first.id, first.state) == ("a", handle.id, "available")
    assert (second.state, second.due, second.timeout) == ("scheduled", clock() + 60, 9)
    assert second.deadline == clock() + 100
    async with app.manager:
        assert await handle == "a"
        assert [command.payload["name"] for command in storage.commands.values()] == ["b"]
        await app.manager.drain()
    assert storage.commands == {}
    assert app.ran == ["a", "b"]
    assert "clear_all" not in storage.calls


async def test_what_was_not_done_runs_in_the_next_process() -> None:
    storage = ListStorage()
    old = App(storage)
    await old.manager.submit_many("api", [old.work("a"), old.work("b")])
    await old.manager.submit("api", old.work("c"), priority=-1)
    await old.manager.submit("api", old.work("later"), delay=30)
    await old.manager.close()
    assert len(storage.commands) == 4
    new = App(storage)
    began = now()
    async with new.manager:
        fresh = await new.manager.submit("api", new.work("new"))
        assert (
            fresh.id not in storage.commands or storage.commands[fresh.id].payload["name"] == "new"
        )
        await new.manager.drain()
    assert new.ran == ["c", "a", "b", "new", "later"]
    assert now() - began == pytest.approx(30, abs=1)
    assert storage.commands == {}


async def test_a_command_that_ran_when_its_process_died_runs_again() -> None:
    storage = ListStorage()
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(5, 10))
    old = App(storage, config)
    await old.manager.start()
    await old.manager.submit("api", old.work("fails", fails=True))
    await asyncio.sleep(15)  # one retry has failed
    saved = dict(storage.commands)
    assert [command.attempts for command in saved.values()] == [2]
    await old.manager.close()
    storage.commands = saved  # as it was when the process died
    new = App(storage, config)
    async with new.manager:
        await new.manager.drain()
    assert new.ran == ["fails"] * 4  # it is tried six times in all
    assert storage.commands == {}
    assert [letter.attempts for letter in storage.letters] == [6]


async def test_dead_letters_are_saved_loaded_and_requeued() -> None:
    storage = ListStorage()
    old = App(storage)
    async with old.manager:
        for name in ("a", "b", "c"):
            await old.manager.submit("api", old.work(name, fails=True), key=name)
        await old.manager.drain()
    assert storage.commands == {}
    assert [letter.error for letter in storage.letters] == [
        "ValueError: a failed",
        "ValueError: b failed",
        "ValueError: c failed",
    ]
    new = App(storage)
    async with new.manager:
        letters = await new.manager.dlq.list()
        assert [letter.key for letter in letters] == ["a", "b", "c"]
        assert "raise ValueError" in letters[0].traceback
        assert await new.manager.dlq.requeue(letters[1])
        await new.manager.drain()
        assert new.ran == ["b"]
        assert sorted(letter.key for letter in storage.letters) == ["a", "b", "c"]
        assert await new.manager.dlq.clear() == 3
    assert storage.letters == []


async def test_the_newer_of_two_commands_of_a_key_is_the_one_that_is_loaded() -> None:
    storage = ListStorage()
    old = App(storage)
    await old.manager.start()
    await old.manager.submit("api", old.work("first", 60), key="k")
    await asyncio.sleep(1)
    await old.manager.submit("api", old.work("second"), key="k", if_present="update")
    saved = dict(storage.commands)
    assert [command.payload["name"] for command in saved.values()] == ["first", "second"]
    await old.manager.close()
    storage.commands = saved
    new = App(storage)
    async with new.manager:
        await new.manager.drain()
    assert new.ran == ["second"]
    assert storage.commands == {}


async def test_all_commands_of_a_key_are_loaded_in_order() -> None:
    storage = ListStorage()
    old = App(storage)
    await old.manager.start()
    for name in ("first", "second", "third"):
        await old.manager.submit("api", old.work(name, 60), key="k")
    await asyncio.sleep(1)
    saved = dict(storage.commands)
    await old.manager.close()
    storage.commands = saved  # as it was when the process died
    new = App(storage)
    async with new.manager:
        await new.manager.submit("api", new.work("fourth"), key="k")
        await new.manager.drain()
    assert new.ran == ["first", "second", "third", "fourth"]
    assert storage.commands == {}


async def test_a_buffered_command_that_is_loaded_takes_over_the_attempts() -> None:
    storage = ListStorage()
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(2, 10))
    old = App(storage, config)
    await old.manager.start()
    await old.manager.submit("api", old.work("fails", 1, fails=True), key="k")
    await soon(lambda: old.ran == ["fails", "fails"])
    newer = old.work("newer", fails=True)
    await old.manager.submit("api", newer, key="k", if_present="update")
    await old.manager.submit("api", old.work("behind"), key="k")
    saved = dict(storage.commands)
    await old.manager.close()
    storage.commands = saved
    new = App(storage, config)
    async with new.manager:
        await new.manager.drain()
    assert new.ran == ["newer", "behind"]  # two attempts of three were before
    assert [letter.attempts for letter in storage.letters] == [3]


async def test_a_letter_that_is_loaded_holds_its_key() -> None:
    storage = ListStorage()
    config = LaneConfig(0, 1, on_dead_letter="pause_key")
    old = App(storage, config)
    async with old.manager:
        for name in ("older", "bad", "behind"):
            fails = name != "behind"
            await old.manager.submit("api", old.work(name, fails=fails), key="k")
        await old.manager.drain()
        [older] = await old.manager.dlq.list()
        await old.manager.cancel("api", "k")
        assert [letter.holds for letter in storage.letters] == [False]
        for name in ("bad", "behind"):
            await old.manager.submit("api", old.work(name, fails=name == "bad"), key="k")
        await old.manager.drain()
    assert older.holds
    assert [letter.holds for letter in storage.letters] == [False, True]
    new = App(storage, config)
    async with new.manager:
        await new.manager.drain()
        assert new.ran == []
        stats = await new.manager.stats()
        assert stats.lanes["api"].held == 1
        letter = next(letter for letter in await new.manager.dlq.list() if letter.holds)
        assert letter.payload["name"] == "bad"
        await new.manager.dlq.requeue(letter)
        await new.manager.drain()
        assert new.ran == ["bad"]
        assert await new.manager.dlq.clear() == 2
        await new.manager.drain()
    assert new.ran == ["bad", "behind"]
    assert (storage.commands, storage.letters) == ({}, [])


async def test_commands_of_others_have_ids_of_any_kind() -> None:
    storage = ListStorage()
    for name in ("x-1", "9", "3", "0c4d"):
        storage.commands[name] = StoredCommand(
            id=name, lane="api", command_type="work", payload={"name": name}
        )
    app = App(storage)
    async with app.manager:
        await app.manager.submit("api", app.work("new"))
        await app.manager.drain()
    assert app.ran == ["x-1", "9", "3", "0c4d", "new"]
    assert storage.commands == {}


async def test_a_storage_that_cannot_save_refuses_the_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = ListStorage()
    app = App(storage)
    await app.manager.submit("api", app.work("a"))
    storage.failing = OSError("the disk is full")
    with pytest.raises(StoreError, match="the storage cannot save: the disk is full"):
        await app.manager.submit("api", app.work("b"))
    async with app.manager:
        await asyncio.sleep(1)
        assert app.ran == ["a"]
        assert len(storage.commands) == 1  # it could not be removed
        storage.failing = None
        await app.manager.submit("api", app.work("c"))
        await app.manager.drain()
    assert app.ran == ["a", "c"]
    assert storage.commands == {}
    assert "is asked again" in caplog.text


async def test_a_storage_that_cannot_be_loaded_is_said() -> None:
    storage = ListStorage()
    storage.failing = OSError("no such file")
    app = App(storage)
    with pytest.raises(StoreError, match="the storage cannot be loaded: no such file"):
        await app.manager.submit("api", app.work("a"))


def test_a_storage_without_all_methods_is_refused() -> None:
    class Half:
        async def save_command(self, command: StoredCommand) -> None: ...

    half: Any = Half()
    with pytest.raises(TypeError, match="Half lacks load_commands, remove_command, save_dead"):
        QueueManagerBuilder().with_storage(half)
    with pytest.raises(TypeError, match="options go with a URL"):
        QueueManagerBuilder().with_storage(ListStorage(), durability="full")
    nothing: Any = None
    with pytest.raises(TypeError, match="store must be an open Store"):
        CommandStorage(nothing)


class TestStorageStore(
    StoreConformance, accepts=("clock", "limits"), without=("durability", "cross_process")
):
    """It is a store like the others."""

    def opener(self, place: Place) -> Callable[..., Store]:
        return lambda **options: StorageStore(ListStorage(), **options)


@pytest.fixture(params=["memory", "file", *KINDS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://"
    else:
        with empty_store(request.param, tmp_path) as where:
            yield where


def test_the_seven_methods_work_on_every_store(url: str) -> None:
    async def main() -> None:
        store = connect(url)
        storage = CommandStorage(store)
        builder = QueueManagerBuilder().with_storage(storage)
        manager: QueueManager = builder.with_lane("api", LaneConfig(0, 1), 0).build()

        @manager.command("work")
        async def work(name: str) -> str:
            return name

        await manager.submit("api", work("a"), key="k", priority=3)
        number = await storage.save_command(
            StoredCommand(lane="api", command_type="work", payload={"name": "b"}, timeout=5)
        )
        same = StoredCommand(lane="api", command_type="work", key="k", payload={"name": "c"})
        behind = await storage.save_command(same)
        first, second, third = await storage.load_commands()
        assert (third.id, third.key, third.state) == (behind, "k", "in_line")
        assert await storage.remove_command(behind)
        assert (first.payload, first.key, first.priority) == ({"name": "a"}, "k", 3)
        assert (second.id, second.payload, second.timeout) == (number, {"name": "b"}, 5)
        assert await storage.remove_command(number)
        assert not await storage.remove_command(number)
        letter: StoredDeadLetter = DeadLetter(lane="api", command_type="work", error="no")
        await storage.save_dead_letter(letter)
        assert [found.error for found in await storage.load_dead_letters()] == ["no"]
        assert await manager.dlq.len() == 1
        async with manager:
            await manager.drain()
        assert await storage.load_commands() == []
        assert await storage.clear_dead_letters() == 1
        await storage.save_command(StoredCommand(lane="api", command_type="work"))
        assert await storage.clear_all() >= 1
        assert await storage.load_commands() == []
        await storage.close()

    asyncio.run(main())
