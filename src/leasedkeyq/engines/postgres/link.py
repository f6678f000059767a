"""The way from one event loop to a PostgreSQL server: held connections, batches, and faults.

Calls that arrive while a batch is under way form the next one, in one round trip and one
transaction. A connection that breaks is made anew, and a batch whose answer was lost is asked for:
the server knows whether it was applied, and one that was not never will be.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from leasedkeyq.engines.postgres.batch import (
    EVERY_STATE,
    NO_LIMIT,
    NO_LINES,
    STATEMENTS,
    Batch,
    FunctionCall,
    FunctionReply,
    Leased,
    decode_reply,
    lock_number,
)
from leasedkeyq.engines.postgres.errors import (
    LOST,
    REPEATABLE,
    UNDONE,
    UNSTORABLE,
    asyncpg,
    explain,
)
from leasedkeyq.engines.postgres.schema import in_schema
from leasedkeyq.errors import (
    LeasedKeyQError,
    StoreError,
    StoreUnavailableError,
    store_closed,
)
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import Claim, Limits, Put, Request
from leasedkeyq.stores.batching import BatchEngine, Done, SpoiledBatchError
from leasedkeyq.stores.item_row import item_of_row
from leasedkeyq.stores.store import report_dropped
from leasedkeyq.stores.take_back import undo_lease

logger = logging.getLogger("leasedkeyq")

LONGEST_WAIT: Final = 2**31 - 1
"""Milliseconds: the server knows no longer time."""
SLOW: Final = 0.004
"""Seconds: a batch with claims takes less, unless they walk over what was deleted long ago."""
RAISE_PAUSES: Final = (0.2, 30.0)
"""The shortest and the longest pause in seconds between two calls of ``raise_1``, which finds the
first live row of a queue. The pause doubles while the calls do not make claims faster."""
COUNT_PAUSE: Final = 5.0
"""Seconds before leased keys are to be counted again, if others did not let it be."""
TIDY: Final = "SELECT lkq.tidy_1($1, $2, $3, $4)"
TIDY_EVERY: Final = 256
"""Batches between two times of tidying up."""
TIDY_ROUNDS: Final = 64
"""Transactions of tidying up at a time, at most: enough for the results of so many full batches."""
WRITING, READING, LISTENING = range(3)
"""What a connection is for."""
CLOSING_PATIENCE: Final = 1.0
"""Seconds for which calls wait for a server that is away while the store is closed."""
PAUSES: Final = (0.02, 1.0)
"""The shortest and the longest pause between two tries to reach the server, in seconds."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the server, and how to use it."""

    where: str
    """The server and the database, for people."""
    connect: Callable[[], Awaitable[Any]]
    schema: str
    limits: Limits
    clock: Callable[[], float] | None
    connections: int
    patience: float
    call_timeout: float


class ReadInTurn:
    """A question that is one of the calls that act in the order in which they were made.

    It sees what the calls before it have done, and nothing of those after it.
    """

    __slots__ = ("arguments", "deadline", "sql", "task")

    def __init__(self, sql: str, arguments: tuple[Any, ...], deadline: float) -> None:
        self.sql = sql
        self.arguments = arguments
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None
        """Asks the server, once it is its turn."""

    def cancel(self) -> None:
        """The caller does not wait for the answer any more, and no call need wait behind it."""
        if self.task is not None:
            self.task.cancel()


class NamedKeys:
    """The keys that requests name: calls that name them later wait for their turn.

    A question that is asked in turn may see any key.
    """

    __slots__ = ("_any", "_keys", "_queues", "_whole")

    def __init__(self, requests: Iterable[Any]) -> None:
        self._any = False
        self._keys: set[tuple[str, str]] = set()
        self._queues: set[str] = set()
        self._whole: set[str] = set()
        """The queues any of whose keys may be meant."""
        for request in requests:
            if isinstance(request, Put):
                self._keys.update([(request.queue, key) for key, _ in request.items])
                self._queues.add(request.queue)
            elif isinstance(request, Claim):
                if request.key is not None:
                    self._keys.update([(queue, request.key) for queue, _ in request.queues])
            elif isinstance(request, ReadInTurn):
                self._any = True
            else:
                self._queues.add(request.queue)
                key = getattr(request, "key", None)
                if key is None:
                    self._whole.add(request.queue)
                else:
                    self._keys.add((request.queue, key))

    def meets(self, other: "NamedKeys") -> bool:
        """Whether both name a key, or may do so."""
        return (
            self._any
            or other._any
            or not self._keys.isdisjoint(other._keys)
            or not self._whole.isdisjoint(other._queues)
            or not self._queues.isdisjoint(other._whole)
        )


