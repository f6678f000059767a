"""Who waits, who is served, and in which order."""

import asyncio
from typing import Any

import pytest

from leasedkeyq import LeasedKeyQueue, QueueClosedError, QueueFullError
from tests.support import check_invariants, keys, started, steps, virtual_loop, waiters

Queue = LeasedKeyQueue[str, int]


class TestGet:
    async def test_it_waits_for_a_put(self) -> None:
        queue = Queue()
        getter = await started(queue.get())
        assert not getter.done()
        await queue.put("a", 1)
        assert (await getter)[:2] == ("a", 1)

    async def test_first_come_first_served(self) -> None:
        queue = Queue()
        getters = [await started(queue.get()) for _ in range(5)]
        for name in "abcde":
            await queue.put(name, 0)
        assert [(await getter)[0] for getter in getters] == list("abcde")

    async def test_one_put_wakes_one_waiter(self) -> None:
        queue = Queue()
        woken: list[str] = []

        async def consume(name: str) -> None:
            woken.append((await queue.get())[0] + name)

        tasks = [await started(consume(str(number))) for number in range(100)]
        await queue.put("a", 0)
        # Not even a spurious wake-up: the other futures have not been touched.
        assert sum(turn.done() for turn in queue._any_line) == 0
        await steps()
        assert woken == ["a0"]
        assert waiters(queue) == 99
        for task in tasks:
            task.cancel()

    async def test_a_newcomer_does_not_overtake_one_that_was_woken(self) -> None:
        queue = Queue()
        first = await started(queue.get())
        await queue.put("a", 1)
        await queue.put("b", 2)
        assert (await queue.get())[0] == "b"
        assert (await first)[0] == "a"

    async def test_a_waiting_take_goes_before_waiting_gets(self) -> None:
        queue = Queue()
        getter = await started(queue.get())
        taker = await started(queue.take("a"))
        await queue.put("a", 1)
        assert (await taker)[0] == "a"
        assert not getter.done()
        await queue.put("b", 2)
        assert (await getter)[0] == "b"

    async def test_items_that_come_due_together_go_by_priority_and_to_takers_first(self) -> None:
        queue = Queue()
        await queue.put("low", 1, delay=5)
        await queue.put("wanted", 1, delay=5, priority=9)
        await queue.put("high", 1, delay=5, priority=5)
        getters = [await started(queue.get()) for _ in range(2)]
        taker = await started(queue.take("wanted"))
        await asyncio.sleep(5)
        assert [(await task)[0] for task in (*getters, taker)] == ["high", "low", "wanted"]

    async def test_get_many_waits_for_one_and_takes_what_is_there(self) -> None:
        queue = Queue()
        getter = await started(queue.get_many(3))
        await queue.put_many({"a": 1, "b": 2})
        assert [key for key, _, _ in await getter] == ["a", "b"]
        await queue.put_many(dict.fromkeys("cdefg", 1))
        assert [key for key, _, _ in await queue.get_many(3)] == ["c", "d", "e"]

    async def test_waiters_get_leases_with_their_own_times(self) -> None:
        queue = Queue(default_lease_timeout=50)
        default = await started(queue.get())
        own = await started(queue.get(lease_timeout=7))
        await asyncio.sleep(3)
        await queue.put_many({"a": 1, "b": 2})
        assert [(await task)[2].expires_at for task in (default, own)] == [53, 10]


class TestTake:
    async def test_it_waits_while_absent_scheduled_and_leased(self) -> None:
        queue = Queue()
        await queue.put("a", 1)
        _, _, lease = await queue.get()
        taker = await started(queue.take("a"))
        await queue.release(lease, delay=5)
        await asyncio.sleep(4)
        assert not taker.done()
        await asyncio.sleep(1)
        _, _, lease = await taker
        second = await started(queue.take("a"))
        await queue.ack(lease)
        await steps()
        assert not second.done()
        await queue.put("a", 2)
        assert (await second)[1] == 2

    async def test_many_on_one_key_are_served_in_turn(self) -> None:
        queue = Queue()
        takers = [await started(queue.take("a")) for _ in range(3)]
        await queue.put("a", 0)
        for number, taker in enumerate(takers):
            assert [task.done() for task in takers].count(True) == number
            _, _, lease = await taker
            assert lease.attempt == number + 1
            await queue.release(lease)
        assert await keys(queue) == ["a"]

    async def test_no_line_is_left_behind(self) -> None:
        queue = Queue()
        for name in "abc":
            with pytest.raises(TimeoutError):
                await queue.take(name, timeout=1)
            with pytest.raises(TimeoutError):
                await queue.take(name, timeout=0)
        assert queue._consumers.for_key == {}


