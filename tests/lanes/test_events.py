"""Who hears of what, and what becomes of a listener that is too slow."""

import asyncio
import gc
import logging
from typing import Any

import pytest

from leasedkeyq.lanes import events
from leasedkeyq.lanes.errors import SubscriptionClosedError
from leasedkeyq.lanes.events import EventEmitter, LaneEvent, Subscription
from tests.support import started, steps


def number(event: LaneEvent) -> int:
    found: int = event.payload["number"]
    return found


def emit(emitter: EventEmitter, *numbers: int) -> None:
    for each in numbers:
        emitter.emit("key", {"number": each})


async def received(subscription: Subscription) -> list[int]:
    """What the subscription holds; it is closed afterwards."""
    subscription._end()
    return [number(event) async for event in subscription]


class TestEmitting:
    async def test_an_event_has_a_key_a_payload_and_a_time(self) -> None:
        emitter = EventEmitter(clock=lambda: 1234.5)
        subscription = emitter.subscribe()
        emitter.emit(events.COMMAND_STARTED, {"lane": "api"})
        event = await subscription.recv()
        assert event == LaneEvent("queue.command.started", {"lane": "api"}, 1234.5)

    async def test_everybody_gets_every_event_in_order(self) -> None:
        emitter = EventEmitter()
        first, second = emitter.subscribe(), emitter.subscribe()
        emit(emitter, 1, 2, 3)
        assert await received(first) == await received(second) == [1, 2, 3]

    async def test_only_what_comes_after_the_subscription(self) -> None:
        emitter = EventEmitter()
        early = emitter.subscribe()
        emit(emitter, 1)
        late = emitter.subscribe()
        emit(emitter, 2)
        assert await received(early) == [1, 2]
        assert await received(late) == [2]

    async def test_the_filter(self) -> None:
        emitter = EventEmitter()
        even = emitter.subscribe_filtered(lambda event: number(event) % 2 == 0)
        emit(emitter, *range(6))
        assert await received(even) == [0, 2, 4]

    async def test_without_listeners_nothing_is_built(self) -> None:
        def clock() -> float:
            raise AssertionError("an event was built")

        emitter = EventEmitter(clock=clock)
        assert not emitter.listening
        emit(emitter, 1)

    def test_outside_an_event_loop(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        emit(emitter, 1)
        assert number(asyncio.run(subscription.recv())) == 1

    @pytest.mark.parametrize("capacity, error", [(0, ValueError), ("9", TypeError)])
    def test_wrong_capacity(self, capacity: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="capacity"):
            EventEmitter(capacity)

    def test_wrong_predicate(self) -> None:
        predicate: Any = "queue."
        with pytest.raises(TypeError, match="predicate"):
            EventEmitter().subscribe_filtered(predicate)

    def test_the_keys(self) -> None:
        commands = "submitted started completed retry dead_lettered failed timeout cancelled"
        expected = {f"queue.command.{name}" for name in commands.split()}
        expected |= {"queue.lane.pressure", "queue.lane.idle", "queue.shutdown.started"}
        names = (name for name in vars(events) if name.isupper())
        assert {getattr(events, name) for name in names} == expected


class TestPredicates:
    async def test_one_that_raises_is_logged_once_and_false(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        emitter = EventEmitter()
        bad = emitter.subscribe_filtered(lambda event: 1 / (number(event) % 2) > 0)
        good = emitter.subscribe()
        emit(emitter, *range(6))
        assert await received(bad) == [1, 3, 5]
        assert await received(good) == list(range(6))
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "ZeroDivisionError" in caplog.text

    async def test_one_that_subscribes_and_closes(self) -> None:
        emitter = EventEmitter()
        more: list[Subscription] = []

        def predicate(event: LaneEvent) -> bool:
            more.append(emitter.subscribe())
            other.close()
            return True

        subscription = emitter.subscribe_filtered(predicate)
        other = emitter.subscribe()
        emit(emitter, 1)
        assert await received(subscription) == [1]
        assert await received(other) == []
        assert await received(more[0]) == []


class TestSlowSubscribers:
    async def test_it_loses_the_oldest_and_learns_how_many(self) -> None:
        emitter = EventEmitter(capacity=3)
        slow = emitter.subscribe()
        emit(emitter, *range(10))
        assert number(await slow.recv()) == 7
        assert slow.missed == 7
        assert number(await slow.recv()) == 8
        assert slow.missed == 0
        emit(emitter, 10, 11, 12)
        assert number(await slow.recv()) == 10
        assert slow.missed == 1
        assert slow.missed_in_total == 8

    async def test_nobody_else_loses_anything(self) -> None:
        emitter = EventEmitter(capacity=3)
        slow, quick = emitter.subscribe(), emitter.subscribe()
        for each in range(100):
            emit(emitter, each)
            assert number(await quick.recv()) == each
        assert quick.missed_in_total == 0
        assert await received(slow) == [97, 98, 99]

    async def test_what_is_not_wanted_takes_no_room(self) -> None:
        emitter = EventEmitter(capacity=2)
        rare = emitter.subscribe_filtered(lambda event: number(event) % 50 == 0)
        emit(emitter, *range(100))
        assert await received(rare) == [0, 50]
        assert rare.missed_in_total == 0


class TestWaiting:
    async def test_recv_waits(self) -> None:
        emitter = EventEmitter()
        waiting = await started(emitter.subscribe().recv())
        assert not waiting.done()
        emit(emitter, 1)
        assert number(await waiting) == 1

    async def test_each_event_goes_to_one_of_several_tasks_in_turn(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        tasks = [await started(subscription.recv()) for _ in range(3)]
        emit(emitter, 1, 2)
        await steps()
        assert [task.done() for task in tasks] == [True, True, False]
        emit(emitter, 3)
        assert [number(await task) for task in tasks] == [1, 2, 3]

    async def test_a_cancelled_recv_takes_nothing(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        waiting = await started(subscription.recv())
        waiting.cancel()
        await steps()
        emit(emitter, 1)
        assert number(await subscription.recv()) == 1

    async def test_cancelled_right_before_the_event(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        first, second = [await started(subscription.recv()) for _ in range(2)]
        first.cancel()
        emit(emitter, 1)
        assert number(await second) == 1
        with pytest.raises(asyncio.CancelledError):
            await first

    async def test_cancelled_right_after_the_event(self) -> None:
        """The one that was woken passes its turn on."""
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        first, second = [await started(subscription.recv()) for _ in range(2)]
        emit(emitter, 1)
        first.cancel()
        assert number(await second) == 1
        with pytest.raises(asyncio.CancelledError):
            await first

    async def test_a_time_out_loses_nothing(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        for each in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(subscription.recv(), 1)
            emit(emitter, each)
            assert number(await subscription.recv()) == each

    async def test_a_coroutine_that_is_thrown_away_blocks_nobody(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        coroutine = subscription.recv()
        coroutine.send(None)
        waiting = await started(subscription.recv())
        coroutine.close()
        emit(emitter, 1)
        assert number(await waiting) == 1

    def test_a_waiter_of_a_loop_that_is_gone_harms_nobody(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        loop = asyncio.new_event_loop()
        waiting: Any = loop.create_task(subscription.recv())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        emit(emitter, 1)
        assert number(asyncio.run(subscription.recv())) == 1
        # asyncio is told that the task will never end, so that it does not complain.
        waiting._log_destroy_pending = False
        waiting.get_coro().close()


class TestClosing:
    async def test_close_ends_iterating_and_waiting(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        iterating = await started(subscription.__anext__())
        waiting = await started(subscription.recv())
        subscription.close()
        with pytest.raises(StopAsyncIteration):
            await iterating
        with pytest.raises(SubscriptionClosedError):
            await waiting
        with pytest.raises(SubscriptionClosedError):
            await subscription.recv()

    async def test_close_drops_what_is_there(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        emit(emitter, 1)
        subscription.close()
        emit(emitter, 2)
        assert [number(event) async for event in subscription] == []

    async def test_leaving_the_block_closes(self) -> None:
        emitter = EventEmitter()
        async with emitter.subscribe() as subscription:
            emit(emitter, 1)
            async for event in subscription:
                assert number(event) == 1
                break
        assert subscription.closed
        emit(emitter, 2)
        assert not emitter.listening

    async def test_the_emitter_closes_and_what_is_there_is_still_received(self) -> None:
        emitter = EventEmitter()
        behind, waiting = emitter.subscribe(), emitter.subscribe()
        emit(emitter, 1, 2)
        assert number(await waiting.recv()) == 1
        assert number(await waiting.recv()) == 2
        task = await started(waiting.recv())
        emitter.close()
        emit(emitter, 3)
        assert [number(event) async for event in behind] == [1, 2]
        with pytest.raises(SubscriptionClosedError):
            await task
        assert not emitter.listening
        assert [number(event) async for event in emitter.subscribe()] == []
        assert not emitter.listening


class TestForgetting:
    async def test_a_subscription_that_nobody_holds_is_forgotten(self) -> None:
        emitter = EventEmitter()
        subscription = emitter.subscribe()
        kept = emitter.subscribe()
        del subscription
        gc.collect()
        emit(emitter, 1)
        assert len(emitter._subscriptions) == 1
        assert emitter.listening
        del kept
        gc.collect()
        emit(emitter, 2)
        assert not emitter.listening

    async def test_one_that_is_only_waited_on_is_kept(self) -> None:
        emitter = EventEmitter()
        heard: set[int] = set()

        async def listen() -> None:
            async for event in emitter.subscribe():
                heard.add(number(event))

        listening = await started(listen())
        gc.collect()
        emit(emitter, 1)
        await steps()
        assert heard == {1}
        listening.cancel()

    async def test_many_that_come_and_go_leave_nothing(self) -> None:
        emitter = EventEmitter()
        for _ in range(1000):
            emitter.subscribe().close()
        assert len(emitter._subscriptions) == 1
