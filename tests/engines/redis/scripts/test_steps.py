"""Steps that are bounded: no call of the script takes long, however much there is."""

import asyncio
import re
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from leasedkeyq.engines.redis.engine import RedisEngine
from leasedkeyq.engines.redis.link import Steps
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cap,
    Claim,
    Counts,
    Limits,
    Put,
    Release,
    StoredItem,
    Urgency,
)
from leasedkeyq.testing import ManualClock
from tests.engines.redis.support import keys_of, many, opened
from tests.servers.valkey import Make, Server, makes, shared_server
from tests.stores.growth import LIMITS, SIZES, fill, grown, verbs


@pytest.fixture(params=makes())
def server(request: pytest.FixtureRequest) -> Server:
    return shared_server(request.param)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """How the script answered."""
    answers: list[bytes] = []
    sent = RedisEngine._sent

    def noted(
        engine: RedisEngine, keys: Sequence[str], batch: bytes, recorded: bool
    ) -> Steps[list[Any]]:
        reply = yield from sent(engine, keys, batch, recorded)
        answers.append(reply[0])
        return reply

    monkeypatch.setattr(RedisEngine, "_sent", noted)
    return answers


def test_what_is_due_moves_in_steps_before_anything_else(
    server: Server, prefix: str, told: list[bytes]
) -> None:
    """However much it is: no call does more than a thousand moves, and every verb sees them all."""

    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        await store.put([many(2500)])
        await store.claim([Claim((("q", 2500),), 2500, None, 1.0)])
        clock.advance(2)
        told.clear()
        assert await store.count(["q"]) == {"q": Counts(available=2500)}
        assert told == [b"more", b"more", b"done"]
        [items] = await store.claim([Claim((("q", 2500),), 2500)])
        assert [item.key for item in items] == [f"k{number:05}" for number in range(2500)]
        await store.close()

    asyncio.run(main())


def test_what_is_due_in_many_queues_moves_in_steps_too(
    server: Server, prefix: str, told: list[bytes]
) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        queues = [f"q{number}" for number in range(6)]
        keys = tuple((f"k{number}", b"1") for number in range(400))
        await store.put([Put(queue, keys, delay=1.0) for queue in queues])
        clock.advance(2)
        told.clear()
        assert await store.count() == dict.fromkeys(queues, Counts(available=400))
        assert told == [b"more", b"more", b"done"]
        await store.close()

    asyncio.run(main())


