"""An outage of a store is no empty queue: a consumer with a timeout can tell them apart."""

import asyncio
import fcntl
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from leasedkeyq import MemoryStore, StoreError, StoreUnavailableError, connect
from leasedkeyq.model.requests import Claim, Claimed
from leasedkeyq.stores.queue.pump import GRACE


class Unreliable(MemoryStore):
    """A store whose claims wait while it is silent, and that may say why."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()
        self.failure: StoreError | None = None

    @property
    def outage(self) -> StoreError | None:
        return self.failure

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        await self.answers.wait()
        return await super().do_claim(requests)


async def test_a_queue_without_items_times_out() -> None:
    store = Unreliable()
    with pytest.raises(TimeoutError, match=r"no item became available within 1 s"):
        await store.queue("q").get(timeout=1)
    await store.close()


@pytest.mark.parametrize("timeout", [0.5, 1, 30])
async def test_a_known_outage_is_told_when_the_time_is_over(timeout: float) -> None:
    store = Unreliable()
    store.answers.clear()
    store.failure = StoreUnavailableError("the server has gone")
    queue = store.queue("q")
    began = asyncio.get_running_loop().time()
    for call in (queue.get(timeout), queue.take("a", timeout), queue.get_many(3, timeout)):
        with pytest.raises(StoreUnavailableError, match="the server has gone"):
            await call
    assert asyncio.get_running_loop().time() - began == pytest.approx(3 * timeout)
    store.answers.set()
    await store.close()


async def test_an_outage_that_begins_while_a_consumer_waits() -> None:
    """The store had said that there is nothing; what has come since, nobody knows."""
    store = Unreliable()
    getting = asyncio.create_task(store.queue("q").get(timeout=5))
    await asyncio.sleep(2)
    store.failure = StoreUnavailableError("the server has gone")
    with pytest.raises(StoreUnavailableError):
        await getting
    await store.close()


async def test_a_store_that_says_nothing_at_all() -> None:
    """It has not failed yet, as a server that is frozen."""
    store = Unreliable()
    store.answers.clear()
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailableError, match=r"did not answer within 3 s.*queue 'q'"):
        await store.queue("q").get(timeout=2)
    assert asyncio.get_running_loop().time() - began == pytest.approx(2 + GRACE)
    store.answers.set()
    await store.close()


async def test_a_store_that_answers_a_little_late() -> None:
    """Its answer counts, whichever it is: a short timeout on a slow store means what it says."""
    store = Unreliable()
    queue = store.queue("q")
    for found in (False, True):
        if found:
            await queue.put("a", 1)
        store.answers.clear()
        getting = asyncio.create_task(queue.get(timeout=0.001))
        await asyncio.sleep(0.5)
        store.answers.set()
        if found:
            assert (await getting)[:2] == ("a", 1)
        else:
            with pytest.raises(TimeoutError, match=r"within 0\.001 s"):
                await getting
    await store.close()


async def test_the_next_call_after_an_outage_is_served() -> None:
    store = Unreliable()
    queue = store.queue("q")
    store.answers.clear()
    store.failure = StoreUnavailableError("the server has gone")
    with pytest.raises(StoreUnavailableError):
        await queue.get(timeout=1)
    store.failure = None
    store.answers.set()
    await queue.put("a", 1)
    assert (await queue.get(timeout=1))[:2] == ("a", 1)
    await store.close()


# Stores on a disk


@pytest.mark.parametrize("url", ["file:queue.json", "file:queue.yaml", "sqlite:jobs.db"])
def test_a_disk_that_cannot_be_read_is_told_at_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that waits already is told as well, when it asks again."""
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        store = connect(url)
        queue = store.queue("q")
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.05)
        place = tmp_path / url.partition(":")[2]
        await queue.put("a", 1)
        await queue.remove("a")
        break_reads(place)
        began = time.monotonic()
        with pytest.raises(StoreError):
            await queue.get(timeout=60)
        assert time.monotonic() - began < 30
        with suppress(StoreError):
            await store.close()

    asyncio.run(main())


def break_reads(place: Path) -> None:
    """What a disk that is gone looks like: root may read whatever its mode says."""
    if place.suffix == ".db":
        for file in place.parent.glob(place.name + "*"):
            file.write_bytes(b"no database" * 1000)
    else:
        for file in place.parent.iterdir():
            if file.is_file():
                file.unlink()
        place.mkdir()


@pytest.mark.parametrize("url", ["file:queue.json", "sqlite:jobs.db"])
def test_a_lock_that_another_program_keeps_is_no_empty_queue(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was stopped while it wrote."""
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        store = connect(url)
        queue = store.queue("q")
        await queue.put("a", 1)
        with locked(tmp_path / url.partition(":")[2]), pytest.raises(StoreError):
            await queue.get(timeout=0.2)
        assert (await queue.get(timeout=60))[0] == "a"
        await store.close()

    asyncio.run(main())


@contextmanager
def locked(place: Path) -> Generator[None]:
    """Another program keeps a store from being read or changed."""
    if place.suffix == ".db":
        with closing(sqlite3.connect(place, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
    else:
        [lock] = place.parent.glob("*lock*")
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
