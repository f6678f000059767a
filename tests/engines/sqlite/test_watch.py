"""Waiting on a SQLite store: what others commit is heard of soon, and waiting costs little.

Where a test must not be rescued by a look that would come anyway, `PATROL` is set to an hour.
"""

import asyncio
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import watch as sqlite_watch
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.engines.sqlite.watch import CommitWatch
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Claim, Claimed, Put, Refusal
from leasedkeyq.stores.system.inotify import Bell
from leasedkeyq.testing import ManualClock
from tests.forks import Python

HOUR = 3600.0


def put(queue: str, *keys: str) -> Put:
    return Put(queue, tuple((key, b"1") for key in keys))


async def claim(
    store: SqliteStore, queue: str = "q", limit: int = 1, **options: Any
) -> list[Claimed]:
    (claimed,) = await store.claim([Claim(((queue, limit),), limit, **options)])
    return list(claimed)


def waking(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def delete(path: Path) -> None:
    """Remove a database with its log."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()


def watching(store: SqliteStore) -> list[threading.Thread]:
    name = f"leasedkeyq watch {store.path}"
    return [thread for thread in threading.enumerate() if thread.name == name]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.fixture
def no_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bell, "of", lambda path, events: None)


@pytest.fixture
def no_patrol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_watch, "PATROL", HOUR)


@pytest.fixture(params=[True, False], ids=["bell", "no bell"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With a bell, and nothing but the bell; then without one."""
    has_bell: bool = request.param
    if has_bell:
        monkeypatch.setattr(sqlite_watch, "PATROL", HOUR)
    else:
        monkeypatch.setattr(Bell, "of", lambda path, events: None)
    return has_bell


class Looks:
    """Counts how often the watching threads look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        look = CommitWatch._look

        def counting(watch: CommitWatch, *arguments: Any, **options: Any) -> None:
            look(watch, *arguments, **options)
            self.count += 1

        monkeypatch.setattr(CommitWatch, "_look", counting)

    async def settled(self) -> None:
        """The thread has begun to listen: it looks before that, and once more after it."""
        await until(lambda: self.count >= 2)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


# Own changes


def test_own_changes_wake_own_watchers(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = SqliteStore(tmp_path / "q.db", clock=clock)
        changed = asyncio.Event()
        unwatch = store.watch("q", changed.set)
        await store.put([put("q", "a")])
        await changed.wait()
        changed.clear()
        (item,) = await claim(store, lease_time=5)
        await changed.wait()
        changed.clear()
        clock.now += 5
        # Whoever finds that a lease has expired tells the others.
        assert await store.sweep(["q"]) == [None]
        await changed.wait()
        (answer,) = await store.settle([Ack("q", item.key, item.token)])
        assert isinstance(answer, Refusal)
        unwatch()
        changed.clear()
        await store.put([put("q", "b")])
        await store.close()
        assert not changed.is_set()

    waking(main)


# The commits of others

WAKER = """
import asyncio, sys, time
from leasedkeyq.model.requests import Put
from leasedkeyq.engines.sqlite.store import SqliteStore

async def main(path, name, many, pause, every):
    store = SqliteStore(path, durability="normal")
    await store.count()
    for number in range(int(many)):
        if number % int(every) == 0:
            await asyncio.sleep(float(pause))
        await store.put([Put("q", ((f"{name}{number}", b"1"),))])
        await store.put([Put("stamps", ((f"{name}{number}", repr(time.time()).encode()),))])
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


def waker(
    path: Path, name: str, many: int, pause: float, every: int = 1
) -> "subprocess.Popen[str]":
    """Another process that puts `many` items, with a pause before every few."""
    arguments = map(str, (path, name, many, pause, every))
    return Python("-c", WAKER, *arguments)


def test_the_commits_of_another_process_wake_the_watchers_soon(tmp_path: Path, bell: bool) -> None:
    path = tmp_path / "q.db"
    many = 30

    async def main() -> None:
        store = SqliteStore(path)
        changed = asyncio.Event()
        unwatch = store.watch("q", changed.set)
        process = waker(path, "k", many, 0.05)
        heard: dict[str, float] = {}
        while len(heard) < many:
            await changed.wait()
            changed.clear()
            now = time.time()
            heard.update((item.key, now) for item in await claim(store, limit=100))
        unwatch()
        assert process.wait(30) == 0
        stamps = {item.key: float(item.value) for item in await claim(store, "stamps", many)}
        await store.close()
        delays = sorted(heard[key] - stamps[key] for key in heard)
        # On a busy machine single wake-ups come late.
        assert delays[many // 2] < 0.05, delays

    waking(main)


def test_no_wake_up_is_lost_while_others_and_oneself_write_without_a_pause(
    tmp_path: Path, bell: bool, looks: Looks
) -> None:
    path = tmp_path / "q.db"
    many = 300
    # Pauses at different places: the last commit before one has nobody to ring after it.
    writers = {"a": 7, "b": 40}
    keys = {f"{name}{number}" for name in writers for number in range(many)}

    async def main() -> None:
        store = SqliteStore(path, durability="normal")
        changed = asyncio.Event()
        start = time.monotonic()
        unwatch = store.watch("q", changed.set)
        processes = [waker(path, name, many, 0.03, every) for name, every in writers.items()]
        while keys:
            await changed.wait()
            changed.clear()
            while found := await claim(store, limit=20):
                await store.settle([Ack("q", item.key, item.token) for item in found])
                keys.difference_update(item.key for item in found)
        took = time.monotonic() - start
        count = looks.count
        unwatch()
        assert [process.wait(30) for process in processes] == [0, 0]
        await store.close()
        step = sqlite_watch.GAP if bell else sqlite_watch.INTERVAL
        assert count <= (took + sqlite_watch.BURST) / step + 3

    waking(main)


class ScriptedBell(Bell):
    """Rings as it is told to: each ring is the number of own commits by then; None is silence."""

    def __init__(self, *rings: int | None) -> None:
        self._rings = list(rings)
        self.own = 0
        self.patience: list[float] = []

    def wait(self, seconds: float) -> bytes:
        self.patience.append(seconds)
        ring = self._rings.pop(0)
        if ring is None:
            return b""
        self.own = ring
        return b"rung"


@pytest.mark.parametrize(
    "rings, waits",
    [
        pytest.param([0], 1, id="another store"),
        pytest.param([1, None], 2, id="our own"),
        pytest.param([1, 2, None], 3, id="our own, twice"),
        pytest.param([1, 1], 2, id="our own, then another store"),
        pytest.param([None], 1, id="silence"),
    ],
)
def test_the_ring_of_an_own_commit_is_not_worth_a_look_at_once(
    tmp_path: Path, rings: list[int | None], waits: int
) -> None:
    bell = ScriptedBell(*rings)
    watch = CommitWatch(
        tmp_path / "q.db",
        others=lambda total: total - bell.own,
        wanted=lambda: True,
        wake=lambda: None,
    )
    watch._hear(bell, 0, time.monotonic() + HOUR)
    assert len(bell.patience) == waits
    assert bell.patience[0] == sqlite_watch.PATROL
    assert all(seconds > sqlite_watch.PATROL for seconds in bell.patience[1:])


def test_rings_of_own_commits_do_not_put_off_a_look(tmp_path: Path) -> None:
    bell = ScriptedBell(1, 2, 3)
    watch = CommitWatch(
        tmp_path / "q.db",
        others=lambda total: total - bell.own,
        wanted=lambda: True,
        wake=lambda: None,
    )
    watch._hear(bell, 0, time.monotonic())
    assert len(bell.patience) == 1


def test_nothing_is_missed_between_watching_and_asking(tmp_path: Path, no_patrol: None) -> None:
    path = tmp_path / "q.db"

    async def main() -> None:
        mine, yours = SqliteStore(path), SqliteStore(path)
        for number in range(40):
            changed = asyncio.Event()
            unwatch = mine.watch("q", changed.set)
            assert not await claim(mine)
            await yours.put([put("q", f"k{number}")])
            if number % 10 == 0:
                await asyncio.sleep(0.02)
            await asyncio.wait_for(changed.wait(), 30)
            assert len(await claim(mine)) == 1
            unwatch()
        await mine.close()
        await yours.close()

    waking(main)


def test_a_commit_whose_process_died_before_it_rang_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    monkeypatch.setattr(sqlite_watch, "PATROL", 0.1)

    async def main() -> None:
        mine, yours = SqliteStore(tmp_path / "q.db"), SqliteStore(tmp_path / "q.db")
        changed = asyncio.Event()
        mine.watch("q", changed.set)
        await looks.settled()
        monkeypatch.setattr(yours._watch, "ring", lambda: None)
        await yours.put([put("q", "a")])
        await changed.wait()
        await yours.close()
        await mine.close()

    waking(main)


# The cost


def test_a_thread_that_waits_does_not_look(tmp_path: Path, no_patrol: None, looks: Looks) -> None:
    async def main() -> None:
        store, other = SqliteStore(tmp_path / "q.db"), SqliteStore(tmp_path / "other.db")
        store.watch("q", lambda: None)
        await looks.settled()
        # Neither reading nor the commits to another file are worth a look.
        for number in range(100):
            await other.put([put("q", f"k{number}")])
            assert not await claim(store)
            assert not (await store.browse("q")).items
        assert looks.count == 2
        await store.close()
        await other.close()

    waking(main)


def test_without_a_bell_a_thread_that_waits_looks_at_intervals(
    tmp_path: Path, no_bell: None, looks: Looks
) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        start = time.monotonic()
        store.watch("q", lambda: None)
        await until(lambda: looks.count > 20)
        count, took = looks.count, time.monotonic() - start
        assert count <= took / sqlite_watch.INTERVAL + 3
        await store.close()

    waking(main)


def test_while_nobody_watches_nobody_looks(
    tmp_path: Path,
    bell: bool,
    monkeypatch: pytest.MonkeyPatch,
    looks: Looks,
) -> None:
    monkeypatch.setattr(sqlite_watch, "LINGER", HOUR)

    async def main() -> None:
        store, other = SqliteStore(tmp_path / "q.db"), SqliteStore(tmp_path / "q.db")
        heard: list[int] = []
        unwatch = store.watch("q", lambda: heard.append(1))
        await looks.settled()
        (thread,) = watching(store)
        unwatch()
        # It may be about to look.
        await other.put([put("q", "a")])
        before = looks.count
        for number in range(50):
            await other.put([put("q", f"k{number}")])
        assert looks.count <= before + 1
        assert not heard
        # It is still there, and hears of the next one.
        changed = asyncio.Event()
        store.watch("q", changed.set)
        await other.put([put("q", "b")])
        await changed.wait()
        assert watching(store) == [thread]
        await store.close()
        await other.close()

    waking(main)


def test_looks_without_a_gap_are_few(tmp_path: Path, no_patrol: None, looks: Looks) -> None:
    async def main() -> None:
        store, other = SqliteStore(tmp_path / "q.db"), SqliteStore(tmp_path / "q.db")
        changed = asyncio.Event()
        store.watch("q", changed.set)
        await looks.settled()
        start = time.monotonic()
        for number in range(100):
            await other.put([put("q", f"k{number}")])
            await changed.wait()
            changed.clear()
        took = time.monotonic() - start
        assert looks.count >= 100
        assert looks.count <= (took + sqlite_watch.BURST) / sqlite_watch.GAP + 5
        await store.close()
        await other.close()

    waking(main)


# The thread


def test_the_thread_ends_when_nobody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_watch, "LINGER", 0.05)

    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        assert not watching(store)
        unwatch = store.watch("q", lambda: None)
        (thread,) = watching(store)
        unwatch()
        await until(lambda: not thread.is_alive())
        changed = asyncio.Event()
        store.watch("q", changed.set)
        other = SqliteStore(tmp_path / "q.db")
        await other.put([put("q", "a")])
        await changed.wait()
        await other.close()
        await store.close()
        assert not watching(store)

    waking(main)


class IdleEvent(threading.Event):
    """Counts how often it is waited for."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "not watched"])
def test_the_thread_ends_when_the_store_is_closed(
    tmp_path: Path,
    bell: bool,
    watched: bool,
    monkeypatch: pytest.MonkeyPatch,
    looks: Looks,
) -> None:
    monkeypatch.setattr(sqlite_watch, "LINGER", HOUR)

    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        idle = IdleEvent()
        monkeypatch.setattr(store._watch, "_called", idle)
        unwatch = store.watch("q", lambda: None)
        await looks.settled()
        (thread,) = watching(store)
        if not watched:
            unwatch()
            await store.put([put("q", "a")])
            # The first time it ends at once, as somebody came before.
            await until(lambda: idle.waits == 2)
        await store.close()
        assert not thread.is_alive()

    waking(main)
    # Its connection was the last one.
    assert not (tmp_path / "q.db-wal").exists()


def test_the_thread_ends_after_the_event_loop_of_the_last_watcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    monkeypatch.setattr(sqlite_watch, "LINGER", 0.05)
    monkeypatch.setattr(sqlite_watch, "PATROL", 0.05)
    store = SqliteStore(tmp_path / "q.db")

    async def leave() -> None:
        store.watch("q", lambda: None)
        await looks.settled()

    asyncio.run(leave())
    for thread in watching(store):
        thread.join(30)
        assert not thread.is_alive()

    async def again() -> None:
        changed = asyncio.Event()
        store.watch("q", changed.set)
        other = SqliteStore(tmp_path / "q.db")
        await other.put([put("q", "a")])
        await changed.wait()
        await other.close()
        await store.close()

    waking(again)


# The file


def test_a_waiting_watcher_hears_that_the_file_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    monkeypatch.setattr(sqlite_watch, "PATROL", 0.05)
    path = tmp_path / "q.db"

    async def main() -> None:
        store = SqliteStore(path)
        changed = asyncio.Event()
        store.watch("q", changed.set)
        await looks.settled()
        delete(path)
        await changed.wait()
        with pytest.raises(StoreError, match="was deleted"):
            await claim(store)
        await store.close()

    waking(main)


def test_the_commits_to_a_file_that_took_the_place_of_another_are_heard(
    tmp_path: Path, bell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_watch, "PATROL", 0.05)
    path = tmp_path / "q.db"
    looked_at: list[sqlite3.Connection] = []
    look = CommitWatch._look

    def noting(watch: CommitWatch, connection: sqlite3.Connection, **options: Any) -> None:
        look(watch, connection, **options)
        looked_at.append(connection)

    monkeypatch.setattr(CommitWatch, "_look", noting)

    async def main() -> None:
        store = SqliteStore(path)
        changed = asyncio.Event()
        store.watch("q", changed.set)
        await until(lambda: len(looked_at) >= 2)
        delete(path)
        other = SqliteStore(path)
        await until(lambda: looked_at[-1] is not looked_at[0])
        # It listens to the new file, and no look comes by itself any more.
        monkeypatch.setattr(sqlite_watch, "PATROL", HOUR)
        for number in range(5):
            changed.clear()
            await other.put([put("q", f"k{number}")])
            await changed.wait()
        assert len(await claim(store, limit=10)) == 5
        await store.close()
        await other.close()

    waking(main)
