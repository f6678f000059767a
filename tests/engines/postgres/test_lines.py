"""Lines among other transactions: their order, their ids and their counts hold."""

import asyncio
import random
from collections import defaultdict
from functools import partial
from typing import Any

import msgspec
import pytest

from leasedkeyq import connect
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import KeyAlreadyPresentError, QueueFullError
from leasedkeyq.stores import (
    Ack,
    Bury,
    Cancel,
    Claim,
    Counts,
    Discard,
    Put,
    Release,
    Requeue,
    Store,
)
from leasedkeyq.testing import Place
from leasedkeyq.types import PresentPolicy
from tests.engines.postgres import test_transactions as transactions
from tests.engines.postgres.test_races import QUEUE, beside, leased, one, uncommitted, with_store
from tests.servers.postgres import schemas

KEYS = 4
WRITERS = 6
WORKERS = 6
VALUES = 60
LONG = 600.0


async def ids_of(store: Store, key: str) -> list[int]:
    return [item.id for item in (await store.line(QUEUE, key)).items]


# Many at a time


def test_many_writers_and_workers_on_few_keys() -> None:
    """Nothing is lost or comes twice, and what a writer has appended to a key comes in order."""
    random_ = random.Random(14)

    async def run() -> None:
        place = Place()
        schema = schemas().borrow(place)
        stores = [connect(schemas().url, schema=schema) for _ in range(3)]
        met: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        held: set[str] = set()
        total = KEYS * WRITERS * VALUES
        acked = 0

        async def write(writer: int) -> None:
            store = stores[writer % len(stores)]
            number = dict.fromkeys(range(KEYS), 0)
            while number:
                # One value of some keys, or several of one, alone or in a batch with others.
                keys = random_.sample(sorted(number), random_.randint(1, len(number)))
                items = []
                for key in keys * random_.choice([1, 1, 3]):
                    if key in number:
                        items.append((f"k{key}", msgspec.json.encode((writer, number[key]))))
                        number[key] += 1
                        if number[key] == VALUES:
                            del number[key]
                [answer] = await store.put([Put(QUEUE, tuple(items), "append")])
                assert isinstance(answer, tuple)
                assert {placed.outcome for placed in answer} <= {"added", "appended"}

        async def work(worker: int) -> None:
            nonlocal acked
            store = stores[worker % len(stores)]
            while acked < total:
                [claimed] = await store.claim([Claim(((QUEUE, 3),), 3, None, LONG)])
                ends: list[Any] = []
                for item in claimed:
                    assert item.key not in held, "a key is leased twice"
                    held.add(item.key)
                    if random_.random() < 0.1:
                        ends.append(Release(QUEUE, item.key, item.token, front=True))
                    else:
                        writer, number = msgspec.json.decode(item.value)
                        met[item.key, writer].append(number)
                        ends.append(Ack(QUEUE, item.key, item.token))
                        acked += 1
                await asyncio.sleep(0 if claimed else 0.001)
                held.difference_update(item.key for item in claimed)
                assert await store.settle(ends) == [None] * len(ends)

        async with asyncio.timeout(100):
            await asyncio.gather(*map(write, range(WRITERS)), *map(work, range(WORKERS)))
        assert len(met) == KEYS * WRITERS
        for numbers in met.values():
            assert numbers == list(range(VALUES))
        assert await stores[0].count() == {}
        for store in stores:
            await store.close()
        place.close()

    asyncio.run(run())


# One at a time


def test_an_append_beside_an_append_has_the_higher_id() -> None:
    """Though it may have taken its id first: it has waited for the row of the head."""

    async def test(store: PostgresStore) -> None:
        await store.put([one("a")])
        for put in (
            [one("a", b"3", policy="append")],
            [one(k, b"3", policy="append") for k in "ab"],
        ):
            answer = await beside(store, _first_of(store.put(put)), one("a", b"2", policy="append"))
            assert answer[0].outcome == "appended"
            ids = await ids_of(store, "a")
            assert ids == sorted(ids)
            assert ids[-1] == answer[0].id
        found = (await store.line(QUEUE, "a")).items
        assert [item.value for item in found] == [b"1", b"2", b"3", b"2", b"3"]

    with_store(test)


async def _first_of(call: Any) -> list[Any]:
    answers: list[Any] = await call
    return answers[:1]


def test_an_append_beside_the_ack_of_its_key() -> None:
    async def test(store: PostgresStore) -> None:
        for many in (1, 2):
            await store.put([one("a")])
            item = await leased(store)
            put = store.put([Put(QUEUE, (("a", b"2"),) * many, "append")])
            placed = await beside(store, put, Ack(QUEUE, "a", item.token))
            assert [each.outcome for each in placed] == ["added", "appended"][:many]
            assert await ids_of(store, "a") == [each.id for each in placed]
            await store.settle([Cancel(QUEUE, "a")])
        assert await store.count() == {}

    with_store(test)


