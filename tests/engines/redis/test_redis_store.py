"""What only the Redis store does: its keys, its answers to repeated calls, and its edits."""

import asyncio
import gc
import logging
import re
import struct
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from leasedkeyq import KeyAlreadyInFlightError, RedisStore, StoreError
from leasedkeyq.engines.redis import engine
from leasedkeyq.engines.redis.engine import RedisEngine
from leasedkeyq.engines.redis.link import AskServer, RedisLink, Steps
from leasedkeyq.engines.redis.loop_link import LoopConnection, OnReply
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Cap,
    Claim,
    Counts,
    Limits,
    Placed,
    Purge,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from leasedkeyq.testing import ManualClock
from tests.engines.redis.support import keys_of, many, opened
from tests.servers.valkey import Server, shared_server


@pytest.fixture
def server() -> Server:
    return shared_server()


# Keys


def test_an_empty_queue_leaves_nothing_for_ever_but_the_numbers(
    server: Server, prefix: str
) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        caps = (Cap("q", rate=1.0), Cap("q", "a", in_flight=1))
        await store.put([Put("q", ((key, b"1"),)) for key in "abcd"])
        [[a], [b], [c]] = await store.claim([Claim((("q", 1),), 1, None, 9.0)] * 3)
        await store.claim([Claim((("q", 1),), 1, None, 9.0, caps=caps)])
        await store.put([Put("q", (("a", b"2"),), "buffer"), Put("q", (("e", b"1"),), delay=5.0)])
        await store.settle(
            [
                Ack("q", "a", a.token, b"1", 5.0),
                Bury("q", "b", b.token),
                Release("q", "c", c.token, delay=3.0),
                *(Cancel("q", key, b"1", 5.0) for key in "acde"),
                Purge("q", "buried"),
            ]
        )
        clock.advance(100)
        await store.sweep(["q"])
        assert await store.count() == {}
        await store.close()

    asyncio.run(main())
    found = keys_of(server, prefix)
    for_ever = {key for key, seconds in found.items() if seconds < 0}
    assert for_ever == {f"{prefix}:format", f"{prefix}:m", f"{prefix}:q"}, found


def test_the_keys_of_a_queue_are_in_one_slot(server: Server, prefix: str) -> None:
    """Whatever its name: what is between the first braces decides."""

    async def main() -> None:
        store = opened(server, prefix)
        for queue in ("plain", "}", "{}", "a}b{c", "%7D", "ü"):
            await store.put([Put(queue, (("a", b"1"), ("b", b"1")))])
            await store.claim([Claim(((queue, 1),), 1, None, 60.0)])
        await store.close()

    asyncio.run(main())
    tags: dict[str, set[str]] = {}
    for key in keys_of(server, prefix):
        found = re.search("{(.*?)}", key)
        if found:
            tags.setdefault(found[1], set()).add(key)
    assert set(tags) == {"plain", "%7D", "%7B%7D", "a%7Db%7Bc", "%257D", "ü"}
    assert {len(keys) for keys in tags.values()} == {6}


def test_stores_of_one_prefix_are_one_store_and_others_are_not(server: Server, prefix: str) -> None:
    async def main() -> None:
        stores = [opened(server, prefix), opened(server, prefix), opened(server, f"{prefix}x")]
        await stores[0].put([many(3)])
        here = {"q": Counts(available=3)}
        assert [await store.count() for store in stores] == [here, here, {}]
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_ids_and_fences_go_on_when_the_server_has_lost_everything(prefix: str) -> None:
    """As after a failover that lost the last second: what was given out does not come again."""

    async def main(server: Server) -> None:
        store = opened(server, prefix)
        numbers: list[tuple[int, int]] = []
        for _ in range(3):
            await store.put([many(500)])
            [items] = await store.claim([Claim((("q", 500),), 500)])
            numbers += [(item.id, item.fence) for item in items]
            with server.client() as client:
                client.flushall()
        assert numbers == sorted(set(numbers))
        assert len({fence for _, fence in numbers}) == len(numbers)
        assert max(numbers)[0] < 2**53
        await store.close()

    with Server() as server:
        asyncio.run(main(server))


