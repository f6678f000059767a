"""What once went wrong with queues on stores: waiting, closing, cancelling at the wrong moment."""

import asyncio
import errno
import os
import pickle
import resource
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.engines.file.file_operations import Access, FileOperations
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import (
    InvalidLeaseError,
    LeaseAlreadyAcknowledgedError,
    LeaseExpiredError,
    QueueClosedError,
    StoreError,
)
from leasedkeyq.lease import MOST_ENDED
from leasedkeyq.model.requests import Answer, Change, Claimed, Counts, Purge, StoredItem
from leasedkeyq.stores import Cancel, Claim, Put
from leasedkeyq.stores.queue.lease_book import MANY_HELD
from leasedkeyq.stores.queue.pump import LAST_CLAIM
from leasedkeyq.stores.queue.store_queue import StoreQueue
from leasedkeyq.testing import ManualClock
from leasedkeyq.types import QueueObserver
from tests.doors.doors import STORES, address, open_store


@pytest.mark.parametrize("turns", range(6))
async def test_closing_leaves_no_lease_behind(turns: int) -> None:
    store = MemoryStore()
    queue = store.queue("q")
    getting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0.01)
    await store.put([Put("q", (("a", b"1"),))])
    for _ in range(turns):
        await asyncio.sleep(0)
    await queue.close()
    await asyncio.gather(getting, return_exceptions=True)
    assert (await store.count(["q"]))["q"].in_flight == 0


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_get_many_beside_an_undecodable_value(turns: int) -> None:
    store = MemoryStore()
    queue = store.queue("q", value_type=int)
    await store.put([Put("q", (("bad", b'"x"'), ("good", b"1")))])
    getting = asyncio.ensure_future(queue.get_many(2))
    for _ in range(turns):
        await asyncio.sleep(0)
    getting.cancel()
    await asyncio.gather(getting, return_exceptions=True)
    await asyncio.sleep(0.01)
    in_flight = (await store.count(["q"]))["q"].in_flight
    assert in_flight == (0 if getting.cancelled() else 1)


async def test_leases_that_nobody_settles_are_forgotten() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    queue = store.queue("q", default_lease_timeout=1)
    for number in range(500):
        await queue.put(str(number), number)
        await queue.get()
        clock.advance(2)
        await store.settle([Cancel("q", str(number))])
    assert len(queue._leases) < 300


@pytest.mark.parametrize("keys", [1, 1000])
async def test_leases_that_others_end_are_forgotten(keys: int) -> None:
    """However they end: another object settles them, or the key is removed."""
    store = MemoryStore()
    queue, other = store.queue("q"), store.queue("q")
    held = [(await leased(queue, f"held {number}"))[2] for number in range(10)]
    for number in range(1000):
        key, _, lease = await leased(queue, f"settled {number % keys}")
        await (other.ack(lease) if number % 2 else other.remove(key))
        await leased(queue, f"removed {number % keys}")
        await queue.remove(f"removed {number % keys}")
    assert len(queue._leases) <= 2 * len(held) + MANY_HELD
    assert not queue._since
    for lease in held:
        await queue.ack(lease)
    assert (await store.count(["q"]))["q"] == Counts()


async def test_so_many_ended_leases_are_remembered() -> None:
    queue = MemoryStore().queue("q")
    first = (await leased(queue, "a"))[2]
    copy = pickle.loads(pickle.dumps(first))
    await queue.ack(first)
    for _ in range(MOST_ENDED):
        with pytest.raises(LeaseAlreadyAcknowledgedError):
            await queue.ack(copy)
        await queue.ack((await leased(queue, "a"))[2])
    with pytest.raises(InvalidLeaseError) as raised:
        await queue.ack(copy)
    assert raised.value.reason == "unknown"
    with pytest.raises(LeaseAlreadyAcknowledgedError):
        await queue.ack(first)


async def leased(queue: Any, key: str, **options: Any) -> Any:
    await queue.put(key, 1)
    return await queue.take(key, **options)


@pytest.mark.parametrize("how", ["remove", "ack", "purge"])
def test_a_lease_that_others_end_before_its_time_has_not_expired(how: str, tmp_path: Path) -> None:
    async def main(kind: str) -> None:
        with address(kind, tmp_path) as url:
            store = open_store(url)
            queue, other = store.queue("q"), store.queue("q")
            _, _, lease = await leased(queue, "a", lease_timeout=60)
            if how == "remove":
                await other.remove("a")
            elif how == "ack":
                await other.ack(pickle.loads(pickle.dumps(lease)))
            else:
                await store.settle([Purge("q")])
            for settle in (queue.ack, queue.release, queue.extend):
                with pytest.raises(
                    InvalidLeaseError, match=r"key was removed .*, or it was"
                ) as got:
                    await settle(lease)
                assert not isinstance(got.value, LeaseExpiredError)
                assert got.value.reason == "removed"
            await store.close()

    for kind in STORES:
        asyncio.run(main(kind))


