"""The tables of the SQLite store, their migrations, and how a database is opened.

A database of an older version is brought up to date when it is opened, in one transaction. Never
change a migration that was released: add one.
"""

import os
import sqlite3
import time
from pathlib import Path
from typing import Final, Literal

from leasedkeyq.errors import StoreError
from leasedkeyq.model.findings import SchemaState

SqliteDurability = Literal["full", "normal"]

APPLICATION_ID: Final = 0x6C6B7121
"""Marks a SQLite file as one of ours: "lkq!"."""
OLDEST_SQLITE: Final = (3, 37, 0)
"""The first with STRICT tables."""
SOUND_SQLITE: Final = (3, 51, 3)
"""The first without the bug in the reset of the write-ahead log."""
SWITCH_STEP: Final = 0.002
"""Seconds between two tries to begin with the write-ahead log while another process does."""

SYNCED: Final = "PRAGMA synchronous = FULL"
"""From now on, what is committed survives a loss of power."""
NOT_SYNCED: Final = "PRAGMA synchronous = NORMAL"
"""From now on, it does once a later commit is synced, or the log is written back."""

# The numbers of states are their places in `STATES`. The head that a buried item holds has its.
AVAILABLE: Final = 0
SCHEDULED: Final = 1
IN_FLIGHT: Final = 2
BUFFERED: Final = 3
HELD: Final = 4
IN_LINE: Final = 6

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    # Version 1
    (
        # One row. All numbers of the store: they only grow, but for `front`, which only falls.
        # `commits` counts the transactions that changed something, by any process.
        """
        CREATE TABLE counters (
            one INTEGER PRIMARY KEY CHECK (one = 1),
            last_id INTEGER NOT NULL DEFAULT 0,
            last_fence INTEGER NOT NULL DEFAULT 0,
            back INTEGER NOT NULL DEFAULT 0,
            front INTEGER NOT NULL DEFAULT 0,
            schedules INTEGER NOT NULL DEFAULT 0,
            burials INTEGER NOT NULL DEFAULT 0,
            commits INTEGER NOT NULL DEFAULT 0
        ) STRICT
        """,
        "INSERT INTO counters (one) VALUES (1)",
        # The queues that are not empty, and how many items they have in each state.
        """
        CREATE TABLE queues (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            available INTEGER NOT NULL DEFAULT 0,
            buffered INTEGER NOT NULL DEFAULT 0,
            scheduled INTEGER NOT NULL DEFAULT 0,
            in_flight INTEGER NOT NULL DEFAULT 0,
            buried INTEGER NOT NULL DEFAULT 0,
            done INTEGER NOT NULL DEFAULT 0
        ) STRICT
        """,
        # One row for each live key. `state`: 0 available, 1 scheduled, 2 in flight. `due` and
        # `turn` order what comes due: a lease by its expiry and minus its fence, a scheduled item
        # by its time and its number. `next_*` is the value buffered beside a leased one.
        # The values are last, so that the rest of a row is read without them.
        """
        CREATE TABLE items (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            state INTEGER NOT NULL,
            priority INTEGER NOT NULL,
            place INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            due REAL,
            turn INTEGER NOT NULL,
            not_before REAL,
            token TEXT,
            history BLOB,
            next_id INTEGER,
            next_priority INTEGER,
            next_not_before REAL,
            next_put_at REAL,
            value BLOB NOT NULL,
            next_value BLOB
        ) STRICT
        """,
        "CREATE UNIQUE INDEX items_by_key ON items (queue, key)",
        "CREATE INDEX items_by_queue ON items (queue)",
        "CREATE INDEX items_ready ON items (queue, priority DESC, place) WHERE state = 0",
        "CREATE INDEX items_timed ON items (queue, due, turn) WHERE due IS NOT NULL",
        "CREATE INDEX items_buffered ON items (queue, next_id) WHERE next_id IS NOT NULL",
        """
        CREATE TABLE buried (
            id INTEGER PRIMARY KEY,
            number INTEGER NOT NULL,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            priority INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            buried_at REAL NOT NULL,
            error TEXT NOT NULL,
            history BLOB,
            value BLOB NOT NULL
        ) STRICT
        """,
        "CREATE INDEX buried_by_age ON buried (queue, number)",
        "CREATE INDEX buried_by_queue ON buried (queue)",
        """
        CREATE TABLE done (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            priority INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            due REAL NOT NULL,
            history BLOB,
            value BLOB NOT NULL
        ) STRICT
        """,
        "CREATE INDEX done_by_due ON done (queue, due)",
        "CREATE INDEX done_by_queue ON done (queue)",
    ),
    # Version 2: kinds, the beginning of leases, and what is buried or done by its key. The tables
    # are made anew so that the values stay last. `leased_at` means something while in flight.
    (
        "ALTER TABLE items RENAME TO items_1",
        """
        CREATE TABLE items (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            state INTEGER NOT NULL,
            priority INTEGER NOT NULL,
            place INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            due REAL,
            turn INTEGER NOT NULL,
            not_before REAL,
            token TEXT,
            leased_at REAL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            next_id INTEGER,
            next_priority INTEGER,
            next_not_before REAL,
            next_put_at REAL,
            next_kind TEXT,
            value BLOB NOT NULL,
            next_value BLOB
        ) STRICT
        """,
        """
        INSERT INTO items (id, queue, key, state, priority, place, attempt, put_at, due, turn,
        not_before, token, history, next_id, next_priority, next_not_before, next_put_at, next_kind,
        value, next_value)
        SELECT id, queue, key, state, priority, place, attempt, put_at, due, turn, not_before,
        token, history, next_id, next_priority, next_not_before, next_put_at,
        iif(next_id IS NULL, NULL, ''), value, next_value FROM items_1 ORDER BY id
        """,
        "DROP TABLE items_1",
        "CREATE UNIQUE INDEX items_by_key ON items (queue, key)",
        "CREATE INDEX items_by_queue ON items (queue)",
        # A claim of some kinds passes over the others in the index.
        "CREATE INDEX items_ready ON items (queue, priority DESC, place, kind) WHERE state = 0",
        "CREATE INDEX items_timed ON items (queue, due, turn) WHERE due IS NOT NULL",
        "CREATE INDEX items_buffered ON items (queue, next_id) WHERE next_id IS NOT NULL",
        "ALTER TABLE buried RENAME TO buried_1",
        """
        CREATE TABLE buried (
            id INTEGER PRIMARY KEY,
            number INTEGER NOT NULL,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            priority INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            buried_at REAL NOT NULL,
            error TEXT NOT NULL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            value BLOB NOT NULL
        ) STRICT
        """,
        """
        INSERT INTO buried (id, number, queue, key, priority, attempt, put_at, buried_at, error,
        history, value)
        SELECT id, number, queue, key, priority, attempt, put_at, buried_at, error, history, value
        FROM buried_1 ORDER BY id
        """,
        "DROP TABLE buried_1",
        "CREATE INDEX buried_by_age ON buried (queue, number)",
        "CREATE INDEX buried_by_queue ON buried (queue)",
        "CREATE INDEX buried_by_key ON buried (queue, key)",
        "ALTER TABLE done RENAME TO done_1",
        """
        CREATE TABLE done (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            priority INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            due REAL NOT NULL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            value BLOB NOT NULL
        ) STRICT
        """,
        """
        INSERT INTO done (id, queue, key, priority, attempt, put_at, due, history, value)
        SELECT id, queue, key, priority, attempt, put_at, due, history, value
        FROM done_1 ORDER BY id
        """,
        "DROP TABLE done_1",
        "CREATE INDEX done_by_due ON done (queue, due)",
        "CREATE INDEX done_by_queue ON done (queue)",
        "CREATE INDEX done_by_key ON done (queue, key)",
    ),
    # Version 3: the buckets of caps that are not full. They outlive the row of their queue.
    (
        """
        CREATE TABLE buckets (
            queue TEXT NOT NULL,
            pattern TEXT NOT NULL,
            own INTEGER NOT NULL,
            key TEXT NOT NULL,
            level REAL NOT NULL,
            at REAL NOT NULL,
            next_at REAL NOT NULL,
            full_at REAL NOT NULL
        ) STRICT
        """,
        "CREATE UNIQUE INDEX buckets_by_name ON buckets (queue, pattern, own, key)",
        "CREATE INDEX buckets_by_token ON buckets (queue, next_at)",
        "CREATE INDEX buckets_by_filling ON buckets (queue, full_at)",
    ),
    # Version 4: by when an item should be leased. The table is made anew so that the values stay
    # last.
    (
        "ALTER TABLE items RENAME TO items_3",
        """
        CREATE TABLE items (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            state INTEGER NOT NULL,
            priority INTEGER NOT NULL,
            place INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            deadline REAL,
            due REAL,
            turn INTEGER NOT NULL,
            not_before REAL,
            token TEXT,
            leased_at REAL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            next_id INTEGER,
            next_priority INTEGER,
            next_not_before REAL,
            next_put_at REAL,
            next_deadline REAL,
            next_kind TEXT,
            value BLOB NOT NULL,
            next_value BLOB
        ) STRICT
        """,
        """
        INSERT INTO items (id, queue, key, state, priority, place, attempt, put_at, due, turn,
        not_before, token, leased_at, history, kind, next_id, next_priority, next_not_before,
        next_put_at, next_kind, value, next_value)
        SELECT id, queue, key, state, priority, place, attempt, put_at, due, turn, not_before,
        token, leased_at, history, kind, next_id, next_priority, next_not_before, next_put_at,
        next_kind, value, next_value FROM items_3 ORDER BY id
        """,
        # Its indexes go, also the one that only stores with caps for patterns have.
        "DROP TABLE items_3",
        "CREATE UNIQUE INDEX items_by_key ON items (queue, key)",
        "CREATE INDEX items_by_queue ON items (queue)",
        "CREATE INDEX items_ready ON items (queue, priority DESC, place, kind) WHERE state = 0",
        "CREATE INDEX items_timed ON items (queue, due, turn) WHERE due IS NOT NULL",
        "CREATE INDEX items_buffered ON items (queue, next_id) WHERE next_id IS NOT NULL",
    ),
    # Version 5: of the available items of a queue, the one whose deadline is the nearest; items
    # without a deadline of their own have no entry. And the items by their state and id, so that
    # whoever looks for the leased ones does not walk over all that wait.
    (
        """
        CREATE INDEX items_hurried ON items (queue, deadline, id, kind)
        WHERE state = 0 AND deadline IS NOT NULL
        """,
        "DROP INDEX items_by_queue",
        "CREATE INDEX items_by_state ON items (queue, state)",
    ),
    # Version 6: the outcomes of results, by their place in `OUTCOMES`, and how many results have
    # which. Results of before have the outcome that the repository wrote into them as a status, and
    # else "completed". The table is made anew so that the values stay last.
    (
        "ALTER TABLE queues ADD COLUMN done_failed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE queues ADD COLUMN done_cancelled INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE done RENAME TO done_5",
        """
        CREATE TABLE done (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            priority INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            due REAL NOT NULL,
            outcome INTEGER NOT NULL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            value BLOB NOT NULL
        ) STRICT
        """,
        """
        INSERT INTO done (id, queue, key, priority, attempt, put_at, due, outcome, history, kind,
        value)
        SELECT id, queue, key, priority, attempt, put_at, due,
        CASE iif(json_valid(CAST(value AS TEXT)),
            json_extract(CAST(value AS TEXT), '$.status'), NULL)
        WHEN 'failed' THEN 1 WHEN 'cancelled' THEN 2 ELSE 0 END,
        history, kind, value FROM done_5 ORDER BY id
        """,
        "DROP TABLE done_5",
        # Results that are old and not deleted yet are counted by outcome in the index alone.
        "CREATE INDEX done_by_due ON done (queue, due, outcome)",
        "CREATE INDEX done_by_queue ON done (queue)",
        "CREATE INDEX done_by_key ON done (queue, key)",
        """
        UPDATE queues SET
        done_failed = (SELECT count(*) FROM done WHERE queue = queues.id AND outcome = 1),
        done_cancelled = (SELECT count(*) FROM done WHERE queue = queues.id AND outcome = 2)
        WHERE done > 0
        """,
    ),
    # Version 7: lines. One row for each live value. `in_line` is 0 for the head of a key, and for a
    # value in the line behind that it is the id: so the index by key has the line in order. A head
    # knows how many values are `behind` it. New states: 3 buffered and 6 in line, with `not_before`
    # as the time of a delay of their own, and 4 for a head that is held: it is the place of the
    # buried item of the same id, which has its value. A value that was buffered beside a leased one
    # is a line of one.
    #
    # Results have the time at which their items ended, and the last one of a key that was completed
    # is found by it; NULL for results of before. `in_line` and `held` of a queue count the values
    # behind heads, and behind heads that are held.
    (
        "ALTER TABLE items RENAME TO items_6",
        """
        CREATE TABLE items (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            in_line INTEGER NOT NULL,
            state INTEGER NOT NULL,
            priority INTEGER NOT NULL,
            place INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            behind INTEGER NOT NULL,
            put_at REAL NOT NULL,
            deadline REAL,
            due REAL,
            turn INTEGER NOT NULL,
            not_before REAL,
            token TEXT,
            leased_at REAL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            value BLOB NOT NULL
        ) STRICT
        """,
        """
        INSERT INTO items (id, queue, key, in_line, state, priority, place, attempt, behind, put_at,
        deadline, due, turn, not_before, token, leased_at, history, kind, value)
        SELECT id, queue, key, 0, state, priority, place, attempt, next_id IS NOT NULL, put_at,
        deadline, due, turn, not_before, token, leased_at, history, kind, value
        FROM items_6 ORDER BY id
        """,
        """
        INSERT INTO items (id, queue, key, in_line, state, priority, place, attempt, behind, put_at,
        deadline, turn, not_before, kind, value)
        SELECT next_id, queue, key, next_id, 3, next_priority, 0, 0, 0, next_put_at,
        next_deadline, 0, next_not_before, next_kind, next_value
        FROM items_6 WHERE next_id IS NOT NULL ORDER BY next_id
        """,
        # Its indexes go, also the one that only stores with caps for patterns have.
        "DROP TABLE items_6",
        "CREATE UNIQUE INDEX items_by_key ON items (queue, key, in_line)",
        "CREATE INDEX items_by_state ON items (queue, state)",
        "CREATE INDEX items_ready ON items (queue, priority DESC, place, kind) WHERE state = 0",
        "CREATE INDEX items_timed ON items (queue, due, turn) WHERE due IS NOT NULL",
        """
        CREATE INDEX items_hurried ON items (queue, deadline, id, kind)
        WHERE state = 0 AND deadline IS NOT NULL
        """,
        "ALTER TABLE queues RENAME COLUMN buffered TO in_line",
        "ALTER TABLE queues ADD COLUMN held INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE buried RENAME TO buried_6",
        """
        CREATE TABLE buried (
            id INTEGER PRIMARY KEY,
            number INTEGER NOT NULL,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            priority INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            buried_at REAL NOT NULL,
            holds INTEGER NOT NULL,
            error TEXT NOT NULL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            value BLOB NOT NULL
        ) STRICT
        """,
        """
        INSERT INTO buried (id, number, queue, key, priority, attempt, put_at, buried_at, holds,
        error, history, kind, value)
        SELECT id, number, queue, key, priority, attempt, put_at, buried_at, 0, error, history,
        kind, value FROM buried_6 ORDER BY id
        """,
        "DROP TABLE buried_6",
        "CREATE INDEX buried_by_age ON buried (queue, number)",
        "CREATE INDEX buried_by_queue ON buried (queue)",
        "CREATE INDEX buried_by_key ON buried (queue, key)",
        "ALTER TABLE done RENAME TO done_6",
        """
        CREATE TABLE done (
            id INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL,
            key TEXT NOT NULL,
            priority INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            put_at REAL NOT NULL,
            ended_at REAL,
            due REAL NOT NULL,
            outcome INTEGER NOT NULL,
            history BLOB,
            kind TEXT NOT NULL DEFAULT '',
            value BLOB NOT NULL
        ) STRICT
        """,
        """
        INSERT INTO done (id, queue, key, priority, attempt, put_at, due, outcome, history, kind,
        value)
        SELECT id, queue, key, priority, attempt, put_at, due, outcome, history, kind, value
        FROM done_6 ORDER BY id
        """,
        "DROP TABLE done_6",
        "CREATE INDEX done_by_due ON done (queue, due, outcome)",
        "CREATE INDEX done_by_queue ON done (queue)",
        "CREATE INDEX done_by_key ON done (queue, key, outcome, ended_at)",
    ),
    # Version 8: claims need not be synced. `fence_mark` always is: no greater fence is given out.
    ("ALTER TABLE counters ADD COLUMN fence_mark INTEGER NOT NULL DEFAULT 0",),
    # Version 9: a history may end with the progress of its item, as a text behind the attempts.
    # Nothing moves, but a program of before could not read such a history.
    (),
)