def test_numbers_go_on_from_the_last_one_though_the_clock_was_set_back(
    server: Server, prefix: str
) -> None:
    """For requests alone and in batches: ids, fences and the order of the queue."""

    async def main() -> None:
        store = opened(server, prefix)
        ahead = 2**51
        with server.client() as client:
            client.set(f"{prefix}:m", ahead)
        puts = [Put("q", ((f"k{number}", b"1"),)) for number in range(6)]
        answers = [*await store.put(puts[:1]), *await store.put(puts[1:3])]
        answers += [*await store.put(puts[3:4]), *await store.put(puts[4:])]
        ids = [placed.id for answer in answers if isinstance(answer, tuple) for placed in answer]
        claim = Claim((("q", 1),))
        found = [*await store.claim([claim]), *await store.claim([claim] * 2)]
        found += await store.claim([Claim((("q", 3),), 3)])
        items = [item for claimed in found for item in claimed]
        assert [item.key for item in items] == [f"k{number}" for number in range(6)]
        numbers = [*ids, *(item.fence for item in items)]
        assert numbers == [*range(ahead + 1, ahead + 13)]
        await store.close()

    asyncio.run(main())


def test_a_queue_without_its_notes_is_looked_at(server: Server, prefix: str) -> None:
    """They are gone after a day, or with a server that has lost some."""

    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)

        def lose_notes() -> None:
            with server.client() as client:
                assert client.delete(f"{prefix}:{{q}}:m") == 1

        await store.put([Put("q", ((key, b"1"),)) for key in "ab"])
        await store.put([Put("q", (("later", b"1"),), delay=5.0)])
        [[a]] = await store.claim([Claim((("q", 1),), lease_time=3.0)])
        await store.put([Put("q", (("a", b"2"),), "buffer")])
        lose_notes()
        assert await store.count() == {"q": Counts(available=2, scheduled=1, in_flight=1)}
        assert await store.sweep(["q"]) == [3.0]
        await store.put([Put("q", (("b", b"2"),))])
        lose_notes()
        assert await store.settle([Ack("q", "a", a.token, b"1", 2.0)]) == [None]
        [[b], [a]] = [(await store.claim([Claim((("q", 1),), lease_time=4.0)]))[0] for _ in "ba"]
        assert [(item.key, item.value) for item in (b, a)] == [("b", b"2"), ("a", b"2")]
        lose_notes()
        clock.advance(4.5)
        [[item]] = await store.claim([Claim((("q", 1),))])
        assert (item.key, item.attempt) == ("b", 2)
        lose_notes()
        assert await store.settle([Ack("q", "b", item.token)]) == [None]
        clock.advance(1)
        assert await store.count() == {"q": Counts(available=2)}
        assert not [key for key in keys_of(server, prefix) if key.endswith("}:d")]
        await store.close()

    asyncio.run(main())