def test_an_ack_beside_the_first_append_to_its_key() -> None:
    """What it has waited for is the head then, and not lost."""

    async def test(store: PostgresStore) -> None:
        for keep in (0.0, LONG):
            await store.put([one("a")])
            item = await leased(store)
            ack = store.settle([Ack(QUEUE, "a", item.token, b"0", keep)])
            assert await beside(store, ack, one("a", b"2", policy="append")) is None
            again = await leased(store)
            assert (again.value, again.attempt) == (b"2", 1)
            assert await store.settle([Ack(QUEUE, "a", again.token)]) == [None]
        assert await store.count([QUEUE]) == {QUEUE: Counts(done=1)}

    with_store(test)


def test_a_unique_put_beside_the_ack_that_keeps_its_result() -> None:
    """The put has found no result, and waits for the row of the key: it looks again."""

    async def test(store: PostgresStore) -> None:
        for items in ((("a", b"2"),), (("a", b"2"), ("b", b"2"))):
            await store.put([one("a")])
            item = await leased(store)
            put = store.put([Put(QUEUE, items, "skip", unique_for=LONG)])
            placed = await beside(store, put, Ack(QUEUE, "a", item.token, b"0", LONG))
            assert placed[0] == (item.id, "skipped")
            assert [each.outcome for each in placed[1:]] == ["added"] * (len(items) - 1)
            await store.settle([Discard(QUEUE, item.id)])
        assert await store.count([QUEUE]) == {QUEUE: Counts(available=1)}

    with_store(test)


def test_a_put_of_a_new_key_beside_a_put_of_it() -> None:
    """What was refused by what it has waited for: it is asked again, and sees that."""

    async def test(store: PostgresStore) -> None:
        put = store.put([one("a", b"2", policy="only_new")])
        refusal = await beside(store, put, one("a"))
        assert isinstance(refusal, KeyAlreadyPresentError)
        assert refusal.keys == ("a",)
        put = store.put([one("b", b"2", policy="skip")])
        async with uncommitted(store, one("b")):
            task = asyncio.create_task(put)
            await asyncio.sleep(0.1)
        [answer] = await task
        assert isinstance(answer, tuple)
        assert answer[0] == ((await ids_of(store, "b"))[0], "skipped")

    with_store(test)


@pytest.mark.parametrize("end", ["requeue", "discard"])
def test_the_end_of_a_hold_beside_a_cancel_of_its_key(end: str) -> None:
    """The cancel lifts the hold: the buried item is then one as any other."""

    async def test(store: PostgresStore) -> None:
        await store.put([one("a"), one("a", b"2", policy="append")])
        item = await leased(store)
        await store.settle([Bury(QUEUE, "a", item.token, hold=True)])
        change = Requeue(QUEUE, item.id) if end == "requeue" else Discard(QUEUE, item.id)
        assert await beside(store, store.settle([change]), Cancel(QUEUE, "a")) is True
        left = Counts(available=1) if end == "requeue" else Counts()
        assert await store.count([QUEUE]) == {QUEUE: left}

    with_store(test)


# In transactions of the caller


def test_every_policy_in_a_transaction() -> None:
    """What a put returns is so as of the call, by the queue and by the transaction itself."""

    async def test(store: PostgresStore, connection: Any) -> None:
        queue = store.queue("q")
        for key in ("leased", "lined", "there"):
            await queue.put(key, 1)
        await queue.put("lined", 2, if_present="append")
        _, _, lease = await queue.take("leased")
        async with connection.transaction():

            async def put(key: str, value: int, **options: Any) -> str:
                return await queue.put(key, value, connection=connection, **options)

            assert await put("new", 1, if_present="append") == "added"
            assert await put("new", 2, if_present="append") == "appended"
            assert await put("new", 3, if_present="skip") == "skipped"
            assert await put("unique", 1, if_present="skip") == "added"
            assert await put("unique", 2, if_present="skip") == "skipped"
            assert await put("once", 1, if_present="reject") == "added"
            for key in ("once", "there", "lined", "leased"):
                with pytest.raises(KeyAlreadyPresentError):
                    await put(key, 2, if_present="reject")
            assert await put("there", 3) == "updated"
            assert await put("lined", 3, if_present="update") == "updated"
            assert await put("lined", 4, if_present="append") == "appended"
            assert await put("leased", 5, if_present="update") == "buffered"
            counts = await queue.put_many(
                [("m", 1), ("m", 2), ("there", 4)], if_present="append", connection=connection
            )
            assert counts == {"added": 1, "appended": 2}
            assert await queue.put_many([], connection=connection) == {}
        lines = {
            key: [shown.value async for shown in queue.line(key)]
            for key in ("new", "unique", "once", "there", "lined", "leased", "m")
        }
        assert lines == {
            "new": [1, 2],
            "unique": [1],
            "once": [1],
            "there": [3, 4],
            "lined": [1, 3, 4],
            "leased": [1, 5],
            "m": [1, 2],
        }
        await queue.ack(lease)

    transactions.with_store(test)


