"""What the tests of threads and processes of workers have in common."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lanes.durable import plain_functions_worker
from tests.lanes.real_clock import PATIENCE, eventually, lives

ROOT = Path(__file__).resolve().parents[3]
TARGET = "tests.lanes.durable.plain_functions_worker:worker"


@contextmanager
def worker(url: str) -> Generator["subprocess.Popen[bytes]"]:
    """A worker at a terminal of its own, as far as signals go."""
    command = [sys.executable, "-m", "leasedkeyq", "worker", TARGET, "--log-level", "error"]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"STORE": url}, process_group=0)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


async def kill_and_interrupt(url: str, folder: Path) -> None:
    """Kill a worker with both in it, let another one take over, and press Ctrl-C there."""
    manager = plain_functions_worker.build(url)
    types: dict[str, Any] = dict(manager.queue().registry.types)
    handles = [
        await manager.submit("work", types["in_thread"](str(folder), 1), key="thread"),
        await manager.submit("work", types["in_process"](str(folder), 1), key="process"),
    ]
    with worker(url) as killed:
        for name in ("thread-1.1", "process-1.1"):
            await eventually((folder / name).exists)
        killed.kill()
        killed.wait(PATIENCE)
    child = int((folder / "process-1.1").read_text())
    await eventually(lambda: not lives(child))
    with worker(url) as second:
        for name in ("thread-1.2", "process-1.2"):
            await eventually((folder / name).exists)
        # Ctrl-C: the terminal sends it to the whole group of the worker.
        os.killpg(second.pid, signal.SIGINT)
        # systemd sends its signal to every process of the unit.
        os.kill(int((folder / "process-1.2").read_text()), signal.SIGTERM)
        await asyncio.sleep(0.2)
        (folder / "go on").touch()
        assert await asyncio.to_thread(second.wait, PATIENCE) == 0
    assert not lives(int((folder / "process-1.2").read_text()))
    for handle in handles:
        assert await handle >= 2
    await manager.close()