class TestTimeouts:
    @pytest.mark.parametrize("call", ["get", "take", "get_many"])
    async def test_timeout_is_a_total(self, call: str) -> None:
        queue = Queue()
        await queue.put("other", 1)
        if call != "take":
            await queue.get()
        calls: dict[str, Any] = {
            "get": queue.get(timeout=10),
            "take": queue.take("a", timeout=10),
            "get_many": queue.get_many(2, timeout=10),
        }
        waiting = await started(calls.pop(call))
        for coroutine in calls.values():
            coroutine.close()
        for _ in range(9):
            await asyncio.sleep(1)
            await queue.put("other", 2)
            await queue.put("more", 2, delay=1000)
        with pytest.raises(asyncio.TimeoutError, match="within 10 s"):
            await waiting
        assert virtual_loop().time() == 10
        assert waiters(queue) == 0

    async def test_timeout_0_means_now_or_never(self) -> None:
        queue = Queue()
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0)
        with pytest.raises(TimeoutError):
            await queue.take("a", timeout=0)
        await queue.put("a", 1)
        assert (await queue.get(timeout=0))[0] == "a"

    async def test_timeout_0_does_not_even_yield(self) -> None:
        queue = Queue()
        await queue.start()
        with pytest.raises(TimeoutError):
            queue.get(timeout=0).send(None)

    async def test_an_item_that_comes_at_the_last_moment_is_not_lost(self) -> None:
        queue = Queue()
        getter = await started(queue.get(timeout=5))
        await queue.put("a", 1, delay=5)
        results = await asyncio.gather(getter, return_exceptions=True)
        if isinstance(results[0], TimeoutError):
            assert await keys(queue) == ["a"]
        else:
            assert await queue.inflight_keys() == {"a"}
        check_invariants(queue)

    async def test_a_timed_out_getter_is_passed_over(self) -> None:
        queue = Queue()
        late = await started(queue.get(timeout=5))
        patient = await started(queue.get())
        virtual_loop().call_later(5, queue.put_nowait, "a", 1)
        assert (await patient)[0] == "a"
        with pytest.raises(TimeoutError):
            await late