class Prompt(MemoryStore):
    """Leases the next of a line to somebody else as soon as a value is cancelled."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await super().do_settle(requests)
        if isinstance(requests[0], Cancel):
            await super().do_claim([Claim((("q", 1),), 1, requests[0].key)])
        return answers


@pytest.mark.parametrize("place", [0, 1])
async def test_a_removed_value_ends_the_lease_that_held_it(place: int) -> None:
    """And no other, also if the next of the line is leased elsewhere at once."""
    store = Prompt()
    queue = store.queue("q")
    await queue.put_many([("a", 1), ("a", 2), ("a", 3)], if_present="append")
    _, _, lease = await queue.get()
    ids = [value.id async for value in queue.line("a")]
    assert await queue.remove("a", id=ids[place])
    assert queue._leases.ended(lease) == ("removed" if place == 0 else None)
    await store.close()


class Flaky(MemoryStore):
    """Fails now and then, and takes its time for claims."""

    failures = 0

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await super().do_claim(requests)
        await asyncio.sleep(0.05)
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        if self.failures:
            self.failures -= 1
            raise StoreError("no space left for a moment")
        return await super().do_settle(requests)


async def cancelled_get(store: Flaky, failures: int) -> StoreQueue[Any]:
    """A queue whose consumer has gone while its item was being claimed."""
    queue = store.queue("q")
    await queue.put("a", 1)
    getting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0.02)
    store.failures = failures
    getting.cancel()
    await asyncio.gather(getting, return_exceptions=True)
    await asyncio.sleep(0.05)
    return queue


@pytest.mark.parametrize("failures", [0, 1, 7])
async def test_a_lease_that_nobody_wants_is_given_back(
    failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = Flaky()
    queue = await cancelled_get(store, failures)
    assert await queue.inflight_keys() == ({"a"} if failures else set())
    assert ("tried again until the store is closed" in caplog.text) == bool(failures)
    await asyncio.sleep(60)
    key, _, lease = await queue.get(timeout=0)
    assert (key, lease.attempt) == ("a", 1)
    assert not queue._pump.unwanted._tasks


async def test_closing_gives_back_what_could_not_be_given_back() -> None:
    store = Flaky()
    queue = await cancelled_get(store, 2)
    await leased(queue, "b")
    with pytest.raises(StoreError, match="for a moment"):
        await queue.close()
    assert await queue.inflight_keys() == {"a", "b"}
    await queue.close()
    assert await queue.inflight_keys() == set()


async def test_giving_back_ends_with_the_store() -> None:
    store = Flaky()
    queue = await cancelled_get(store, 1)
    await store.close()
    await asyncio.sleep(60)
    assert not queue._pump.unwanted._tasks


async def test_an_undecodable_value_that_cannot_be_buried_stays_in_the_queue() -> None:
    store = Flaky()
    queue = store.queue("q", value_type=int)
    await store.put([Put("q", (("bad", b'"x"'), ("good", b"1")))])
    store.failures = 1
    with pytest.raises(StoreError, match="for a moment"):
        await queue.get_many(2)
    assert (await store.count(["q"]))["q"] == Counts(available=2)


@pytest.mark.parametrize("turns", [*range(12), 50])
def test_closing_waits_for_a_claim_that_is_under_way(turns: int, tmp_path: Path) -> None:
    """Or it is answered when the store is closed, and its lease stays, for ever without a time."""

    async def main() -> None:
        async with SqliteStore(tmp_path / "jobs.db") as store:
            queue = store.queue("q")
            await queue.put("a", 1)
            getting = asyncio.ensure_future(queue.get())
            for _ in range(turns):
                await asyncio.sleep(0)
            await queue.close()
        await asyncio.gather(getting, return_exceptions=True)
        async with SqliteStore(tmp_path / "jobs.db") as store:
            assert (await store.count(["q"]))["q"] == Counts(available=1)

    asyncio.run(main())


async def test_closing_does_not_wait_for_ever_for_a_claim() -> None:
    class Silent(MemoryStore):
        async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
            await asyncio.sleep(3600)
            return await super().do_claim(requests)

    queue = Silent().queue("q")
    getting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await queue.close()
    assert asyncio.get_running_loop().time() - began == pytest.approx(LAST_CLAIM)
    with pytest.raises(QueueClosedError):
        await getting


async def test_closing_while_an_undecodable_value_is_buried() -> None:
    class Slow(MemoryStore):
        async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
            await asyncio.sleep(0.1)
            return await super().do_settle(requests)

    store = Slow()
    queue = store.queue("q", value_type=int)
    await store.put([Put("q", (("bad", b'"x"'), ("good", b"1")))])
    getting = asyncio.ensure_future(queue.get_many(2))
    await asyncio.sleep(0.05)
    await queue.close()
    with pytest.raises(QueueClosedError):
        await getting
    assert (await store.count(["q"]))["q"] == Counts(available=1, buried=1)


async def test_one_of_many_leases_that_cannot_be_given_back() -> None:
    """A store may answer so for one of them, and raise nothing."""

    class Damaged(Flaky):
        async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
            if self.failures:
                self.failures -= 1
                return [StoreError("this one is damaged") for _ in requests]
            return await super().do_settle(requests)

    queue = await cancelled_get(Damaged(), 1)
    assert await queue.inflight_keys() == {"a"}
    await asyncio.sleep(60)
    assert await queue.inflight_keys() == set()


async def test_one_task_tries_again_to_give_leases_back() -> None:
    store = Flaky()
    queue = await cancelled_get(store, 1000)
    for number in range(20):
        await queue.put(f"{number}", 1)
        getting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0.02)
        getting.cancel()
        await asyncio.sleep(0.05)
    assert await queue.inflight_size() == 21
    assert len(queue._pump.unwanted._tasks) == 1
    store.failures = 0
    await asyncio.sleep(60)
    assert await queue.inflight_size() == 0
    assert not queue._pump.unwanted._tasks


@pytest.mark.parametrize("engine", STORES)
def test_a_producer_that_waits_for_room_asks_when_something_has_changed(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not because it has asked: that would never end."""

    async def main(url: str) -> None:
        asked = 0
        async with open_store(url) as store:
            put_in_store = store.put

            async def counted(requests: Sequence[Put]) -> Any:
                nonlocal asked
                asked += 1
                return await put_in_store(requests)

            monkeypatch.setattr(store, "put", counted)
            queue = store.queue("q", maxsize=1)
            await queue.put("a", 1)
            putting = asyncio.ensure_future(queue.put("b", 1))
            await asyncio.sleep(0.5)
            assert asked < 20
            assert not putting.done()
            await queue.ack((await queue.get(timeout=10))[2])
            await asyncio.wait_for(putting, 10)

    with address(engine, tmp_path) as url:
        asyncio.run(main(url))


