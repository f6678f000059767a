"""The SQLite store: queues in one file, shared by threads and processes."""

import os
import random
import sqlite3
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

from leasedkeyq import checks
from leasedkeyq.engines.sqlite.diagnosis import (
    LOG_RESET_BUG,
    DatabaseExamination,
    Diagnosis,
    SchemaExamination,
)
from leasedkeyq.engines.sqlite.inspection import (
    Browse,
    Count,
    Heads,
    LinePage,
    Look,
    Results,
    Sweep,
)
from leasedkeyq.engines.sqlite.log_file import LogFile
from leasedkeyq.engines.sqlite.schema import (
    NOT_SYNCED,
    OLDEST_SQLITE,
    SOUND_SQLITE,
    SYNCED,
    VERSION,
    SqliteDurability,
    check_version,
    explain,
    open_database,
    primary_code,
    version_of,
)
from leasedkeyq.engines.sqlite.transaction import (
    MustSyncError,
    SqliteRequest,
    SqliteTransaction,
    TooMuchError,
)
from leasedkeyq.engines.sqlite.watch import CommitWatch, identity
from leasedkeyq.errors import StoreError
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.findings import Finding, SchemaState
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Capabilities,
    Claim,
    Counts,
    Discard,
    Extend,
    Limits,
    Put,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.batched_store import BatchedStore
from leasedkeyq.stores.batching import SpoiledBatchError, ThreadBatcher, undo_claim
from leasedkeyq.stores.closable import outdated
from leasedkeyq.stores.store import report_dropped
from leasedkeyq.stores.system.forks import forks

BUSY_STEP: Final = (0.0003, 0.0015)
"""Seconds between two tries to write while another process does."""
FORK_PATIENCE: Final = 5.0
"""Seconds for which a fork waits for a transaction that is under way."""
QUICK: Final = 0.001
"""Seconds for which an event loop may stand still while it commits a transaction itself."""
SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 10.0
"""Seconds for which the thread commits everything after a commit in an event loop was slow."""
FEW: Final = 4
"""So many requests are a transaction that an event loop commits itself."""
MOST_HERE: Final = 200
"""So many commits in event loops go without writing the log back into the database, which may take
tens of milliseconds. The next one is the thread's, and does it."""
CHECKPOINT_AT: Final = "PRAGMA wal_autocheckpoint"
FEW_ITEMS: Final = 16
FEW_BYTES: Final = 65536
"""So many items, with values of so many bytes together, may be in one of them."""
MAY_ONLY_READ: Final = (Claim, Sweep, Count, Heads, Look, LinePage, Browse, Results)
"""Requests that often have nothing to write."""
MAY_BE_LOST: Final = (*MAY_ONLY_READ, Extend)
"""Requests whose effects a loss of power may take: leases end with it, as their holders do."""
SMALL: Final = (Release, Extend, Bury, Requeue, Discard, Sweep)
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