VERSION: Final = len(MIGRATIONS)
CHANGES: Final[tuple[str, ...]] = (
    "the tables are made",
    (
        "items have kinds, leases know when they began, buried items and results are found by key; "
        "the tables of items, buried items and results are written anew"
    ),
    "rate limits keep their state in a table of their own",
    "items have deadlines; the table of items is written anew",
    "two indexes: items by deadline, and by state",
    "results have outcomes; the table of results is written anew",
    "keys have lines; the tables of items, buried items and results are written anew",
    "claims need not be synced: a counter more",
    "items have progress; nothing is written anew",
)
"""What each version brings, in words: for people who look before they migrate."""


def schema_state(connection: sqlite3.Connection) -> SchemaState:
    """The version of the tables, and what would bring them up to date."""
    version = version_of(connection)
    if version >= VERSION:
        return SchemaState(version=version, wanted=VERSION)
    steps = [statement.strip() for step in MIGRATIONS[version:] for statement in step]
    marks = [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}"]
    statements = ["BEGIN IMMEDIATE", *steps, *marks, "COMMIT"]
    return SchemaState(
        version=version,
        wanted=VERSION,
        changes=tuple(
            f"version {number}: {change}"
            for number, change in enumerate(CHANGES[version:], version + 1)
        ),
        sql="".join(f"{statement};\n" for statement in statements),
    )