class TestMaxsize:
    async def test_producers_wait_and_are_served_in_order(self) -> None:
        queue = Queue(maxsize=2)
        assert queue.maxsize == 2
        await queue.put_many({"a": 1, "b": 2})
        producers = [await started(queue.put(name, 0)) for name in "cde"]
        assert await queue.qsize() == 2
        order = []
        for _ in range(5):
            order.append((await queue.get())[0])
            await steps()
            check_invariants(queue)
            assert await queue.qsize() <= 2
        assert order == list("abcde")
        await asyncio.gather(*producers)

    async def test_updates_do_not_wait(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        await queue.put("a", 2)
        queue.put_nowait("a", 3)
        _, value, lease = await queue.get()
        assert value == 3
        await queue.put("b", 1)
        await queue.put("a", 4)
        await queue.release(lease)
        assert await queue.qsize() == 2, "a released item always gets in"

    async def test_scheduled_and_buffered_items_count(self) -> None:
        queue = Queue(maxsize=2)
        await queue.put("a", 1)
        await queue.get()
        await queue.put("a", 2, if_in_flight="buffer")
        await queue.put("b", 1, delay=100)
        with pytest.raises(QueueFullError):
            queue.put_nowait("c", 1)
        queue.put_nowait("a", 3, if_in_flight="buffer")

    async def test_a_buffered_put_waits_for_room_too(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        _, _, lease = await queue.get()
        await queue.put("b", 1)
        producer = await started(queue.put("a", 2, if_in_flight="buffer"))
        assert not producer.done()
        await queue.release(lease)
        await producer
        assert await keys(queue) == ["b", "a"]
        assert await queue.peek("a") == 2

    async def test_a_put_that_is_handed_over_needs_no_room(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("later", 1, delay=1000)
        getter = await started(queue.get())
        await queue.put("a", 1)
        assert (await getter)[0] == "a"
        taker = await started(queue.take("b"))
        queue.put_nowait("b", 1)
        assert (await taker)[0] == "b"

    async def test_a_consumer_that_comes_later_frees_a_waiting_producer(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("later", 1, delay=1000)
        first = await started(queue.put("a", 1))
        second = await started(queue.put("b", 2))
        taker = await started(queue.take("b"))
        await steps()
        assert (await taker)[:2] == ("b", 2)
        await second
        assert not first.done()
        assert (await queue.get())[:2] == ("a", 1)
        await first

    async def test_values_of_one_key_do_not_overtake_each_other(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("full", 0)
        older = await started(queue.put("a", 1))
        newer = await started(queue.put("a", 2))
        with pytest.raises(QueueFullError):
            queue.put_nowait("a", 3)
        await queue.get()
        await asyncio.gather(older, newer)
        assert (await queue.get())[:2] == ("a", 2)

    async def test_put_many_waits_for_room_for_all(self) -> None:
        queue = Queue(maxsize=3)
        await queue.put_many({"a": 1, "b": 2})
        many = await started(queue.put_many({"c": 1, "d": 2, "e": 3}))
        one = await started(queue.put("f", 1))
        await queue.get()
        await steps()
        assert await queue.qsize() == 1, "all or nothing, and nobody goes before"
        await queue.get()
        await many
        assert await keys(queue) == ["c", "d", "e"]
        await queue.get()
        await one

    async def test_put_many_that_can_never_fit(self) -> None:
        queue = Queue(maxsize=2)
        with pytest.raises(QueueFullError, match="3 values do not fit"):
            await queue.put_many({"a": 1, "b": 2, "c": 3})
        assert await queue.qsize() == 0

    async def test_nowait_does_not_slip_in_before_those_who_wait(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        producer = await started(queue.put("b", 1))
        await queue.get()
        with pytest.raises(QueueFullError):
            queue.put_nowait("c", 1)
        await producer

    async def test_a_rejected_put_in_line_lets_the_next_go_on(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        waiting = await started(queue.put("b", 1))
        last = await started(queue.put("c", 1))
        waiting.cancel()
        await queue.get()
        await last
        assert await keys(queue) == ["c"]

    async def test_removal_makes_room(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        producer = await started(queue.put("b", 1))
        await queue.remove("a")
        await producer

    async def test_an_acknowledged_key_frees_the_producer_that_waits_for_it(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        _, _, lease = await queue.get()
        await queue.put("later", 1, delay=1000)
        producer = await started(queue.put("a", 2, if_in_flight="buffer"))
        getter = await started(queue.get())
        assert not producer.done()
        await queue.ack(lease)
        assert (await getter)[:2] == ("a", 2)
        await producer

    async def test_producers_behind_one_that_needs_room_wait_for_it(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("later", 1, delay=50)
        delayed = await started(queue.put("delayed", 1, delay=5))
        behind = await started(queue.put("a", 1))
        getter = await started(queue.get())
        await steps()
        assert not behind.done()
        assert (await getter)[0] == "later"
        await asyncio.gather(delayed, behind, queue.get(), queue.get())

    async def test_a_producer_whose_turn_it_was_when_the_queue_closed_has_put_nothing(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        producer = await started(queue.put("b", 1))
        await queue.remove("a")
        await queue.close()
        with pytest.raises(QueueClosedError):
            await producer
        assert await queue.snapshot() == []


async def test_time_stands_still_inside_put_many() -> None:
    """A key of the batch that comes due in the middle of it would be refused, half-way."""
    queue = Queue()
    await queue.put("z", 0, delay=1)
    taker = await started(queue.take("z"))
    loop = virtual_loop()
    now = loop.time()

    def ticking() -> float:
        loop.jump(0.2)
        return now + loop._now

    queue._time = ticking
    await queue.put_many(dict.fromkeys("abcdefghz", 1), if_in_flight="reject")
    assert await keys(queue) == list("abcdefgh")
    assert (await taker)[:2] == ("z", 1)
