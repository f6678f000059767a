"""Supervised workers that are killed at any moment, and replaced after a few commands."""

import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.test_worker import APP, PATIENCE, command, producer, worker
from tests.servers.urls import KINDS, empty_store

COMMANDS = 400 if os.environ.get("TORTURE") else 20
KILLS = 12 if os.environ.get("TORTURE") else 1
STARTED = re.compile(r"started worker \d+ \(process (\d+)\)")


@pytest.mark.parametrize("kind", KINDS if os.environ.get("TORTURE") else ("sqlite",))
def test_no_command_is_lost_with_its_process(kind: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    chance = random.Random(kind)
    with empty_store(kind, tmp_path) as url:
        arguments = ("app:manager", "--store", url, "--processes", "3", "--max-commands", "40")
        with worker(tmp_path, *arguments) as supervisor, producer(url) as (runner, manager):
            supervisor.hear("running the lanes")
            handles = [
                runner.run(manager.submit("work", command(manager, "work", number, 0.05)))
                for number in range(COMMANDS)
            ]
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.1, 1.0))
                while not supervisor.lines.empty():
                    supervisor.told.append(supervisor.lines.get())
                started = [int(one[1]) for one in map(STARTED.search, supervisor.told) if one]
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(started[-3:]), signal.SIGKILL)
            for number, handle in enumerate(handles):
                assert runner.run(handle.result(3 * PATIENCE)) == 2 * number
            # One that was killed in the last moment makes it a 1.
            assert supervisor.end(signal.SIGTERM) in (0, 1)
            assert runner.run(manager.stats()).total_pending == 0
