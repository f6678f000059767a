"""Real processes for tests that watch a store: a worker with something to do, and commands."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from tests.forks import Program, Python

PATIENCE = 60.0
"""Seconds that anything may take on a busy machine."""


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, **more}


@contextmanager
def lively_worker(url: str) -> Generator[Program]:
    """A worker in a process of its own, until the end of a test."""
    worker = Program("tests.cli.lively_worker", url)
    try:
        assert worker.stdout.readline() == "ready\n"
        yield worker
    finally:
        worker.kill()
        worker.wait(PATIENCE)
        worker.stdout.close()


@contextmanager
def command(*words: str, **options: str) -> Generator[subprocess.Popen[str]]:
    """A command in a process of its own, until the end of a test."""
    process = Python(
        *("-m", "leasedkeyq", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**options),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