def test_results_that_are_over_are_forgotten_without_a_sweep(server: Server, prefix: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = opened(server, prefix, clock=clock)
        await store.put([many(3)])
        for keep, results in ((50.0, 1), (5.0, 2), (0.0, 1)):
            [[item]] = await store.claim([Claim((("q", 1),))])
            await store.settle([Ack("q", item.key, item.token, b"1", keep)])
            with server.client() as client:
                assert client.hlen(f"{prefix}:{{q}}:d") == results
            clock.advance(6)
        await store.close()

    asyncio.run(main())


def test_the_notes_of_a_queue_in_use_stay(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        await store.put([many(1)])
        notes = f"{prefix}:{{q}}:m"
        with server.client() as client:
            before = client.get(notes)
            [since] = struct.unpack_from(">d", before)
            for hours, lives in ((11, 1000), (13, 24 * 3600)):
                client.set(notes, struct.pack(">d", since - hours * 3600e6) + before[8:], ex=1000)
                await store.put([many(1)])
                assert lives - 60 < client.ttl(notes) <= lives
        await store.close()

    asyncio.run(main())


def test_a_queue_that_lost_its_entry_in_the_list_is_listed_again(
    server: Server, prefix: str
) -> None:
    async def main() -> None:
        first, second = opened(server, prefix), opened(server, prefix)
        await first.put([many(1)])
        with server.client() as client:
            client.delete(f"{prefix}:q")
        assert await second.count() == {}
        await second.put([many(2)])
        assert await first.count() == {"q": Counts(available=2)}
        await first.close()
        await second.close()

    asyncio.run(main())


def test_a_store_does_not_remember_every_queue_that_it_ever_had(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MANY_REGISTERED", 3)

    async def main() -> None:
        store: Any = opened(server, prefix)
        for number in range(10):
            await store.put([Put(f"q{number}", (("a", b"1"),))])
        engines = [
            found
            for found in gc.get_objects()
            if type(found) is RedisEngine and found._prefix == prefix
        ]
        assert engines
        assert max(len(found._registered) for found in engines) <= 4
        assert len(await store.count()) == 10
        await store.close()

    asyncio.run(main())


def test_names_of_empty_queues_do_not_pile_up(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        await store.put([Put("used", (("a", b"1"),))])
        with server.client() as client:
            client.zadd(f"{prefix}:q", {"used": 1, "gone": 1, "{gone}": 1, "ü": 1})
            await store.put([Put("new", (("a", b"1"),))])
            names = dict(client.zrange(f"{prefix}:q", 0, -1, withscores=True))
        assert set(names) == {b"new", b"used"}
        assert names[b"used"] > 1
        assert set(await store.count()) == {"new", "used"}
        await store.close()

    asyncio.run(main())


# Calls that are repeated


async def append_and_ack(store: RedisStore) -> None:
    """Append to the line of `k00000`, alone and in a batch, and work on all of it."""
    for number in range(3):
        puts = [Put("q", (("k00000", b"%d" % each),), "append") for each in range(number)]
        await store.put(puts)
    assert len((await store.line("q", "k00000")).items) == 1 + 3
    for expected in (b"1", b"0", b"0", b"1"):
        [[value]] = await store.claim([Claim((("q", 1),), 1, "k00000")])
        assert value.value == expected
        assert await store.settle([Ack("q", "k00000", value.token)]) == [None]
    assert await store.count() == {"q": Counts(available=1, buried=1, done=1)}


@pytest.mark.parametrize("way", ["from the event loop", "from a thread"])
def test_a_call_that_is_repeated_changes_nothing_twice(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Every answer is lost once: the call is made again, and answered as it was the first time."""
    in_loop, in_thread = LoopConnection.send, RedisLink._ask_once
    lost: list[bytes] = []

    def lose(batch: bytes, found: list[Any]) -> list[Any]:
        if batch not in lost and found[0][0] == b"done":
            lost.append(batch)
            raise ConnectionError("lost")
        return found

    def loses_in_loop(link: LoopConnection, commands: list[tuple[Any, ...]], told: OnReply) -> None:
        def lost_or_told(found: list[Any] | Exception) -> None:
            if isinstance(found, list) and commands[0][0] == "EVALSHA":
                try:
                    lose(commands[0][-1], found)
                except ConnectionError as error:
                    found = error
            told(found)

        in_loop(link, commands, lost_or_told)

    def loses_in_thread(link: RedisLink, ask: AskServer) -> list[Any]:
        return lose(ask.batch, in_thread(link, ask))

    monkeypatch.setattr(LoopConnection, "send", loses_in_loop)
    monkeypatch.setattr(RedisLink, "_ask_once", loses_in_thread)
    if way == "from a thread":
        monkeypatch.setattr(RedisLink, "in_loop", False)

    async def main() -> None:
        store = opened(server, prefix)
        first, second = await store.put([many(3), Put("r", (("a", b"1"),))])
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        assert len({*first, *second}) == 4
        claim = Claim((("q", 2), ("r", 1)), 9, None, 60.0)
        [items, rest] = await store.claim([claim, claim])
        assert [item.key for item in items] == ["k00000", "k00001", "a"]
        assert [item.key for item in rest] == ["k00002"]
        assert [item.value for item in items] == [b"1"] * 3
        changes: list[Any] = [Ack(i.queue, i.key, i.token) for i in items]
        assert await store.settle([*changes, Bury("q", "k00002", rest[0].token)]) == [
            *[None] * 3,
            rest[0].id,
        ]
        assert await store.edit("q", lambda _: [many(2)])
        assert await store.count() == {"q": Counts(available=2, buried=1)}
        again = Put("q", (("k00000", b"1"),), priority=1)
        for keep in (0.0, 60.0):
            [[old]] = await store.claim([Claim((("q", 1),))])
            assert (old.key, old.value) == ("k00000", b"1")
            assert await store.settle([Ack("q", "k00000", old.token, b"1", keep)]) == [None]
            assert await store.settle([Ack("q", "k00000", old.token)]) != [None]
            [added, updated] = [*await store.put([again]), *await store.put([again])]
            [items] = await store.claim([Claim((("q", 2),), 2, None, 60.0, ("", "no"))])
            assert [added, updated] == [(Placed(items[0].id, how),) for how in ("added", "updated")]
            await store.settle([Release("q", i.key, i.token, undo=True) for i in items])
        assert await store.count() == {"q": Counts(available=2, buried=1, done=1)}
        await append_and_ack(store)
        await store.close()

    asyncio.run(main())
    assert len(lost) >= 20


def test_a_call_that_arrives_late_does_nothing(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network may deliver what was given up for lost after what followed it."""
    asked: list[AskServer] = []
    sent = RedisEngine._sent

    def noted(
        engine: RedisEngine, keys: Sequence[str], batch: bytes, recorded: bool
    ) -> Steps[list[Any]]:
        asked.append(AskServer(keys, batch))
        return (yield from sent(engine, keys, batch, recorded))

    monkeypatch.setattr(RedisEngine, "_sent", noted)

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([many(1)])
        await store.settle([Cancel("q", "k00000")])
        [answer] = store._link._ask_once(asked[0])
        assert answer[0] == b"old"
        assert await store.count() == {}
        await store.close()

    asyncio.run(main())


# Edits


def test_while_one_edits_the_others_wait(server: Server, prefix: str) -> None:
    async def main() -> None:
        editor, other = opened(server, prefix), opened(server, prefix)
        await other.put([many(1), Put("free", (("a", b"1"),))])
        begun, go_on = threading.Event(), threading.Event()

        def work(items: Sequence[StoredItem]) -> list[Put]:
            begun.set()
            assert go_on.wait(30)
            return [Put("q", (("edited", b"1"),))]

        edit = asyncio.create_task(editor.edit("q", work))
        assert await asyncio.to_thread(begun.wait, 30)
        await other.put([Put("free", (("b", b"1"),))])
        waiting = asyncio.create_task(other.put([Put("q", (("later", b"1"),))]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        go_on.set()
        await asyncio.gather(edit, waiting)
        [items] = await other.claim([Claim((("q", 9),), 9)])
        assert [item.key for item in items] == ["k00000", "edited", "later"]
        await editor.close()
        await other.close()

    asyncio.run(main())


def test_an_edit_that_takes_too_long_changes_nothing(server: Server, prefix: str) -> None:
    async def main() -> None:
        editor, other = opened(server, prefix, edit_time=0.2), opened(server, prefix)
        loop = asyncio.get_running_loop()

        def work(_: Sequence[StoredItem]) -> list[Put]:
            """It ends when somebody else has changed the queue, which its time forbids before."""
            put = other.put([Put("q", (("other", b"1"),))])
            asyncio.run_coroutine_threadsafe(put, loop).result(30)
            return [Put("q", (("edited", b"1"),))]

        with pytest.raises(StoreError, match="edit_time"):
            await editor.edit("q", work)
        assert await other.count() == {"q": Counts(available=1)}
        await editor.close()
        await other.close()

    asyncio.run(main())


def test_an_edit_that_is_refused_leaves_nothing_behind(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        await store.put([Put("q", ((key, b"1"),)) for key in "ab"])
        [items] = await store.claim([Claim((("q", 2),), 2)])
        beside = Put("q", (("a", b"2"),), "buffer")
        with pytest.raises(KeyAlreadyInFlightError):
            await store.edit("q", lambda _: [beside, Put("q", (("b", b"2"),), "reject")])
        assert await store.count() == {"q": Counts(in_flight=2)}
        await store.settle([Ack("q", item.key, item.token) for item in items])
        assert await store.count() == {}
        await store.close()

    asyncio.run(main())


def test_after_a_refused_edit_a_queue_is_looked_at_once(server: Server, prefix: str) -> None:
    def earliest() -> float:
        with server.client() as client:
            notes: tuple[float, ...] = struct.unpack_from(">dd", client.get(f"{prefix}:{{q}}:m"))
        return notes[1]

    async def main() -> None:
        store = opened(server, prefix)
        await store.put([Put("q", (("a", b"1"),))])
        with pytest.raises(Refusal):
            await store.edit("q", lambda _: [Ack("q", "a", "no token")])
        assert earliest() == float("-inf")
        await store.put([Put("q", (("b", b"1"),))])
        assert earliest() == float("inf")
        await store.close()

    asyncio.run(main())


# Batches


def test_a_batch_over_several_queues_stores_everything(server: Server, prefix: str) -> None:
    """Its writes are gathered, and made early where a key comes again."""

    async def main() -> None:
        store = opened(server, prefix)
        puts = [
            Put("q", (("a", b"1"), ("b", b"1"))),
            Put("r", (("c", b"1"), ("c", b"2"))),
            Put("q", (("d", b"1"), ("b", b"2"), ("a", b"2"))),
            Put("r", (("e", b"1"),)),
        ]
        answers: list[Any] = list(await store.put(puts))
        [[a, b], [c, same], [_, b_again, a_again], _] = answers
        assert (a.id, b.id, c.id) == (a_again.id, b_again.id, same.id)
        assert {placed.outcome for placed in (a_again, b_again, same)} == {"updated"}
        [items, none] = await store.claim([Claim((("q", 9), ("r", 9)), 9), Claim((("q", 9),), 9)])
        assert [(item.key, item.value) for item in items] == [
            *[("a", b"2"), ("b", b"2"), ("d", b"1")],
            *[("c", b"2"), ("e", b"1")],
        ]
        assert none == ()
        acks = [Ack(item.queue, item.key, item.token, b"1", 60.0) for item in items]
        settled = await store.settle([acks[0], acks[3], acks[0], acks[1]])
        assert [answer is None for answer in settled] == [True, True, False, True]
        counted = await store.count()
        assert counted == {"q": Counts(in_flight=1, done=2), "r": Counts(in_flight=1, done=1)}
        await store.close()

    asyncio.run(main())


# What cannot be stored


def test_a_request_that_cannot_be_stored_spoils_nobody(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        far = Put("q", (("far", b"1"),), priority=2**53 + 1)
        huge = Put("q", (("huge", b"1"),), priority=2**70)
        answers = await store.put([many(1), far, huge, Put("q", (("b", b"1"),), priority=2**53)])
        assert [isinstance(answer, tuple) for answer in answers] == [True, False, False, True]
        assert isinstance(answers[1], StoreError)
        [items] = await store.claim([Claim((("q", 9),), 9)])
        assert [(item.key, item.priority) for item in items] == [("b", 2**53), ("k00000", 0)]
        with pytest.raises(StoreError, match="cannot be stored"):
            await store.edit("q", lambda _: [far])
        await store.put([many(1)])
        await store.close()

    asyncio.run(main())


def test_a_kind_is_as_long_as_a_record_has_room_for(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix, limits=Limits(key_length=100_000))
        kinds = ["k" * 65535, "k" * 65536, "ü" * 32768]
        answers = await store.put([Put("q", ((kind[-9:], b"1"),), kind=kind) for kind in kinds])
        assert [isinstance(answer, StoreError) for answer in answers] == [False, True, True]
        [[item]] = await store.claim([Claim((("q", 9),), 9)])
        assert (item.kind, item.value) == (kinds[0], b"1")
        await store.close()

    asyncio.run(main())


def test_any_bytes_and_any_times_come_back_as_they_were(server: Server, prefix: str) -> None:
    async def main() -> None:
        now = 1_700_000_000.123456
        store = opened(server, prefix, clock=lambda: now)
        values = [b"", b"\x00", bytes(range(256)), b"x" * 300_000]
        await store.put([Put("q", tuple((f"k{n}", v) for n, v in enumerate(values)))])
        [items] = await store.claim([Claim((("q", 9),), 9, None, 1 / 3)])
        assert [item.value for item in items] == values
        assert {item.expires_at for item in items} == {now + 1 / 3}
        assert {item.put_at for item in items} == {now}
        await store.close()

    asyncio.run(main())


def test_dropped_items_are_reported(
    server: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = opened(server, prefix, limits=Limits(buried=1))
        await store.put([many(2)])
        [items] = await store.claim([Claim((("q", 2),), 2)])
        await store.settle([Bury("q", item.key, item.token) for item in items])
        await store.close()

    with caplog.at_level(logging.WARNING, "leasedkeyq"):
        asyncio.run(main())
    assert "queue 'q': dropped the oldest buried item, key 'k00000'" in caplog.messages
