"""The lifespan of a worker process: entered once, left on SIGTERM, and errors that end it."""

import asyncio
import sys
from pathlib import Path

import pytest

from leasedkeyq.__main__ import main
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from tests.cli.test_worker import Worker

APP = """
import asyncio
from leasedkeyq.__main__ import main
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder, resource

class Pool:
    number = 7

def built(lifespan):
    config = LaneConfig(0, 2, lease_time=30, cancel_grace=5)
    builder = QueueManagerBuilder().with_lane("work", config, 0).with_drain_timeout(60)
    manager = builder.with_storage("sqlite:///jobs.db").with_lifespan(lifespan).build()

    @manager.command("work", lane="work")
    async def work(seconds: float, pool: Pool = resource()) -> int:
        print("start", flush=True)
        await asyncio.sleep(seconds)
        print(f"end with {pool.number}", flush=True)
        return pool.number

    return manager

async def opens():
    print("open", flush=True)
    yield Pool()
    print("close", flush=True)

async def fails():
    raise OSError("no route to the database")
    yield

async def yields_nothing():
    yield

async def hangs():
    print("open", flush=True)
    try:
        await asyncio.sleep(3600)
    finally:
        print("close", flush=True)
    yield

manager = built(opens)
failing = built(fails)
empty = built(yields_nothing)
hanging = built(hangs)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    return tmp_path


async def submit(folder: Path, *seconds: float) -> int:
    """Submit commands, and return how many there are."""
    config = LaneConfig(0, 2, lease_time=30)
    builder = QueueManagerBuilder().with_lane("work", config, 0).run_only()
    manager = builder.with_storage(f"sqlite:///{folder}/jobs.db").build()

    @manager.command("work", lane="work")
    async def work(seconds: float) -> int: ...  # type: ignore[empty-body]  # it runs elsewhere

    for one in seconds:
        await work.submit(one)
    pending = (await manager.stats()).total_pending
    await manager.close()
    return pending


def test_resources_are_opened_once_and_closed_on_sigterm(folder: Path) -> None:
    asyncio.run(submit(folder, 0, 0, 1))
    worker = Worker(folder, "app:manager")
    worker.hear("end with 7")
    for _ in range(2):
        worker.hear("start")
    worker.process.terminate()
    assert worker.process.wait(60) == 0
    worker.listener.join(60)
    while not worker.lines.empty():
        worker.told.append(worker.lines.get())
    said = [line for line in worker.told if line in {"open", "close"} or line.startswith("end")]
    assert said[0] == "open"
    assert said[-1] == "close"
    assert said.count("open") == said.count("close") == 1


@pytest.mark.parametrize(
    "manager, told",
    [
        ("failing", "the lifespan fails failed at the start: OSError: no route to the database"),
        ("empty", "command 'work' takes the resource pool: Pool, but no lifespan provides"),
    ],
)
def test_a_worker_without_its_resources_ends_with_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    manager: str,
    told: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    name = f"app_that_is_{manager}"
    (folder / f"{name}.py").write_text(APP, encoding="utf-8")
    assert asyncio.run(submit(folder, 0, 0)) == 2
    try:
        assert main(["worker", f"{name}:{manager}"]) == 1
    finally:
        sys.modules.pop(name)
    said = capsys.readouterr()
    lines = (said.err + said.out).splitlines()
    assert [line for line in lines if "ERROR" in line] == [line for line in lines if told in line]
    assert sum(told in line for line in lines) == 1
    assert not [line for line in lines if "Traceback" in line or line == "start"]
    assert asyncio.run(submit(folder)) == 2


def test_a_worker_that_opens_its_resources_can_be_stopped(folder: Path) -> None:
    worker = Worker(folder, "app:hanging")
    worker.hear("open")
    worker.process.terminate()
    assert worker.process.wait(60) == 0
    worker.hear("close")