class SqliteStore(BatchedStore):
    """Queues in a SQLite database, which any number of processes may use.

    One thread of each store object writes; whatever many callers ask for at a time goes into one
    transaction and one fsync. What a caller asks for alone is written by its own event loop, as
    long as that stops the loop for less than a millisecond. Opening blocks for some milliseconds. A
    store object belongs to its process: the file is closed while that forks, and the new process
    opens a store of its own.

    Args:
        path: The database file. It is created if need be, its folder is not. Beside it SQLite
            keeps ``-wal`` and ``-shm`` files, which belong to it. Not on a network drive.
        durability: ``"full"``: what is acknowledged survives a loss of power. ``"normal"``:
            several times faster for few callers; it survives the end of the process, while a
            crash of the system or a loss of power may take the last moments. Neither damages the
            file.
        limits: How much the store takes.
        busy_timeout: Seconds to wait for other processes that write.
        sync_claims: Whether claims and extensions of leases survive a loss of power, too. A claim
            that is lost is as if it had not been made: the item is available again, and the
            attempt is not counted. That is what a worker on this machine wants, whose work ends
            with the power; and a claim is several times faster. Have it synced if leases are handed
            on to other machines, or if an attempt that brings down the machine has to count.
        migrate: Bring tables of an older version up to date. With False nothing is made or changed
            by opening, and a store of an older version refuses all but `schema_state` and
            `diagnose`.
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
        sync_claims: bool = False,
        migrate: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise ValueError(f"durability must be 'full' or 'normal', got {durability!r}")
        if sync_claims and durability != "full":
            raise ValueError("sync_claims needs durability='full': with 'normal' nothing is synced")
        _check_sqlite()
        self.path: Path = Path(path).absolute()
        super().__init__(f"SQLite store {self.path}", limits)
        self.capabilities: Capabilities = Capabilities(
            durability="power" if durability == "full" else "process",
            cross_process=True,
            joint_edits=True,
            extends_apart=True,
        )
        self.warnings: list[str] = _warnings()
        self._durability: SqliteDurability = durability
        self._sync_claims = sync_claims
        self._migrate = migrate
        self._busy_timeout = checks.number("busy_timeout", busy_timeout, least=0)
        self._clock = clock or time.time
        self._latest = float("-inf")
        self._own_commits = 0
        self._seen_commits = 0
        self._thread_until = 0.0
        """Until then the thread does everything, by the monotonic clock."""
        self._pause = SHORTEST_PAUSE
        self._not_checkpointed = 0
        """Commits in event loops since the thread, which also writes the log back, had one."""
        self._checkpoint_pages: int = 0
        """Pages in the log from which on a commit of the thread writes it back."""
        self._spared: bool = False
        """Whether the connection leaves it to the thread to write the log back."""
        self._level = SYNCED
        """How the connection commits."""
        self._fresh = True
        """Whether nothing was claimed over the connection."""
        self._log: LogFile | None = None
        self._connection: sqlite3.Connection | None = self._open(create=migrate)
        if not migrate:
            self._check_outdated(self._connection)
        self._file = identity(self.path)
        self._under_way: Sequence[SqliteRequest] = ()
        """What the thread applies at present."""
        self._writer: ThreadBatcher[SqliteRequest | DatabaseExamination, Any] = ThreadBatcher(
            self._apply,
            apply_here=self._apply_here,
            name=self._name,
            undo=undo_claim,
            at_end=self._disconnect,
        )
        self._batcher = self._writer
        self._watch = CommitWatch(
            self.path,
            others=lambda total: total - self._own_commits,
            wanted=lambda: bool(self._watchers),
            wake=self._watchers.wake_all,
        )
        open_files.add(self)

    # The contract

    def do_sweep(self, queues: Sequence[str]) -> Awaitable[list[float | None] | StoreError]:
        """As `Store.do_sweep`."""
        return self._writer.submit(Sweep(tuple(queues)))

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """As `Store.do_watch`."""
        remove = super().do_watch(queue, wake)
        self._watch.start(self._seen_commits)
        return remove

    def do_count(
        self, queues: Sequence[str] | None
    ) -> Awaitable[Mapping[str, Counts] | StoreError]:
        """As `Store.do_count`."""
        return self._writer.submit(Count(None if queues is None else tuple(queues)))

    def do_heads(self, queues: Sequence[str]) -> Awaitable[list[StoredItem | None] | StoreError]:
        """As `Store.do_heads`."""
        return self._writer.submit(Heads(tuple(queues)))

    def do_look(
        self, queue: str, keys: Sequence[str]
    ) -> Awaitable[list[tuple[StoredItem, ...]] | StoreError]:
        """As `Store.do_look`."""
        return self._writer.submit(Look(queue, tuple(keys)))

    def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Awaitable[list[StoredItem] | StoreError]:
        """As `Store.do_line`."""
        return self._writer.submit(LinePage(queue, key, after, limit))

    def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> Awaitable[list[StoredItem] | StoreError]:
        """As `Store.do_browse`."""
        asked = Browse(queue, tuple(states), prefix, after, limit, newest_first)
        return self._writer.submit(asked)

    def do_results(
        self, queue: str, ids: Sequence[int]
    ) -> Awaitable[list[StoredItem | None] | StoreError]:
        """As `Store.do_results`."""
        return self._writer.submit(Results(queue, tuple(ids)))

    async def do_diagnose(self) -> list[Finding] | StoreError:
        """As `Store.do_diagnose`."""
        found: list[Finding] | StoreError = await self._writer.submit(
            Diagnosis(self.path, self._durability), alone=True
        )
        return found

    async def do_schema_state(self) -> SchemaState | StoreError:
        """As `Store.do_schema_state`."""
        found: SchemaState | StoreError = await self._writer.submit(SchemaExamination(), alone=True)
        return found

    async def do_close(self) -> None:
        """As `Store.do_close`."""
        self._watch.close()
        await self._writer.close()

    # In the writer's thread, or in an event loop

    def _apply(self, requests: list[SqliteRequest | DatabaseExamination]) -> list[Any]:
        """One transaction for all; an examination is alone, and needs none."""
        if requests and isinstance(requests[0], DatabaseExamination):
            return [self._examine(requests[0])]
        changes = [request for request in requests if not isinstance(request, DatabaseExamination)]
        self._under_way = changes
        try:
            answers, announce = self._transact(changes)
        except sqlite3.Error as error:
            if primary_code(error) not in FAULTS_OF_THE_REQUEST:
                raise explain(error, self.path) from error
            raise SpoiledBatchError(str(self.path), error) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise SpoiledBatchError(str(self.path), error) from error
        finally:
            self._under_way = ()
        # Not within the `try`: it is done, and no error makes it be done again.
        announce()
        return answers

    def _examine(self, examination: DatabaseExamination) -> Any:
        try:
            return examination.run(self._connected(here=False))
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def _apply_here(self, requests: list[SqliteRequest | DatabaseExamination]) -> list[Any] | None:
        """Apply a few small requests in the event loop of their callers; None: the thread should.

        That saves two changes of threads. One caller that puts, gets and acknowledges is 1.1 times
        as fast by it at `full` on a quick disk, and 1.3 times where nothing is synced; an idle
        consumer in another process gets an item after 0.9 of the time. The event loop stands still
        meanwhile; so this is done as long as the disk is quick, and nobody else has the lock.
        Otherwise it is tried again after a pause.
        """
        began = time.monotonic()
        if began < self._thread_until or len(requests) > FEW:
            return None
        if self._not_checkpointed >= MOST_HERE:
            return None
        try:
            small = [request for request in requests if _is_small(request)]
            if len(small) < len(requests):
                return None
            answers, announce = self._transact(small, here=True)
        except sqlite3.Error as error:
            code = primary_code(error)
            if code == sqlite3.SQLITE_BUSY:
                self._rest()
            elif code not in FAULTS_OF_THE_REQUEST:
                raise explain(error, self.path) from error
            return None
        except (TooMuchError, TypeError, ValueError, OverflowError):
            return None  # nothing has happened; the thread finds out which request it is
        if time.monotonic() - began > QUICK:
            self._rest()
        else:
            self._pause = max(self._pause / 2, SHORTEST_PAUSE)
        announce()
        return answers

    def _rest(self) -> None:
        """Let the thread do everything for a while, each time for longer."""
        self._thread_until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _transact(self, requests: list[SqliteRequest], *, here: bool = False) -> Committed:
        """Try until other processes let us, in short steps.

        SQLite's own steps grow to 100 ms, and whoever has waited long waits longest. A connection
        that was made while the file could not be written is replaced by a new one.

        Requests that often have nothing to write begin without the lock: consumers that wait on
        an empty queue must not hold up those who work. If there is something to write, SQLite
        takes the lock then. Where another process has written since this one began, it refuses
        that, and the transaction begins anew, with the lock.

        Args:
            requests: What to apply.
            here: Whether this is an event loop, which must not wait or do much at a time.
        """
        begin = "BEGIN"
        if not all(isinstance(request, MAY_ONLY_READ) for request in requests):
            begin = "BEGIN IMMEDIATE"
        synced = self._is_synced(requests)
        deadline: float | None = None
        renewed = False
        while True:
            try:
                return self._transact_once(requests, begin, here, synced)
            except MustSyncError:
                synced = True
                continue
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
                if here:
                    raise
                now = time.monotonic()
                deadline = deadline or now + self._busy_timeout
                if now >= deadline:
                    raise
            time.sleep(random.uniform(*BUSY_STEP))

    def _is_synced(self, requests: list[SqliteRequest]) -> bool:
        """Whether a transaction with these requests has to survive a loss of power.

        One caller that puts, gets and acknowledges waits for two syncs in place of three.
        """
        if self._fresh and any(isinstance(request, Claim) for request in requests):
            return True  # it goes on from the mark of fences, and sets a new one
        if self._durability != "full":
            return False
        return self._sync_claims or not all(
            isinstance(request, MAY_BE_LOST) for request in requests
        )

    def _transact_once(
        self, requests: list[SqliteRequest], begin: str, here: bool, synced: bool
    ) -> Committed:
        connection = self._connected(here)
        level = SYNCED if synced else NOT_SYNCED
        if level != self._level:
            connection.execute(level)
            self._level = level
        if here != self._spared:
            if here:
                [self._checkpoint_pages] = connection.execute(CHECKPOINT_AT).fetchone()
            pages = 0 if here else self._checkpoint_pages
            connection.execute(f"{CHECKPOINT_AT} = {pages}")
            self._spared = here
        self._not_checkpointed = self._not_checkpointed + 1 if here else 0
        own_commits = self._own_commits
        try:
            connection.execute(begin)
            # A newer program may have migrated the tables while they were open here. That takes
            # two of the hundred microseconds of a transaction.
            check_version(connection, self.path)
            if self._log is not None and begin == "BEGIN IMMEDIATE":
                self._log.lengthen()
            transaction = SqliteTransaction(
                connection,
                self.limits,
                self._now(),
                brief=here,
                synced=synced,
                fresh=self._fresh,
            )
            answers = transaction.apply_all(requests)
            changed = transaction.finish()
            self._own_commits += transaction.changed
            connection.execute("COMMIT")
            self._fresh = transaction.fresh
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
        report_dropped(transaction.dropped)

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
        connection = open_database(
            self.path,
            durability=self._durability,
            busy_timeout=self._busy_timeout,
            create=create,
            update=self._migrate,
        )
        self._level = SYNCED if self._durability == "full" else NOT_SYNCED
        self._fresh = True
        if self._durability == "full":
            self._log = LogFile(self.path)
        return connection

    def _check_outdated(self, connection: sqlite3.Connection | None) -> None:
        """See whether the tables, which are not to be changed, can be used as they are."""
        version = VERSION if connection is None else version_of(connection)
        if version < VERSION:
            self._outdated = outdated(self._name, version, VERSION)

    def _connected(self, here: bool) -> sqlite3.Connection:
        """The connection; a new one if it broke or if another file has taken its file's place.

        An event loop leaves it to the thread to open one, as that may take `busy_timeout`.
        """
        found = identity(self.path)
        if self._connection is None or found != self._file:
            if found == (0, 0):
                raise self._gone()
            if here:
                raise TooMuchError
            self._disconnect()
            self._connection = self._open(create=False)
            self._spared = False
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
        if self._log is not None:
            self._log.close()

    # Forks

    def hold(self) -> bool:
        """Close the file before the process forks; returns whether `go_on` is to be called.

        SQLite counts its locks by file and process. In a new process that has inherited an open
        connection, SQLite takes locks for held that only the old process has, and then one of the
        two removes the log that the other one writes. So no file is open at a fork, unless the
        transaction of an edit is under way, for which the forking thread may be waited for.
        """
        until = time.monotonic() + FORK_PATIENCE
        self._watch.hold()
        if not self._writer.hold(
            lambda: _cannot_repeat(self._under_way) or time.monotonic() > until
        ):
            self._watch.go_on()
            return False
        self._disconnect()
        return True

    def go_on(self) -> None:
        """Go on after the fork, in the old process; the file is opened again when it is needed."""
        self._writer.go_on()
        self._watch.go_on()


class _OpenFiles:
    """The stores of this process, whose files are closed before a fork."""

    def __init__(self) -> None:
        self._stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
        self._held: list[SqliteStore] = []
        self.add = self._stores.add

    def before_fork(self) -> None:
        self._held = [store for store in list(self._stores) if store.hold()]

    def after_fork_in_parent(self) -> None:
        held, self._held = self._held, []
        for store in held:
            store.go_on()

    def after_fork_in_child(self) -> None:
        """The stores of the old process are of no use here, and have no file open."""
        self._held = []


open_files = _OpenFiles()
forks.add_engine(
    open_files.before_fork, open_files.after_fork_in_parent, open_files.after_fork_in_child
)


def _is_small(request: SqliteRequest | DatabaseExamination) -> TypeGuard[SqliteRequest]:
    """Whether it takes hardly any time, whatever is stored."""
    if isinstance(request, Put):
        items = request.items
        return len(items) <= FEW_ITEMS and sum(len(value) for _, value in items) <= FEW_BYTES
    if isinstance(request, Amend):
        return request.value is None or len(request.value) <= FEW_BYTES
    if isinstance(request, Claim):
        return request.limit <= FEW_ITEMS
    if isinstance(request, Ack | Cancel):
        return request.result is None or len(request.result) <= FEW_BYTES
    return isinstance(request, SMALL)


def _cannot_repeat(requests: Sequence[SqliteRequest]) -> bool:
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
    warning = f"SQLite {sqlite3.sqlite_version} is older than {sound}: it has {LOG_RESET_BUG}"
    return [warning]
