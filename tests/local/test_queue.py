"""What `LeasedKeyQueue` does for one caller at a time."""

import asyncio
import gc
import weakref
from datetime import timedelta
from typing import Any

import pytest

from leasedkeyq import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyNotAvailableError,
    LeaseAlreadyAcknowledgedError,
    LeasedItem,
    LeasedKeyQueue,
    LeaseExpiredError,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
)
from tests.support import keys, started, virtual_loop, waiters

Queue = LeasedKeyQueue[str, int]


async def filled(*names: str, **options: Any) -> Queue:
    queue = Queue(**options)
    for number, name in enumerate(names, 1):
        await queue.put(name, number)
    return queue


class TestPutAndGet:
    async def test_first_in_first_out(self) -> None:
        queue = await filled("a", "b", "c")
        assert [(await queue.get())[:2] for _ in range(3)] == [("a", 1), ("b", 2), ("c", 3)]

    async def test_any_hashable_key_and_any_value(self) -> None:
        queue = LeasedKeyQueue[Any, Any]()
        for key in (None, 0, "", (), frozenset({1}), 1.5, b"x", Queue):
            await queue.put(key, [key])
            assert (await queue.take(key))[:2] == (key, [key])

    async def test_a_second_put_updates_and_keeps_the_place(self) -> None:
        queue = await filled("a", "b")
        await queue.put("a", 9)
        assert await queue.qsize() == 2
        assert (await queue.get())[:2] == ("a", 9)

    async def test_priority(self) -> None:
        queue = await filled("a", "b")
        await queue.put("urgent", 0, priority=1)
        await queue.put("b", 2, priority=1)
        assert await keys(queue) == ["urgent", "b", "a"]

    async def test_delay(self) -> None:
        queue = Queue()
        loop = asyncio.get_running_loop()
        await queue.put("a", 1, delay=5)
        await queue.put("b", 2, delay=timedelta(seconds=2.5))
        assert await queue.qsize() == 0
        assert await queue.scheduled_keys() == {"a", "b"}
        assert await queue.scheduled_size() == 2
        assert not await queue.contains("a")
        assert await queue.peek("a") is None
        assert (await queue.get())[0] == "b"
        assert loop.time() == 2.5
        assert (await queue.get())[0] == "a"
        assert loop.time() == 5

    async def test_a_put_without_delay_does_not_cut_a_backoff_short(self) -> None:
        queue = await filled("a")
        _, _, lease = await queue.get()
        await queue.release(lease, delay=60)
        await queue.put("a", 2)
        assert (await queue.get())[1] == 2
        assert asyncio.get_running_loop().time() == 60

    async def test_delay_0_means_now(self) -> None:
        queue = await filled("a")
        await queue.put("b", 2, delay=60)
        await queue.put("b", 3, delay=0)
        assert await keys(queue) == ["a", "b"]
        assert await queue.scheduled_size() == 0

    async def test_put_many_and_get_many(self) -> None:
        queue = Queue()
        await queue.put_many({"a": 1, "b": 2})
        await queue.put_many([("c", 3), ("a", 9)], priority=1)
        batch = await queue.get_many(2)
        assert [(key, value) for key, value, _ in batch] == [("c", 3), ("a", 9)]
        assert [key for key, _, _ in await queue.get_many(10)] == ["b"]
        for _, _, lease in batch:
            await queue.ack(lease)

    async def test_put_many_of_nothing(self) -> None:
        queue = Queue()
        await queue.put_many([])
        assert await queue.qsize() == 0

    async def test_put_many_rejects_all_or_nothing(self) -> None:
        queue = await filled("a", "b")
        await queue.get()
        await queue.get()
        with pytest.raises(KeyAlreadyInFlightError, match="2 of 4") as caught:
            items = {"x": 1, "a": 2, "b": 3, "y": 4}
            await queue.put_many(items, if_in_flight="reject")
        assert caught.value.keys == ("a", "b")
        assert await queue.qsize() == 0

    async def test_nowait(self) -> None:
        queue = Queue(maxsize=1)
        with pytest.raises(QueueEmptyError):
            queue.get_nowait()
        with pytest.raises(asyncio.QueueEmpty):
            queue.get_nowait()
        queue.put_nowait("a", 1)
        queue.put_nowait("a", 2)
        with pytest.raises(QueueFullError) as full:
            queue.put_nowait("b", 1)
        assert full.value.maxsize == 1
        with pytest.raises(asyncio.QueueFull):
            queue.put_nowait("b", 1)
        assert queue.get_nowait()[:2] == ("a", 2)

    async def test_take_nowait_says_why_not(self) -> None:
        queue = await filled("a", "leased")
        await queue.take("leased")
        await queue.put("later", 1, delay=5)
        assert queue.take_nowait("a")[:2] == ("a", 1)
        for key, state in (("gone", "absent"), ("leased", "in_flight"), ("later", "scheduled")):
            with pytest.raises(KeyNotAvailableError) as caught:
                queue.take_nowait(key)
            assert (caught.value.key, caught.value.state) == (key, state)

    async def test_take_by_key(self) -> None:
        queue = await filled("a", "b", "c")
        assert (await queue.take("b"))[:2] == ("b", 2)
        assert await keys(queue) == ["a", "c"]

    async def test_async_for_ends_with_close(self) -> None:
        queue = await filled("a", "b")
        seen = []
        async for key, value, lease in queue:
            seen.append((key, value))
            await queue.ack(lease)
            if len(seen) == 2:
                await queue.close()
        assert seen == [("a", 1), ("b", 2)]