def test_what_comes_to_be_there_before_a_transaction_is_committed() -> None:
    """Then nothing is refused and nothing lost: a value that must be new is appended."""
    policies: tuple[PresentPolicy, ...] = ("append", "reject", "skip")

    async def test(store: PostgresStore, connection: Any) -> None:
        queue = store.queue("q")
        async with connection.transaction():
            for number, policy in enumerate(policies):
                done = await queue.put(policy, number, if_present=policy, connection=connection)
                assert done == "added"
            for policy in policies:
                await queue.put(policy, 10)
                await queue.put(policy, 11, if_present="append")
        met: defaultdict[str, list[int]] = defaultdict(list)
        while await queue.qsize():
            key, value, lease = await queue.get()
            met[key].append(value)
            await queue.ack(lease)
        # A head stays the head; the line behind it is in the order in which its values were put.
        assert met == {"append": [10, 0, 11], "reject": [10, 1, 11], "skip": [10, 11]}

    transactions.with_store(test)


def test_values_of_a_transaction_come_in_their_order_and_keep_their_ids() -> None:
    """However late it is committed, and whatever has become of the key meanwhile."""

    async def test(store: PostgresStore, connection: Any) -> None:
        await store.put([one("a", b"0")])
        async with connection.transaction():
            put = Put(QUEUE, tuple(("a", b"t%d" % n) for n in range(3)), "append")
            [answer] = await store.put_within(connection, [put])
            assert isinstance(answer, tuple)
            # Others append, and what was there before the transaction is done.
            for n in range(1, 4):
                await store.put([one("a", b"%d" % n, policy="append")])
            for n in range(2):
                item = await leased(store)
                assert item.value == b"%d" % n
                await store.put([one("a", b"buffer", policy="buffer")])
                await store.settle([Ack(QUEUE, "a", item.token)])
            item = await leased(store)
            assert item.value == b"2"
            await store.settle([Cancel(QUEUE, "a", only_line=True)])
            await store.put([one("a", b"newer", policy="buffer")])
        # The buffered value is not the first behind the head any more: it waits its turn.
        found = (await store.line(QUEUE, "a")).items
        assert sorted(shown.value for shown in found) == [b"2", b"newer", b"t0", b"t1", b"t2"]
        assert {shown.state for shown in found} == {"in_flight", "in_line"}
        assert {placed.id for placed in answer} < {shown.id for shown in found}
        await store.settle([Release(QUEUE, "a", item.token)])
        met = []
        for _ in range(5):
            item = await leased(store)
            met.append(item.value)
            await store.settle([Ack(QUEUE, "a", item.token)])
        assert met == [b"2", b"t0", b"t1", b"t2", b"newer"]
        assert await store.count() == {}

    transactions.with_store(test)


def test_values_of_a_transaction_go_between_those_of_others() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        append = partial(one, "a", policy="append")
        await store.put([append(b"0"), append(b"1")])
        async with connection.transaction():
            await store.put_within(connection, [append(b"2")])
            await store.put([append(b"3")])
        met = []
        for _ in range(4):
            item = await leased(store)
            met.append(item.value)
            await store.settle([Ack(QUEUE, "a", item.token)])
        assert met == [b"0", b"1", b"2", b"3"]
        assert await store.count() == {}

    transactions.with_store(test)


def test_a_full_queue_refuses_appends_in_a_transaction() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        queue = store.queue("q", maxsize=3)
        await queue.put("a", 1)
        async with connection.transaction():
            await queue.put("a", 2, if_present="append", connection=connection)
            await queue.put("a", 3, if_present="append", connection=connection)
            with pytest.raises(QueueFullError):
                await queue.put("a", 4, if_present="append", connection=connection)
            assert await queue.put("a", 5, connection=connection) == "updated"
        assert [shown.value async for shown in queue.line("a")] == [1, 2, 5]

    transactions.with_store(test)


def test_lines_by_the_function_for_other_drivers() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        put = f"SELECT {store.schema}.put('q', 'a', $1, if_present => $2, unique_for => $3)"
        first = await connection.fetchval(put, "1", "append", 0.0)
        second = await connection.fetchval(put, "2", "append", 0.0)
        assert await connection.fetchval(put, "3", "skip", 5.0) == second > first
        for value, policy, unique_for, error in (
            ("4", "reject", 0.0, "is in the queue already"),
            ("4", "keep", 0.0, "make sense"),
            ("4", "append", 1.0, "make sense"),
        ):
            with pytest.raises(Exception, match=error):
                await connection.fetchval(put, value, policy, unique_for)
        with pytest.raises(Exception, match="make sense"):
            await connection.fetchval(
                f"SELECT {store.schema}.put('q', 'a', '1', if_present => 'append', "
                "if_in_flight => 'buffer')"
            )
        queue = store.queue("q")
        assert [(shown.id, shown.value) async for shown in queue.line("a")] == [
            (first, 1),
            (second, 2),
        ]

    transactions.with_store(test)
