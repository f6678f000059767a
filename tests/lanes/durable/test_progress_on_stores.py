"""Progress on stores of several processes: from a worker elsewhere, one that is killed, a pool."""

import asyncio
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasedkeyq.lanes import Handle, Progress
from tests.forks import Program
from tests.lanes.durable import progress_worker
from tests.lanes.durable.progress_worker import LANE
from tests.servers.urls import KINDS, empty_store

TORTURE = os.environ.get("TORTURE") == "1"

PATIENCE = 60.0


@contextmanager
def worker(url: str) -> Generator[Program]:
    with Program("tests.lanes.durable.progress_worker", url) as process:
        try:
            yield process
        finally:
            process.kill()


async def seen(handle: Handle[object], wanted: Callable[[Progress], bool]) -> Progress:
    """What the command has told, as soon as it is what is wanted."""
    async with asyncio.timeout(PATIENCE):
        while True:
            progress = await handle.progress()
            if progress is not None and wanted(progress):
                return progress
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS if TORTURE else KINDS[:1])
def test_progress_of_each_attempt_is_seen_when_a_worker_is_killed(
    kind: str, tmp_path: Path
) -> None:
    """That of the attempt that was killed is shown until the next one tells something."""

    async def look(url: str) -> None:
        web = progress_worker.build(url)
        text = (await web.submit(LANE, web.queue().registry.rebuild("steps", arguments))).id
        handle = web.handle(text)
        assert await handle.progress() is None
        with worker(url) as doomed:
            (tmp_path / "tell 1").touch()
            told = await seen(handle, lambda progress: True)
            assert (told.fraction, told.text, told.attempt) == (0.1, "turn 1", 1)
            doomed.kill()
        with worker(url):
            async with asyncio.timeout(PATIENCE):
                while handle.attempt < 2:
                    await handle.refresh()
                    await asyncio.sleep(0.05)
            assert await handle.progress() == told
            (tmp_path / "tell 2").touch()
            again = await seen(handle, lambda progress: progress.attempt > 1)
            assert (again.fraction, again.text) == (0.2, "turn 2")
            updates = web.handle(text).updates()
            async with asyncio.timeout(PATIENCE):
                assert await anext(updates) == again
                (tmp_path / "end").touch()
                assert [update async for update in updates] == []
            assert await handle.result(timeout=PATIENCE) == "done"
            assert await web.handle(text).progress() == again
        await web.close()

    arguments = {"folder": str(tmp_path)}
    with empty_store(kind, tmp_path) as url:
        asyncio.run(look(url))


def test_a_process_of_the_pool_tells_its_progress(tmp_path: Path) -> None:
    async def look(url: str) -> None:
        web = progress_worker.build(url)
        command = web.queue().registry.rebuild("in_process", {"folder": str(tmp_path)})
        handle = web.handle((await web.submit(LANE, command)).id)
        with worker(url):
            told = await seen(handle, lambda progress: progress.fraction == 0.5)
            assert told.text == "part 2 of 4"
            assert (tmp_path / "two parts").exists()
            (tmp_path / "end").touch()
            assert await handle.result(timeout=PATIENCE) == 10
        await web.close()

    with empty_store("sqlite", tmp_path) as url:
        asyncio.run(look(url))