class TestInFlightPolicies:
    async def test_update(self) -> None:
        queue = await filled("a")
        _, _, lease = await queue.get()
        await queue.put("a", 2)
        await queue.release(lease)
        assert (await queue.get())[1] == 2

    async def test_reject(self) -> None:
        queue = await filled("a")
        await queue.get()
        with pytest.raises(KeyAlreadyInFlightError, match="'a'") as caught:
            await queue.put("a", 2, if_in_flight="reject")
        assert caught.value.key == "a"
        await queue.put("b", 1, if_in_flight="reject")

    async def test_buffer_counts_but_is_not_handed_out(self) -> None:
        queue = await filled("a")
        _, _, lease = await queue.get()
        await queue.put("a", 2, if_in_flight="buffer")
        assert await queue.qsize() == 1
        assert await queue.contains("a")
        assert await queue.available_keys() == {"a"}
        assert await queue.inflight_keys() == {"a"}
        assert await queue.peek("a") == 2
        getter = await started(queue.get())
        taker = await started(queue.take("a"))
        assert not getter.done()
        assert not taker.done()
        await queue.ack(lease)
        assert (await taker)[1] == 2
        getter.cancel()

    async def test_buffer_on_a_key_that_is_not_leased_is_a_plain_put(self) -> None:
        queue = await filled("a")
        await queue.put("a", 2, if_in_flight="buffer")
        assert await queue.qsize() == 1
        assert await queue.peek("a") == 2


