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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Protocol, Self

import msgspec

from leasedkeyq import connect
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.model.requests import Ack, Claim, Counts, StoredItem, StoredState
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import Place
from tests.engines.kill_facts import (
    QUEUE,
    Arrived,
    Fact,
    LifeName,
    Plan,
    clock,
    read_journal,
    server_clock,
)
from tests.engines.kill_judge import DAMAGED, FAILED, Complaint, Found, Judge
from tests.engines.kill_points import FILE_POINTS, SERVER_POINTS, SQLITE_POINTS
from tests.engines.kill_worker import Order, Start, Status, Wait
from tests.servers.postgres import Schemas, run_sql, shared_server
from tests.servers.valkey import Server

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
"""Seconds for anything to happen, on a machine however busy."""
FAR = 1e5
"""Seconds from now when all leases have expired and results are still kept."""
WAITING: tuple[StoredState, ...] = ("available", "scheduled", "in_flight", "buffered")

EDIT_TIME = 0.5
"""Seconds after which Redis lets others go on where an editor was killed."""

Kind = Literal["sqlite-full", "sqlite-normal", "yaml", "json", "postgres", "redis"]


class Nursery:
    """A process that starts others, and takes them all with it when it ends.

    Args:
        errors: What they say is written there.
        engines: It imports these before it starts others.
        environment: Of all of them; None: that of this process.
        root: The folder with the tests whose workers they are.
    """

    def __init__(
        self,
        errors: Path,
        engines: Iterable[str],
        *,
        environment: Mapping[str, str] | None = None,
        root: Path = ROOT,
    ) -> None:
        self.errors = errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.kill_worker", *engines],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=root,
                env=environment,
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
    ended: bool = False

    def send(self, number: int) -> None:
        os.kill(self.process, number)

    def facts(self) -> list[Fact]:
        return read_journal(Path(self.plan.journal))


class Ground(Protocol):
    """Where stores are that processes share."""

    def store(self, place: Place) -> tuple[str, dict[str, Any]]:
        """The URL of a new store, and what else `connect` needs."""
        ...

    def is_quiet(self, place: Place) -> bool:
        """Whether nothing is under way in that store that somebody asked for before."""
        ...

    def close(self) -> None: ...


