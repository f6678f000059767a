"""Lines on the server: how long a call may take, what a value costs, and what is left behind."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

import pytest

from leasedkeyq import RedisStore, StoreError
from leasedkeyq.engines.redis.engine import RedisEngine
from leasedkeyq.engines.redis.link import Steps
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Counts,
    Discard,
    Placed,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
)
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.redis.support import keys_of, opened
from tests.servers.valkey import Make, Server, makes, shared_cluster, shared_server

LONG = 100_000
NEXT = Claim((("q", 1),), 1, None, 600.0)


@pytest.fixture(params=makes())
def server(request: pytest.FixtureRequest) -> Server:
    return shared_server(request.param)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server() as running:
        yield running


def values(key: str, count: int, size: int = 1) -> Put:
    return Put("q", tuple((key, b"%0*d" % (size, number)) for number in range(count)), "append")


async def fill(store: RedisStore, key: str, count: int) -> None:
    """A head and so many values behind it."""
    await store.put([values(key, 1)])
    for first in range(0, count, 10_000):
        await store.put([values(key, min(10_000, count - first))])


async def worked_on(store: RedisStore, key: str | None = None) -> bytes:
    """The value of the next item, which is acknowledged."""
    [[item]] = await store.claim([Claim((("q", 1),), 1, key, 600.0)])
    assert await store.settle([Ack("q", item.key, item.token)]) == [None]
    return item.value


async def commands_of(server: Server, work: Awaitable[object]) -> dict[str, int]:
    """How often the server runs each command while `work` is done."""
    with server.client() as client:
        client.config_resetstat()
        await work
        stats: dict[str, Any] = client.info("commandstats")
    names = {name.removeprefix("cmdstat_") for name in stats} - {"config|resetstat", "info"}
    return {name: stats[f"cmdstat_{name}"]["calls"] for name in names}


def test_nothing_makes_more_commands_with_a_long_line(
    own_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script makes the same ones for a hundred thousand values as for some hundreds."""
    monkeypatch.setattr("leasedkeyq.engines.redis.store.CHECK_EVERY", 0.0)

    async def commands_of_all(store: RedisStore, count: int) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        await fill(store, "a", count)
        await store.put([Put("q", (("other", b"0"),))])

        async def page(state: str, cursor: str | None) -> None:
            if state == "line":
                await store.line("q", "a", cursor=cursor, limit=5)
            else:
                await store.browse("q", states=["in_line"], cursor=cursor, limit=5)

        line = await store.line("q", "a", limit=count)
        [last, one, middle] = [line.items[at].id for at in (-1, -2, len(line.items) // 2)]
        works: dict[str, Any] = {
            "append": lambda: store.put([values("a", 1)]),
            "append many": lambda: store.put([values("a", 10)]),
            "update": lambda: store.put([Put("q", (("a", b"1"),), "buffer")]),
            "skip": lambda: store.put([Put("q", (("a", b"1"),), "skip", unique_for=9.0)]),
            "new": lambda: store.put([Put("q", (("new", b"1"),))]),
            "work": lambda: worked_on(store, "a"),
            "work on another": lambda: worked_on(store, "other"),
            "count": lambda: store.count(["q"]),
            "look": lambda: store.look("q", ["a"]),
            "one": lambda: store.settle([Cancel("q", "a", id=one)]),
            "page": lambda: page("line", None),
            "page in the middle": lambda: page("line", str(middle)),
            "browse": lambda: page("browse", str(middle)),
            "last": lambda: page("line", str(last)),
            "sweep": lambda: store.sweep(["q"]),
            "hold": lambda: hold_and_requeue(store),
        }
        for name, work in works.items():
            found[name] = await commands_of(own_server, work())
        await store.settle([Purge("q", "all")])
        return found

    async def hold_and_requeue(store: RedisStore) -> None:
        [[item]] = await store.claim([Claim((("q", 1),), 1, "a")])
        [number] = await store.settle([Bury("q", "a", item.token, hold=True)])
        assert isinstance(number, int)
        assert await store.settle([Requeue("q", number)]) == [True]

    async def main() -> None:
        store = opened(own_server, prefix)
        few, lots = await commands_of_all(store, 400), await commands_of_all(store, LONG)
        assert few == lots
        await store.close()

    asyncio.run(main())


def test_a_value_in_line_takes_little_memory(own_server: Server, prefix: str) -> None:
    """At most 300 bytes beyond its key and itself."""
    count, size, key = 20_000, 100, "customer-0815"

    def used() -> int:
        with own_server.client() as client:
            keys = [f"{prefix}:{{q}}:{part}" for part in "nip"]
            return sum(client.memory_usage(name, samples=0) or 0 for name in keys)

    async def main() -> None:
        store = opened(own_server, prefix)
        await store.put([values(key, 1, size)])
        before = used()
        for _ in range(2):
            await store.put([values(key, count // 2, size)])
        each = (used() - before) / count - size - len(key)
        assert 100 < each < 300
        await store.settle([Purge("q", "all")])
        await store.close()

    asyncio.run(main())


def test_a_long_line_is_cut_in_steps(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call removes more than a thousand values, and the answer counts them all."""
    asked: list[int] = []
    sent = RedisEngine._sent

    def noted(
        engine: RedisEngine, keys: Sequence[str], batch: bytes, recorded: bool
    ) -> Steps[list[Any]]:
        reply = yield from sent(engine, keys, batch, recorded)
        asked.append(len(reply[1]))
        return reply

    monkeypatch.setattr(RedisEngine, "_sent", noted)

    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        await fill(store, "a", 3500)
        await store.put([Put("q", (("b", b"1"),))])
        [[held]] = await store.claim([NEXT])
        asked.clear()
        changes: list[Change] = [
            Cancel("q", "b"),
            Cancel("q", "a", b"1", 60.0, only_line=True),
            Ack("q", "a", held.token),
            Cancel("q", "a"),
        ]
        # What is behind a change that takes several calls comes after it.
        assert await store.settle(changes) == [1, 3500, None, 0]
        assert asked == [2, 1, 1, 1, 1, 2]
        assert await store.count() == {"q": Counts(done=3500, done_cancelled=3500)}
        await store.settle([Purge("q", "all")])
        await fill(store, "a", 1001)
        assert await store.settle([Cancel("q", "a")]) == [1002]
        await fill(store, "a", 1000)
        asked.clear()
        assert await store.settle([Cancel("q", "a")]) == [1001]
        assert len(asked) == 1
        await store.close()

    asyncio.run(main())
    assert [key for key in keys_of(server, prefix) if "{q}" in key] == [f"{prefix}:{{q}}:m"]


def test_a_cancel_in_an_edit_removes_a_long_line_or_nothing(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        await fill(store, "a", 1500)
        before = await store.line("q", "a", limit=2000)
        seen: list[StoredItem] = []

        def refused(items: Sequence[StoredItem]) -> list[Any]:
            seen.extend(items)
            return [Cancel("q", "a"), Release("q", "a", "no such lease")]

        with pytest.raises(Exception, match="no such lease"):
            await store.edit("q", refused, keys=["a"])
        assert [item.id for item in seen] == [item.id for item in before.items]
        assert await store.line("q", "a", limit=2000) == before
        assert await store.count() == {"q": Counts(available=1501)}
        assert await store.edit("q", lambda _: [Cancel("q", "a", only_line=True)]) == [1500]
        assert await store.count() == {"q": Counts(available=1)}
        await store.close()

    asyncio.run(main())


def test_many_keys_are_let_go_in_steps(server: Server, prefix: str) -> None:
    """A purge of buried items counts them all, and the lines go on in the order of the burials."""

    async def main() -> None:
        store = opened(server, prefix)
        keys = [f"k{number:03}" for number in range(350)]
        for _ in range(2):
            await store.put([Put("q", tuple((key, b"1") for key in keys), "append")])
        [items] = await store.claim([Claim((("q", 350),), 350)])
        items = items[::-1]
        await store.settle([Bury("q", item.key, item.token, hold=True) for item in items])
        assert await store.count() == {"q": Counts(buried=350, held=350)}
        assert await store.settle([Purge("q", "buried")]) == [350]
        assert await store.count() == {"q": Counts(available=350)}
        [items] = await store.claim([Claim((("q", 350),), 350)])
        assert [item.key for item in items] == keys[::-1]
        await store.close()

    asyncio.run(main())


def test_nothing_is_left_of_lines_and_holds(server: Server, prefix: str) -> None:
    """And a queue whose last line has ended is as quick as one that never had any."""

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([values("a", 3)])
        [[item]] = await store.claim([NEXT])
        [number] = await store.settle([Bury("q", "a", item.token, hold=True)])
        assert isinstance(number, int)
        assert await store.settle([Requeue("q", number)]) == [True]
        assert [await worked_on(store) for _ in range(3)] == [b"0", b"1", b"2"]
        await store.put([values("a", 3)])
        [[item]] = await store.claim([NEXT])
        await store.settle([Bury("q", "a", item.token, hold=True)])
        assert await store.settle([Cancel("q", "a")]) == [2]
        page = await store.browse("q", states=EVERY_STATE)
        assert [(found.state, found.holds) for found in page.items] == [("buried", False)]
        await store.settle([Purge("q", "buried")])
        await store.close()

    asyncio.run(main())
    left = [key for key in keys_of(server, prefix) if "{q}" in key]
    assert left == [f"{prefix}:{{q}}:m"]
    with server.client() as client:
        notes = client.get(left[0])
    assert notes[24:32] == bytes(8)


def test_values_are_appended_behind_a_key_that_is_held(server: Server, prefix: str) -> None:
    """Several in one request count each."""

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([values("a", 1)])
        [[item]] = await store.claim([NEXT])
        await store.settle([Bury("q", "a", item.token, hold=True)])
        [placed] = await store.put([values("a", 3)])
        assert isinstance(placed, tuple)
        assert [each.outcome for each in placed] == ["appended"] * 3
        assert await store.count() == {"q": Counts(buried=1, held=3)}
        await store.close()

    asyncio.run(main())


def test_an_append_on_a_cluster_is_last_though_its_id_was_given_before(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is given before the put comes: another put that came between has a higher one."""

    async def main() -> None:
        store, other = (RedisStore(shared_cluster().url, prefix=prefix) for _ in range(2))
        give_ids = RedisEngine._give_ids
        overtaken = 0

        def overtake(engine: RedisEngine, requests: Any, forms: Any) -> Steps[None]:
            nonlocal overtaken
            yield from give_ids(engine, requests, forms)
            if engine is store._engine and not overtaken:
                overtaken += 1
                between = asyncio.run_coroutine_threadsafe(other.put([values("a", 1)]), loop)
                between.result(20)

        loop = asyncio.get_running_loop()
        await store.put([values("a", 1)])
        monkeypatch.setattr(RedisEngine, "_give_ids", overtake)
        puts = [values("b", 1), values("a", 2), Put("q", (("a", b"last"),), "update")]
        answers = await store.put(puts)
        assert overtaken == 1
        line = (await store.line("q", "a")).items
        assert [item.value for item in line] == [b"0", b"0", b"0", b"last"]
        ids = [item.id for item in line]
        assert ids == sorted(ids)
        assert answers[1:] == [
            (Placed(ids[2], "appended"), Placed(ids[3], "appended")),
            (Placed(ids[3], "updated"),),
        ]
        await store.close()
        await other.close()

    asyncio.run(main())


@pytest.mark.parametrize("make", makes())
def test_lines_go_on_without_memory(prefix: str, make: Make) -> None:
    """What has to be done with what is there needs none: alone, in a batch, and with results."""

    async def main(server: Server) -> None:
        store = opened(server, prefix)
        await store.put([values(key, 4) for key in "abc"])
        [items] = await store.claim([Claim((("q", 3),), 3, None, 600.0)])
        with server.client() as client:
            client.config_set("maxmemory", 1)
        one, *others = (Ack("q", item.key, item.token) for item in items)
        assert await store.settle([one]) == [None]
        assert await store.settle(others) == [None] * 2
        [items] = await store.claim([Claim((("q", 3),), 3, None, 600.0)])
        assert [(item.key, item.value) for item in items] == [(key, b"1") for key in "abc"]
        [number] = await store.settle([Bury("q", "a", items[0].token, hold=True)])
        assert isinstance(number, int)
        assert await store.settle([Discard("q", number)]) == [True]
        assert await store.settle([Cancel("q", "b", b"1", 60.0)]) == [3]
        assert await store.settle([Release("q", "c", items[2].token)]) == [None]
        assert await store.count() == {"q": Counts(available=5, done=3, done_cancelled=3)}
        with pytest.raises(StoreError, match="memory is full"):
            await store.put([values("c", 1)])
        await store.close()

    with Server(make=make) as server:
        asyncio.run(main(server))


def test_acks_of_one_batch(server: Server, prefix: str) -> None:
    """Keys with and without lines, large values, a delay, a result, and a lease that is over."""

    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        large = b"1" * 5000
        await store.put([Put("q", tuple((key, b"0") for key in "abcd"), priority=1)])
        await store.put(
            [
                Put("q", (("a", b"1"), ("b", large)), "append"),
                Put("q", (("c", b"1"),), "append", delay=10.0),
            ]
        )
        [items] = await store.claim([Claim((("q", 4),), 4, None, 600.0)])
        acks = [Ack("q", item.key, item.token, b"1", 60.0) for item in items]
        answers = await store.settle([*acks, *acks])
        assert answers[:4] == [None] * 4
        assert [type(answer) for answer in answers[4:]] == [Refusal] * 4
        assert await store.count() == {"q": Counts(available=2, scheduled=1, done=4)}
        clock.advance(11)
        [items] = await store.claim([Claim((("q", 4),), 4, None, 600.0)])
        expected = [("a", b"1", 0), ("b", large, 0), ("c", b"1", 0)]
        assert [(item.key, item.value, item.priority) for item in items] == expected
        assert (await store.browse("q", states=["in_line", "buffered"])).items == ()
        await store.close()

    asyncio.run(main())


def test_results_that_are_over_are_forgotten_in_steps_before_a_put_asks_for_them(
    server: Server, prefix: str
) -> None:
    """One with a longer time is the last one then, though others ended after it."""

    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        [placed] = await store.put([values("a", 1)])
        assert isinstance(placed, tuple)
        [kept] = placed
        await store.settle([Cancel("q", "a", b"1", 900.0, outcome="completed")])
        clock.advance(1)
        await fill(store, "a", 2300)
        await store.settle([Cancel("q", "a", b"1", 5.0, outcome="completed")])
        clock.advance(10)
        unique = Put("q", (("a", b"1"),), "skip", unique_for=600.0)
        assert await store.put([unique]) == [(Placed(kept.id, "skipped"),)]
        await store.close()

    asyncio.run(main())


def test_a_list_that_ends_the_last_line_itself_finds_no_damage(server: Server, prefix: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        await store.put([Put("q", (("a", b"1"),))])
        [[leased]] = await store.claim([Claim((("q", 1),), 1, None, 5.0)])
        assert leased.value == b"1"
        await store.put([Put("q", (("a", b"2"),), "buffer")])
        clock.advance(
            6.0
        )  # the lease is over, which the next call sees: the newer value is the head
        found = await store.browse("q", states=EVERY_STATE)
        assert [(item.state, item.value) for item in found.items] == [("available", b"2")]
        await store.close()

    asyncio.run(main())
