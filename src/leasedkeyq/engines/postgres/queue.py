"""A queue of the PostgreSQL store: puts in transactions of the caller."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from leasedkeyq import checks
from leasedkeyq.engines.postgres.batch import Batch, FunctionReply
from leasedkeyq.engines.postgres.errors import asyncpg, explain
from leasedkeyq.errors import StoreError
from leasedkeyq.model.admission import check_name, refusal_of
from leasedkeyq.model.requests import Placed, Put
from leasedkeyq.stores.queue.store_queue import StoreQueue, put_options, raise_refusal
from leasedkeyq.types import (
    Duration,
    InFlightPolicy,
    PresentPolicy,
    PutOutcome,
    PutPolicy,
)

V = TypeVar("V")


class PostgresQueue(StoreQueue[V]):
    """`StoreQueue`, whose puts can be a part of a transaction of the caller."""

    schema: str
    """Where the tables of its store are."""

    async def put(
        self,
        key: str,
        value: V,
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> PutOutcome:
        """As `StoreQueue.put`.

        With `connection`, an asyncpg connection to the same database, it is put in the transaction
        that is open there: it can be seen, and wakes a waiting `get`, when that is committed, and
        never was if it is rolled back. No call waits for such a transaction, however long it stays
        open. An item takes its place in the queue after the commit; a `delay` counts from the call.
        What a transaction has appended to a key comes in the order of its puts.

        Such a put does not wait for room: a full queue refuses it with `QueueFullError`,
        ``if_in_flight="reject"`` a key that is leased, and ``if_present="reject"`` one that is
        there. That, and what it returns, is decided when `put` is called, by what is in the queue
        then and what was put in the transaction before. What was committed is not refused any more:
        a queue may so hold more than `maxsize` for a while, if several such transactions overlap; a
        key that was leased meanwhile has the value behind it (``"buffer"``), and one that is there
        though it was not to be has it at the end of its line. With ``if_present="skip"``, a key
        that has come to be there meanwhile keeps what it has. Instruments are told of it when it is
        called, as of any other put, whatever becomes of the transaction.
        """
        if connection is None:
            return await super().put(
                key,
                value,
                if_in_flight=if_in_flight,
                if_present=if_present,
                priority=priority,
                delay=delay,
            )
        policy = checks.put_policy(if_in_flight, if_present)
        [placed] = await self._put_in(connection, [(key, value)], policy, priority, delay)
        return placed.outcome

    async def put_many(
        self,
        items: Mapping[str, V] | Iterable[tuple[str, V]],
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> Counter[PutOutcome]:
        """As `StoreQueue.put_many`; `connection` is as in `put`."""
        if connection is None:
            return await super().put_many(
                items,
                if_in_flight=if_in_flight,
                if_present=if_present,
                priority=priority,
                delay=delay,
            )
        policy = checks.put_policy(if_in_flight, if_present)
        pairs = checks.key_values("items", items, policy)
        placed = await self._put_in(connection, pairs, policy, priority, delay)
        return Counter(each.outcome for each in placed)

    async def _put_in(
        self,
        connection: Any,
        items: Iterable[tuple[str, V]],
        policy: PutPolicy,
        priority: int | None,
        delay: Duration | None,
    ) -> tuple[Placed, ...]:
        self._enter("put")
        seconds = put_options(priority, delay)
        encoded: list[tuple[str, bytes]] = []
        for key, value in items:
            check_name("key", key, self._store.limits)
            encoded.append((key, self._codec.encode(key, value)))
        check_in_transaction(connection)
        if not encoded:
            return ()
        request = Put(self.name, tuple(encoded), policy, priority, seconds, self._maxsize)
        raise_refusal(refusal_of(request, self._store.limits))
        put = partial(put_within, connection, self.schema)
        [answer] = await self._store.call_as("put", put, [request])
        raise_refusal(answer)
        placed: tuple[Placed, ...] = answer
        return placed


def check_in_transaction(connection: Any) -> None:
    """Refuse a connection in whose transaction nothing can be put.

    Raises:
        TypeError: It is no connection of asyncpg.
        StoreError: No transaction is open on it.
    """
    if not hasattr(connection, "is_in_transaction"):
        raise TypeError(
            f"connection must be one of asyncpg, got {type(connection).__name__}; of "
            "SQLAlchemy's, it is (await connection.get_raw_connection()).driver_connection"
        )
    if not connection.is_in_transaction():
        raise StoreError(
            "put: the connection is in no transaction; begin one, or put without connection "
            "(SQLAlchemy begins it on the server with the first statement: execute one before)"
        )


async def put_within(connection: Any, schema: str, requests: Sequence[Put]) -> list[Any]:
    """Put in the transaction that is open on a connection, by one request; returns its answer."""
    [request] = requests
    try:
        said = await connection.fetchval(
            f'SELECT "{schema}".post_1($1, $2, $3, $4, $5, $6, $7, $8, $9)::text',
            request.queue,
            [key for key, _ in request.items],
            [value for _, value in request.items],
            request.policy,
            request.priority,
            request.delay,
            request.max_items,
            request.kind,
            request.unique_for,
        )
    except asyncpg.PostgresError as error:
        raise explain(error, "put in a transaction") from error
    reply = FunctionReply([msgspec.json.decode(said)], [], [])
    return Batch(schema, requests).answers((), reply)
