"""Commands in threads and processes for the tests of workers that are killed."""

import os
import time
from pathlib import Path

from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, current_command
from tests.lanes.real_clock import PATIENCE

LEASE = 5.0


def in_thread(folder: str, number: int) -> int:
    return _wait(Path(folder), f"thread-{number}")


def in_process(folder: str, number: int) -> int:
    return _wait(Path(folder), f"process-{number}")


def _wait(folder: Path, name: str) -> int:
    """Tells its process, and waits until it may go on; returns which attempt this is."""
    attempt = current_command().attempt
    unfinished = folder / f".{name}.{attempt}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / f"{name}.{attempt}")
    deadline = time.monotonic() + PATIENCE
    while not (folder / "go on").exists() and not current_command().cancelled:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return attempt


def build(url: str) -> QueueManager:
    config = LaneConfig(0, 4, lease_time=LEASE, cancel_grace=1.0)
    builder = QueueManagerBuilder().with_lane("work", config, 0).with_storage(url)
    manager = builder.with_drain_timeout(PATIENCE).build()
    manager.command("in_thread", in_thread)
    manager.command("in_process", in_process, run_in="process")
    return manager


def worker() -> QueueManagerBuilder | QueueManager:
    """For ``python -m leasedkeyq worker``: the store is that of the variable ``STORE``."""
    return build(os.environ["STORE"])