class DiskGround:
    """A file of its own for each store."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def store(self, place: Place) -> tuple[str, dict[str, Any]]:
        if self._kind in ("yaml", "json"):
            return f"file://{place.folder}/queue.{self._kind}", {}
        durability = self._kind.removeprefix("sqlite-")
        return f"sqlite:///{place.folder}/queue.db", {"durability": durability}

    def is_quiet(self, place: Place) -> bool:
        return True

    def close(self) -> None:
        pass


class PostgresGround:
    """A schema for each store, on the server of this process."""

    def __init__(self) -> None:
        self._url = shared_server().url
        self._schemas = Schemas(self._url)

    def store(self, place: Place) -> tuple[str, dict[str, Any]]:
        schema = self._schemas.borrow(place)
        return f"{self._url}?application_name={place.name}", {"schema": schema}

    def is_quiet(self, place: Place) -> bool:
        """The server goes on for a moment with what the dead have asked for."""
        sql = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{place.name}'"
        many: int = run_sql(self._url, sql)
        return many == 0

    def close(self) -> None:
        pass


class RedisGround:
    """A prefix for each store, on a server that syncs each write before it answers."""

    def __init__(self) -> None:
        self._server = Server("--appendonly", "yes", "--appendfsync", "always")

    def store(self, place: Place) -> tuple[str, dict[str, Any]]:
        return self._server.url, {"prefix": place.name, "edit_time": EDIT_TIME}

    def is_quiet(self, place: Place) -> bool:
        with self._server.client() as client:
            return len(client.client_list()) == 1

    def close(self) -> None:
        self._server.close()


def new_ground(kind: Kind) -> Ground:
    if kind == "postgres":
        return PostgresGround()
    return RedisGround() if kind == "redis" else DiskGround(kind)


class Arena:
    """One store, the processes that work on it, and their notes.

    When it is left all processes are dead. What was wrong is in `complaints`; a process that has
    said a word is, too.

    Args:
        kind: Of the store.
        seed: Decides about all that is random.
        ground: Where the store is; one of its own if there is none.
        nursery: Starts the processes; one of its own if there is none.
    """

    def __init__(
        self,
        kind: Kind,
        seed: int = 0,
        *,
        ground: Ground | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        self.dice = random.Random(f"{kind} {seed}")
        self.kind: Kind = kind
        self.place = Place()
        self.folder = self.place.folder
        self.on_server = kind in ("postgres", "redis")
        self.clock = server_clock if self.on_server else clock
        self.lives: list[Life] = []
        self.complaints: list[Complaint] = []
        if self.on_server:
            self.points = SERVER_POINTS
        else:
            self.points = FILE_POINTS if kind in ("yaml", "json") else SQLITE_POINTS
        self._ground = ground or new_ground(kind)
        self._nursery = nursery or Nursery(self.folder / "errors", [engine_of(kind)])
        self._to_close = [
            own.close
            for own, given in ((self._nursery, nursery), (self._ground, ground))
            if given is None
        ]
        self._said = self._nursery.errors.stat().st_size
        self._url, self._options = self._ground.store(self.place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for life in self.lives:
            # If something went wrong, one may have ended by itself.
            while not life.ended:
                life.send(signal.SIGKILL)
                self.wait(life)
        said = self._nursery.errors.read_bytes()[self._said :].decode()
        if said:
            self.complaints.append(Complaint(FAILED, said))
        if error is not None:
            error.add_note(f"the processes said:\n{said}")
        self.place.close()
        for close in self._to_close:
            close()

    @property
    def path(self) -> Path:
        """The file of a store on a disk."""
        return self.folder / (
            "queue.db" if self.kind.startswith("sqlite") else f"queue.{self.kind}"
        )

    def open(self, moment: float | None = None) -> Store:
        """The store; at one moment that does not pass, or with the clock of the processes."""
        options = dict(self._options)
        if self.kind.startswith("sqlite"):
            options["busy_timeout"] = PATIENCE
        if moment is not None:
            options["clock"] = lambda: moment
        elif not self.on_server:
            options["clock"] = clock
        return connect(self._url, **options)

    def complain(self, words: str) -> None:
        self.complaints.append(Complaint(DAMAGED, words))

    # Processes

    def start(self, life: LifeName, **plan: Any) -> Life:
        name = f"p{len(self.lives)}"
        whole = Plan(
            url=self._url,
            options=self._options,
            journal=str(self.folder / f"{name}.journal"),
            name=name,
            life=life,
            seed=self.dice.randrange(10**9),
            checkpoint=self.dice.choice((1000, 1000, 10)),
            **plan,
        )
        started = Life(self._nursery.ask(Start(whole)).process, whole)
        self.lives.append(started)
        return started

    def wait(self, life: Life) -> Status:
        """Wait until a process has ended or stopped."""
        status = self._nursery.ask(Wait(life.process))
        life.ended = not status.stopped
        return status

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

    def wave(self, points: Sequence[str]) -> None:
        """Kill processes at these points, and another one at random."""
        most = 12 if self.on_server else 60 if self.kind.startswith("sqlite") else 20
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
        await store.sweep([QUEUE])
        await browse(store, WAITING)
        if isinstance(store, FileStore) and store.warnings:
            self.complain(f"the store warns: {store.warnings}")
        await store.close()
        if self.kind.startswith("sqlite"):
            connection = sqlite3.connect(self.path)
            answer = connection.execute("PRAGMA integrity_check").fetchall()
            if answer != [("ok",)]:
                self.complain(f"integrity_check: {answer}")
            connection.close()
        damaged = list(self.folder.glob("*damaged*"))
        if damaged:
            self.complain(f"the store has set aside {damaged}")

    def judge(self, *, by_key: bool = False) -> Judge:
        """Compare what was noted with what is there; then the store must serve all that is left.

        All processes are dead. `by_key`: each key was put once, and stands for its item.
        """
        assert all(life.ended for life in self.lives), "a process is not dead"
        deadline = time.monotonic() + PATIENCE
        while not self._ground.is_quiet(self.place):
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not notice that processes are dead")
            time.sleep(0.01)
        judge = Judge((life.facts() for life in self.lives), one_writer=self.kind != "postgres")
        asyncio.run(self._judge(judge, by_key))
        return judge

    async def _judge(self, judge: Judge, by_key: bool) -> None:
        await self._inspect()
        now = self.clock()
        store = self.open(now)
        left = await browse(store, WAITING)
        done = {str(i.id): int(i.value) for i in await browse(store, ("done",))}
        found = [
            Found(i.key if by_key else str(i.id), i.key, i.value.decode()[1:-1], i.attempt)
            for i in left
        ]
        self.complaints += judge.verdict(found, done, now)
        counts = (await store.count([QUEUE]))[QUEUE]
        if counts != _tally(left, len(done)):
            self.complain(f"the store counts {counts}, and holds {left}")
        await store.close()
        await self._drain({item.key for item in left})

    async def _drain(self, keys: set[str]) -> None:
        """Each key that is left can be had once its lease has expired, and settled."""
        store = self.open(self.clock() + FAR)
        (claimed,) = await store.claim([Claim(((QUEUE, 100_000),), 100_000)])
        if Counter(item.key for item in claimed) != Counter(keys):
            self.complain(f"{keys} are left, and {claimed} can be had")
        answers = await store.settle([Ack(QUEUE, item.key, item.token) for item in claimed])
        if answers != [None] * len(claimed):
            self.complain(f"what was left was claimed, and the acks were answered {answers}")
        rest = await browse(store, WAITING)
        if rest:
            self.complain(f"all was acknowledged, and {rest} is there")
        await store.close()


class Site:
    """A nursery, and where stores are, for many rounds."""

    def __init__(self, kinds: Sequence[Kind], folder: Path) -> None:
        self._kinds = kinds
        self._errors = folder / "errors"
        self._grounds = {kind: new_ground(kind) for kind in dict.fromkeys(kinds)}
        self._nursery = self._new_nursery()

    def _new_nursery(self) -> Nursery:
        return Nursery(self._errors, {engine_of(kind) for kind in self._kinds})

    def begin_anew(self) -> None:
        """After something went wrong: with another nursery."""
        self._nursery.close()
        self._nursery = self._new_nursery()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nursery.close()
        for ground in self._grounds.values():
            ground.close()

    def arena(self, seed: int) -> Arena:
        """For a round; the kinds of stores take turns."""
        kind = self._kinds[seed % len(self._kinds)]
        return Arena(kind, seed, ground=self._grounds[kind], nursery=self._nursery)


def engine_of(kind: Kind) -> str:
    if kind in ("yaml", "json"):
        return "file"
    return kind.partition("-")[0]


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