async def test_a_producer_whose_turn_comes_while_it_looks_at_the_store() -> None:
    """The one before it has left, and nobody else here makes room: it has to listen itself."""

    class Slow(MemoryStore):
        slow = False

        async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
            found = await super().do_look(queue, keys)
            if self.slow:
                await asyncio.sleep(1)
            return found

    store = Slow()
    queue, other = store.queue("q", maxsize=1), store.queue("q")
    await queue.put("a", 1)
    first = asyncio.ensure_future(queue.put("b", 1))
    await asyncio.sleep(0.1)
    store.slow = True
    second = asyncio.ensure_future(queue.put("c", 1))
    await asyncio.sleep(0.1)
    for expected in ("a", "b", "c"):
        key, _, lease = await other.get(timeout=60)
        assert key == expected
        await other.ack(lease)
    await asyncio.gather(first, second)


async def test_nothing_is_kept_for_an_observer_of_leases_that_are_over() -> None:
    class Observer(QueueObserver[str]):
        pass

    store = MemoryStore()
    queue, other = store.queue("q", observer=Observer()), store.queue("q")
    for number in range(3 * MANY_HELD):
        await queue.put("same", 1)
        await queue.put(f"{number}", 1)
        for _, _, lease in await queue.get_many(2, lease_timeout=3600):
            await (other if lease.key == "same" else queue).ack(lease)
    assert len(queue._since) <= 1
    assert len(queue._expiries) <= 1


async def test_an_observer_that_fails_is_the_business_of_the_event_loop() -> None:
    class Observer(QueueObserver[str]):
        def on_put(self, key: str) -> None:
            raise ValueError(key)

    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    queue = MemoryStore().queue("q", observer=Observer())
    await queue.put("a", 1)
    assert [str(context["exception"]) for context in told] == ["a"]


