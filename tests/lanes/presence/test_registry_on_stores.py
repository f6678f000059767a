"""What workers tell, seen by another program through the same store."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from leasedkeyq.connect import connect
from leasedkeyq.lanes import CommandFunction, QueueManager
from leasedkeyq.lanes.presence.directory import (
    WorkerRecord,
    pause_lane,
    read_lanes,
    read_paused,
    read_types,
    read_workers,
    resume_lane,
)
from leasedkeyq.stores import Store
from tests.forks import Program
from tests.lanes.presence.registered_worker import build
from tests.servers.urls import KINDS, empty_store

PATIENCE = 60.0
T = TypeVar("T")


@contextmanager
def worker_process(url: str) -> Generator[Program]:
    """A worker in a process of its own, which has started."""
    with Program("tests.lanes.presence.registered_worker", url) as process:
        assert process.stdout.readline() == "started\n"
        try:
            yield process
        finally:
            process.kill()


def command(manager: QueueManager, name: str) -> CommandFunction[..., Any]:
    """A command type of a manager."""
    found = manager.queue().registry.types[name]
    assert isinstance(found, CommandFunction)
    return found


async def until(look: Callable[[], Awaitable[T]], condition: Callable[[T], bool]) -> T:
    """What is seen, once it is as wanted."""
    async with asyncio.timeout(PATIENCE):
        while not condition(seen := await look()):
            await asyncio.sleep(0.1)
        return seen


async def workers_when(
    store: Store, condition: Callable[[list[WorkerRecord]], bool]
) -> list[WorkerRecord]:
    return await until(lambda: read_workers(store), condition)


@pytest.mark.parametrize("kind", [*KINDS, "file"])
def test_another_program_sees_the_worker_until_it_is_closed(kind: str, tmp_path: Path) -> None:
    async def run(url: str) -> None:
        manager = build(url)
        async with connect(url) as looking:
            await manager.start()
            await manager.submit("work", command(manager, "wait")(20.0), key="a")
            [record] = await workers_when(
                looking, lambda seen: any(w.presence.running for w in seen)
            )
            assert record.alive
            assert record.member.commands == ("block", "wait")
            [running] = record.presence.running
            assert (running.queue, running.key, running.kind) == ("work", "a", "wait")
            assert [lane.name for lane in await until(lambda: read_lanes(looking), bool)] == [
                "work"
            ]
            assert [one.name for one in await read_types(looking)] == ["block", "wait"]
            await pause_lane(looking, "work")
            assert await read_paused(looking) == ["work"]
            lane = manager.queue().lane("work")
            async with asyncio.timeout(PATIENCE):
                while not lane.paused:
                    await asyncio.sleep(0.05)
            assert await resume_lane(looking, "work")
            await manager.close()
            assert await read_workers(looking) == []
            assert len(await read_lanes(looking)) == 1

    with empty_store(kind, tmp_path) as url:
        asyncio.run(run(url))


def test_a_worker_that_is_killed_is_shown_as_dead_when_its_lease_ends(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        with worker_process(url) as process:
            async with connect(url) as store:
                submitter = build(url)
                wait = command(submitter, "wait")
                await submitter.submit("work", wait(1000.0), key="a")
                [alive] = await workers_when(
                    store, lambda seen: any(w.presence.running for w in seen)
                )
                assert alive.member.pid == process.pid
                process.kill()
                [dead] = await workers_when(store, lambda seen: not any(w.alive for w in seen))
                assert dead.id == alive.id
                assert [one.key for one in dead.presence.running] == ["a"]
                await submitter.close()

    with empty_store("sqlite", tmp_path) as url:
        asyncio.run(run(url))


def test_a_worker_whose_event_loop_was_blocked_tells_that_it_goes_on(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        with worker_process(url) as process:
            async with connect(url) as store:
                await workers_when(store, bool)
                submitter = build(url)
                block = command(submitter, "block")
                handle = await submitter.submit("work", block(6.0), key="a")
                [blocked] = await workers_when(
                    store, lambda seen: any(w.presence.blocked for w in seen)
                )
                assert blocked.alive
                assert blocked.member.pid == process.pid
                assert blocked.presence.blocked is not None
                assert blocked.presence.blocked >= 2
                assert [one.key for one in blocked.presence.running] == ["a"]
                await handle
                [free] = await workers_when(
                    store, lambda seen: not any(w.presence.blocked for w in seen)
                )
                assert (free.id, free.alive) == (blocked.id, True)
                await submitter.close()

    with empty_store("sqlite", tmp_path) as url:
        asyncio.run(run(url))
