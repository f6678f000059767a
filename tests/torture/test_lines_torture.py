"""Every value of a key, in order: many workers that fail, hang and are killed, on every store.

Short in `make test`; under ``TORTURE=1`` 1,000 keys with 100 values, and the server is killed, too.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from leasedkeyq import connect
from tests.servers.postgres import PostgresServer
from tests.servers.urls import empty_store
from tests.servers.valkey import Server

TORTURE = os.environ.get("TORTURE") == "1"
ROOT = Path(__file__).resolve().parents[2]
KEYS, VALUES = (1000, 100) if TORTURE else (20, 10)
PROCESSES, TASKS = 4, 4
KILLS = 60 if TORTURE else 3
PATIENCE = 3600.0 if TORTURE else 90.0


class Workers:
    """Processes of workers that are replaced when they are killed."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self._url = url
        self._folder = folder
        self._seed = seed
        self._started = 0
        self.processes = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        notes = self._folder / f"notes-{self._started}"
        arguments = [self._url, str(notes), str(self._seed + self._started), str(TASKS)]
        command = [sys.executable, "-m", "tests.torture.line_worker", *arguments]
        return subprocess.Popen(command, cwd=ROOT)

    def kill_one(self, dice: random.Random) -> None:
        number = dice.randrange(PROCESSES)
        self.processes[number].kill()
        self.processes[number].wait()
        self.processes[number] = self._start()

    def notes(self) -> list[tuple[int, str, int]]:
        """All that was handed out, in the order of its leases."""
        found: list[tuple[int, str, int]] = []
        for path in self._folder.glob("notes-*"):
            for line in path.read_text().splitlines():
                fence, key, value = line.split()
                found.append((int(fence), key, int(value)))
        return sorted(found)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


async def append_all(url: str, seed: int) -> None:
    """Append all values, those of a key in order, the keys at random."""
    dice = random.Random(seed)
    left = {f"key-{number}": 0 for number in range(KEYS)}
    async with connect(url) as store:
        queue = store.queue("lines")
        while left:
            some = dice.sample(sorted(left), min(len(left), dice.randint(1, 50)))
            batch: list[tuple[str, int]] = []
            for key in some:
                for _ in range(dice.randint(1, 3)):
                    if left[key] < VALUES:
                        batch.append((key, left[key]))
                        left[key] += 1
                if left[key] == VALUES:
                    del left[key]
            await queue.put_many(batch, if_present="append")


async def left_over(url: str) -> int:
    async with connect(url) as store:
        counts = (await store.count(["lines"]))["lines"]
        return counts.available + counts.scheduled + counts.in_flight


def check_order(notes: list[tuple[int, str, int]]) -> None:
    """Of each key: every value, none before the one before it, and none again after the next."""
    got: dict[str, list[int]] = {}
    for _, key, value in notes:
        got.setdefault(key, []).append(value)
    assert len(got) == KEYS
    for key, values in got.items():
        assert values == sorted(values), f"{key} is out of order: {values}"
        assert set(values) == set(range(VALUES)), f"{key} has lost values"


@contextmanager
def a_server(kind: str, folder: Path) -> Generator[tuple[str, Callable[[], None]]]:
    """A store of its own, and what kills its server and starts it again."""
    if kind == "redis":
        with Server("--appendonly", "yes", "--appendfsync", "always") as server:

            def restart_redis() -> None:
                server.kill()
                server.start()

            yield server.url, restart_redis
    elif kind == "postgresql":
        postgres = PostgresServer()

        def restart_postgres() -> None:
            postgres.kill()
            postgres.start()

        try:
            yield postgres.url, restart_postgres
        finally:
            postgres.remove()
    else:
        with empty_store(kind, folder) as url:
            yield url, lambda: None


@pytest.mark.parametrize("seed", range(3 if TORTURE else 1))
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "redis"])
def test_every_value_of_a_key_in_order(kind: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    with ExitStack() as running:
        url, restart_server = running.enter_context(a_server(kind, tmp_path))
        asyncio.run(append_all(url, seed))
        workers = Workers(url, tmp_path, seed)
        running.callback(workers.close)
        deadline = time.monotonic() + PATIENCE
        for number in range(KILLS):
            time.sleep(dice.uniform(0.2, 0.8))
            workers.kill_one(dice)
            if TORTURE and number % 10 == 9:
                restart_server()
        while asyncio.run(left_over(url)):
            assert time.monotonic() < deadline, "the queue does not become empty"
            time.sleep(0.2)
    check_order(workers.notes())
