"""Workers whose event loops are blocked, as processes, on every store: under ``TORTURE=1`` only.

Otherwise tests/cli/test_stuck_worker.py and tests/lanes/durable/test_lease_guard.py have it.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli import test_stuck_worker
from tests.cli.test_stuck_worker import app, submit
from tests.cli.test_worker import Worker, worker
from tests.servers.urls import KINDS, empty_store
from tests.servers.valkey import Server

TORTURE = os.environ.get("TORTURE") == "1"
BLOCKED = 30.0
"""Seconds. Leases last 6."""
STOPPED = 30.0
"""Seconds for which a process is stopped: longer than its leases, and than it may be stuck."""


if TORTURE:

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_two_processes_one_runs_a_command_that_blocks(kind: str, tmp_path: Path) -> None:
        with empty_store(kind, tmp_path) as url:
            arguments = app(tmp_path, url)
            with worker(*arguments) as one, worker(*arguments) as other:
                for process in (one, other):
                    process.hear("running the lanes")
                submit(url, BLOCKED, 100)
                deadline = time.monotonic() + BLOCKED + 60
                while not any(_has_told(process, "end 1") for process in (one, other)):
                    assert time.monotonic() < deadline, (one.told, other.told)
                    time.sleep(0.1)
                assert [one.end(signal.SIGTERM), other.end(signal.SIGTERM)] == [0, 0]
            told = [line for line in one.told + other.told if line.startswith(("start", "end "))]
            assert told == ["start 1", "end 1"]

    def test_a_worker_that_was_stopped_is_not_taken_for_stuck(tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        submit(url, 2.0, 1)
        with worker(*app(tmp_path, url, max_stall="5")) as process:
            process.hear("start 1")
            process.process.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED)
            process.process.send_signal(signal.SIGCONT)
            process.hear("end 1")
            # Its lease has ended, which it sees: so the command runs once more, and that counts.
            process.hear("end 2")
            assert process.end(signal.SIGTERM) == 0
            assert not [line for line in process.told if "stuck" in line]

    def test_a_server_that_is_killed_while_a_worker_is_blocked(tmp_path: Path) -> None:
        with Server("--appendonly", "yes", "--appendfsync", "always") as server:
            submit(server.url, BLOCKED, 1)
            with worker(*app(tmp_path, server.url)) as blocked:
                blocked.hear("renewed by another thread")
                server.kill()
                time.sleep(2)
                server.start()
                blocked.hear("end 1")
                assert blocked.end(signal.SIGTERM) == 0
                assert "start 2" not in blocked.told
                assert [line for line in blocked.told if "the server is away" in line]

    @pytest.mark.parametrize("kind", KINDS[1:])
    def test_a_worker_that_is_stuck_ends_and_another_takes_over(kind: str, tmp_path: Path) -> None:
        test_stuck_worker.test_a_worker_that_is_stuck_ends_and_another_takes_over(kind, tmp_path)

    @pytest.mark.parametrize("kind", KINDS[1:])
    def test_the_leases_of_a_blocked_worker_that_is_killed_expire(
        kind: str, tmp_path: Path
    ) -> None:
        test_stuck_worker.test_the_leases_of_a_blocked_worker_that_is_killed_expire(kind, tmp_path)


def _has_told(process: Worker, line: str) -> bool:
    while not process.lines.empty():
        process.told.append(process.lines.get())
    return line in process.told
