"""A worker whose event loop is stuck ends by itself, and one that is killed is replaced."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from tests.cli.test_worker import worker
from tests.servers.urls import empty_store

APP = """
import time
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder, current_command

config = LaneConfig(0, 4, lease_time=6, heartbeat=1)
builder = QueueManagerBuilder().with_lane("work", config, 0)
manager = builder.with_max_stall(MAX_STALL).build()

@manager.command("block")
async def block(seconds: float, attempts: int) -> int:
    attempt = current_command().attempt
    print(f"start {attempt}", flush=True)
    if attempt <= attempts:
        time.sleep(seconds)
    print(f"end {attempt}", flush=True)
    return attempt
"""


def submit(url: str, seconds: float, attempts: int) -> None:
    """Submit a command that blocks its worker so long, so many times."""
    builder = QueueManagerBuilder().with_lane("work", LaneConfig(), 0).with_storage(url)
    manager = builder.build()

    @manager.command("block")
    async def block(seconds: float, attempts: int) -> int:
        raise NotImplementedError

    async def main() -> None:
        await manager.submit("work", block(seconds, attempts), key="k")
        await manager.close()

    asyncio.run(main())


def app(folder: Path, url: str, max_stall: str = "60") -> tuple[Path, str, str, str]:
    (folder / "app.py").write_text(APP.replace("MAX_STALL", max_stall), encoding="utf-8")
    return folder, "app:manager", "--store", url


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_worker_that_is_stuck_ends_and_another_takes_over(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        submit(url, 3600.0, 1)
        arguments = (*app(tmp_path, url, "3600"), "--max-stall", "2")
        with worker(*arguments, "--log-format", "json") as stuck:
            assert stuck.end() == 70
        lines = [json.loads(line) for line in stuck.told if line.startswith("{")]
        [given_up] = [line for line in lines if "has been stuck for" in line["message"]]
        assert (given_up["level"], given_up["command_type"], given_up["key"]) == (
            "error",
            "block",
            "k",
        )
        assert "app.py:" in given_up["message"]
        assert lines[-1]["message"].endswith("its event loop is stuck: exit code 70")
        assert "end 1" not in stuck.told
        with worker(*arguments) as next_one:
            next_one.hear("end 2")
            assert next_one.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("kind", ["sqlite"])
def test_the_leases_of_a_blocked_worker_that_is_killed_expire(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        submit(url, 3600.0, 1)
        arguments = app(tmp_path, url)
        with worker(*arguments) as blocked:
            blocked.hear("renewed by another thread")
            assert blocked.end(signal.SIGKILL) == -signal.SIGKILL
        with worker(*arguments) as next_one:
            next_one.hear("end 2")
            assert next_one.end(signal.SIGTERM) == 0