class TestSettling:
    async def test_ack(self) -> None:
        queue = await filled("a")
        _, _, lease = await queue.get()
        await queue.ack(lease)
        assert (await queue.qsize(), await queue.inflight_size()) == (0, 0)
        with pytest.raises(LeaseAlreadyAcknowledgedError):
            await queue.ack(lease)
        with pytest.raises(LeaseAlreadyAcknowledgedError):
            await queue.release(lease)

    async def test_an_old_lease_is_still_known_as_acknowledged(self) -> None:
        queue = await filled("a")
        _, _, old = await queue.get()
        await queue.ack(old)
        for number in range(1000):
            await queue.put("a", number)
            await queue.ack((await queue.get())[2])
        with pytest.raises(LeaseAlreadyAcknowledgedError):
            await queue.ack(old)

    async def test_release_to_the_back_the_front_and_for_later(self) -> None:
        queue = await filled("a", "b", "c", "d")
        leases = [(await queue.get())[2] for _ in range(3)]
        await queue.release(leases[0])
        assert await keys(queue) == ["d", "a"]
        await queue.release(leases[1], requeue_front=True)
        assert await keys(queue) == ["b", "d", "a"]
        await queue.release(leases[2], delay=timedelta(seconds=1))
        assert await queue.scheduled_keys() == {"c"}
        await asyncio.sleep(1)
        assert await keys(queue) == ["b", "d", "a", "c"]

    async def test_a_delay_that_is_over_does_not_change_where_a_released_item_goes(self) -> None:
        queue = await filled("a", "b")
        _, _, lease = await queue.get()
        await queue.put("a", 2, delay=1)
        await asyncio.sleep(2)
        await queue.release(lease, requeue_front=True)
        assert await keys(queue) == ["a", "b"]

    async def test_release_with_delay_0_is_a_plain_release(self) -> None:
        queue = await filled("a", "b")
        await queue.release((await queue.get())[2], requeue_front=True, delay=0)
        assert await keys(queue) == ["a", "b"]

    async def test_remove_revokes_the_lease(self) -> None:
        queue = await filled("a", "b")
        _, _, lease = await queue.get()
        await queue.put("a", 2, if_in_flight="buffer")
        assert await queue.remove("a")
        assert await queue.remove("b")
        assert not await queue.remove("a")
        assert await queue.snapshot() == []
        with pytest.raises(InvalidLeaseError) as caught:
            await queue.ack(lease)
        assert caught.value.reason == "removed"

    async def test_bury_and_requeue(self) -> None:
        queue = await filled("a", "b")
        await queue.put("a", 1, priority=4)
        _, _, lease = await queue.get()
        buried = await queue.bury(lease, "broken")
        assert await queue.buried() == [buried]
        assert (buried.key, buried.error, buried.attempt) == ("a", "broken", 1)
        await queue.requeue(buried)
        assert await queue.buried() == []
        assert await keys(queue) == ["a", "b"]
        with pytest.raises(KeyError, match="no buried item 1"):
            await queue.requeue(buried)
        assert (await queue.get())[2].attempt == 1

    async def test_a_buried_item_of_another_queue_is_not_requeued(self) -> None:
        queue, other = await filled("a"), await filled("b")
        buried = await queue.bury((await queue.get())[2])
        foreign = await other.bury((await other.get())[2])
        with pytest.raises(KeyError):
            await queue.requeue(foreign)
        assert await queue.buried() == [buried]
        assert await queue.snapshot() == []

    async def test_of_two_requeues_that_wait_for_room_one_succeeds(self) -> None:
        queue = await filled("a", maxsize=1)
        buried = await queue.bury((await queue.get())[2])
        await queue.put("full", 1)
        both = [await started(queue.requeue(buried)) for _ in range(2)]
        await queue.remove("full")
        results = await asyncio.gather(*both, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), KeyError]
        assert await keys(queue) == ["a"]

    async def test_requeue_follows_the_rules_of_put(self) -> None:
        queue = await filled("a")
        buried = await queue.bury((await queue.get())[2], "broken")
        await queue.put("a", 7)
        _, _, lease = await queue.get()
        with pytest.raises(KeyAlreadyInFlightError):
            await queue.requeue(buried, if_in_flight="reject")
        assert await queue.buried() == [buried]
        await queue.requeue(buried, if_in_flight="buffer")
        await queue.ack(lease)
        assert (await queue.get())[1] == 1

    async def test_buried_items_have_a_limit(self, caplog: pytest.LogCaptureFixture) -> None:
        queue = await filled("a", "b", max_buried=1)
        await queue.bury((await queue.get())[2])
        assert caplog.text == ""
        await queue.bury((await queue.get())[2])
        assert "dropped the oldest buried item, key 'a'" in caplog.text
        assert [item.key for item in await queue.buried()] == ["b"]
        assert await queue.purge_buried() == 1
        assert await queue.buried() == []


class TestTheLeaseBlock:
    async def test_success_acknowledges(self) -> None:
        queue = await filled("a")
        async with queue.lease() as item:
            assert isinstance(item, LeasedItem)
            assert (item.key, item.value, item.lease.attempt) == ("a", 1, 1)
            assert await queue.inflight_keys() == {"a"}
        assert await queue.snapshot() == []

    async def test_it_can_take_a_key(self) -> None:
        queue = await filled("a", "b")
        async with queue.lease("b", timeout=0) as item:
            assert item.key == "b"
        assert await keys(queue) == ["a"]

    @pytest.mark.parametrize(
        "error", [ValueError(), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]
    )
    async def test_any_exception_releases(self, error: BaseException) -> None:
        queue = await filled("a", "b")
        with pytest.raises(type(error)):
            async with queue.lease():
                raise error
        assert await keys(queue) == ["b", "a"]

    async def test_where_a_failed_item_goes(self) -> None:
        queue = await filled("a", "b")
        with pytest.raises(ValueError, match="oops"):
            async with queue.lease(requeue_front=True):
                raise ValueError("oops")
        assert await keys(queue) == ["a", "b"]
        with pytest.raises(ValueError, match="oops"):
            async with queue.lease(delay=9):
                raise ValueError("oops")
        assert await queue.scheduled_keys() == {"a"}

    async def test_cancellation_inside_releases(self) -> None:
        queue = await filled("a")

        async def work() -> None:
            async with queue.lease():
                await asyncio.sleep(10)

        task = await started(work())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await keys(queue) == ["a"]

    async def test_what_was_settled_inside_is_left_alone(self) -> None:
        queue = await filled("a", "b", "c")
        async with queue.lease() as item:
            await queue.ack(item.lease)
        async with queue.lease() as item:
            await queue.release(item.lease, requeue_front=True)
        assert await keys(queue) == ["b", "c"]
        with pytest.raises(ValueError, match="oops"):
            async with queue.lease() as item:
                await queue.bury(item.lease)
                raise ValueError("oops")
        assert await keys(queue) == ["c"]

    async def test_an_expired_lease_is_reported(self) -> None:
        queue = await filled("a")
        with pytest.raises(LeaseExpiredError):
            async with queue.lease(lease_timeout=1):
                await asyncio.sleep(2)
        assert await keys(queue) == ["a"]

    async def test_an_expired_lease_does_not_hide_the_exception(self) -> None:
        queue = await filled("a")
        with pytest.raises(ValueError, match="oops") as caught:
            async with queue.lease(lease_timeout=1):
                await asyncio.sleep(2)
                raise ValueError("oops")
        assert "not released" in caught.value.__notes__[0]
        assert await keys(queue) == ["a"]

    async def test_a_removed_key_is_reported(self) -> None:
        queue = await filled("a")
        with pytest.raises(InvalidLeaseError, match="removed"):
            async with queue.lease():
                await queue.remove("a")


