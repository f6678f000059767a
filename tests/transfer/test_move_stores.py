"""`move` between real stores, by real processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from leasedkeyq import MemoryStore, connect, move
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Change,
    Counts,
    Put,
    Release,
    Requeue,
    StoredItem,
)
from leasedkeyq.repository import QueueRepository, QueueService
from tests.servers.urls import empty_store
from tests.transfer.support import claim, counts, drain, fill, fill_lines, items, put

MOVER = """
import asyncio, sys
from leasedkeyq import move

def told(progress):
    print(progress.moved, flush=True)

asyncio.run(move(sys.argv[1], sys.argv[2], batch=20, progress=told))
"""


@pytest.mark.parametrize("kinds", ["sqlite sqlite", "file file", "postgresql redis"])
def test_a_killed_move_is_resumed(tmp_path: Path, kinds: str) -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(empty_store(kind, tmp_path)) for kind in kinds.split()]
        kill_a_move(*urls)


def kill_a_move(first: str, second: str) -> None:
    async def produce() -> None:
        store = connect(first)
        keys = [f"{number:03}" for number in range(200)]
        await store.put([Put("q", tuple((key, b"1") for key in keys))])
        await put(store, "late", delay=3600.0)
        await put(store, "dead")
        for lease in await claim(store, key="dead"):
            await store.settle([Bury("q", "dead", lease.token, "broken")])
        # Of equal values, too, each comes once.
        await store.put([Put("q", (("line", b"1"),) * 70, "append")])
        await store.close()

    async def resume() -> None:
        source, target = connect(first), connect(second)
        # The leases of the dead one end after a minute; so that the test need not wait for that:
        for queue in ("leasedkeyq.moves", "q"):
            await source.edit(queue, end_leases)
        report = await move(source, target, batch=50)
        assert report.complete
        assert report.verified
        await source.close()
        await target.close()

    async def look() -> None:
        target = connect(second)
        found = {item.key: item.state for item in await items(target)}
        states = dict.fromkeys((f"{number:03}" for number in range(200)), "available")
        assert found == states | {"late": "scheduled", "dead": "buried", "line": "in_line"}
        assert await counts(target) == Counts(available=270, scheduled=1, buried=1)
        await target.close()

    asyncio.run(produce())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", MOVER, first, second]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as transfer:
        assert transfer.stdout is not None
        for line in transfer.stdout:
            if int(line) > 60:
                transfer.send_signal(signal.SIGKILL)
    assert transfer.returncode == -signal.SIGKILL
    asyncio.run(resume())
    asyncio.run(look())


def end_leases(found: Sequence[StoredItem]) -> list[Put | Change]:
    return [
        Release(item.queue, item.key, item.token, undo=True)
        for item in found
        if item.state == "in_flight"
    ]


@pytest.mark.parametrize("left_behind", [0, 1])
def test_a_store_is_not_moved_onto_itself(
    tmp_path: Path, left_behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if left_behind:  # as with a store that is no file
        monkeypatch.setattr("leasedkeyq.transfer.move._same_file", lambda *_: False)

    async def main(first: str, second: str) -> None:
        store = connect(first)
        await put(store, "a")
        with pytest.raises(ValueError, match="the same store"):
            await move(first, second)
        assert await counts(store) == Counts(available=1)
        assert await counts(store, "leasedkeyq.moves") == Counts(available=left_behind)
        await store.close()

    for scheme, name in (("sqlite:///", "a.db"), ("file://", "b.json")):
        detour = f"{tmp_path}/../{tmp_path.name}/{name}"
        asyncio.run(main(f"{scheme}{tmp_path}/{name}", f"{scheme}{detour}"))


def test_a_repository_is_moved_although_it_holds_one_queue_only(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    with QueueRepository(path) as repository:
        QueueService(repository).submit_task("resize photo 1")

    async def main() -> None:
        link = tmp_path / "link.yaml"
        link.symlink_to(path)
        for same in (path, link):
            with pytest.raises(ValueError, match="the same store"):
                await move(f"file://{path}", f"file://{same}")
        source, target = connect(f"file://{path}"), MemoryStore()
        report = await move(source, target)
        assert report.complete
        assert report.verified
        assert report.moved == 1
        await source.close()
        (item,) = await items(target, queue="queue")
        other = connect(f"file://{tmp_path}/other.yaml", form="repository", name="queue")
        report = await move(target, other)
        assert report.complete
        await other.close()
        with QueueRepository(tmp_path / "other.yaml") as repository:
            task = QueueService(repository).get_next_task()
            assert task is not None
            assert task.id == item.key

    asyncio.run(main())


def test_between_different_stores_by_url(tmp_path: Path) -> None:
    async def main(urls: Sequence[str]) -> None:
        store = connect(urls[0])
        await fill(store)
        await store.close()
        for first, second in pairwise(urls):
            report = await move(first, second)
            assert report.complete
            assert report.verified
            assert report.moved == 7
        store = connect(urls[-1])
        states = {item.key: item.state for item in await items(store)}
        assert states["late"] == "scheduled"
        assert states["dead"] == "buried"
        assert states["done"] == "done"
        assert [item.key for item in await drain(store)] == ["urgent", "a", "b", "c"]
        await store.close()

    with ExitStack() as stack:
        kinds = ("file", "sqlite", "postgresql", "redis", "postgresql", "sqlite")
        asyncio.run(main([stack.enter_context(empty_store(kind, tmp_path)) for kind in kinds]))


@pytest.mark.parametrize(
    "kinds", ["file sqlite", "sqlite file", "sqlite sqlite", "postgresql redis", "redis postgresql"]
)
def test_lines_between_different_stores(tmp_path: Path, kinds: str) -> None:
    async def main(first: str, second: str) -> None:
        source, target = connect(first), connect(second)
        await fill_lines(source)
        report = await move(source, target, "q", batch=7)
        assert report.complete
        assert report.verified
        moved = report.queues["q"]
        assert (moved.available, moved.scheduled, moved.in_line, moved.buried) == (2, 1, 62, 1)
        assert await counts(source) == Counts()
        assert await counts(target) == Counts(available=61, scheduled=1, buried=1, held=3)
        later = (await target.line("q", "later")).items
        assert [(item.state, item.value) for item in later] == [
            ("scheduled", b"0"),
            ("in_line", b"1"),
        ]
        assert [item.due is not None for item in later] == [True, True]
        assert (later[1].kind, later[1].priority) == ("mail", 4)
        [buried] = await items(target, "buried")
        assert (buried.holds, buried.error) == (True, "why")
        assert await target.settle([Requeue("q", buried.id)]) == [True]
        taken: dict[str, list[int]] = {}
        while leases := await claim(target, 10):
            for lease in leases:
                taken.setdefault(lease.key, []).append(int(lease.value))
            await target.settle([Ack("q", lease.key, lease.token) for lease in leases])
        assert taken == {"k": [*range(50)], "two": [*range(10)], "held": [*range(4)]}
        await source.close()
        await target.close()

    with ExitStack() as stack:
        urls = [stack.enter_context(empty_store(kind, tmp_path)) for kind in kinds.split()]
        asyncio.run(main(*urls))