class Writer:
    """Applies batches, with a connection while there is one."""

    __slots__ = ("connection",)

    def __init__(self) -> None:
        self.connection: Any = None


class PostgresLink(BatchEngine):
    """Connections of one event loop, and the batches that are applied with them.

    `changed` is told which queues a batch has changed.
    """

    def __init__(self, settings: Settings, changed: Callable[[Iterable[str]], None]) -> None:
        self._settings = settings
        self._changed = changed
        self._statements = {
            name: in_schema(statement, settings.schema) for name, statement in STATEMENTS.items()
        }
        self._client = secrets.token_urlsafe(9).replace(".", "-")
        self._calls = 0
        self._batches = 0
        self._touched: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each batch that is being applied."""
        self._goes_on = False
        """Whether a task has applied its batch, and takes the next one that comes right now."""
        self._next: tuple[list[Any], Done] | None = None
        self._writers: list[Writer] = []
        """The writers that apply no batch now."""
        self._reader = Writer()
        self._reading = asyncio.Lock()
        self._closed_at: float | None = None
        self._abandoned = False
        self._chores: set[asyncio.Task[None]] = set()
        self._tidied = 0
        self._tidying = False
        self._open_calls: dict[Writer, int] = {}
        """The calls that may have to be asked for."""
        self._raise_at = float("-inf")
        self._raise_pause = RAISE_PAUSES[0]
        self._leased = Leased()
        self._counted: set[str] = set()
        """Queues of which the server knows that their leased keys are counted."""
        self._count_at = float("-inf")
        self._troubles: dict[int, BaseException] = {}
        """What the last calls have met that failed, by what they did."""
        self._lost_since = 0.0
        self.own: set[int] = set()
        """Backends whose notifications are known already."""

    # Batches

    def apply(self, requests: list[Any], done: Done) -> None:
        """As `BatchEngine.apply`; some may be under way at a time."""
        asks = bool(requests) and isinstance(requests[0], ReadInTurn)
        if self._goes_on and not asks:
            self._goes_on = False
            self._next = requests, done
            return
        task = asyncio.get_running_loop().create_task(self._run(requests, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if asks:
            requests[0].task = task

    async def _run(self, requests: list[Any], done: Done) -> None:
        """Apply a batch, and the one that follows it.

        That is sent before the callers go on with their answers, and not by a task that begins
        after them: a worker has 1.5 times as many commands done by that.
        """
        batch: tuple[list[Any], Done] | None = requests, done
        while batch is not None:
            requests, done = batch
            writer = self._writers.pop() if self._writers else Writer()
            answers: list[Any] | BaseException
            ended: BaseException | None = None
            try:
                answers = await self._apply(writer, requests)
            except Exception as error:
                answers = error
            except BaseException as error:
                answers = ended = error
            self._open_calls.pop(writer, None)
            if ended or self._abandoned:
                self._drop(writer)  # an answer that comes later is not the one to the next call
            self._writers.append(writer)
            self._goes_on = ended is None
            done(answers)
            self._goes_on = False
            if ended:
                raise ended
            batch, self._next = self._next, None
            self._batches += 1
            if self._batches % TIDY_EVERY == 0:
                self._aside(self._tidy())

    async def _apply(self, writer: Writer, requests: list[Any]) -> list[Any]:
        if not requests:
            return []
        if isinstance(requests[0], ReadInTurn):
            question = requests[0]
            try:
                return [await self._read(question.sql, question.arguments, question.deadline)]
            finally:
                question.task = None  # which may go on with the batch of others
        try:
            if isinstance(requests[0], Edit):
                return [await self._edit(writer, requests[0])]
            return await self._apply_batch(writer, requests)
        except UNSTORABLE as error:
            raise self._spoiled(error) from error
        except asyncpg.QueryCanceledError as error:
            # It took too long: small requests must not fail because a large one shares their batch.
            told = explain(error, self._settings.where)
            told.__cause__ = error
            raise self._spoiled(told) from error
        except asyncpg.PostgresError as error:
            raise explain(error, self._settings.where) from error

    def _spoiled(self, error: Exception) -> SpoiledBatchError:
        """After the time for one call, the requests behind a failed one would wait in vain."""
        over = partial(self._is_over, self.deadline())
        return SpoiledBatchError(self._settings.where, error, stops=over)

    async def _apply_batch(self, writer: Writer, requests: Sequence[Request]) -> list[Any]:
        batch = Batch(self._settings.schema, requests, self._leased)
        told = batch.told()
        deadline = self.deadline()
        lost = False
        while True:
            call = self._next_call(writer)
            sent = False
            try:
                connection = await self._connected(writer, deadline)
                if not batch.counted <= self._counted:
                    await self._count(connection, batch.counted - self._counted)
                began = time.monotonic()
                sent = True
                rows = await self._send(connection, call, self._now(), told)
                if batch.claims:
                    self._notice(batch.queues, time.monotonic() - began)
            except UNSTORABLE:
                raise
            except REPEATABLE as error:
                self._check(deadline, error)
                continue
            except LOST as error:
                self._drop(writer)
                self.lost(WRITING, error)
                if not lost:
                    # Only now is the server known to be away.
                    lost, deadline = True, self.deadline()
                if isinstance(error, UNDONE) or not sent:
                    await self._wait(deadline, error)
                    continue
                found = await self._ask(writer, batch, call, deadline, error)
                if found is None:
                    continue
                claimed, reply = found
            else:
                claimed, reply = rows[:-1], self._reply(rows[-1]["answers"])
            if self._troubles:
                self.found(WRITING)
            self._tell(reply)
            return await self._answers(writer, batch, claimed, reply)

    def _reply(self, said: str) -> FunctionReply:
        """What the server said of a batch that it has applied."""
        try:
            return decode_reply(said)
        except Exception as error:
            raise self._unreadable(error) from error

    async def _answers(
        self, writer: Writer, batch: Batch, claimed: Sequence[Any], reply: FunctionReply
    ) -> list[Any]:
        """The answers to a batch that was applied: no error in them makes it be applied again."""
        try:
            return batch.answers(claimed, reply)
        except Exception as error:
            back = [undo_lease(row["queue"], row["key"], row["token"]) for row in claimed]
            try:
                if back:
                    await self._apply_batch(writer, back)
            except Exception as failure:
                where = self._settings.where
                logger.warning("%s: %d leases cannot be taken back: %s", where, len(back), failure)
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self._settings.where}: the request was applied, but the answer of the server cannot "
            f"be read: {error!r}"
        )

    async def _count(self, connection: Any, queues: Iterable[str]) -> None:
        """Have leased keys counted; without it, caps are as right, but claims with them slower."""
        clock = asyncio.get_running_loop().time
        for queue in queues:
            if clock() < self._count_at:
                return
            try:
                await connection.fetch(
                    self._statements["count_leased_1"], queue, timeout=self._settings.call_timeout
                )
            except asyncpg.LockNotAvailableError:
                # Another transaction is long, and the calls behind this one have waited, too.
                self._count_at = clock() + COUNT_PAUSE
            else:
                self._counted.add(queue)

    async def _send(
        self, connection: Any, call: str, now: float | None, told: FunctionCall
    ) -> list[Any]:
        limits = self._settings.limits
        function, arguments = told
        try:
            rows: list[Any] = await connection.fetch(
                self._statements[function],
                call,
                now,
                limits.buried,
                limits.history,
                *arguments,
                timeout=self._settings.call_timeout,
            )
        except (TypeError, ValueError) as error:
            # What cannot be sent is the driver's DataError: this is about the answer.
            raise self._unreadable(error) from error
        return rows

    async def _ask(
        self, writer: Writer, batch: Batch, call: str, deadline: float, error: BaseException
    ) -> tuple[list[Any], FunctionReply] | None:
        """Find out what became of a call; if it was not applied, see that it never is.

        A call writes its name together with what it does: whichever of the two writes the
        name first, the call or this, decides.
        """
        schema = self._settings.schema
        while True:
            if self._is_over(deadline):
                raise self._unknown(explain(error, self._settings.where)) from error
            try:
                connection = await self._connected(writer, deadline)
                stopped = await connection.fetchval(
                    f'INSERT INTO "{schema}".calls (at, call) VALUES '
                    "(extract(epoch FROM now()), $1) ON CONFLICT (call) DO NOTHING RETURNING true",
                    call,
                    timeout=self._settings.call_timeout,
                )
                if stopped:
                    return None
                said = await connection.fetchval(
                    f'SELECT answers FROM "{schema}".calls WHERE call = $1', call
                )
                if said is None:
                    return None
                claimed = await connection.fetch(
                    f'SELECT * FROM "{schema}".claimed_1($1, $2)', list(batch.queues), call
                )
            except LOST as again:
                self._drop(writer)
                self.lost(WRITING, again)
                error = again
            except StoreError as given_up:
                raise self._unknown(given_up) from error
            else:
                return claimed, self._reply(said)

    def _unknown(self, error: StoreError) -> StoreError:
        return StoreUnavailableError(
            f"{error}; the answer to the last call was lost: it is not known whether it was applied"
        )

    def _tell(self, reply: FunctionReply) -> None:
        report_dropped(reply.dropped)
        if reply.changed:
            self._touched.update(reply.changed)
            self._changed(reply.changed)

    def _next_call(self, writer: Writer) -> str:
        self._calls += 1
        self._open_calls[writer] = self._calls
        return f"{self._client}.{self._calls:012x}"

    async def _edit(self, writer: Writer, edit: Edit) -> list[Any]:
        """Look, have the work done, and apply it, while no other call can change the queue."""
        deadline = self.deadline()
        call = self._next_call(writer)
        while True:
            done: list[tuple[Batch, FunctionReply]] = []
            try:
                connection = await self._connected(writer, deadline)
                await self._edit_at_once(connection, edit, call, done)
            except UNSTORABLE:
                raise
            except (*LOST, *REPEATABLE) as error:
                if isinstance(error, LOST):
                    self._drop(writer)
                    self.lost(WRITING, error)
                if not edit.called:
                    await self._wait(deadline, error)
                    continue
                found = None
                if done:
                    batch = done[0][0]
                    found = await self._ask(writer, batch, call, self.deadline(), error)
                if found is None:
                    told = explain(error, self._settings.where)
                    raise type(told)(f"{told}; the edit has not happened") from error
            if self._troubles:
                self.found(WRITING)
            [(batch, reply)] = done
            self._tell(reply)
            return await self._answers(writer, batch, (), reply)

    async def _edit_at_once(
        self, connection: Any, edit: Edit, call: str, done: list[tuple[Batch, FunctionReply]]
    ) -> None:
        """An edit in a transaction of its own; `done` has its answers before it is committed.

        Not by `Connection.transaction`: after a time-out that would wait for ever, for a server
        that has gone without a word, to be told of the end of the transaction.
        """
        await connection.execute("BEGIN")
        try:
            done.append(await self._edit_within(connection, edit, call))
        except LOST:
            raise  # the connection is dropped, and the transaction with it
        except Exception:
            try:
                await connection.execute("ROLLBACK")
            except (*LOST, asyncpg.PostgresError):
                connection.terminate()
            raise
        except BaseException:
            connection.terminate()  # cancelled: the next call must not find a transaction open
            raise
        if await connection.execute("COMMIT") != "COMMIT":
            done.clear()
            raise StoreError(f"{self._settings.where}: the server has undone the edit")

    async def _edit_within(
        self, connection: Any, edit: Edit, call: str
    ) -> tuple[Batch, FunctionReply]:
        schema = self._settings.schema
        patience = self._settings.patience
        wait = min(max(int(patience * 1000), 1), LONGEST_WAIT)
        await connection.execute(f"SET LOCAL lock_timeout = {wait}")
        # In the order in which other calls take them. What others put meanwhile into the other
        # queues does no harm: the edit does not look at those.
        for lock, queue in sorted(
            (lock_number(schema, "queue", name), name) for name in edit.queues
        ):
            sharing = "" if queue == edit.queue else "_shared"
            await connection.execute(
                f"SELECT pg_advisory_xact_lock{sharing}($1)",
                lock,
                timeout=patience + self._settings.call_timeout,
            )
        now = await connection.fetchval(f'SELECT "{schema}".now_1($1)', self._now())
        rows = await connection.fetch(
            f'SELECT * FROM "{schema}".list_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)',
            edit.queue,
            now,
            self._settings.limits.history,
            NO_LINES if edit.heads_only else EVERY_STATE,
            "",
            0,
            NO_LIMIT,
            None if edit.keys is None else list(edit.keys),
            False,
            None,
        )
        changes = edit.changes([item_of_row(edit.queue, row, reveal=True) for row in rows])
        batch = Batch(schema, changes, self._leased, edited=edit.queue)
        sent = await self._send(connection, call, now, batch.told())
        reply = decode_reply(sent[-1]["answers"])
        for answer in batch.answers((), reply):
            if isinstance(answer, LeasedKeyQError):
                raise EditStoppedError(answer)
        return batch, reply

    # Looking

    async def read(self, sql: str, *arguments: Any) -> list[Any]:
        """Ask for something that may be asked twice. "lkq" stands for the schema."""
        if self._closed_at is not None:
            raise store_closed(f"PostgreSQL store {self._settings.where}")
        return await self._read(sql, arguments, self.deadline())

    async def _read(self, sql: str, arguments: tuple[Any, ...], deadline: float) -> list[Any]:
        statement = in_schema(sql, self._settings.schema)
        async with self._reading:
            while True:
                try:
                    connection = await self._connected(self._reader, deadline, own=False)
                    rows: list[Any] = await connection.fetch(
                        statement, *arguments, timeout=self._settings.call_timeout
                    )
                except UNSTORABLE as error:
                    raise explain(error, self._settings.where) from error
                except LOST as error:
                    self._drop(self._reader)
                    self.lost(READING, error)
                    await self._wait(deadline, error)
                except REPEATABLE as error:
                    self._check(deadline, error)
                except asyncpg.PostgresError as error:
                    raise explain(error, self._settings.where) from error
                else:
                    if self._troubles:
                        self.found(READING)
                    return rows

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a chore that makes the next calls faster; no caller waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _tidy(self) -> None:
        """In small transactions, by one at a time: the next one goes on where this one ends."""
        if self._tidying:
            return
        self._tidying = True
        queues, *what = self._untidy()
        try:
            with suppress(LeasedKeyQError):
                for _ in range(TIDY_ROUNDS):
                    [[queues]] = await self.read(TIDY, queues, *what)
                    if not queues:
                        break
        finally:
            self._touched.update(queues)
            self._tidying = False

    def _untidy(self) -> tuple[Any, ...]:
        """What there is to tidy up: queues, and calls that have been answered."""
        queues, self._touched = list(self._touched), set()
        start, self._tidied = self._tidied, min(self._open_calls.values(), default=self._calls + 1)
        names = [f"{self._client}.{number:012x}" for number in (start, self._tidied)]
        return queues, self._now(), *names

    def _notice(self, queues: Iterable[str], seconds: float) -> None:
        """A batch with claims took so long. If that is too long, look where the queues begin."""
        now = asyncio.get_running_loop().time()
        if seconds > SLOW and now > self._raise_at:
            self._raise_at = now + self._raise_pause
            self._aside(self._raise(list(queues)))

    async def _raise(self, queues: list[str]) -> None:
        history = self._settings.limits.history
        took = 0.0
        with suppress(LeasedKeyQError):
            sql = "SELECT lkq.raise_1($1, $2, $3)"
            [[took]] = await self.read(sql, queues, self._now(), history)
        # If the beginning was soon found, the batch was slow for another reason. If it could not
        # be looked for, all calls of the queue have waited behind the attempt.
        useless = min(self._raise_pause * 2, RAISE_PAUSES[1])
        self._raise_pause = RAISE_PAUSES[0] if took > SLOW / 2 else useless

    # Outages

    @property
    def outage(self) -> StoreUnavailableError | None:
        """Why the server does not answer now, if a call has failed since the last that did not."""
        if not self._troubles:
            return None
        error = next(iter(self._troubles.values()))
        seconds = time.monotonic() - self._lost_since
        return StoreUnavailableError(
            f"{explain(error, self._settings.where)}; the server has been away for {seconds:.1f} s"
        )

    def lost(self, doing: int, error: BaseException) -> None:
        """A call has failed, and is tried again."""
        if not self._troubles:
            self._lost_since = time.monotonic()
            patience = self._settings.patience
            logger.warning(
                "%s; trying again for %g s", explain(error, self._settings.where), patience
            )
        self._troubles[doing] = error

    def found(self, doing: int) -> None:
        """A call was answered: a server that writes does all else; a standby can be listened to."""
        self._troubles = {other: e for other, e in self._troubles.items() if other < doing}
        if not self._troubles:
            seconds = time.monotonic() - self._lost_since
            where = self._settings.where
            logger.info("%s: the server answers again after %.1f s", where, seconds)

    # Connections

    def _now(self) -> float | None:
        clock = self._settings.clock
        return None if clock is None else clock()

    def deadline(self) -> float:
        """Until when a call that is made now waits for the server."""
        return asyncio.get_running_loop().time() + self._settings.patience

    def _is_over(self, deadline: float) -> bool:
        """Whether a call is not tried again: `close` does not wait long for a server."""
        if self._closed_at is not None:
            deadline = min(deadline, self._closed_at + CLOSING_PATIENCE)
        return asyncio.get_running_loop().time() >= deadline

    def _check(self, deadline: float, error: BaseException) -> None:
        if self._is_over(deadline):
            raise explain(error, self._settings.where) from error

    async def _wait(self, deadline: float, error: BaseException) -> None:
        """Before the next try; not for long, as a new connection is often all that is needed."""
        self._check(deadline, error)
        undone = isinstance(error, UNDONE)
        await asyncio.sleep(random.uniform(0, PAUSES[1] if undone else PAUSES[0]))

    async def _connected(self, writer: Writer, deadline: float, *, own: bool = True) -> Any:
        """The connection, a new one if need be; tries until the deadline."""
        pause = PAUSES[0]
        while writer.connection is None or writer.connection.is_closed():
            self._drop(writer)
            try:
                writer.connection = await self._settings.connect()
            except LOST as error:
                self.lost(WRITING if own else READING, error)
                self._check(deadline, error)
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(pause * 2, PAUSES[1])
            except asyncpg.PostgresError as error:
                raise explain(error, self._settings.where) from error
            else:
                if own:
                    self.own.add(writer.connection.get_server_pid())
                    self._counted.clear()  # it may be another server
        return writer.connection

    def _drop(self, writer: Writer) -> None:
        connection, writer.connection = writer.connection, None
        if connection is not None:
            self.own.discard(connection.get_server_pid())
            connection.terminate()

    def stop_trying(self) -> None:
        """As `BatchEngine.stop_trying`."""
        self._closed_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """As `BatchEngine.close`."""
        while self._chores:
            await asyncio.wait(self._chores)
        async with self._reading:
            for writer in self._writers[:1]:
                if self._touched and writer.connection is not None:
                    # A store that is open for a moment only leaves nothing behind either.
                    with suppress(*LOST, asyncpg.PostgresError):
                        await writer.connection.fetch(
                            in_schema(TIDY, self._settings.schema),
                            *self._untidy(),
                            timeout=self._settings.call_timeout,
                        )
            for writer in [*self._writers, self._reader]:
                connection, writer.connection = writer.connection, None
                if connection is not None:
                    with suppress(*LOST, asyncpg.PostgresError):
                        await connection.close(timeout=self._settings.call_timeout)

    def abandon(self) -> None:
        """As `BatchEngine.abandon`."""
        self._closed_at = float("-inf")
        self._abandoned = True
        for writer in [*self._writers, self._reader]:
            self._drop(writer)
