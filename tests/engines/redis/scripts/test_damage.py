"""Damage: a key of a queue that somebody else deletes, overwrites or has evicted."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasedkeyq import (
    LeasedKeyQError,
    RedisStore,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    UnstorableError,
)
from leasedkeyq.engines.redis.wire import PARTS
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Cap,
    Claim,
    Claimed,
    Counts,
    Discard,
    Extend,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
    Urgency,
)
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.redis.support import opened, use_small_steps
from tests.servers.valkey import Make, Server, older_makes, shared_cluster, shared_server

LUA = re.compile(r"user_script|attempt to|bad argument|WRONGTYPE|stack|nil value")
RECORDS = {"i", "l", "n", "b", "d"}
HARMLESS = {"m", "c", "cf", "cn", "s", "x"}
"""What a store does without when it is gone."""
CAPS = (Cap("q", "a*", in_flight=300), Cap("q", rate=1000.0))
Damage = Callable[[Any, str], None]


def delete(client: Any, key: str) -> None:
    assert client.delete(key) == 1


def overwrite(client: Any, key: str) -> None:
    kind = client.type(key)
    client.delete(key)
    if kind == b"list":
        client.set(key, "something else")
    else:
        client.rpush(key, "something else", "and more")


class Populated:
    """A queue with something in every state."""

    def __init__(self, store: RedisStore, prefix: str) -> None:
        self.store = store
        self.prefix = prefix
        self.leases: dict[str, Claimed] = {}

    async def fill(self) -> None:
        store = self.store
        keys = ("done", "bad", "worse", "failed")
        await store.put([Put("q", tuple((key, b"0") for key in (*keys, "cancelled")))])
        [items] = await store.claim([Claim((("q", 4),), 4)])
        done, bad, worse, failed = items
        await store.settle(
            [
                Ack("q", "done", done.token, b'"result"', 600.0),
                Ack("q", "failed", failed.token, b'"no"', 600.0, "failed"),
                Cancel("q", "cancelled", None, 600.0),
                Bury("q", "bad", bad.token, "no"),
                Bury("q", "worse", worse.token, "no"),
            ]
        )
        # A key that a buried item holds, with a line.
        await store.put([Put("q", (("paused", b"0"),))])
        [[paused]] = await store.claim([Claim((("q", 1),), 1, "paused")])
        await store.settle([Bury("q", "paused", paused.token, "no", hold=True)])
        await store.put([Put("q", (("paused", b"1"), ("paused", b"2")), "append")])
        held = ("held", "timed", "both")
        await store.put([Put("q", tuple((key, b"3") for key in held))])
        [[one]] = await store.claim([Claim((("q", 1),), 1, "held")])
        [[two], [both]] = await store.claim(
            [Claim((("q", 1),), 1, key, 600.0) for key in ("timed", "both")]
        )
        self.leases = {item.key: item for item in (one, two, both)}
        await store.put([Put("q", (("both", b"4"),), "buffer")])
        # Leases that are counted by pattern, buckets, and the claim of an idle worker.
        many = tuple((f"m{number}", b"7") for number in range(210))
        await store.put([Put("q", many)])
        await store.claim([Claim((("q", 210),), 210, None, 600.0)])
        waiting = tuple((f"a{number}", b"5") for number in range(5))
        soon = Put("q", (("soon", b"8"),), deadline=300.0)
        await store.put(
            [soon, Put("q", waiting, priority=3), Put("q", (("later", b"6"),), delay=600.0)]
        )
        await store.put([Put("q", (("later", b"9"),), "append")])
        await store.claim([Claim((("q", 1),), 1, None, 600.0, caps=CAPS)])
        claimer = store.claimer(lambda item: None)
        await claimer.claim([Claim((("q", 1),), 1, None, 600.0, ("other kind",))], idle=True)

    async def everything(self) -> dict[tuple[int, str], StoredItem]:
        page = await self.store.browse("q", states=EVERY_STATE, limit=1000)
        assert page.cursor is None
        return {(item.id, item.state): item for item in page.items}

    def key(self, part: str) -> str:
        return f"{self.prefix}:{{q}}:{part}"


def in_populated(
    server: Server, prefix: str, work: Callable[[Populated, Any], Awaitable[None]]
) -> None:
    async def main() -> None:
        store = opened(server, prefix, retry_for=5.0, edit_time=5.0)
        populated = Populated(store, prefix)
        await populated.fill()
        with server.client() as client:
            await work(populated, client)
        await store.close()

    asyncio.run(main())


VERBS: dict[str, Callable[[RedisStore, dict[str, Claimed]], Awaitable[object]]] = {
    "put": lambda store, _: store.put([Put("q", (("new", b"1"),))]),
    "put again": lambda store, _: store.put([Put("q", (("a3", b"1"),), priority=9)]),
    "put many": lambda store, _: store.put([Put("q", (("x", b"1"), ("a2", b"1")), "reject")] * 2),
    "put later": lambda store, _: store.put([Put("q", (("y", b"1"),), delay=9.0)]),
    "put beside": lambda store, _: store.put([Put("q", (("held", b"1"),), "buffer")]),
    "put full": lambda store, _: store.put([Put("q", (("full", b"1"),), max_items=5)]),
    "append": lambda store, _: store.put([Put("q", (("both", b"5"), ("later", b"7")), "append")]),
    "append one": lambda store, _: store.put([Put("q", (("later", b"8"),), "append")]),
    "put last": lambda store, _: store.put([Put("q", (("paused", b"3"), ("later", b"9")))]),
    "skip": lambda store, _: store.put(
        [Put("q", (("paused", b"3"), ("done", b"9")), "skip", unique_for=600.0)]
    ),
    "claim": lambda store, _: store.claim([Claim((("q", 1),), 1, None, 60.0)]),
    "claim many": lambda store, _: store.claim([Claim((("q", 2),), 2, None, 60.0)] * 3),
    "claim kinds": lambda store, _: store.claim([Claim((("q", 2),), 2, None, 60.0, ("",))]),
    "claim caps": lambda store, _: store.claim([Claim((("q", 2),), 2, None, 60.0, caps=CAPS)]),
    "claim urgency": lambda store, _: store.claim(
        [
            Claim((("q", 1), ("other", 1)), 2, None, 60.0, urgencies=(Urgency(1), Urgency(2))),
            Claim((("q", 1),), 1, None, 60.0, urgencies=(Urgency(1, 9.0, ((0.5, 1),)),)),
        ]
    ),
    "take": lambda store, _: store.claim([Claim((("q", 1),), 1, "a4", 60.0)]),
    "extend": lambda store, held: store.settle([Extend("q", "timed", held["timed"].token, 60.0)]),
    "ack": lambda store, held: store.settle([Ack("q", "timed", held["timed"].token)]),
    "ack kept": lambda store, held: store.settle(
        [Ack("q", "both", held["both"].token, b"1", 60.0)] * 2
    ),
    "release": lambda store, held: store.settle([Release("q", "held", held["held"].token)]),
    "bury": lambda store, held: store.settle([Bury("q", "held", held["held"].token)]),
    "hold": lambda store, held: store.settle([Bury("q", "both", held["both"].token, hold=True)]),
    "cancel line": lambda store, _: store.settle(
        [Cancel("q", "later", only_line=True), Cancel("q", "paused", None, 60.0)]
    ),
    "cancel": lambda store, _: store.settle([Cancel("q", "later"), Cancel("q", "held")]),
    "requeue": lambda store, _: store.settle([Requeue("q", 1), Discard("q", 1)]),
    "purge": lambda store, _: store.settle([Purge("q", "buried"), Purge("q", "results")]),
    "sweep": lambda store, _: store.sweep(["q", "other"]),
    "count": lambda store, _: store.count(["q"]),
    "heads": lambda store, _: store.heads(["q"]),
    "look": lambda store, _: store.look("q", ["a1", "both"]),
    "line": lambda store, _: store.line("q", "later"),
    "browse": lambda store, _: store.browse("q", states=EVERY_STATE),
    "results": lambda store, _: store.results("q", [1]),
    "edit": lambda store, _: store.edit("q", lambda items: [Put("q", (("e", b"1"),))]),
    "edit keys": lambda store, _: store.edit("q", lambda items: [], keys=["bad", "done", "a1"]),
}


def only_says_damage(error: LeasedKeyQError, prefix: str) -> None:
    assert isinstance(error, StoreDamagedError), error
    said = str(error)
    assert not LUA.search(said), said
    assert "repair" in said
    assert "'q' is damaged" in said
    assert (error.queue, error.part.startswith(f"{prefix}:{{q}}:")) == ("q", bool(error.part))


async def works(store: RedisStore) -> None:
    """All that a worker does, on a queue with something in it."""
    await store.sweep(["q"])
    await store.browse("q", states=EVERY_STATE, limit=1000)
    await store.edit("q", lambda items: [])
    before = (await store.count(["q"]))["q"]
    await store.put([Put("q", (("fresh", b"1"),), priority=100)])
    [[item]] = await store.claim([Claim((("q", 1),), 1, None, 60.0)])
    assert item.key == "fresh"
    assert await store.settle([Ack("q", "fresh", item.token)]) == [None]
    assert (await store.count(["q"]))["q"] == before
    [items] = await store.claim([Claim((("q", 999),), 999, None, 60.0, caps=CAPS)])
    assert len({item.key for item in items}) == len(items)
    answers = await store.settle([Ack("q", item.key, item.token, b"1", 9.0) for item in items])
    assert set(answers) <= {None}
    await store.settle([Purge("q", "all")])
    assert await store.count(["q"]) == {"q": Counts()}


@pytest.mark.parametrize("damage", [delete, overwrite])
@pytest.mark.parametrize("part", PARTS)
def test_every_verb_on_a_damaged_queue(part: str, damage: Damage, prefix: str) -> None:
    """It works, or says what is damaged; then a repair makes the queue usable."""

    async def work(populated: Populated, client: Any) -> None:
        store = populated.store
        damage(client, populated.key(part))
        for name, verb in VERBS.items():
            try:
                answers = await verb(store, populated.leases)
            except StoreError as error:
                only_says_damage(error, prefix)
            else:
                assert not any(
                    isinstance(answer, StoreError)
                    for answer in (answers if isinstance(answers, list) else [])
                ), name
        await store.repair("q")
        await works(store)

    in_populated(shared_server(), prefix, work)


@pytest.mark.parametrize("damage", [delete, overwrite])
@pytest.mark.parametrize("part", sorted(set(PARTS) - HARMLESS))
def test_damage_is_noticed_by_whoever_waits(part: str, damage: Damage, prefix: str) -> None:
    """Also if nothing is there to be seen: items that no index names, leases that never end."""

    async def work(populated: Populated, client: Any) -> None:
        store = populated.store
        damage(client, populated.key(part))
        with pytest.raises(StoreDamagedError) as caught:
            await store.sweep(["q"])
        only_says_damage(caught.value, prefix)
        assert populated.key(part) in str(caught.value)
        assert caught.value.part == populated.key(part)

    in_populated(shared_server(), prefix, work)


@pytest.mark.parametrize("damage", [delete, overwrite])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("steps", ["large", "small"])
def test_a_repair_keeps_what_is_left_and_names_what_is_not(
    part: str, damage: Damage, steps: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(populated: Populated, client: Any) -> None:
        store = populated.store
        before = await populated.everything()
        damage(client, populated.key(part))
        report = await store.repair("q")
        after = await populated.everything()
        assert report.queue == "q"
        assert report.kept == (await store.count(["q"]))["q"]
        assert len(report.set_aside) == (damage is overwrite)
        for name in report.set_aside:
            assert name.startswith(populated.key(part))
            assert client.exists(name)
        if part not in RECORDS:
            assert after == before
            assert report.lost == ()
            answers = await store.settle(
                [Ack("q", key, item.token) for key, item in populated.leases.items()]
            )
            assert answers == [None] * 3
        else:
            expect_kept(part, before, after, set(report.lost))
        await works(store)

    if steps == "small":
        if part not in RECORDS | {"o", "t"}:
            return  # the steps are the same
        use_small_steps(monkeypatch)
    in_populated(shared_server(), prefix, work)


def expect_kept(part: str, before: Any, after: Any, lost: set[str]) -> None:
    """What is left of a queue whose records of one kind are gone."""
    keys = {
        state: {item.key for item in before.values() if item.state == state}
        for state in EVERY_STATE
    }
    found = {
        state: {item.key for item in after.values() if item.state == state} for state in EVERY_STATE
    }
    live = keys["available"] | keys["scheduled"] | keys["in_flight"]
    if part == "i":
        assert lost == live
        assert found == keys | {
            "available": {"both", "later"},
            "scheduled": set(),
            "in_flight": set(),
            "buffered": set(),
            "in_line": {"paused"},
        }
    elif part == "l":
        assert lost == set()
        assert found == keys | {
            "available": keys["available"] | keys["in_flight"],
            "in_flight": set(),
            "buffered": set(),
        }
        [both] = [item for item in after.values() if item.key == "both"]
        assert both.value == b"4"
    elif part == "n":
        assert lost == keys["buffered"] | keys["in_line"]
        assert found == keys | {"buffered": set(), "in_line": set()}
    elif part == "b":
        # The line of a key that was held goes on.
        assert lost == keys["buried"]
        assert found == keys | {"buried": set(), "available": keys["available"] | {"paused"}}
        assert [item.value for item in after.values() if item.key == "paused"] == [b"1", b"2"]
    else:
        assert lost == keys["done"]
        assert found == keys | {"done": set()}


def test_a_repair_of_a_sound_queue_changes_nothing(prefix: str) -> None:
    async def work(populated: Populated, client: Any) -> None:
        before = await populated.everything()
        report = await populated.store.repair("q")
        assert (report.lost, report.set_aside) == ((), ())
        assert await populated.everything() == before
        report = await populated.store.repair("never")
        assert report.kept == Counts()
        await works(populated.store)
        with pytest.raises(UnstorableError, match="queue: a name is text"):
            await populated.store.repair("a\0b")
        await populated.store.close()
        with pytest.raises(StoreClosedError, match=r"the Redis store .* is closed"):
            await populated.store.repair("q")

    in_populated(shared_server(), prefix, work)


@pytest.mark.parametrize("part", ["i", "l", "n", "b", "d"])
def test_records_that_nobody_can_read_are_set_aside(part: str, prefix: str) -> None:
    async def work(populated: Populated, client: Any) -> None:
        store = populated.store
        if part == "n":
            for number, member in enumerate(client.zrange(populated.key(part), 0, -1)):
                client.zrem(populated.key(part), member)
                client.zadd(populated.key(part), {b"nonsense%d" % number: 0})
            with pytest.raises(StoreDamagedError):
                await store.browse("q", states=EVERY_STATE, limit=1000)
            report = await store.repair("q")
            assert set(report.lost) == {"both", "later", "paused"}
            [aside] = report.set_aside
            assert sorted(client.hkeys(aside)) == [b"nonsense%d" % number for number in range(4)]
            await works(store)
            return
        [name, *_] = [
            name
            for name in client.hkeys(populated.key(part))
            if name.decode() not in populated.leases
        ] or [b"both"]
        client.hset(populated.key(part), name, b"nonsense")
        with pytest.raises(StoreDamagedError):
            await store.browse("q", states=EVERY_STATE, limit=1000)
        report = await store.repair("q")
        if part != "l":  # a lease without a holder is of no use
            [aside] = report.set_aside
            assert client.hget(aside, name) == b"nonsense"
        await works(store)

    in_populated(shared_server(), prefix, work)


def test_a_damaged_queue_spoils_no_other_in_the_same_batch(prefix: str) -> None:
    async def work(populated: Populated, client: Any) -> None:
        store = populated.store
        await store.put([Put("sound", (("a", b"1"),))])
        for part in ("i", "r", "o", "m"):
            overwrite(client, populated.key(part))
        [put, claims, *others] = await asyncio.gather(
            store.put([Put("sound", (("b", b"1"),))]),
            store.claim([Claim((("sound", 1),), 1, None, 60.0)]),
            *(verb(store, populated.leases) for verb in VERBS.values()),
            return_exceptions=True,
        )
        assert isinstance(put, list)
        assert isinstance(claims, list)
        assert [item.key for item in claims[0]] == ["a"]
        assert (await store.count(["sound"]))["sound"] == Counts(available=1, in_flight=1)
        for error in others:
            if isinstance(error, BaseException):
                assert isinstance(error, StoreError)
                only_says_damage(error, prefix)

    in_populated(shared_server(), prefix, work)


@pytest.mark.parametrize("name", ["m", "q"])
def test_keys_of_the_whole_store(name: str, prefix: str) -> None:
    """What is deleted is made anew; what is overwritten is named."""

    async def work(populated: Populated, client: Any) -> None:
        store = populated.store
        key = f"{prefix}:{name}"
        delete(client, key)
        await store.put([Put("q", (("new", b"1"),))])
        overwrite_type = "x" if name == "q" else None
        client.delete(key)
        if overwrite_type:
            client.set(key, overwrite_type)
        else:
            client.rpush(key, "x")
        other = opened(shared_server(), prefix)
        with pytest.raises(StoreError) as caught:
            await other.put([Put("q", (("newer", b"1"), ("newest", b"1")))])
        assert key in str(caught.value)
        assert not LUA.search(str(caught.value))
        client.delete(key)
        await other.put([Put("q", (("newer", b"1"), ("newest", b"1")))])
        await other.close()

    in_populated(shared_server(), prefix, work)


@pytest.mark.parametrize("make", older_makes())
@pytest.mark.parametrize("damage", [delete, overwrite])
@pytest.mark.parametrize("part", ["i", "r", "t", "m", "n", "p", "h", "bo"])
def test_an_old_server(make: Make, part: str, damage: Damage, prefix: str) -> None:
    """Its errors inside a script look otherwise."""

    async def work(populated: Populated, client: Any) -> None:
        damage(client, populated.key(part))
        for verb in VERBS.values():
            try:
                await verb(populated.store, populated.leases)
            except StoreError as error:
                only_says_damage(error, prefix)
        await populated.store.repair("q")
        await works(populated.store)

    in_populated(shared_server(make), prefix, work)


def test_a_damaged_queue_does_not_keep_others_from_being_swept(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasedkeyq.engines.redis.store.CHECK_EVERY", 0.0)
    now = 1000.0

    async def main() -> None:
        nonlocal now
        server = shared_server()
        store = opened(server, prefix, clock=lambda: now)
        for queue in ("a", "b", "c"):
            await store.put([Put(queue, (("key", b"1"),))])
            [[item]] = await store.claim([Claim(((queue, 1),), 1)])
            await store.settle([Ack(queue, "key", item.token, b"1", 5.0)])
        now += 10.0
        with server.client() as client:
            client.set(f"{prefix}:{{b}}:t", "not a zset")
            with pytest.raises(StoreDamagedError) as raised:
                await store.sweep(["a", "b", "c"])
            assert raised.value.queue == "b"
            left = [queue for queue in "ac" if client.exists(f"{prefix}:{{{queue}}}:d")]
        assert not left, "old results of the others are forgotten"
        await store.close()

    asyncio.run(main())


def test_on_a_cluster(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.engines.redis.store.CHECK_EVERY", 0.0)

    async def main() -> None:
        cluster = shared_cluster()
        store = RedisStore(cluster.url, prefix=prefix)
        for part in ("i", "r", "l", "o"):
            await store.put([Put("q", (("a", b"1"), ("b", b"2")))])
            await store.claim([Claim((("q", 1),), 1)])
            assert store._link.client.delete(f"{prefix}:{{q}}:{part}") == 1
            with pytest.raises(StoreDamagedError, match=r"await store\.repair\('q'\)"):
                await store.sweep(["q", "other"])
            report = await store.repair("q")
            assert (len(report.lost) == 2) == (part == "i")
            assert await store.sweep(["q"]) == [None]
            await store.settle([Purge("q", "all")])
        await store.close()

    asyncio.run(main())


def test_a_worker_that_waits_is_told_and_goes_on_after_the_repair(prefix: str) -> None:
    async def main() -> None:
        server = shared_server()
        store = opened(server, prefix)
        queue = store.queue("q")
        await queue.put_many({"a": 1, "b": 2})
        with server.client() as client:
            delete(client, f"{prefix}:{{q}}:r")
        with pytest.raises(StoreDamagedError, match="which items are available"):
            await queue.get(timeout=60)
        await store.repair("q")
        assert [(await queue.get(timeout=60))[0] for _ in "ab"] == ["a", "b"]
        await store.close()

    asyncio.run(main())


def test_a_policy_that_is_set_later_is_noticed(
    prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And so is an append-only file that is switched off; each is told once."""
    monkeypatch.setattr("leasedkeyq.engines.redis.store.LOOK_EVERY", 0.0)

    async def main(server: Server) -> None:
        store = opened(server, prefix)
        assert store.warnings == []
        with server.client() as client:
            for name, value, warning in (
                ("maxmemory-policy", "allkeys-lru", "maxmemory-policy is allkeys-lru"),
                ("appendfsync", "no", "half a minute"),
            ):
                client.config_set(name, value)
                await until_said(store, warning)
            client.config_set("maxmemory-policy", "noeviction")
            async with asyncio.timeout(60):
                while any("maxmemory" in said for said in store.warnings):
                    await store.sweep(["q"])
                    await asyncio.sleep(0.01)
        await store.put([Put("q", (("a", b"1"),))])
        await store.close()
        assert caplog.text.count("maxmemory-policy is allkeys-lru") == 1

    async def until_said(store: RedisStore, warning: str) -> None:
        async with asyncio.timeout(60):
            while not any(warning in said for said in store.warnings):
                await store.put([Put("q", (("a", b"1"),))])
                await asyncio.sleep(0.01)
        assert warning in caplog.text

    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        asyncio.run(main(server))


def test_keys_that_a_server_evicts(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever they are: the store says so, and a repair finds what is left."""
    monkeypatch.setattr("leasedkeyq.engines.redis.store.CHECK_EVERY", 0.0)

    async def main(server: Server) -> None:
        store = opened(server, prefix)
        with server.client() as client:
            for number in range(30):
                await store.put([Put("q", ((f"k{number}", b"x" * 1000),))])
            used = client.info("memory")["used_memory"]
            client.config_set("maxmemory-policy", "allkeys-random")
            client.config_set("maxmemory", used + 200_000)
            for number in range(400):
                client.set(f"other{number}", b"x" * 2000)
                if client.exists(f"{prefix}:{{q}}:i", f"{prefix}:{{q}}:r") != 2:
                    break
            assert client.info("stats")["evicted_keys"] > 0
            client.config_set("maxmemory", 0)
        report = await store.repair("q")
        assert report.kept.available + len(report.lost) in (0, 30)
        await works(store)
        await store.close()

    with Server() as server:
        asyncio.run(main(server))
