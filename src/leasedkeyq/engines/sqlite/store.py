"""The SQLite store: queues in one file, shared by threads and processes."""

import asyncio
import logging
import os
import random
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from leasedkeyq import checks
from leasedkeyq.engines.sqlite.inspection import Browse, Count, Heads, Look, Results, Sweep
from leasedkeyq.engines.sqlite.schema import (
    OLDEST_SQLITE,
    SOUND_SQLITE,
    SqliteDurability,
    explain,
    open_database,
    primary_code,
)
from leasedkeyq.engines.sqlite.transaction import AnyRequest, SqliteTransaction
from leasedkeyq.engines.sqlite.watch import CommitWatch, identity
from leasedkeyq.errors import LeasedKeyQError, StoreClosedError, StoreError
from leasedkeyq.model.admission import admitted
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Answer,
    Capabilities,
    Change,
    Claim,
    Claimed,
    Counts,
    EditWork,
    Limits,
    Page,
    Put,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.batching import ThreadBatcher, claims_of, submit_edit, take_back
from leasedkeyq.stores.paging import check_listing
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.watching import Watchers

logger = logging.getLogger("leasedkeyq")

BUSY_STEP: Final = (0.0003, 0.0015)
"""Seconds between two tries to write while another process does."""
MAY_ONLY_READ: Final = (Claim, Sweep, Count, Heads, Look, Browse, Results)
"""Requests that often have nothing to write."""
FAULTS_OF_THE_REQUEST: Final = frozenset(
    {
        0,  # of Python's module, such as a value that SQLite has no type for
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
    }
)

Committed: TypeAlias = tuple[list[Any], Callable[[], None]]
"""The answers of a transaction, and what tells everybody of it."""


