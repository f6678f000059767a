"""What goes together in a batch, where acks find their rows, and what caps count."""

import asyncio
from typing import Any

import asyncpg
import pytest

from leasedkeyq import MemoryStore, connect
from leasedkeyq.engines.postgres.batch import MOST_KNOWN, Batch, Leased
from leasedkeyq.engines.postgres.link import PostgresLink
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Ack, Cap, Claim, Claimed, Counts, Extend, Put, Refusal, Release
from leasedkeyq.testing import ManualClock
from tests.engines.postgres.plans.plans import explained
from tests.engines.postgres.test_races import (
    QUEUE,
    beside,
    leased,
    one,
    uncommitted,
    with_store,
)
from tests.servers.postgres import run_sql


def another(store: PostgresStore) -> PostgresStore:
    """The same queues, for somebody who has leased nothing."""
    opened = connect(store._url, schema=store.schema)
    assert isinstance(opened, PostgresStore)
    return opened


async def all_leased(store: PostgresStore, keys: str, lease_time: float | None = 60.0) -> Any:
    await store.put([one(key) for key in keys])
    [items] = await store.claim([Claim(((QUEUE, len(keys)),), len(keys), None, lease_time)])
    return items


def test_acks_do_not_look_for_their_rows() -> None:
    async def test(store: PostgresStore) -> None:
        with explained(store) as plans:
            items = await all_leased(store, "abc")
            plans.texts.clear()
            await store.settle([Ack(QUEUE, item.key, item.token) for item in items])
            [text] = [text for text in plans.texts if "Delete on items" in text]
            assert "Tid Scan on items" in text
            assert "Index" not in text

    with_store(test)


@pytest.mark.parametrize("change", ["extend", "update", "buffer"])
def test_an_ack_of_a_row_that_somebody_else_has_moved(change: Any) -> None:
    async def test(store: PostgresStore) -> None:
        first, second = await all_leased(store, "ab")
        other = another(store)
        if change == "extend":
            await other.settle([Extend(QUEUE, "a", first.token, 90.0)])
        else:
            await other.put([Put(QUEUE, (("a", b"2"),), change)])
        acks = [Ack(QUEUE, "a", first.token), Ack(QUEUE, "b", second.token)]
        assert await store.settle(acks) == [None, None]
        left = {"available": 1} if change == "buffer" else {}
        assert await store.count([QUEUE]) == {QUEUE: Counts(**left)}
        await other.close()

    with_store(test)


def test_an_ack_after_a_heartbeat() -> None:
    async def test(store: PostgresStore) -> None:
        items = await all_leased(store, "ab")
        await store.settle([Extend(QUEUE, "a", items[0].token, 90.0)])
        assert (
            await store.settle([Ack(QUEUE, item.key, item.token) for item in items]) == [None] * 2
        )
        assert await store.count([QUEUE]) == {QUEUE: Counts()}

    with_store(test)


@pytest.mark.parametrize("queue, key", [(QUEUE, "b"), ("other", "a")])
def test_a_token_is_good_for_its_own_key_only(queue: str, key: str) -> None:
    async def test(store: PostgresStore) -> None:
        item, _ = await all_leased(store, "ab")
        [answer] = await store.settle([Ack(queue, key, item.token)])
        assert isinstance(answer, Refusal)
        assert await store.settle([Ack(QUEUE, "a", item.token)]) == [None]
        [answer] = await store.settle([Ack(QUEUE, "a", item.token)])
        assert isinstance(answer, Refusal)

    with_store(test)


def test_an_ack_of_a_lease_that_has_ended() -> None:
    """Its row is somebody else's by now."""

    async def test(store: PostgresStore) -> None:
        [item] = await all_leased(store, "a")
        other = another(store)
        await other.settle([Release(QUEUE, "a", item.token)])
        again = await leased(other)
        [answer] = await store.settle([Ack(QUEUE, "a", item.token)])
        assert isinstance(answer, Refusal)
        assert await other.settle([Ack(QUEUE, "a", again.token)]) == [None]
        await other.close()

    with_store(test)


def test_only_the_latest_leases_are_remembered() -> None:
    def item(number: int) -> Claimed:
        return Claimed("q", "k", b"", 1, f"t{number}", 1, 1, 0, None, 0.0)

    known = Leased()
    known.add([(item(number), f"(0,{number})") for number in range(MOST_KNOWN + 2)])
    assert known.pop("t1", "q", "k") is None
    assert known.pop("t2", "q", "other") is None
    assert known.pop("t3", "q", "k") == "(0,3)"
    assert known.pop("t3", "q", "k") is None


