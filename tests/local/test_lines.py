"""Lines of values behind a key, and keys that buried items hold, as a user of the queue sees it."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from leasedkeyq import KeyAlreadyPresentError, KeyNotAvailableError, LeasedKeyQueue, QueueFullError
from tests.local.test_observer import Recorder
from tests.support import keys, started

Queue = LeasedKeyQueue[str, int]


async def lined(count: int, **options: Any) -> Queue:
    """A queue whose key "a" has the values 1, 2 and so on, and "b" has one."""
    queue = Queue(**options)
    await queue.put_many([("a", number) for number in range(1, count + 1)], if_present="append")
    await queue.put("b", 1)
    return queue


async def line(queue: Queue, key: str = "a") -> list[tuple[int, str]]:
    return [(value.value, value.state) async for value in queue.line(key)]


async def test_every_value_comes_in_order_and_keys_take_turns() -> None:
    queue = await lined(3)
    seen: list[tuple[str, int]] = []
    while await queue.qsize():
        key, value, lease = await queue.get()
        assert await queue.inflight_keys() == {key}
        seen.append((key, value))
        await queue.ack(lease)
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


async def test_a_put_says_what_it_did() -> None:
    queue = Queue()
    assert await queue.put("a", 1) == "added"
    assert queue.put_nowait("a", 2) == "updated"
    assert await queue.put("a", 3, if_present="append") == "appended"
    assert await queue.put("a", 4, if_present="update") == "updated"
    assert await queue.put("a", 5, if_present="skip") == "skipped"
    with pytest.raises(KeyAlreadyPresentError, match="key 'a' is in the queue already") as caught:
        await queue.put("a", 6, if_present="reject")
    assert caught.value.key == "a"
    await queue.put("b", 1)
    await queue.take("b")
    assert await queue.put("b", 2, if_present="update") == "buffered"
    assert await line(queue) == [(2, "available"), (4, "in_line")]


async def test_put_many_counts_what_it_did() -> None:
    queue = await lined(1)
    items = [("a", 2), ("c", 1), ("a", 3), ("c", 2)]
    assert await queue.put_many(items, if_present="append") == Counter(appended=3, added=1)
    assert await queue.put_many(items, if_present="skip") == Counter(skipped=4)
    assert await queue.put_many(items) == Counter(updated=2)
    assert await line(queue, "c") == [(1, "available"), (2, "in_line")]
    assert await line(queue) == [(1, "available"), (2, "in_line"), (3, "in_line")]
    new = [("d", 1), ("a", 1), ("e", 1), ("d", 2)]
    with pytest.raises(KeyAlreadyPresentError) as caught:
        await queue.put_many(new, if_present="reject")
    assert caught.value.keys == ("a", "d")
    assert not await queue.contains("d")


async def test_what_waits_can_be_seen() -> None:
    queue = await lined(3)
    assert (await queue.qsize(), await queue.peek("a")) == (4, 1)
    _, _, lease = await queue.take("a")
    assert (await queue.qsize(), await queue.peek("a")) == (3, 2)
    assert await queue.contains("a")
    assert await queue.available_keys() == {"a", "b"}
    assert [(i.key, i.value, i.state) for i in await queue.snapshot()] == [
        ("b", 1, "available"),
        ("a", 1, "in_flight"),
        ("a", 2, "in_line"),
        ("a", 3, "in_line"),
    ]
    await queue.release(lease, delay=5)
    assert await line(queue) == [(1, "scheduled"), (2, "in_line"), (3, "in_line")]
    assert [i async for i in queue.line("absent")] == []


async def test_a_line_is_shown_as_it_was_when_it_was_asked_for() -> None:
    queue = await lined(3)
    shown = []
    async for value in queue.line("a"):
        shown.append(value.value)
        await queue.purge_line("a")
    assert shown == [1, 2, 3]


async def test_single_values_can_be_removed() -> None:
    queue = await lined(4)
    first, second, third, _ = [value.id async for value in queue.line("a")]
    _, _, lease = await queue.take("a")
    assert await queue.remove("a", id=third)
    assert not await queue.remove("a", id=third)
    assert not await queue.remove("b", id=second)
    assert await line(queue) == [(1, "in_flight"), (2, "in_line"), (4, "in_line")]
    assert await queue.remove("a", id=first)
    assert lease._ended == "removed"
    assert await keys(queue) == ["b", "a"]
    assert await queue.purge_line("a") == 1
    assert await queue.purge_line("a") == await queue.purge_line("absent") == 0
    assert await line(queue) == [(2, "available")]
    assert await queue.remove("a")
    assert await line(queue) == []


async def test_a_waiting_take_gets_the_next_of_a_line() -> None:
    queue = await lined(3)
    _, _, lease = await queue.take("a")
    taker, getter = await started(queue.take("a")), await started(queue.get_many(2))
    await queue.ack(lease)
    _, value, lease = await taker
    assert value == 2
    assert [key for key, _, _ in await getter] == ["b"]
    getter = await started(queue.get_many(1))
    await queue.bury(lease)
    assert [(key, value) for key, value, _ in await getter] == [("a", 3)]


async def test_a_cancelled_take_leaves_the_line_as_it_was() -> None:
    queue = await lined(2)
    _, _, lease = await queue.take("a")
    taker = await started(queue.take("a"))
    await queue.ack(lease)
    taker.cancel()
    await asyncio.gather(taker, return_exceptions=True)
    assert await line(queue) == [(2, "available")]
    assert (await queue.take("a"))[2].attempt == 1


async def test_values_in_lines_take_room() -> None:
    queue = await lined(2, maxsize=3)
    waiting = await started(queue.put("a", 9, if_present="append"))
    assert not waiting.done()
    assert await queue.put("b", 2) == "updated"
    assert await queue.put("b", 3, if_present="skip") == "skipped"
    with pytest.raises(QueueFullError):
        queue.put_nowait("b", 9, if_present="append")
    with pytest.raises(QueueFullError, match="4 values do not fit"):
        await queue.put_many([("b", 1)] * 4, if_present="append")
    await queue.take("b")
    assert await waiting == "appended"
    assert [value for value, _ in await line(queue)] == [1, 2, 9]
    waiting = await started(queue.put("c", 1))
    assert await queue.purge_line("a") == 2
    assert await waiting == "added"


async def test_producers_of_a_line_do_not_overtake_each_other() -> None:
    queue = await lined(1, maxsize=2)
    waiting = [await started(queue.put("a", n, if_present="append")) for n in (2, 3, 4)]
    seen: list[int] = []
    for _ in range(5):
        key, value, lease = await queue.get()
        seen += [value] if key == "a" else []
        await queue.ack(lease)
    await asyncio.gather(*waiting)
    assert seen == [1, 2, 3, 4]


async def test_join_waits_for_lines() -> None:
    queue = await lined(2)
    joining = await started(queue.join())
    for _ in range(2):
        await queue.ack((await queue.get())[2])
    assert not joining.done()
    await queue.ack((await queue.get())[2])
    await joining


async def test_close_leaves_lines_behind_their_heads() -> None:
    queue = await lined(3)
    await queue.take("a")
    await queue.close()
    assert await line(queue) == [(1, "available"), (2, "in_line"), (3, "in_line")]
    assert await keys(queue) == ["a", "b"]


async def test_observers_hear_of_lines() -> None:
    seen = Recorder()
    queue = Queue(observer=seen)
    await queue.put("a", 1)
    await queue.put("a", 2, if_present="append")
    await queue.put("a", 3, if_present="skip")
    await asyncio.sleep(2)
    _, _, lease = await queue.get()
    await asyncio.sleep(3)
    await queue.ack(lease)
    await asyncio.sleep(4)
    _, _, lease = await queue.get()
    await queue.put("a", 4, if_present="append")
    await queue.put("a", 5, if_present="append")
    await queue.purge_line("a")
    await queue.purge_line("a")
    await queue.bury(lease, hold=True)
    await queue.put("a", 6)
    await asyncio.sleep(5)
    await queue.discard((await queue.buried())[0])
    await asyncio.sleep(6)
    _, _, lease = await queue.get()
    assert seen.take() == [
        ("put", "a"),
        ("put", "a"),
        ("claim", "a", 1, 2),
        ("ack", "a", 1, 3),
        ("claim", "a", 1, 4),
        ("put", "a"),
        ("put", "a"),
        ("remove", "a"),
        ("bury", "a", 1, 0),
        ("put", "a"),
        ("claim", "a", 1, 6),
    ]


class TestHeldKeys:
    async def test_a_buried_item_holds_its_key(self) -> None:
        queue = await lined(2)
        buried = await queue.bury((await queue.get())[2], "bad", hold=True)
        assert buried.holds
        with pytest.raises(KeyNotAvailableError, match="it is held") as caught:
            queue.take_nowait("a")
        assert caught.value.state == "held"
        assert await keys(queue) == ["b"]
        assert (await queue.qsize(), await queue.peek("a")) == (1, 2)
        assert await queue.put("a", 3, if_present="append") == "appended"
        assert await line(queue) == [(2, "in_line"), (3, "in_line")]
        await queue.ack((await queue.get())[2])
        await asyncio.wait_for(queue.join(), 1)

    async def test_a_requeue_makes_it_the_head_again(self) -> None:
        queue = await lined(2)
        buried = await queue.bury((await queue.get())[2], hold=True)
        taker = await started(queue.take("a"))
        await queue.requeue(buried, if_present="reject")
        _, value, lease = await taker
        assert (value, lease.attempt) == (1, 1)
        assert await line(queue) == [(1, "in_flight"), (2, "in_line")]
        assert await queue.buried() == []

    async def test_a_discard_lets_the_next_go(self) -> None:
        queue = await lined(2)
        buried = await queue.bury((await queue.get())[2], hold=True)
        taker = await started(queue.take("a"))
        await queue.discard(buried)
        assert (await taker)[1] == 2
        with pytest.raises(KeyError, match="no buried item"):
            await queue.discard(buried)

    async def test_a_discard_of_another_item_tells_nothing_of_its_key(self) -> None:
        seen = Recorder()
        queue = Queue(observer=seen)
        await queue.put("a", 1)
        buried = await queue.bury((await queue.get())[2])
        await queue.put("a", 2)
        await asyncio.sleep(3)
        await queue.discard(buried)
        await queue.get()
        assert seen.take()[-1] == ("claim", "a", 1, 3)

    async def test_a_removal_ends_it(self) -> None:
        queue = await lined(2)
        buried = await queue.bury((await queue.get())[2], hold=True)
        assert await queue.remove("a")
        assert not await queue.remove("a")
        [left] = await queue.buried()
        assert not left.holds
        assert await queue.put("a", 9, if_present="reject") == "added"
        await queue.requeue(buried)
        assert await line(queue) == [(9, "available"), (1, "in_line")]

    async def test_a_removal_without_a_line_finds_no_value(self) -> None:
        queue = await lined(1)
        await queue.bury((await queue.get())[2], hold=True)
        assert not await queue.remove("a")
        assert await queue.put("a", 9, if_present="reject") == "added"

    async def test_purging_the_buried_lets_all_go(self) -> None:
        queue = await lined(2)
        await queue.put("b", 2, if_present="append")
        for key in "ab":
            await queue.bury((await queue.take(key))[2], hold=True)
        assert await queue.purge_buried() == 2
        assert await keys(queue) == ["a", "b"]

    async def test_a_requeue_waits_for_room_whatever_its_policy(self) -> None:
        queue = await lined(2, maxsize=3)
        buried = await queue.bury((await queue.get())[2], hold=True)
        await queue.put("c", 1)
        waiting = await started(queue.requeue(buried, if_in_flight="update"))
        assert not waiting.done()
        await queue.take("c")
        await waiting
        assert await line(queue) == [(1, "available"), (2, "in_line")]

    async def test_a_requeue_in_line_for_room_hears_that_its_item_is_gone(self) -> None:
        queue = await lined(1, maxsize=2)
        buried = await queue.bury((await queue.get())[2])
        await queue.put("c", 1)
        waiting = await started(queue.requeue(buried))
        await queue.purge_buried()
        with pytest.raises(KeyError, match="no buried item"):
            await waiting