class TestExpiry:
    async def test_an_expired_item_goes_to_the_front(self) -> None:
        queue = await filled("a", "b", default_lease_timeout=30)
        _, _, lease = await queue.get()
        assert lease.expires_at == 30
        await asyncio.sleep(29.9)
        assert await queue.inflight_keys() == {"a"}
        await asyncio.sleep(0.1)
        assert await keys(queue) == ["a", "b"]
        assert (await queue.get())[2].attempt == 2

    async def test_ack_after_expiry_is_refused_also_when_the_loop_was_blocked(self) -> None:
        queue = await filled("a")
        _, _, lease = await queue.get(lease_timeout=30)
        virtual_loop().jump(31)
        with pytest.raises(LeaseExpiredError) as caught:
            await queue.ack(lease)
        assert isinstance(caught.value, InvalidLeaseError)
        assert (caught.value.key, caught.value.reason) == ("a", "expired")
        assert await keys(queue) == ["a"]

    async def test_a_lease_time_of_its_own(self) -> None:
        queue = await filled("a", "b", default_lease_timeout=timedelta(minutes=1))
        await queue.get(lease_timeout=timedelta(seconds=5))
        await queue.take("b", lease_timeout=float("inf"))
        await asyncio.sleep(5)
        assert await queue.available_keys() == {"a"}
        await asyncio.sleep(1000)
        assert await queue.inflight_keys() == {"b"}

    async def test_extend(self) -> None:
        queue = await filled("a", default_lease_timeout=10)
        _, _, lease = await queue.get()
        await asyncio.sleep(9)
        await queue.extend(lease)
        assert lease.expires_at == 19
        await asyncio.sleep(9)
        await queue.extend(lease, 2)
        assert lease.expires_at == 20
        await asyncio.sleep(1.9)
        assert await queue.inflight_keys() == {"a"}
        await asyncio.sleep(0.1)
        assert await keys(queue) == ["a"]
        with pytest.raises(LeaseExpiredError):
            await queue.extend(lease)

    async def test_extend_without_a_limit(self) -> None:
        queue = await filled("a")
        _, _, lease = await queue.get(lease_timeout=1)
        await queue.extend(lease)
        await asyncio.sleep(1000)
        await queue.ack(lease)

    async def test_a_waiting_taker_gets_the_expired_item(self) -> None:
        queue = await filled("a", default_lease_timeout=10)
        await queue.get()
        assert (await queue.take("a", timeout=11))[2].attempt == 2
        assert asyncio.get_running_loop().time() == 10

    async def test_one_timer_for_all(self) -> None:
        queue = Queue(default_lease_timeout=10)
        for number in range(100):
            await queue.put(str(number), number)
        await queue.get_many(100)
        loop: Any = asyncio.get_running_loop()
        assert len(loop._scheduled) == 1
        await queue.close()
        assert loop._scheduled[0].cancelled()