@pytest.mark.parametrize("lease_time", [60.0, None])
def test_a_cap_counts_what_was_leased_before_anybody_knew_of_it(lease_time: float | None) -> None:
    """And what is leased later by those who do not know of it."""

    async def test(store: PostgresStore) -> None:
        await store.put([one(key) for key in ("a1", "a2", "a3", "b1", "a4")])
        await store.claim([Claim(((QUEUE, 1),), 1, None, lease_time)])
        capped = Claim(((QUEUE, 9),), 9, None, 60.0, caps=(Cap(QUEUE, "a*", in_flight=2),))
        other = another(store)
        [items] = await other.claim([capped])
        assert [item.key for item in items] == ["a2", "b1"]
        await other.settle([Ack(QUEUE, "a2", items[0].token)])
        [[uncapped]] = await store.claim([Claim(((QUEUE, 1),), 1, None, lease_time)])
        assert uncapped.key == "a3"
        assert await other.claim([capped]) == [()]
        await store.settle([Ack(QUEUE, "a3", uncapped.token)])
        [[item]] = await other.claim([capped])
        assert item.key == "a4"
        await other.close()

    with_store(test)


def test_a_cap_counts_the_first_and_the_last_keys_of_its_prefix() -> None:
    async def test(store: PostgresStore) -> None:
        capped = Claim(((QUEUE, 9),), 9, None, 60.0, caps=(Cap(QUEUE, "a%*", in_flight=2),))
        await store.put([one(key) for key in ("a%", "a%" + "\U0010ffff" * 9, "a%1", "a", "b")])
        [items] = await store.claim([Claim(((QUEUE, 2),), 2, None, 60.0)])
        [more] = await store.claim([capped])
        assert [item.key for item in more] == ["a", "b"]
        await store.settle([Ack(QUEUE, items[0].key, items[0].token)])
        assert [item.key for item in (await store.claim([capped]))[0]] == ["a%1"]

    with_store(test)


def test_a_cap_counts_what_is_being_leased_while_the_counting_begins() -> None:
    async def test(store: PostgresStore) -> None:
        await store.put([one("a1"), one("a2")])
        capped = Claim(((QUEUE, 9),), 9, None, 60.0, caps=(Cap(QUEUE, "a*", in_flight=1),))
        plain = Claim(((QUEUE, 1),), 1, None, 60.0)
        function = f"ALTER FUNCTION {store.schema}.count_leased_1 SET lock_timeout ="
        run_sql(store._url, f"{function} '60s'")
        assert await beside(store, store.claim([capped]), plain) == ()
        run_sql(store._url, f"{function} '100ms'")

    with_store(test)


def test_a_cap_that_is_new_beside_a_long_transaction() -> None:
    """It holds, and nobody waits for the end of that."""

    async def test(store: PostgresStore) -> None:
        await store.put([one("a1"), one("a2")])
        await leased(store)
        capped = Claim(((QUEUE, 9),), 9, None, 60.0, caps=(Cap(QUEUE, "a*", in_flight=2),))
        async with uncommitted(store, one("b")):
            [items] = await store.claim([capped])
            assert [item.key for item in items] == ["a2"]
            await store.put([one("a3")])
            assert await store.claim([capped]) == [()]
            assert not store._link()._counted
        store._link()._count_at = 0.0
        assert [item.key for item in (await store.claim([capped]))[0]] == ["b"]
        assert store._link()._counted == {QUEUE}

    with_store(test)


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_cap_on_a_server_that_has_forgotten_it(reconnects: bool) -> None:
    """As one may that takes over from another and has not heard the last of it."""

    async def test(store: PostgresStore) -> None:
        capped = Claim(((QUEUE, 9),), 9, None, 60.0, caps=(Cap(QUEUE, "a*", in_flight=1),))
        await store.put([one(f"a{number}") for number in range(3)])
        [[item]] = await store.claim([capped])
        await store.settle([Ack(QUEUE, item.key, item.token)])
        run_sql(store._url, f"DELETE FROM {store.schema}.floors")
        link = store._link()
        if reconnects:
            for writer in link._writers:
                link._drop(writer)
        assert [len(items) for items in await store.claim([capped])] == [1]
        assert await store.claim([capped]) == [()]
        counted = f"SELECT counted FROM {store.schema}.floors"
        assert bool(run_sql(store._url, counted)) is reconnects

    with_store(test)