def open_database(
    path: Path,
    *,
    durability: SqliteDurability,
    busy_timeout: float,
    create: bool,
    update: bool = True,
) -> sqlite3.Connection:
    """Open a connection for writing.

    Args:
        path: The database file.
        durability: How it commits.
        busy_timeout: Seconds to wait for other processes.
        create: Make the file, if need be.
        update: Bring the tables up to date.

    Raises:
        StoreError: It cannot be opened, is no database of ours, or is of a newer version.
    """
    existed = path.exists()
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(path, busy_timeout=busy_timeout, create=create)
        _check_ours(connection, path)
        check_version(connection, path)
        _use_log(connection, path, busy_timeout)
        connection.execute(SYNCED if durability == "full" else NOT_SYNCED)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        if update:
            migrate(connection, path)
        connection.execute("PRAGMA busy_timeout = 0")  # from here on the store waits by itself
        if not existed:
            _sync_folder(path.parent)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise explain(error, path) from error
        if isinstance(error, UnicodeDecodeError):
            # An error of SQLite that quotes, as the name of a table, what a damaged file holds.
            raise StoreError(f"{path}: {_ADVICE[sqlite3.SQLITE_CORRUPT]}") from error
        raise
    return connection


def connect(path: Path, *, busy_timeout: float, create: bool = False) -> sqlite3.Connection:
    """A bare connection. It is used by one thread at a time, not always the one that made it."""
    mode = "rwc" if create else "rw"
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the tables; 0 for an empty database."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _check_ours(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    if found == APPLICATION_ID:
        return
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    # Between the creation of the file and of the tables, another process may just be making them.
    if found or (tables and connection.execute("PRAGMA application_id").fetchone()[0] == found):
        message = (
            f"{path} is a SQLite database, but not one of leasedkeyq; give it a file of its own"
        )
        raise StoreError(message)