class TestClose:
    async def test_items_return_to_the_front_and_can_be_read(self) -> None:
        queue = await filled("a", "b", "c")
        await queue.put("later", 4, delay=9)
        leases = [(await queue.get())[2] for _ in range(2)]
        await queue.close()
        assert queue.closed
        assert await keys(queue) == ["a", "b", "c"]
        assert await queue.scheduled_keys() == {"later"}
        assert (await queue.peek("a"), await queue.contains("b")) == (1, True)
        assert (await queue.qsize(), await queue.inflight_size()) == (3, 0)
        assert await queue.available_keys() == {"a", "b", "c"}
        assert await queue.inflight_keys() == set()
        for lease in leases:
            with pytest.raises(QueueClosedError):
                await queue.ack(lease)

    async def test_what_is_due_at_the_moment_of_closing_is_available(self) -> None:
        queue = await filled("a")
        await queue.get()
        await queue.put("a", 2, delay=5)
        await asyncio.sleep(5)
        await queue.close()
        assert await keys(queue) == ["a"]

    async def test_everything_that_changes_is_refused(self) -> None:
        queue = await filled("a", "b")
        _, _, lease = await queue.get()
        buried = await queue.bury((await queue.get())[2])
        await queue.put("a", 1)
        await queue.close()
        await queue.close()
        for call in (
            queue.start,
            lambda: queue.put("x", 1),
            lambda: queue.put_many({"x": 1}),
            queue.get,
            lambda: queue.get_many(2),
            lambda: queue.take("a"),
            lambda: queue.ack(lease),
            lambda: queue.release(lease),
            lambda: queue.extend(lease, 1),
            lambda: queue.bury(lease),
            lambda: queue.requeue(buried),
            lambda: queue.discard(buried),
            queue.purge_buried,
            lambda: queue.remove("a"),
            lambda: queue.remove("a", id=1),
            lambda: queue.purge_line("a"),
            queue.join,
            lambda: queue.lease().__aenter__(),
        ):
            with pytest.raises(QueueClosedError):
                await call()
        for now in (
            lambda: queue.put_nowait("x", 1),
            queue.get_nowait,
            lambda: queue.take_nowait("a"),
        ):
            with pytest.raises(QueueClosedError):
                now()
        assert await keys(queue) == ["a"]

    async def test_every_waiter_is_woken(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("later", 1, delay=1000)
        tasks = [
            await started(call)
            for call in (
                queue.get(timeout=500),
                queue.take("x"),
                queue.get_many(3),
                queue.put("z", 1, delay=5),
                queue.put_many({"y": 1}, delay=5),
                queue.join(),
            )
        ]
        assert waiters(queue) == 6
        await queue.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [QueueClosedError] * 6
        assert waiters(queue) == 0

    async def test_async_with(self) -> None:
        async with Queue(default_lease_timeout=5) as queue:
            await queue.put("a", 1)
            await queue.get()
        assert queue.closed
        assert await keys(queue) == ["a"]

    async def test_the_block_around_a_closed_queue_reports(self) -> None:
        queue = await filled("a")
        with pytest.raises(QueueClosedError):
            async with queue.lease():
                await queue.close()


class TestJoin:
    async def test_it_waits_for_available_leased_and_scheduled(self) -> None:
        queue = await filled("a")
        await queue.put("b", 2, delay=5)
        join = await started(queue.join())
        await queue.ack((await queue.get())[2])
        await asyncio.sleep(0)
        assert not join.done()
        _, _, lease = await queue.get()
        await asyncio.sleep(1)
        assert not join.done()
        await queue.put("b", 3, if_in_flight="buffer")
        await queue.ack(lease)
        await asyncio.sleep(1)
        assert not join.done()
        assert await queue.remove("b")
        await join

    async def test_an_empty_queue_is_joined_at_once(self) -> None:
        queue = Queue()
        await queue.join()
        await queue.close()
        await queue.join()

    async def test_burying_counts_as_done(self) -> None:
        queue = await filled("a")
        join = await started(queue.join())
        await queue.bury((await queue.get())[2])
        await join


async def test_a_dropped_queue_is_freed() -> None:
    queue = await filled("a", default_lease_timeout=5)
    await queue.ack((await queue.get())[2])
    ghost = weakref.ref(queue)
    await asyncio.sleep(10)
    del queue
    gc.collect()
    assert ghost() is None


async def test_a_subclass_stays_itself_in_async_with() -> None:
    class Special(LeasedKeyQueue[str, int]):
        def extra(self) -> str:
            return "extra"

    async with Special() as queue:
        assert queue.extra() == "extra"