class SqliteStore(Store):
    """Queues in a SQLite database, which any number of processes may use.

    One thread of each store object writes; whatever many callers ask for at a time goes into one
    transaction and one fsync. Opening blocks for some milliseconds. A store object must not be
    carried over a fork.

    Args:
        path: The database file. It is created if need be, its folder is not. Beside it SQLite
            keeps ``-wal`` and ``-shm`` files, which belong to it. Not on a network drive.
        durability: ``"full"``: what is acknowledged survives a loss of power. ``"normal"``:
            several times faster for few callers; it survives the end of the process, while a
            crash of the system or a loss of power may take the last moments. Neither damages the
            file.
        limits: How much the store takes.
        busy_timeout: Seconds to wait for other processes that write.
        clock: Unix time, for tests.

    Attributes:
        warnings: What the owner of this store should know, in plain sentences.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: SqliteDurability = "full",
        limits: Limits | None = None,
        busy_timeout: float = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise ValueError(f"durability must be 'full' or 'normal', got {durability!r}")
        _check_sqlite()
        self.path: Path = Path(path).absolute()
        self.limits: Limits = limits or Limits()
        self.capabilities: Capabilities = Capabilities(
            durability="power" if durability == "full" else "process", cross_process=True
        )
        self.warnings: list[str] = _warnings()
        self._durability: SqliteDurability = durability
        self._busy_timeout = checks.number("busy_timeout", busy_timeout, least=0)
        self._clock = clock or time.time
        self._latest = float("-inf")
        self._own_commits = 0
        self._seen_commits = 0
        self._closed = False
        self._connection: sqlite3.Connection | None = self._open(create=True)
        self._file = identity(self.path)
        name = f"SQLite store {self.path}"
        self._batcher: ThreadBatcher[AnyRequest, Any] = ThreadBatcher(
            self._apply, name=name, undo=take_back, at_end=self._disconnect
        )
        self._watchers = Watchers()
        self._watch = CommitWatch(
            self.path,
            others=lambda total: total - self._own_commits,
            wanted=lambda: bool(self._watchers),
            wake=self._watchers.wake_all,
        )

    # The contract

    async def put(self, requests: Sequence[Put]) -> list[tuple[int, ...] | LeasedKeyQError]:
        """As `StoreContract.put`."""
        return await admitted(requests, self.limits, self._batcher.submit_many)

    async def claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        """As `StoreContract.claim`."""
        return claims_of(await self._batcher.submit_many(requests))

    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        """As `StoreContract.settle`."""
        return await admitted(requests, self.limits, self._batcher.submit_many)

    async def edit(
        self, queue: str, work: EditWork, *, keys: Sequence[str] | None = None
    ) -> list[Answer]:
        """As `StoreContract.edit`."""
        return await submit_edit(self._batcher, Edit(queue, work, keys, self.limits))

    async def sweep(self, queues: Sequence[str]) -> list[float | None]:
        """As `StoreContract.sweep`."""
        seconds: list[float | None] = await self._read(Sweep(tuple(queues)))
        return seconds

    def watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """As `StoreContract.watch`."""
        if self._closed:
            raise StoreClosedError(f"the SQLite store {self.path} is closed")
        remove = self._watchers.add(queue, wake, asyncio.get_running_loop())
        self._watch.start(self._seen_commits)
        return remove

    async def count(self, queues: Sequence[str] | None = None) -> Mapping[str, Counts]:
        """As `StoreContract.count`."""
        counts: dict[str, Counts] = await self._read(
            Count(None if queues is None else tuple(queues))
        )
        return counts

    async def heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """As `StoreContract.heads`."""
        found: list[StoredItem | None] = await self._read(Heads(tuple(queues)))
        return found

    async def look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """As `StoreContract.look`."""
        found: list[tuple[StoredItem, ...]] = await self._read(Look(queue, tuple(keys)))
        return found

    async def browse(
        self,
        queue: str,
        *,
        states: Sequence[StoredState] = ("available", "scheduled", "in_flight", "buffered"),
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """As `StoreContract.browse`."""
        after = check_listing(states, prefix, cursor, limit)
        page: Page = await self._read(Browse(queue, tuple(states), prefix, after, limit))
        return page

    async def results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        """As `StoreContract.results`."""
        found: list[StoredItem | None] = await self._read(Results(queue, tuple(ids)))
        return found

    async def close(self) -> None:
        """As `StoreContract.close`."""
        self._closed = True
        self._watch.close()
        await self._batcher.close()
        self._watchers.wake_all()  # Who waits asks again, and hears that it is closed.

    async def _read(self, request: AnyRequest) -> Any:
        answer = await self._batcher.submit(request)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    # In the writer's thread

    def _apply(self, requests: list[AnyRequest]) -> list[Any]:
        """One transaction for all; if one of them cannot be stored at all, one for each."""
        try:
            answers, announce = self._transact(requests)
        except sqlite3.Error as error:
            if primary_code(error) not in FAULTS_OF_THE_REQUEST:
                raise explain(error, self.path) from error
            return self._apart(requests, error)
        except (TypeError, ValueError, OverflowError) as error:
            return self._apart(requests, error)
        # Not within the `try`: it is done, and no error makes it be done again.
        announce()
        return answers

    def _apart(self, requests: list[AnyRequest], error: Exception) -> list[Any]:
        if len(requests) > 1:
            return [self._alone(request) for request in requests]
        refusal = StoreError(f"{self.path}: the request cannot be stored: {error}")
        refusal.__cause__ = error
        return [refusal]

    def _alone(self, request: AnyRequest) -> Any:
        """One request; a failure is its answer, as others may have been stored before it."""
        try:
            return self._apply([request])[0]
        except StoreError as error:
            return error

    def _transact(self, requests: list[AnyRequest]) -> Committed:
        """Try until other processes let us, in short steps.

        SQLite's own steps grow to 100 ms, and whoever has waited long waits longest. A connection
        that was made while the file could not be written is replaced by a new one.

        Requests that often have nothing to write begin without the lock: consumers that wait on
        an empty queue must not hold up those who work. If there is something to write, SQLite
        takes the lock then. Where another process has written since this one began, it refuses
        that, and the transaction begins anew, with the lock.
        """
        begin = "BEGIN"
        if not all(isinstance(request, MAY_ONLY_READ) for request in requests):
            begin = "BEGIN IMMEDIATE"
        deadline: float | None = None
        renewed = False
        while True:
            try:
                return self._transact_once(requests, begin)
            except sqlite3.OperationalError as error:
                if _cannot_repeat(requests):
                    raise
                code = primary_code(error)
                if code == sqlite3.SQLITE_READONLY and not renewed:
                    renewed = True
                    continue
                if code != sqlite3.SQLITE_BUSY:
                    raise
                if begin == "BEGIN":
                    begin = "BEGIN IMMEDIATE"
                    continue
                now = time.monotonic()
                deadline = deadline or now + self._busy_timeout
                if now >= deadline:
                    raise
            time.sleep(random.uniform(*BUSY_STEP))

    def _transact_once(self, requests: list[AnyRequest], begin: str) -> Committed:
        connection = self._connected()
        own_commits = self._own_commits
        try:
            connection.execute(begin)
            transaction = SqliteTransaction(connection, self.limits, self._now())
            answers = transaction.apply_all(requests)
            changed = transaction.finish()
            self._own_commits += transaction.changed
            connection.execute("COMMIT")
        except BaseException as error:
            self._own_commits = own_commits
            self._roll_back(connection, error)
            raise
        return answers, partial(self._announce, transaction, changed)

    def _announce(self, transaction: SqliteTransaction, changed: set[str]) -> None:
        """Tell everybody what was committed."""
        if transaction.changed:
            self._check_file()
            self._watch.ring()
        self._seen_commits = transaction.commits + transaction.changed - self._own_commits
        self._watchers.wake(changed)
        for queue, key in transaction.dropped:
            logger.warning("queue %r: dropped the oldest buried item, key %r", queue, key)

    def _now(self) -> float:
        now = self._clock()
        if now > self._latest:
            self._latest = now
        return self._latest

    def _roll_back(self, connection: sqlite3.Connection, error: BaseException) -> None:
        """Leave no trace; after a failure of the disk or the file begin with a new connection."""
        broken = isinstance(error, sqlite3.Error) and primary_code(error) in (
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PROTOCOL,
        )
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            broken = True
        if broken:
            self._disconnect()

    # The file and the connection

    def _open(self, *, create: bool) -> sqlite3.Connection:
        return open_database(
            self.path,
            durability=self._durability,
            busy_timeout=self._busy_timeout,
            create=create,
        )

    def _connected(self) -> sqlite3.Connection:
        """The connection; a new one if it broke or if another file has taken its file's place."""
        found = identity(self.path)
        if self._connection is not None and found != self._file:
            if found == (0, 0):
                raise self._gone()
            self._disconnect()
        if self._connection is None:
            if found == (0, 0):
                raise self._gone()
            self._connection = self._open(create=False)
            self._file = identity(self.path)
        return self._connection

    def _check_file(self) -> None:
        """What was written to a file that has no name any more is not stored."""
        if identity(self.path) != self._file:
            raise self._gone()

    def _gone(self) -> StoreError:
        return StoreError(
            f"{self.path}: the database file was deleted or moved away; put it back and call "
            "again, or open a new store"
        )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _cannot_repeat(requests: list[AnyRequest]) -> bool:
    """The work of an edit is called once, whatever happens to the transaction afterwards."""
    return any(isinstance(request, Edit) and request.called for request in requests)


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        message = f"Python's SQLite is {sqlite3.sqlite_version}; the SQLite store needs {needed}"
        raise StoreError(message)


def _warnings() -> list[str]:
    if sqlite3.sqlite_version_info >= SOUND_SQLITE:
        return []
    sound = ".".join(map(str, SOUND_SQLITE))
    warning = (
        f"SQLite {sqlite3.sqlite_version} is older than {sound}: it has a rare bug in the reset of "
        "the write-ahead log that can damage a database which several connections write at a time"
    )
    return [warning]
