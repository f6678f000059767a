"""What once went wrong with queues on stores: waiting, closing, cancelling at the wrong moment."""

import asyncio
import errno
import os
import resource
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Cancel, Claim, MemoryStore, Put
from leasedkeyq.stores.file import FileStore
from leasedkeyq.stores.fileops import Access, FileOps
from leasedkeyq.stores.sqlite import SqliteStore
from leasedkeyq.testing import ManualClock


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


class FullDisk(FileOps):
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
        assert isinstance(failed.result()[0], StoreError)
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
