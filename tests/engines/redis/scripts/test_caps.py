"""Counts of leases by pattern: in steps, right whatever happens meanwhile, and not for ever."""

import asyncio
import os
import random
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from leasedkeyq import RedisStore
from leasedkeyq.engines.redis.engine import RedisEngine
from leasedkeyq.engines.redis.link import Steps
from leasedkeyq.model.caps import matcher
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Cap,
    Change,
    Claim,
    Claimed,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    StoredItem,
    Urgency,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import ManualClock
from leasedkeyq.types import InFlightPolicy
from tests.engines.redis.support import SMALL_STEPS, keys_of, many, opened, use_small_steps
from tests.servers.valkey import Make, Server, makes, shared_cluster, shared_server

TORTURE = os.environ.get("TORTURE") == "1"

NOTES = 48
"""Bytes of the numbers in the notes on a queue."""
LIFETIME = 3600.0
PATIENCE = 600.0


@pytest.fixture
def server() -> Server:
    return shared_server()


class Told:
    """How the script answered one store, and what is done before it is asked for more."""

    def __init__(self) -> None:
        self.engine = ""
        self.answers: list[bytes] = []
        self.between: Callable[[], None] | None = None


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told()
    sent = RedisEngine._sent

    def noted(
        engine: RedisEngine, keys: Sequence[str], batch: bytes, recorded: bool
    ) -> Steps[list[Any]]:
        reply = yield from sent(engine, keys, batch, recorded)
        if engine.me == found.engine:
            found.answers.append(reply[0])
            if reply[0] == b"more" and found.between is not None:
                found.between()
        return reply

    monkeypatch.setattr(RedisEngine, "_sent", noted)
    return found


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs a coroutine to its end in another thread."""
    with ThreadPoolExecutor(1) as threads:
        yield lambda work: threads.submit(asyncio.run, work).result(PATIENCE)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_steps(monkeypatch)


def check_counts(server: Server, prefix: str, queue: str = "q") -> dict[str, bool]:
    """Compare what is kept with the leases; returns the patterns and whether they are counted."""
    base = f"{prefix}:{{{queue}}}:"
    with server.client() as client:
        leased = [key.decode() for key in client.hkeys(base + "l")]
        kept = {name.decode(): record for name, record in client.hgetall(base + "x").items()}
        notes = client.get(base + "m") or b""
        assert (notes[NOTES : NOTES + 1] == b"+") == bool(kept)
        assert all(client.ttl(key) > 0 for key in client.scan_iter(f"{base}x*", 1000))
        for pattern, record in kept.items():
            matches = matcher(pattern)
            count, _ = struct.unpack_from(">dd", record)
            seen = dict(client.zrange(f"{base}x:{pattern}", 0, -1, withscores=True))
            if record[16:]:
                assert {key.decode() for key in seen} <= {*leased}
                assert all(matches(key.decode()) == score for key, score in seen.items())
            else:
                assert not seen
                assert count == sum(map(matches, leased)), pattern
        return {pattern: not record[16:] for pattern, record in kept.items()}


def capped(limit: int, *caps: Cap, **options: Any) -> Claim:
    return Claim((("q", limit),), limit, lease_time=PATIENCE, caps=caps, **options)


def test_many_leases_are_counted_in_steps_and_once(server: Server, prefix: str, told: Told) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        told.engine = store._engine.me
        await store.put([many(6000)])
        await store.claim([Claim((("q", 5000),), 5000)])
        told.answers.clear()
        cap = Cap("q", "k*7", in_flight=501)
        [items] = await store.claim([capped(9, cap)])
        assert [item.key for item in items] == [f"k0500{number}" for number in range(9)]
        assert 4 <= told.answers.count(b"more") <= 15
        assert check_counts(server, prefix) == {"k*7": True}
        await store.settle([Ack("q", item.key, item.token) for item in items])
        told.answers.clear()
        [items] = await store.claim([capped(11, cap)])
        assert [item.key[-2:] for item in items] == [f"{number:02}" for number in range(9, 20)]
        [items] = await store.claim([capped(10, cap, kinds=("",))])
        assert [item.key[-2:] for item in items] == [*map(str, range(20, 27)), "28", "29", "30"]
        assert told.answers == [b"done"] * 2
        assert check_counts(server, prefix) == {"k*7": True}
        await store.close()

    asyncio.run(main())


def test_few_leases_are_counted_in_the_claim(server: Server, prefix: str, told: Told) -> None:
    """And nothing is kept about them. Of one key and of all of them nothing is kept at all."""

    async def main() -> None:
        store = opened(server, prefix)
        told.engine = store._engine.me
        await store.put([many(800)])
        [held] = await store.claim([Claim((("q", 200),), 200)])
        cap = Cap("q", "k*", in_flight=203)
        [items, others] = await store.claim([capped(2, cap), capped(9, cap)])
        assert [item.key for item in items] == ["k00200", "k00201"]
        assert [item.key for item in others] == ["k00202"]
        assert check_counts(server, prefix) == {}
        caps = (Cap("q", "k00204", in_flight=0), Cap("q", "**", in_flight=205))
        [items] = await store.claim([capped(9, *caps)])
        assert [item.key for item in items] == ["k00203", "k00205"]
        assert check_counts(server, prefix) == {}
        # Now there are many.
        assert await store.claim([capped(9, cap)]) == [()]
        assert check_counts(server, prefix) == {"k*": True}
        await store.claim([Claim((("q", 400),), 400)])
        assert set(told.answers) == {b"done"}
        # Two patterns would be more than a thousand keys to look at.
        told.answers.clear()
        await store.claim([capped(1, Cap("q", "*1", in_flight=9), Cap("q", "*2", in_flight=9))])
        assert told.answers == [b"more", b"done"]
        assert check_counts(server, prefix) == {"k*": True, "*1": True, "*2": True}
        # And now few again.
        await store.settle([Ack("q", item.key, item.token) for item in held])
        await store.settle([Cancel("q", f"k{number:05}") for number in range(200, 510)])
        assert len(check_counts(server, prefix)) == 3
        await store.claim([capped(1, cap)])
        assert check_counts(server, prefix) == {}
        await store.close()

    asyncio.run(main())


def test_two_clients_go_on_while_a_pattern_is_counted(
    server: Server,
    prefix: str,
    told: Told,
    elsewhere: Callable[[Coroutine[Any, Any, Any]], Any],
) -> None:
    """Leases that end count no more, those that begin do, whether they were looked at or not."""
    turns = 0

    async def work() -> None:
        """Another client with another pattern: it ends and begins leases of both."""
        nonlocal turns
        turns += 1
        store = opened(server, prefix)
        keys = [f"{letter}{turns * 300 + number}" for letter in "ab" for number in range(100)]
        await store.settle([Cancel("q", key) for key in keys])
        new = tuple((f"{letter}new{turns}-{number}", b"1") for letter in "ab" for number in "12")
        await store.put([Put("q", new, priority=1)])
        [items] = await store.claim([capped(4, Cap("q", "b*", in_flight=2**31))])
        assert [item.key for item in items] == [key for key, _ in new]
        await store.close()
        patterns = check_counts(server, prefix)
        assert patterns.pop("b*")
        assert patterns == {"a*": False}

    async def main() -> None:
        store = opened(server, prefix)
        told.engine = store._engine.me
        for letter in "ab":
            await store.put([Put("q", tuple((f"{letter}{n}", b"1") for n in range(2000)))])
        await store.claim([Claim((("q", 4000),), 4000), capped(1, Cap("q", "b*", in_flight=2))])
        await store.put([Put("q", tuple((f"a-{number}", b"1") for number in range(99)))])
        told.between = lambda: elsewhere(work())
        most = 1999
        [items] = await store.claim([capped(99, Cap("q", "a*", in_flight=most))])
        assert turns >= 3
        # Each turn ended a hundred of them, and began two.
        assert len(items) == min(99, most - 2000 + 98 * turns)
        assert check_counts(server, prefix) == {"a*": True, "b*": True}
        left = most - 2000 + 98 * turns - len(items)
        await store.put([Put("q", tuple((f"a+{number}", b"1") for number in range(left + 9)))])
        [items] = await store.claim([capped(left + 9, Cap("q", "a*", in_flight=most))])
        assert len(items) == left
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "urgencies, expected",
    [((), ["q", "q", "q", "other"]), ((Urgency(2), Urgency(1)), ["other", "other", "other", "q"])],
)
def test_claims_over_several_servers_wait_for_the_counts_of_each(
    prefix: str, told: Told, urgencies: tuple[Urgency, ...], expected: list[str]
) -> None:
    """Also by urgency, where the claim looks first."""

    async def main() -> None:
        store = RedisStore(shared_cluster().url, prefix=prefix)
        told.engine = store._engine.me
        for queue in "q", "other":
            keys = tuple((f"k{number}", b"1") for number in range(1600))
            await store.put([Put(queue, keys)])
            await store.claim([Claim(((queue, 1500),), 1500)])
        told.answers.clear()
        caps = (Cap("q", "k*", in_flight=1503), Cap("other", "k*", in_flight=1503))
        claim = Claim((("q", 9), ("other", 9)), 4, None, PATIENCE, None, caps, urgencies)
        [items] = await store.claim([claim])
        assert [item.queue for item in items] == expected
        assert told.answers.count(b"more") >= 2
        await store.close()

    asyncio.run(main())


def test_the_count_is_right_after_a_restart_of_the_server(prefix: str, told: Told) -> None:
    """What it was going on from means nothing any more."""

    async def main(server: Server) -> None:
        store = opened(server, prefix, retry_for=PATIENCE)
        told.engine = store._engine.me
        await store.put([many(3000)])
        await store.claim([Claim((("q", 2900),), 2900)])
        restarts = 0

        def restart() -> None:
            nonlocal restarts
            if restarts < 2:
                restarts += 1
                server.kill()
                server.start()

        told.between = restart
        [items] = await store.claim([capped(99, Cap("q", "k*", in_flight=2907))])
        assert len(items) == 7
        assert restarts == 2
        assert check_counts(server, prefix) == {"k*": True}
        await store.close()

    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("make", makes())
def test_a_server_without_memory_counts(prefix: str, make: Make) -> None:
    """A claim needs none, nor does one with a pattern that is new, whoever holds how much."""

    async def main(server: Server) -> None:
        store = opened(server, prefix)
        await store.put([many(3000)])
        [held] = await store.claim([Claim((("q", 300),), 300)])
        with server.client() as client:
            client.config_set("maxmemory", 1)
        assert await store.claim([capped(99, Cap("q", "k0*", in_flight=300))]) == [()]
        await store.settle([Ack("q", item.key, item.token) for item in held])
        await store.claim([Claim((("q", 2000),), 2000)])
        assert len((await store.claim([capped(99, Cap("q", "k*", in_flight=2009))]))[0]) == 9
        assert await store.claim([capped(99, Cap("q", "k*", in_flight=2009))]) == [()]
        assert check_counts(server, prefix) == {"k0*": True, "k*": True}
        await store.close()

    with Server(make=make) as server:
        asyncio.run(main(server))


def test_patterns_that_nobody_asks_about_are_forgotten(server: Server, prefix: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        await store.put([many(400)])
        [[one, two, *_]] = await store.claim([Claim((("q", 300),), 300)])
        await store.claim([capped(1, Cap("q", "k*", in_flight=0), Cap("q", "*1", in_flight=0))])
        assert check_counts(server, prefix) == {"k*": True, "*1": True}
        clock.advance(LIFETIME / 2)
        await store.claim([capped(1, Cap("q", "*1", in_flight=0))])
        assert 0 < keys_of(server, prefix)[f"{prefix}:{{q}}:x"] <= 2 * LIFETIME
        clock.advance(LIFETIME * 0.6)
        await store.claim([Claim((("q", 1),))])
        assert check_counts(server, prefix) == {"*1": True}
        clock.advance(LIFETIME)
        await store.settle([Ack("q", one.key, one.token)])
        assert check_counts(server, prefix) == {}
        await store.settle([Ack("q", two.key, two.token)])
        assert not [key for key in keys_of(server, prefix) if "}:x" in key]
        await store.close()

    asyncio.run(main())


def test_of_many_patterns_those_are_kept_that_are_in_use(server: Server, prefix: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        await store.put([many(400)])
        await store.claim([Claim((("q", 300),), 300)])
        caps = [Cap("q", f"k{number}*", in_flight=301) for number in range(150)]
        assert len((await store.claim([capped(2, *caps)]))[0]) == 1
        clock.advance(50)
        assert await store.claim([capped(2, *caps[:3])]) == [()]
        assert len(check_counts(server, prefix)) == 150
        clock.advance(50)
        assert len((await store.claim([Claim((("q", 1),))]))[0]) == 1
        assert sorted(check_counts(server, prefix)) == ["k0*", "k1*", "k2*"]
        await store.close()

    asyncio.run(main())


def test_buckets_of_keys_do_not_become_ever_more(server: Server, prefix: str) -> None:
    """A claim forgets more of those that are full than it makes."""

    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        for turn in range(8):
            await store.put([Put("q", tuple((f"{turn}-{n}", b"1") for n in range(300)))])
            [items] = await store.claim([capped(300, Cap("q", rate=1.0, each=True))])
            assert len(items) == 300
            clock.advance(2)
        with server.client() as client:
            assert client.hlen(f"{prefix}:{{q}}:c") <= 620
        await store.close()

    asyncio.run(main())


# A random run, with steps of a few keys


STARTS = ("", "a", "b", "ab")
ENDS = ("", "1", "2", "b1")
PATTERNS = tuple(f"{start}*{end}" for start in STARTS for end in ENDS if start or end)
KEYS = tuple(f"{start}{number}" for start in STARTS for number in range(8))


class Client:
    """Does anything at random that begins or ends leases."""

    def __init__(self, store: Store, chance: random.Random, clock: ManualClock) -> None:
        self.store = store
        self.chance = chance
        self.clock = clock
        self.held: list[Claimed] = []

    async def claims_anew(self) -> None:
        """A claim with some patterns, of which one may be new."""
        chance = self.chance
        caps = [Cap("q", pattern, in_flight=12) for pattern in chance.sample(PATTERNS, 2)]
        await self._claim(Claim((("q", 3),), 3, None, self._lease_time(), None, tuple(caps)))

    async def does_something(self) -> None:
        """Anything else."""
        verbs = (
            self._puts,
            self._puts,
            self._claims,
            self._claims,
            self._claims,
            self._settles,
            self._settles,
            self._settles,
            self._edits,
        )
        await self.chance.choice(verbs)()
        if self.chance.random() < 0.05:
            self.clock.advance(self.chance.choice((1.0, 6.0, LIFETIME)))
        if self.chance.random() < 0.01:
            await self.store.settle([Purge("q")])

    def _lease_time(self) -> float | None:
        return self.chance.choice((None, None, None, 5.0, 0.0))

    async def _claim(self, *claims: Claim) -> None:
        for answer in await self.store.claim([*claims]):
            assert isinstance(answer, tuple)
            self.held += answer

    async def _puts(self) -> None:
        keys = self.chance.sample(KEYS, self.chance.randint(1, 12))
        policies: list[InFlightPolicy] = ["buffer", "update"]
        policy = self.chance.choice(policies)
        await self.store.put([Put("q", tuple((key, b"1") for key in keys), policy)])

    async def _claims(self) -> None:
        chance, time = self.chance, self._lease_time()
        some = Claim((("q", chance.randint(1, 9)),), 9, None, time)
        two = (("q", 4), ("other", 2))
        await self._claim(
            *chance.choice(
                (
                    (some,),
                    (some, some),
                    (Claim((("q", 1),), 1, chance.choice(KEYS), time),),
                    (Claim(two, 5, None, time),),
                    (Claim(two, 5, None, time, urgencies=(Urgency(1), Urgency(2))),),
                )
            )
        )

    async def _settles(self) -> None:
        chance = self.chance
        chance.shuffle(self.held)
        changes: list[Change] = []
        how = chance.randrange(7)
        for item in [self.held.pop() for _ in range(min(len(self.held), chance.randint(1, 6)))]:
            names = (item.queue, item.key, item.token)
            if how == 5:
                self.held.append(item)
            changes.append(
                (
                    Ack(*names),
                    Ack(*names, b"1", 3.0),
                    Release(*names, delay=chance.choice((0.0, 2.0))),
                    Release(*names, undo=True),
                    Bury(*names),
                    Extend(*names, chance.choice((None, 3.0))),
                    Cancel(item.queue, item.key),
                )[how]
            )
        await self.store.settle(changes)

    async def _edits(self) -> None:
        chance = self.chance

        def work(items: Sequence[StoredItem]) -> list[Change]:
            found = [item for item in items if item.state == "in_flight"]
            some = chance.sample(found, min(len(found), 3))
            changes: list[Change] = [Cancel("q", item.key) for item in some]
            if chance.random() < 0.2:
                changes.append(Purge("q"))
            if chance.random() < 0.6:
                changes.append(Ack("q", "none", "wrong"))
            return changes

        with suppress(Refusal):
            await self.store.edit("q", work)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("make", makes() if TORTURE else makes()[:1])
@pytest.mark.parametrize("seed", range(5 if TORTURE else 1))
def test_counts_stay_right_whatever_leases_go_through(
    prefix: str,
    told: Told,
    elsewhere: Callable[[Coroutine[Any, Any, Any]], Any],
    make: Make,
    seed: int,
) -> None:
    """Alone and in batches, also while a pattern is counted."""
    chance = random.Random(seed)
    clock = ManualClock()
    counted: list[bool] = []

    async def main(server: Server) -> None:
        store = opened(server, prefix, clock=clock)
        told.engine = store._engine.me
        client = Client(store, chance, clock)
        held: list[Claimed] = []

        async def others() -> None:
            other = Client(opened(server, prefix, clock=clock), chance, clock)
            other.held = held
            await other.does_something()
            await other.store.close()
            counted.extend(check_counts(server, prefix).values())

        def between() -> None:
            if chance.random() < 0.5:
                elsewhere(others())

        told.between = between
        for _ in range(120):
            await client.does_something()
            counted.extend(check_counts(server, prefix).values())
            await client.claims_anew()
            counted.extend(check_counts(server, prefix).values())
        await store.close()

    with Server(*SMALL_STEPS, make=make) as server:
        asyncio.run(main(server))
    assert counted.count(True) > 100
    assert counted.count(False) > 5