async def test_a_limit_of_buried_items_counts_what_others_buried() -> None:
    store = MemoryStore()
    queue, other = store.queue("q", max_buried=3), store.queue("q")
    for number in range(20):
        for each in (queue, other) if number % 3 == 0 else (queue,):
            await each.bury((await leased(each, f"{number}"))[2], "given up")
        assert len(await queue.buried()) <= 4
    await queue.bury((await leased(queue, "last"))[2], "given up")
    assert [item.key for item in await queue.buried()][-1] == "last"
    assert len(await queue.buried()) == 3


def test_nobody_watches_when_nobody_waits(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "jobs.db")
        queue = store.queue("q")
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.05)
        async with asyncio.timeout(10):
            while store._watchers:
                await asyncio.sleep(0.01)
        await store.close()

    asyncio.run(main())


class Watched(MemoryStore):
    """Notes what a queue asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        self.asked.append("claim")
        return await super().do_claim(requests)

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        self.asked.append("watch")
        return super().do_watch(queue, wake)


async def test_a_get_of_what_is_there_is_one_claim_and_watches_nothing() -> None:
    store = Watched()
    queue = store.queue("q")
    await queue.put("a", 1)
    await queue.get()
    with pytest.raises(TimeoutError):
        await queue.get(timeout=0)
    assert store.asked == ["claim", "claim"]


async def test_a_get_that_waits_asks_again_once_it_watches() -> None:
    store = Watched()
    queue = store.queue("q")
    getting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0.01)
    assert store.asked == ["claim", "watch", "claim"]
    await queue.put("a", 1)
    assert (await getting)[:2] == ("a", 1)


def test_changes_are_heard_with_many_open_files(tmp_path: Path) -> None:
    async def main() -> None:
        store, other = FileStore(path), FileStore(path)
        queue = store.queue("q")
        getting = asyncio.ensure_future(queue.get())
        while not store._watchers:
            await asyncio.sleep(0.01)
        await other.put([Put("q", (("a", b"1"),))])
        assert (await asyncio.wait_for(getting, 30))[0] == "a"
        await store.close()
        await other.close()

    path = tmp_path / "jobs.yaml"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        asyncio.run(main())
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class FullDisk(FileOperations):
    """A disk on which so many files can be written."""

    left: int | None = None

    def write(self, path: Path, data: bytes, access: Access | None) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, data, access)


def test_what_was_stored_before_a_failure_is_answered(tmp_path: Path) -> None:
    """Of three calls in one batch one cannot be stored; then the disk is full."""

    async def main() -> None:
        disk = FullDisk()
        store = FileStore(tmp_path / "jobs.yaml", ops=disk)
        await store.put([Put("q", (("a", b"1"),))])
        go = threading.Event()
        unstorable = Put("q", (("b", b"1"),), priority=2**70)
        held = asyncio.ensure_future(store._batcher.submit(lambda *_: go.wait(60)))
        await asyncio.sleep(0.05)
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(store.claim([Claim((("q", 1),))])),
            asyncio.ensure_future(store._batcher.submit_many([unstorable])),
            asyncio.ensure_future(store.put([Put("q", (("c", b"1"),))])),
        ]
        await asyncio.sleep(0.05)
        disk.left = 2  # the claim is written, in two files, and nothing after it
        go.set()
        await held
        await asyncio.wait(calls)
        disk.left = None
        claim, refused, failed = calls
        assert len(claim.result()[0]) == 1
        assert isinstance(refused.result()[0], StoreError)
        assert isinstance(failed.exception(), StoreError)
        assert (await store.count(["q"]))["q"].in_flight == 1
        await store.close()

    asyncio.run(main())


def test_the_mode_of_a_document_stays_whatever_the_umask(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "jobs.yaml"
        store = FileStore(path)
        queue = store.queue("q")
        await queue.put("a", 1)
        path.chmod(0o664)
        await queue.put("b", 1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
        await store.close()

    before = os.umask(0o022)
    try:
        asyncio.run(main())
    finally:
        os.umask(before)


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Its errors quote the names of fields that it does not have."""

    a: int = 0


async def test_a_value_is_buried_whose_error_quotes_what_no_store_can_keep() -> None:
    store = MemoryStore()
    await store.queue("q").put("bad", {"a\x00b": 1})
    await store.queue("q").put("good", {})
    queue = store.queue("q", value_type=Strict)
    assert (await queue.get(timeout=30))[:2] == ("good", Strict())
    [buried] = await store.queue("q").buried()
    assert "a\N{REPLACEMENT CHARACTER}b" in buried.error


async def test_no_value_has_an_id_of_more_than_64_bits() -> None:
    queue = MemoryStore().queue("q")
    await queue.put("k", 1)
    assert not await queue.remove("k", id=2**63)
    assert await queue.peek("k") == 1
