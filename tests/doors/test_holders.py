"""Every door tells who holds the leases that are taken through it."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from leasedkeyq import MemoryStore, connect
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.repository import QueueItem, QueueRepository
from leasedkeyq.stores import Put, Store
from leasedkeyq.stores.system.holder import this_process
from tests.doors.doors import STORES, address, open_store


def me() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


async def holders(store: Store, queue: str = "q") -> dict[str, str]:
    page = await store.browse(queue, states=["in_flight"])
    return {item.key: item.holder for item in page.items}


@pytest.mark.parametrize("kind", STORES)
def test_a_queue_of_a_store_tells_its_process_or_what_it_is_told(kind: str, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        store = open_store(url)
        plain, named = store.queue("q"), store.queue("q", holder="the night shift")
        await plain.put_many({"a": 1, "b": 2, "c": 3})
        await plain.get()
        await named.take("c")
        assert await holders(store) == {"a": me(), "c": "the night shift"}
        shown = {item.key: item.holder for item in await plain.snapshot()}
        assert shown == {"a": me(), "b": "", "c": "the night shift"}
        with pytest.raises(ValueError, match="may have 200 characters, got 201"):
            store.queue("q", holder="x" * 201)
        await store.close()

    with address(kind, tmp_path) as url:
        asyncio.run(main(url))


async def test_lanes_tell_their_process() -> None:
    store = MemoryStore()
    manager = QueueManagerBuilder().with_lane("work", LaneConfig(1, 1), 0).with_storage(store)
    built = manager.build()
    running, go_on = asyncio.Event(), asyncio.Event()

    @built.command("wait")
    async def wait() -> None:
        running.set()
        await go_on.wait()

    async with built:
        handle = await built.submit("work", wait())
        await asyncio.wait_for(running.wait(), 60)
        assert set((await holders(store, "work")).values()) == {me()}
        go_on.set()
        await handle
    await store.close()


@pytest.mark.parametrize("waits", [False, True])
def test_a_repository_tells_its_process(tmp_path: Path, waits: bool) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with QueueRepository(url) as repository:
        repository.enqueue(made := QueueItem.create("mail", {"a": 1}))
        assert repository.dequeue(timeout=60 if waits else 0) is not None

        async def look() -> dict[str, str]:
            store = connect(url)
            try:
                [queue] = await store.count()
                return await holders(store, queue)
            finally:
                await store.close()

        assert asyncio.run(look()) == {made.id: me()}


def test_a_forked_process_has_a_name_of_its_own() -> None:
    assert this_process() == me()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, this_process().encode())
        os._exit(0)
    os.close(writer)
    told = b"".join(iter(lambda: os.read(reader, 1000), b"")).decode()
    os.close(reader)
    os.waitpid(child, 0)
    assert told == f"{socket.gethostname()}:{child}"


@pytest.mark.parametrize("name", ["x" * 300, "b\udcffd", "nul\x00"])
async def test_any_name_of_a_host_will_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(os, "getpid", lambda: 7)
    told = this_process()
    monkeypatch.undo()
    assert told.endswith(":7")
    store = MemoryStore()
    await store.put([Put("q", (("a", b"1"),))])
    await store.queue("q", holder=told).get()
    assert await holders(store) == {"a": told}
    await store.close()


def test_the_document_of_the_file_store_shows_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"

    async def main() -> None:
        store = connect(f"file://{path}")
        queue = store.queue("q", holder="web-1:4242")
        await queue.put("a", 1)
        await queue.get()
        assert '@web-1:4242"' in path.read_text()
        await store.close()

    asyncio.run(main())