def test_a_key_that_is_put_again_with_another_priority() -> None:
    """It moves when it is put again, and what comes later in the same call is behind it."""
    puts = [
        Put(QUEUE, (("z", b"1"),), priority=-1),
        Put(QUEUE, (("z", b"2"), ("a", b"3")), priority=1),
    ]

    async def test(store: PostgresStore) -> None:
        for asked in (store, MemoryStore()):
            await asked.put(puts)
            [items] = await asked.claim([Claim(((QUEUE, 2),), 2)])
            assert [item.key for item in items] == ["z", "a"]

    with_store(test)


def test_puts_go_together() -> None:
    """A key that moves, too: each put has got its place before the first is done."""
    puts = [Put(QUEUE, ((key, b"1"),), priority=2) for key in "aab"]
    assert len(Batch("lkq", [*puts, Put(QUEUE, (("c", b"1"),))])._runs) == 1
    assert len(Batch("lkq", [*puts, Put(QUEUE, (("a", b"1"),), delay=1.0)])._runs) == 1


def test_keys_that_are_put_again_with_a_delay() -> None:
    """Those that come due at the same time are in the order of the last puts of their keys."""
    clock = ManualClock()
    puts = [
        Put(QUEUE, (("z", b"1"), ("y", b"1"), ("live", b"1"))),
        Put(QUEUE, (("live", b"2"), ("c", b"2")), delay=5.0),
        Put(QUEUE, (("z", b"3"), ("b", b"3")), delay=5.0),
        Put(QUEUE, (("c", b"4"), ("a", b"4")), delay=0.0, priority=1),
    ]

    async def test(store: PostgresStore) -> None:
        found: list[list[tuple[str, bytes]]] = []
        for asked in (store, MemoryStore(clock=clock)):
            await asked.put([one("live")])
            await asked.put(puts)
            clock.advance(6.0)
            [items] = await asked.claim([Claim(((QUEUE, 9),), 9)])
            found.append([(item.key, item.value) for item in items])
        assert found[0] == found[1]

    with_store(test, clock=clock)


def test_claims_with_one_that_asks_for_nothing_in_between() -> None:
    async def test(store: PostgresStore) -> None:
        await store.put([one("a"), one("b")])
        claims = [Claim(((QUEUE, most),)) for most in (1, 0, 1)]
        answers = await store.claim(claims)
        assert [[item.key for item in answer] for answer in answers] == [["a"], [], ["b"]]

    with_store(test)


def test_an_answer_that_cannot_be_read_makes_nothing_happen_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was applied: what it has leased goes back, and nobody sends it again."""

    def fail(*_: object) -> None:
        raise ValueError("not an answer")

    async def test(store: PostgresStore) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Batch, "answers", fail)
            with pytest.raises(StoreError, match=r"was applied, but the answer .* cannot be read"):
                await store.put([one("a")])
            with pytest.raises(StoreError, match="was applied"):
                await store.put([one("b"), one("c")])
            with pytest.raises(StoreError, match="was applied"):
                await store.claim([Claim(((QUEUE, 2),), 2)] * 2)
        found = (await store.browse(QUEUE)).items
        assert [(item.key, item.state, item.attempt) for item in found] == [
            (key, "available", 0) for key in "abc"
        ]
        assert found[-1].id - found[0].id == 2

    with_store(test)


def test_an_answer_that_cannot_be_read_and_leases_that_do_not_go_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the server ends what takes too long: that is no reason to apply the rest again."""

    def fail(*_: object) -> None:
        raise ValueError("not an answer")

    async def test(store: PostgresStore) -> None:
        link, send = store._link(), PostgresLink._send

        async def cancelled(*arguments: Any) -> Any:
            if arguments[-1][0] == "apply_1" and '"release"' in str(arguments[-1]):
                raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
            return await send(link, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Batch, "answers", fail)
            patch.setattr(link, "_send", cancelled)
            calls = store.put([one("a"), one("b")]), store.claim([Claim(((QUEUE, 1),))])
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(answer, StoreError)
                assert "was applied" in str(answer)
        assert await store.count([QUEUE]) == {QUEUE: Counts(available=1, in_flight=1)}
        assert "cannot be taken back" in caplog.text

    with_store(test)
