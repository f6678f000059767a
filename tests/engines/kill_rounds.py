"""Processes on one store that are killed, and what is checked when they are dead."""

import asyncio
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import msgspec

from leasedkeyq import connect
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.model.requests import Ack, Claim, Counts, StoredItem, StoredState
from leasedkeyq.stores.store import Store
from tests.engines.kill_facts import QUEUE, Arrived, Fact, Plan, clock, read_journal
from tests.engines.kill_judge import Found, Judge
from tests.engines.kill_points import FILE_POINTS, SQLITE_POINTS
from tests.engines.kill_worker import Order, Start, Status, Wait

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
"""Seconds for anything to happen, on a machine however busy."""
FAR = 1e5
"""Seconds from now when all leases have expired and results are still kept."""
WAITING: tuple[StoredState, ...] = ("available", "scheduled", "in_flight", "buffered")

Kind = Literal["sqlite-full", "sqlite-normal", "yaml", "json"]


class Nursery:
    """A process that starts others, and takes them all with it when it ends."""

    def __init__(self, errors: Path) -> None:
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.kill_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=ROOT,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin
        self._answers = self._process.stdout

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._orders.close()
        self._answers.close()

    def ask(self, order: Order) -> Status:
        os.write(self._orders.fileno(), msgspec.json.encode(order) + b"\n")
        return msgspec.json.decode(_line(self._answers), type=Status)


def _line(pipe: IO[bytes]) -> bytes:
    """The line that comes next, within reasonable time."""
    line = b""
    deadline = time.monotonic() + PATIENCE
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            raise TimeoutError("a process neither ended nor stopped")
        more = os.read(pipe.fileno(), 65536)
        if not more:
            raise EOFError("the nursery has gone")
        line += more
    return line


@dataclass
class Life:
    """A process; its number is its own until it was waited for."""

    process: int
    plan: Plan

    def send(self, number: int) -> None:
        os.kill(self.process, number)

    def facts(self) -> list[Fact]:
        return read_journal(Path(self.plan.journal))