def test_sweep_says_that_there_is_more(server: Server, prefix: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        await store.put([many(1200)])
        [items] = await store.claim([Claim((("q", 1200),), 1200)])
        await store.settle([Ack("q", item.key, item.token, b"1", 1.0) for item in items])
        assert await store.sweep(["q"]) == [1.0]
        clock.advance(2)
        assert await store.count(["q"]) == {"q": Counts()}
        assert [(await store.sweep(["q"]))[0] for _ in range(3)] == [0, 0, None]
        await store.close()

    asyncio.run(main())
    assert not [key for key in keys_of(server, prefix) if "}:d" in key]


def test_sweeps_of_idle_queues_write_nothing(prefix: str) -> None:
    async def main(server: Server) -> None:
        store = opened(server, prefix)
        await store.sweep(["never"])
        assert keys_of(server, prefix).keys() == {f"{prefix}:format"}
        await store.put([many(2), Put("q", (("later", b"1"),), delay=600.0)])
        [[item]] = await store.claim([Claim((("q", 1),), 1, None, 600.0)])
        await store.settle([Ack("q", item.key, item.token, b"1", 600.0)])
        with server.client() as client:
            client.config_resetstat()
            for _ in range(10):
                await store.sweep(["q"])
            assert "cmdstat_set" not in client.info("commandstats")
        await store.close()

    with Server() as server:
        asyncio.run(main(server))


COMMANDS = re.compile(r"cmdstat_(?!eval|script|info|config)")


@pytest.mark.parametrize("make", makes())
def test_every_verb_costs_the_same_however_many_items_there_are(make: Make, prefix: str) -> None:
    """In commands that the script makes."""

    async def costs(server: Server, size: int) -> dict[str, int]:
        store = opened(server, f"{prefix}{size}", limits=LIMITS)
        await fill(store, size)
        found: dict[str, int] = {}
        with server.client() as client:

            async def counted(name: str, call: Awaitable[Any]) -> Any:
                client.config_resetstat()
                answer = await call
                stats = client.info("commandstats")
                calls = [stats[command]["calls"] for command in stats if COMMANDS.match(command)]
                found[name] = sum(calls)
                return answer

            await verbs(store, counted)
        await store.close()
        return found

    with Server(make=make) as server:
        few, much = [asyncio.run(costs(server, size)) for size in SIZES]
    assert grown(few, much) == {}


def test_long_listings_come_in_steps(server: Server, prefix: str, told: list[bytes]) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        await store.put([many(1700)])
        told.clear()
        page = await store.browse("q", limit=1600)
        assert [item.key for item in page.items] == [f"k{number:05}" for number in range(1600)]
        assert page.cursor is not None
        assert len(told) == 4
        rest = await store.browse("q", cursor=page.cursor, prefix="k", limit=200)
        assert (len(rest.items), rest.cursor) == (100, None)
        last = await store.browse("q", prefix="k01699", limit=1)
        assert [item.key for item in last.items] == ["k01699"]
        seen: list[StoredItem] = []

        def work(items: Sequence[StoredItem]) -> list[Put]:
            seen.extend(items)
            return []

        await store.edit("q", work)
        assert len(seen) == 1700
        await store.close()

    asyncio.run(main())


def test_a_search_looks_at_many_keys_in_one_call(
    server: Server, prefix: str, told: list[bytes]
) -> None:
    """And reads no more than it has to, in whatever order."""

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([many(9000)])
        await store.put([Put("q", tuple((f"later{n:04}", b"1") for n in range(300)), delay=600.0)])
        for newest_first in (False, True):
            told.clear()
            page = await store.browse("q", prefix="nothing", newest_first=newest_first)
            assert page.items == ()
            assert len(told) == 1
            page = await store.browse("q", prefix="k04", newest_first=newest_first)
            numbers = range(4999, 4899, -1) if newest_first else range(4000, 4100)
            assert [item.key for item in page.items] == [f"k{number:05}" for number in numbers]
            told.clear()
            page = await store.browse("q", states=["available"], newest_first=newest_first)
            numbers = range(8999, 8899, -1) if newest_first else range(100)
            assert [item.key for item in page.items] == [f"k{number:05}" for number in numbers]
            page = await store.browse("q", states=["scheduled"], newest_first=newest_first)
            numbers = range(299, 199, -1) if newest_first else range(100)
            assert [item.key for item in page.items] == [f"later{n:04}" for n in numbers]
            assert len(told) == 2
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("newest_first", [True, False])
def test_items_of_a_state_are_found_at_once_where_the_page_begins(
    server: Server, prefix: str, newest_first: bool
) -> None:
    """The newest of those that come due later: then the others of their state are not looked at."""

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([many(5000)])
        await store.put([Put("q", tuple((f"later{n:04}", b"1") for n in range(1500)), delay=600.0)])
        await store.browse("q", limit=1)
        with server.client() as client:
            client.config_resetstat()
            page = await store.browse("q", states=["scheduled"], newest_first=newest_first)
            all_looked_at = "cmdstat_zmscore" in client.info("commandstats")
        numbers = range(1499, 1399, -1) if newest_first else range(100)
        assert [item.key for item in page.items] == [f"later{n:04}" for n in numbers]
        assert all_looked_at is not newest_first
        await store.close()

    asyncio.run(main())


def test_keys_with_many_results_are_looked_at_in_steps(
    server: Server, prefix: str, told: list[bytes]
) -> None:
    """And none of them is missed, or told of twice."""

    async def main() -> None:
        store = opened(server, prefix, limits=Limits(buried=1000))
        for _ in range(600):
            await store.put([Put("q", (("k", b"1"), ("k2", b"1")))])
            [[one, other]] = await store.claim([Claim((("q", 2),), 2)])
            done = Ack("q", one.key, one.token, b"1", 600.0)
            await store.settle([done, Bury("q", other.key, other.token)])
        await store.put([Put("q", (("k", b"1"), ("k3", b"1")))])
        seen: list[StoredItem] = []

        def work(items: Sequence[StoredItem]) -> list[Put]:
            seen.extend(items)
            return []

        told.clear()
        await store.edit("q", work, keys=["k", "none", "k2"])
        assert len(seen) == len({item.id for item in seen}) == 1201
        assert {(item.key, item.state) for item in seen} == {
            ("k", "done"),
            ("k", "available"),
            ("k2", "buried"),
        }
        locking = 2
        assert len(told) == 3 + locking
        told.clear()
        seen.clear()
        await store.edit("q", work, keys=[f"no{number}" for number in range(1000)])
        assert not seen
        assert len(told) == 6 + locking
        await store.close()

    asyncio.run(main())


def test_the_names_of_many_queues_are_read_in_steps(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasedkeyq.engines.redis.engine.PAGE", 100)
    names = {f"q{number}" for number in range(1500)}

    def calls() -> int:
        with server.client() as client:
            stats: dict[str, Any] = client.info("commandstats")
        number: int = stats.get("cmdstat_zscan", {"calls": 0})["calls"]
        return number

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([Put(name, (("k", b"1"),)) for name in names])
        before = calls()
        assert (await store.count()).keys() == names
        assert 10 < calls() - before < 30
        await store.close()

    asyncio.run(main())


def test_a_claim_that_passes_over_many_does_so_in_steps(
    server: Server, prefix: str, told: list[bytes]
) -> None:
    """By kinds and by caps, over several queues, and to the last item."""

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([many(9000), Put("q", (("a", b"1"), ("b", b"1")), kind="rare")])
        await store.put([Put("next", (("c", b"1"), ("d", b"1")), kind="rare")])
        told.clear()
        rare = Claim((("q", 5), ("next", 1)), 5, None, 60.0, ("rare",))
        [items, none] = await store.claim([rare, Claim((("q", 1),), 1, None, 60.0, ("no",))])
        assert [item.key for item in items] == ["a", "b", "c"]
        assert none == ()
        assert len(told) > 3
        assert set(told) == {b"done"}
        await store.settle([Release(i.queue, i.key, i.token, undo=True) for i in items])
        told.clear()
        capped = Claim((("q", 9),), 9, caps=(Cap("q", "k*", in_flight=1),))
        [items] = await store.claim([capped])
        assert [item.key for item in items] == ["k00000", "a", "b"]
        assert len(told) > 1
        assert await store.claim([capped]) == [()]
        await store.close()

    asyncio.run(main())


def test_requests_that_are_not_plain_though_they_are_alone(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        await store.put([many(25)])
        assert await store.put([Put("q", ())]) == [()]
        assert await store.claim([Claim((("q", 0),))]) == [()]
        [items] = await store.claim([Claim((("q", 1), ("q", 1)), 2)])
        assert [item.key for item in items] == ["k00000", "k00001"]
        [items] = await store.claim([Claim((("q", 99),), 12, None, 60.0, ("",))])
        assert [item.key for item in items] == [f"k{number:05}" for number in range(2, 14)]
        await store.put([Put("q", ((key, b"1"),), kind="mail") for key in "abc"])
        [items] = await store.claim([Claim((("q", 2),), 2, None, 60.0, ("no", "mail"))])
        assert [item.key for item in items] == ["a", "b"]
        await store.close()

    asyncio.run(main())


def test_a_claim_by_urgency_that_passes_over_many_does_so_in_steps(
    server: Server, prefix: str, told: list[bytes]
) -> None:
    """Each queue is looked through from where it was left, and nothing is leased out of turn."""

    async def main() -> None:
        store = opened(server, prefix)
        late = Put("late", (("x", b"1"),), kind="rare", deadline=0.0)
        others = Put("late", tuple((f"k{number:05}", b"1") for number in range(9000)))
        await store.put([many(9000), others])
        await store.put([Put("q", (("a", b"1"), ("b", b"1")), kind="rare"), late])
        await store.put([Put("next", (("c", b"1"), ("d", b"1")), kind="rare")])
        urgencies = (Urgency(1), Urgency(5, steps=((0.5, 1),)), Urgency(0), Urgency(9))
        queues = (("q", 9), ("late", 9), ("next", 1), ("empty", 9))
        told.clear()
        rare = Claim(queues, 9, None, 60.0, ("rare",), urgencies=urgencies)
        [items] = await store.claim([rare])
        assert [item.key for item in items] == ["x", "c", "a", "b"]
        assert len(told) > 3
        assert set(told) == {b"done"}
        # Some have been leased when there is no more time.
        caps = (Cap("q", "k*", in_flight=2), Cap("late", "k*", in_flight=1))
        told.clear()
        capped = Claim(queues, 4, None, 60.0, None, caps, urgencies)
        [items] = await store.claim([capped])
        assert [item.key for item in items] == ["d", "k00000", "k00001", "k00000"]
        assert [item.queue for item in items] == ["next", "q", "q", "late"]
        assert len(told) > 1
        await store.close()

    asyncio.run(main())


def test_a_claim_by_urgency_over_many_long_queues_is_one_call(
    server: Server, prefix: str, told: list[bytes]
) -> None:
    """What is read ahead is not passed over: there is time for the items that are leased."""

    async def main() -> None:
        store = opened(server, prefix)
        names = [f"q{number}" for number in range(26)]
        items = tuple((f"k{number}", b"1") for number in range(200))
        await store.put([Put(name, items) for name in names])
        told.clear()
        queues = tuple((name, 200) for name in names)
        claim = Claim(queues, 200, None, 60.0, urgencies=(Urgency(1),) * len(names))
        [found] = await asyncio.wait_for(store.claim([claim]), 60)
        assert len(found) == 200
        assert told == [b"done"]
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("lease_time", [0.0, 1e-8, -1.0])
def test_alike_claims_whose_leases_end_at_once(
    server: Server, prefix: str, lease_time: float
) -> None:
    """The second one gets the item of the first, as if it had come alone."""

    async def main() -> None:
        store = opened(server, prefix, clock=ManualClock())
        await store.put([Put("q", (("a", b"1"), ("b", b"1")))])
        found = await store.claim([Claim((("q", 1),), lease_time=lease_time)] * 2)
        assert [(item.key, item.attempt) for [item] in found] == [("a", 1), ("a", 2)]
        await store.close()

    asyncio.run(main())