def _use_log(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    mode = ""
    while not mode:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            # SQLite does not wait here: two that switch at a time would wait for each other.
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(SWITCH_STEP)
    if mode != "wal":
        message = (
            f"SQLite cannot use a write-ahead log on {path} (it says {mode!r}); "
            "put the file on a local disk"
        )
        raise StoreError(message)


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the tables, which must not be newer than this program."""
    version = version_of(connection)
    if version > VERSION:
        message = (
            f"{path} has tables of version {version}, this leasedkeyq knows versions up to "
            f"{VERSION}: upgrade leasedkeyq"
        )
        raise StoreError(message)
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables up to date, all steps in one transaction."""
    if version_of(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = check_version(connection, path)
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file durable, where folders can be synced."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: (
        "another process keeps the database locked; call again, keep transactions of other "
        "programs short, or raise busy_timeout"
    ),
    sqlite3.SQLITE_LOCKED: "the database is locked; call again",
    sqlite3.SQLITE_FULL: "the disk is full; make room and call again",
    sqlite3.SQLITE_READONLY: (
        "the file or its folder cannot be written; this user needs the right to write both"
    ),
    sqlite3.SQLITE_PERM: "this user needs the right to read and write the file and its folder",
    sqlite3.SQLITE_CANTOPEN: (
        "the file cannot be opened or created; the folder must exist and be writable"
    ),
    sqlite3.SQLITE_IOERR: "the disk failed to read or write; check it, make room and call again",
    sqlite3.SQLITE_CORRUPT: "the database is damaged; restore a copy or run sqlite3's .recover",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database; name another, or move it away",
}


def primary_code(error: sqlite3.Error) -> int:
    """The kind of an error of SQLite, without its details; 0 when it is not SQLite's own."""
    code: int = getattr(error, "sqlite_errorcode", 0) or 0
    return code & 0xFF


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """An error of SQLite as one of ours: where, what, and what to do."""
    advice = _ADVICE.get(primary_code(error))
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    what = f"{path}: {advice} (SQLite: {error}, {name})" if advice else f"{path}: {error} ({name})"
    return StoreError(what)