class Arena:
    """One store, the processes that work on it, and their notes.

    When it is left all processes are dead, and none of them must have said a word.
    """

    def __init__(self, folder: Path, kind: Kind, seed: int = 0) -> None:
        self.dice = random.Random(f"{kind} {seed}")
        self.folder = folder
        self.kind: Kind = kind
        self.path = folder / (f"queue.{kind}" if kind in ("yaml", "json") else "queue.db")
        self.on_sqlite = self.path.suffix == ".db"
        self.points = SQLITE_POINTS if self.on_sqlite else FILE_POINTS
        self.lives: list[Life] = []
        self._url = f"sqlite:///{self.path}" if self.on_sqlite else f"file://{self.path}"
        self._errors = folder / "errors"
        self._nursery = Nursery(self._errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nursery.close()
        said = self._errors.read_text()
        if error is not None:
            error.add_note(f"the processes said:\n{said}")
        else:
            assert said == ""

    def open(self, moment: float | None = None) -> Store:
        """The store; at one moment that does not pass, or with the clock of the processes."""
        options: dict[str, Any] = {"busy_timeout": PATIENCE} if self.on_sqlite else {}
        if moment is not None:
            return connect(self._url, clock=lambda: moment, **options)
        return connect(self._url, clock=clock, **options)

    # Processes

    def start(self, life: Literal["requests", "queue", "holder"], **plan: Any) -> Life:
        name = f"p{len(self.lives)}"
        whole = Plan(
            url=self._url,
            journal=str(self.folder / f"{name}.journal"),
            name=name,
            life=life,
            seed=self.dice.randrange(10**9),
            durability="normal" if self.kind == "sqlite-normal" else "full",
            checkpoint=self.dice.choice((1000, 1000, 10)),
            **plan,
        )
        started = Life(self._nursery.ask(Start(whole)).process, whole)
        self.lives.append(started)
        return started

    def wait(self, life: Life) -> Status:
        """Wait until a process has ended or stopped."""
        return self._nursery.ask(Wait(life.process))

    def kill(self, life: Life) -> None:
        life.send(signal.SIGKILL)
        status = self.wait(life)
        while status.stopped:
            status = self.wait(life)
        assert status.code == -signal.SIGKILL, status

    def dies(self, life: Life) -> None:
        """Wait until a process has died at its point."""
        status = self.wait(life)
        assert status.code in (-signal.SIGKILL, -signal.SIGXFSZ), (status, life.plan)
        assert Arrived(life.plan.point) in life.facts(), life.plan

    def series(self) -> None:
        """Rounds that together have every point."""
        points = self.dice.sample(self.points, len(self.points))
        while points:
            self.round([points.pop(), points.pop() if points else self.dice.choice(self.points)])
            # What the dead left behind is dealt with by the next ones, or by this process.
            if self.dice.random() < 0.5:
                self.inspect()

    def round(self, points: Sequence[str]) -> None:
        """Kill processes at these points, and another one at random."""
        most = 60 if self.on_sqlite else 20
        doomed = [
            self.start(
                "requests", point=point, count=self.dice.randint(1, most), signal=signal.SIGKILL
            )
            for point in points
        ]
        other = self.start("requests")
        for life in doomed:
            self.dies(life)
        time.sleep(self.dice.random() * 0.03)
        self.kill(other)

    # Afterwards

    def inspect(self) -> None:
        """The store opens cleanly, and can be looked at."""
        asyncio.run(self._inspect())

    async def _inspect(self) -> None:
        store = self.open()
        await browse(store, WAITING)
        if isinstance(store, FileStore):
            assert store.warnings == []
        await store.close()
        if self.on_sqlite:
            connection = sqlite3.connect(self.path)
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.close()
        assert not list(self.folder.glob("*damaged*"))

    def judge(self, *, by_key: bool = False) -> Judge:
        """Compare what was noted with what is there; then the store must serve all that is left.

        `by_key`: each key was put once, and stands for its item.
        """
        judge = Judge(life.facts() for life in self.lives)
        asyncio.run(self._judge(judge, by_key))
        return judge

    async def _judge(self, judge: Judge, by_key: bool) -> None:
        await self._inspect()
        now = clock()
        store = self.open(now)
        left = await browse(store, WAITING)
        done = {str(i.id): int(i.value) for i in await browse(store, ("done",))}
        found = [
            Found(i.key if by_key else str(i.id), i.key, i.value.decode()[1:-1], i.attempt)
            for i in left
        ]
        complaints = judge.verdict(found, done, now)
        assert not complaints, "\n".join(complaints)
        counts = (await store.count([QUEUE]))[QUEUE]
        assert counts == _tally(left, len(done)), (counts, left)
        await store.close()
        await self._drain({item.key for item in left})

    async def _drain(self, keys: set[str]) -> None:
        """Each key that is left can be had once its lease has expired, and settled."""
        store = self.open(clock() + FAR)
        (claimed,) = await store.claim([Claim(((QUEUE, 100_000),), 100_000)])
        assert Counter(item.key for item in claimed) == Counter(keys), (claimed, keys)
        answers = await store.settle([Ack(QUEUE, item.key, item.token) for item in claimed])
        assert answers == [None] * len(keys)
        assert not await browse(store, WAITING)
        await store.close()


async def browse(store: Store, states: Sequence[StoredState]) -> list[StoredItem]:
    items: list[StoredItem] = []
    cursor: str | None = None
    while True:
        page = await store.browse(QUEUE, states=states, cursor=cursor, limit=1000)
        items += page.items
        cursor = page.cursor
        if cursor is None:
            return items


def _tally(left: Sequence[StoredItem], done: int) -> Counts:
    states = Counter(item.state for item in left)
    return Counts(
        available=states["available"] + states["buffered"],
        scheduled=states["scheduled"],
        in_flight=states["in_flight"],
        done=done,
    )
