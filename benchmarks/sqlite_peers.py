"""Other queues on SQLite, as callers use them one job at a time. What drains is elsewhere."""

from importlib import import_module
from time import sleep
from typing import Any

from benchmarks.server_workloads import Library

PATIENCE = 60.0
"""Seconds that huey waits for a lock of SQLite."""
LOOK = 0.001
"""Seconds between two looks for a job: litequeue has nothing that waits for one."""


class LiteQueue(Library):
    """Its worker looks for jobs all the time.

    Options:
        full: Whether a job that was put survives a loss of power, which is not its default.
    """

    in_threads = True
    _queue: Any

    def _open(self) -> None:
        self._queue = import_module("litequeue").LiteQueue(self.url.removeprefix("sqlite:///"))
        if self.options.get("full"):
            self._queue.conn.execute("PRAGMA synchronous = FULL")

    async def open(self) -> None:
        self._open()

    def put_now(self, number: int) -> None:
        self._queue.put(str(number))

    def work(self, concurrency: int) -> None:
        del concurrency
        self._open()
        while True:
            message = self._queue.pop()
            if message is None:
                sleep(LOOK)
                continue
            self.note(int(message.data))
            self._queue.done(message.message_id)


class Huey(Library):
    """Each thread has a connection of its own.

    Options:
        full: Whether a job that was put survives a loss of power, which is not its default.
    """

    in_threads = True
    _job: Any

    async def open(self) -> None:
        full = bool(self.options.get("full"))
        path = self.url.removeprefix("sqlite:///")
        huey: Any = import_module("huey").SqliteHuey(filename=path, timeout=PATIENCE, fsync=full)

        def job(number: int) -> None:
            self.note(number)

        self._job = huey.task(name="job")(job)

    def put_now(self, number: int) -> None:
        self._job(number)

    def work(self, concurrency: int) -> None:
        raise NotImplementedError
