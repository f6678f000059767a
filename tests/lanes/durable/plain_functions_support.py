"""What the tests of threads and processes of workers have in common."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.lanes.durable import plain_functions_worker
from tests.lanes.real_clock import PATIENCE, eventually, lives

ROOT = Path(__file__).resolve().parents[3]
LOST: Final = "commands lost"
RESULTS: Final = "results that are wrong"
ORPHANS: Final = "processes left behind"
ENDED_BADLY: Final = "workers that did not end as told"
WRONG: Final = (LOST, RESULTS, ORPHANS, ENDED_BADLY)
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


async def kill_and_interrupt(url: str, folder: Path) -> list[tuple[str, str]]:
    """Kill a worker with both in it, let another one take over, and press Ctrl-C there.

    Returns what is wrong, and in which words.
    """
    manager = plain_functions_worker.build(url)
    types: dict[str, Any] = dict(manager.queue().registry.types)
    handles = {
        name: await manager.submit("work", types[f"in_{name}"](str(folder), 1), key=name)
        for name in ("thread", "process")
    }
    complaints: list[tuple[str, str]] = []
    with worker(url) as killed:
        for name in handles:
            await eventually((folder / f"{name}-1.1").exists)
        killed.kill()
        killed.wait(PATIENCE)
    await _look_for_orphan(folder, "process-1.1", complaints)
    with worker(url) as second:
        for name in handles:
            await eventually((folder / f"{name}-1.2").exists)
        # Ctrl-C: the terminal sends it to the whole group of the worker.
        os.killpg(second.pid, signal.SIGINT)
        # systemd sends its signal to every process of the unit.
        os.kill(int((folder / "process-1.2").read_text()), signal.SIGTERM)
        await asyncio.sleep(0.2)
        (folder / "go on").touch()
        code = await asyncio.to_thread(second.wait, PATIENCE)
        if code:
            complaints.append((ENDED_BADLY, f"a worker was told to end, and ended with {code}"))
    await _look_for_orphan(folder, "process-1.2", complaints)
    for name, handle in handles.items():
        try:
            attempt = await handle.result(PATIENCE)
        except Exception as error:
            complaints.append((LOST, f"the command in a {name}: {error!r}"))
        else:
            if attempt < 2:
                complaints.append((RESULTS, f"the command in a {name} tells attempt {attempt}"))
    await manager.close()
    return complaints


async def _look_for_orphan(folder: Path, name: str, complaints: list[tuple[str, str]]) -> None:
    """A process of the pool ends with its worker, however that ends."""
    child = int((folder / name).read_text())
    try:
        await eventually(lambda: not lives(child))
    except TimeoutError:
        complaints.append((ORPHANS, f"{name} runs on as process {child}"))
