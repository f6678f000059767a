"""The PostgreSQL store: queues on a server, shared by machines."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs, unquote, urlsplit
from weakref import WeakKeyDictionary

from leasedkeyq import checks
from leasedkeyq.engines.postgres.diagnosis import PostgresDiagnosis
from leasedkeyq.engines.postgres.errors import (
    LOST,
    asyncpg,
    explain,
    is_hopeless,
    names_missing_file,
)
from leasedkeyq.engines.postgres.link import PAUSES, NamedKeys, PostgresLink, ReadInTurn, Settings
from leasedkeyq.engines.postgres.queue import PostgresQueue, check_in_transaction, put_within
from leasedkeyq.engines.postgres.schema import VERSION, check_schema_name, prepare, schema_state
from leasedkeyq.engines.postgres.watch import NewsWatch
from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.admission import refusal_of
from leasedkeyq.model.findings import Finding, SchemaState
from leasedkeyq.model.requests import (
    STATES,
    Capabilities,
    Counts,
    Durability,
    Limits,
    Placed,
    Put,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.batched_store import BatchedStore
from leasedkeyq.stores.batching import LoopBatcher, undo_claim
from leasedkeyq.stores.closable import outdated
from leasedkeyq.stores.item_row import item_of_row
from leasedkeyq.stores.paging import prefix_end
from leasedkeyq.stores.system.forks import forks
from leasedkeyq.types import Duration, QueueObserver

T = TypeVar("T")

logger = logging.getLogger("leasedkeyq")

ATTEMPT_TIMEOUT = 10.0
"""Seconds for one try to connect."""
CANCEL_GRACE = 1.0
"""Seconds that an attempt to connect has to end after its caller was cancelled."""

READ_COMMITTED = "read committed"
"""The isolation in which a statement that has waited for a lock sees what was done meanwhile."""


class PostgresStore(BatchedStore):
    """Queues on a PostgreSQL server, for any number of processes on any number of machines.

    What many callers of an event loop ask for at a time goes into one transaction and one round
    trip. The server's clock decides. The store holds its connections: for each event loop that
    uses it `connections` for changing, one for looking, and while a `get` or a worker waits one
    that listens for changes.

    Opening waits for the server, up to `patience`: it looks at its version and settings and makes
    the tables. A server that only reads, as a standby does, is refused. A
    connection that breaks later on is made anew, calls wait for it up to `patience`, and a call
    whose answer was lost is answered truly: nothing is put twice or lost. A store object must not
    be carried over a fork.

    Args:
        url: ``postgresql://user:password@host:port/database``, with the parameters that asyncpg
            knows behind a ``?``, such as ``sslmode``. What is missing comes from the environment
            (``PGHOST``, ``PGPASSWORD``, ``~/.pgpass`` and so on).
        schema: The PostgreSQL schema in which the tables are. Another one is another store.
        create: Make the tables, or bring them up to date, if need be. Otherwise a store without
            them is refused, with the command to run.
        migrate: With False nothing is made or changed by opening, and a store whose tables are
            missing or of an older version refuses all but `schema_state` and `diagnose`.
        listen: Be told of changes by ``NOTIFY``. Without it, as behind a proxy that gives every
            transaction another connection, changes by others are seen every `poll` seconds.
        prepared: Use prepared statements. Behind such a proxy: don't.
        poll: Seconds between two looks for changes of which no news came. None: 5, and 0.25 without
            `listen`.
        connections: How many batches may be under way at a time, from one event loop. Calls of an
            event loop act in the order in which they were made; with more than one connection this
            is so for calls that name the same key, and others may overtake each other.
        patience: Seconds that opening or a call waits for a server that is away, or for an edit of
            another.
        call_timeout: Seconds after which a server that does not answer is taken to be away.
        limits: How much the store takes.
        clock: Unix time, for tests; None: the server's.

    Attributes:
        warnings: What the owner of this store should know, in plain sentences.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "leasedkeyq",
        create: bool = True,
        migrate: bool = True,
        listen: bool = True,
        prepared: bool = True,
        poll: float | None = None,
        connections: int = 1,
        patience: float = 30.0,
        call_timeout: float = 60.0,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        # A worker that runs 10 commands at a time has 1.25 times as many done by that: one portion
        # is under way while it runs the other. With several connections, claims overtake claims.
        self.calls_at_a_time = 2 if connections == 1 else 1
        super().__init__(f"PostgreSQL store {_where(url)}", limits)
        self.warnings: list[str] = []
        self.schema: str = check_schema_name(schema)
        self._url = url
        self._prepared = prepared
        self._server_settings: dict[str, str] = {}
        self._listen = listen
        self._poll = checks.number(
            "poll", (5.0 if listen else 0.25) if poll is None else poll, above=0
        )
        self._settings = Settings(
            where=_where(url),
            connect=self._connect,
            schema=schema,
            limits=self.limits,
            clock=clock,
            connections=checks.whole("connections", connections, 1),
            patience=checks.number("patience", patience, least=0),
            call_timeout=checks.number("call_timeout", call_timeout, above=0),
        )
        self._gate = threading.Lock()
        self._links: LoopBatcher[Any, Any, PostgresLink] = LoopBatcher(
            lambda: PostgresLink(self._settings, self._watchers.wake),
            name=self._name,
            undo=undo_claim,
            at_a_time=connections,
            touched=NamedKeys,
        )
        self._batcher = self._links
        self._watches: WeakKeyDictionary[asyncio.AbstractEventLoop, NewsWatch] = WeakKeyDictionary()
        self._migrate = migrate
        durability = _in_a_thread(self._open(create))
        self.capabilities: Capabilities = Capabilities(
            durability=durability, cross_process=True, joint_edits=True, extends_apart=True
        )

    def queue(
        self,
        name: str,
        *,
        value_type: Any = Any,
        default_lease_timeout: Duration | None = None,
        maxsize: int = 0,
        max_buried: int | None = None,
        observer: QueueObserver[str] | None = None,
        holder: str = "",
    ) -> PostgresQueue[Any]:
        """As `Store.queue`; its puts can be a part of a transaction of the caller."""
        queue: PostgresQueue[Any] = PostgresQueue(
            self,
            name,
            value_type=value_type,
            default_lease_timeout=default_lease_timeout,
            maxsize=maxsize,
            max_buried=max_buried,
            observer=observer,
            holder=holder,
        )
        queue.schema = self.schema
        return queue

    async def put_within(
        self, connection: Any, requests: Sequence[Put]
    ) -> list[tuple[Placed, ...] | LeasedKeyQError]:
        """As `Store.put_within`, with an asyncpg connection to the same database.

        Raises:
            TypeError: It is no connection of asyncpg.
            StoreError: No transaction is open on it.
        """
        check_in_transaction(connection)
        put = partial(put_within, connection, self.schema)
        answers: list[tuple[Placed, ...] | LeasedKeyQError] = []
        for request in requests:
            refusal = refusal_of(request, self.limits)
            if refusal is None:
                answers += await self.call_as("put", put, [request])
            else:
                answers.append(refusal)
        return answers

    # Opening

    @property
    def outage(self) -> StoreError | None:
        """As `Store.outage`."""
        links = self._links.engines()
        with suppress(RuntimeError):  # there is no running event loop
            # Another one may have asked nothing since the server came back.
            loop = asyncio.get_running_loop()
            links = {loop: links[loop]} if loop in links else {}
        outages = (link.outage for link in links.values())
        return next((outage for outage in outages if outage is not None), None)

    async def _connect(self) -> Any:
        """A connection, on which no answer is waited for longer than `call_timeout`."""
        try:
            # To the type checkers it is a module without types.
            connecting = cast("Any", asyncpg).connect(
                self._url,
                timeout=ATTEMPT_TIMEOUT,
                command_timeout=self._settings.call_timeout,
                statement_cache_size=100 if self._prepared else 0,
                max_cached_statement_lifetime=0,
                server_settings=self._server_settings,
            )
            return await _connected(asyncio.ensure_future(connecting))
        except LOST as error:
            where = self._settings.where
            if is_hopeless(error):
                raise explain(error, where) from error
            if names_missing_file(error, parse_qs(urlsplit(self._url).query)):
                message = (
                    f"{where}: a file that sslrootcert, sslcert, sslkey or sslcrl names cannot be "
                    f"read ({type(error).__name__}: {error})"
                )
                raise StoreError(message) from error
            raise

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Any]:
        """A connection for a while.

        After a failure it is dropped: a server that has gone without a word answers no goodbye.
        """
        connection = await self._connect()
        try:
            yield connection
        except BaseException:
            connection.terminate()
            raise
        await connection.close(timeout=self._settings.call_timeout)

    async def _open(self, create: bool) -> Durability:
        """Wait for the server, which may be starting; see that it will do, and make the tables."""
        where, patience = self._settings.where, self._settings.patience
        deadline = time.monotonic() + patience
        pause, first = PAUSES[0], True
        while True:
            try:
                return await self._open_now(create)
            except LOST as error:
                told = explain(error, where)
                if time.monotonic() >= deadline:
                    raise told from error
                if first:
                    logger.warning("%s; trying again for %g s", told, patience)
                first = False
                await asyncio.sleep(min(random.uniform(0, pause), patience))
                pause = min(pause * 2, PAUSES[1])
            except asyncpg.PostgresError as error:
                raise explain(error, where) from error

    async def _open_now(self, create: bool) -> Durability:
        async with self._connection() as connection:
            version = await prepare(
                connection,
                self.schema,
                create=create,
                where=self._settings.where,
                migrate=self._migrate,
            )
            if version < VERSION:
                self._outdated = outdated(self._name, version, VERSION)
            settings: dict[str, str] = {
                name: await connection.fetchval("SELECT current_setting($1)", name)
                for name in (
                    "fsync",
                    "full_page_writes",
                    "synchronous_commit",
                    "default_transaction_isolation",
                )
            }
            process = await connection.fetchval("SELECT pg_backend_pid()")
            proxied = process != connection.get_server_pid()
        if settings["default_transaction_isolation"] != READ_COMMITTED:
            self._server_settings["default_transaction_isolation"] = READ_COMMITTED
            async with self._connection():
                pass  # a proxy may refuse it
        if proxied and (self._prepared or self._listen):
            self.warnings.append(
                "there is a proxy between this store and the server: if it is PgBouncer with "
                "pool_mode = transaction, open the store with prepared=False, listen=False"
            )
        return self._durability(settings)

    def _durability(self, settings: Mapping[str, str]) -> Durability:
        """What an acknowledged put survives, by the settings of the server."""
        if settings["synchronous_commit"] == "off":
            self.warnings.append(
                "synchronous_commit is off: a crash of the server takes the last moments; "
                "ALTER ROLE ... SET synchronous_commit = on keeps them"
            )
            return "process"
        for name in ("fsync", "full_page_writes"):
            if settings[name] == "off":
                self.warnings.append(
                    f"{name} is off: a crash of the server's machine may take or damage everything"
                )
                return "process"
        return "power"

    def _link(self) -> PostgresLink:
        """The connections of the running event loop."""
        return self._links.engine()

    # The contract

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        """As `Store.do_sweep`."""
        # All stores sweep in one order, as the items that are due are locked row by row.
        names = sorted(set(queues))
        sql = "SELECT * FROM lkq.sweep_1($1, $2, $3)"
        rows = await self._link().read(sql, names, self._now(), self.limits.history)
        self._watchers.wake([row["queue"] for row in rows if row["moved"]])
        seconds: dict[str, float | None] = {row["queue"]: row["seconds"] for row in rows}
        return [seconds[queue] for queue in queues]

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """As `Store.do_watch`."""
        link = self._link()
        loop = asyncio.get_running_loop()
        remove = super().do_watch(queue, wake)
        watch = self._watches.get(loop)
        if watch is None:
            watch = NewsWatch(
                self._watchers,
                link,
                connect=self._connect,
                channel=self.schema if self._listen else None,
                poll=self._poll,
            )
            with self._gate:
                for gone in [other for other in self._watches if other.is_closed()]:
                    del self._watches[gone]  # a watch holds its event loop
                self._watches[loop] = watch
        watch.start()
        return remove

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        """As `Store.do_count`."""
        names = None if queues is None else list(dict.fromkeys(queues))
        rows = await self._read("SELECT * FROM lkq.count_1($1, $2, $3)", names)
        return {
            row["queue"]: Counts(
                available=row["available"] or 0,
                scheduled=row["scheduled"] or 0,
                in_flight=row["in_flight"] or 0,
                buried=row["buried"] or 0,
                done=row["done"] or 0,
                done_failed=row["done_failed"] or 0,
                done_cancelled=row["done_cancelled"] or 0,
                held=row["held"] or 0,
            )
            for row in rows
        }

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        """As `Store.do_heads`."""
        found: list[StoredItem | None] = [None] * len(queues)
        for row in await self._read("SELECT * FROM lkq.heads_1($1, $2, $3)", list(queues)):
            number: int = row["n"] - 1
            found[number] = item_of_row(queues[number], row[1:])
        return found

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """As `Store.do_look`."""
        found: dict[str, tuple[StoredItem, ...]] = {}
        sql = "SELECT * FROM lkq.look_1($1, $2, $3, $4)"
        names = list(dict.fromkeys(keys))
        for row in await self._read_queue(sql, queue, names):
            item = item_of_row(queue, row)
            found[item.key] = (*found.get(item.key, ()), item)
        return [found.get(key, ()) for key in keys]

    async def do_line(self, queue: str, key: str, after: int, limit: int, /) -> list[StoredItem]:
        """As `Store.do_line`."""
        sql = "SELECT * FROM lkq.line_1($1, $2, $3, $4, $5, $6)"
        return [
            item_of_row(queue, row) for row in await self._read_queue(sql, queue, key, after, limit)
        ]

    async def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> list[StoredItem]:
        """As `Store.do_browse`."""
        numbers = [STATES.index(state) for state in states]
        sql = "SELECT * FROM lkq.list_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        end = prefix_end(prefix) if prefix else None
        asked = (numbers, prefix, after, limit, None, newest_first, end)
        rows = await self._read_queue(sql, queue, *asked)
        return [item_of_row(queue, row) for row in rows]

    async def do_results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        """As `Store.do_results`."""
        known = list({number for number in ids if -(2**63) <= number < 2**63})
        now = self._now()
        sql = "SELECT * FROM lkq.results_1($1, $2, $3)"
        rows = await self._read_in_turn(sql, queue, now, known)
        found = {row["id"]: item_of_row(queue, row) for row in rows}
        return [found.get(number) for number in ids]

    async def do_diagnose(self) -> list[Finding]:
        """As `Store.do_diagnose`, over connections of its own."""
        diagnosis = PostgresDiagnosis(
            self.schema,
            where=self._settings.where,
            connect=self._connect,
            # A store that uses neither works behind any proxy.
            needs_session=self._listen or self._prepared,
        )
        return await self._apart(diagnosis.run)

    async def do_schema_state(self) -> SchemaState:
        """As `Store.do_schema_state`."""
        return await self._apart(partial(schema_state, schema=self.schema))

    async def _apart(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do something with a connection of its own: rare, and not in the way of other calls."""
        where = self._settings.where
        try:
            async with self._connection() as connection:
                return await work(connection)
        except (*LOST, asyncpg.PostgresError) as error:
            raise explain(error, where) from error

    async def do_close(self) -> None:
        """As `Store.do_close`."""
        try:
            await self._batcher.close()
        finally:
            loop = asyncio.get_running_loop()
            with self._gate:
                watches = dict(self._watches)
                self._watches.clear()
            for other, watch in watches.items():
                if other is loop:
                    await watch.close()
                elif not other.is_closed():
                    other.call_soon_threadsafe(watch.stop)

    # Looking

    def _now(self) -> float | None:
        return None if self._settings.clock is None else self._settings.clock()

    async def _read(self, sql: str, what: Any) -> list[Any]:
        return await self._read_in_turn(sql, what, self._now(), self.limits.history)

    async def _read_in_turn(self, sql: str, *arguments: Any) -> list[Any]:
        question = ReadInTurn(sql, arguments, self._link().deadline())
        try:
            [rows] = await self._batcher.submit_many((question,), alone=True)
        except asyncio.CancelledError:
            question.cancel()
            raise
        found: list[Any] = rows
        return found

    async def _read_queue(self, sql: str, queue: str, *arguments: Any) -> list[Any]:
        return await self._read_in_turn(sql, queue, self._now(), self.limits.history, *arguments)


def _where(url: str) -> str:
    """The server and the database in a URL, without the password."""
    parts = urlsplit(url)
    return f"PostgreSQL at {parts.netloc.rpartition('@')[2] or 'localhost'}{unquote(parts.path)}"


async def _connected(connecting: "asyncio.Future[Any]") -> Any:
    """The connection; a caller that is cancelled leaves none behind, and no error of asyncpg.

    If asyncpg is cancelled before the server has answered its first question, which is for TLS, it
    leaves a socket and a future whose error the event loop reports later. So the attempt goes on
    for a moment.
    """
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([connecting], timeout=CANCEL_GRACE)
        finally:
            if not connecting.cancel() and not connecting.exception():
                connecting.result().terminate()
        raise


def _in_a_thread(coroutine: Any) -> Any:
    """Run a coroutine to its end, whether or not an event loop runs here."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="leasedkeyq opens a PostgreSQL store")
    thread.start()
    thread.join()
    forks.thread_ended(thread)
    if failure:
        raise failure[0]
    return outcome[0]
