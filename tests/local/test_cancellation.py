"""Every public awaitable, cancelled and timed out at every point, alone and under load."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasedkeyq import LeasedKeyQueue, QueueClosedError, QueueObserver
from leasedkeyq.testing import VirtualTimeLoop
from tests.support import check_invariants, keys, started, steps, virtual_loop, waiters

Queue = LeasedKeyQueue[str, int]
Call = Callable[[Queue], Coroutine[Any, Any, Any]]


async def use_lease(queue: Queue) -> None:
    async with queue.lease("wanted"):
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def use_for(queue: Queue) -> None:
    async for _, _, lease in queue:
        await queue.ack(lease)


CALLS: dict[str, Call] = {
    "start": lambda queue: queue.start(),
    "put": lambda queue: queue.put("mine", 1),
    "put buffered": lambda queue: queue.put("held", 1, if_in_flight="buffer"),
    "put delayed": lambda queue: queue.put("mine", 1, delay=3),
    "put_many": lambda queue: queue.put_many({"mine": 1, "mine too": 2}),
    "get": lambda queue: queue.get(),
    "get with lease": lambda queue: queue.get(lease_timeout=5),
    "get_many": lambda queue: queue.get_many(3),
    "take": lambda queue: queue.take("wanted"),
    "lease": use_lease,
    "async for": use_for,
    "ack": lambda queue: queue.ack(queue._state.in_flight["held"].lease),
    "release": lambda queue: queue.release(queue._state.in_flight["held"].lease),
    "extend": lambda queue: queue.extend(queue._state.in_flight["held"].lease, 5),
    "bury": lambda queue: queue.bury(queue._state.in_flight["held"].lease),
    "remove": lambda queue: queue.remove("held"),
    "remove one": lambda queue: queue.remove("held", id=1),
    "put appended": lambda queue: queue.put("held", 1, if_present="append"),
    "purge_line": lambda queue: queue.purge_line("held"),
    "join": lambda queue: queue.join(),
    "peek": lambda queue: queue.peek("a"),
    "contains": lambda queue: queue.contains("a"),
    "available_keys": lambda queue: queue.available_keys(),
    "scheduled_keys": lambda queue: queue.scheduled_keys(),
    "inflight_keys": lambda queue: queue.inflight_keys(),
    "qsize": lambda queue: queue.qsize(),
    "scheduled_size": lambda queue: queue.scheduled_size(),
    "inflight_size": lambda queue: queue.inflight_size(),
    "buried": lambda queue: queue.buried(),
    "purge_buried": lambda queue: queue.purge_buried(),
    "snapshot": lambda queue: queue.snapshot(),
    "close": lambda queue: queue.close(),
}


def test_every_public_awaitable_is_here() -> None:
    names = {
        name
        for name in dir(LeasedKeyQueue)
        if not name.startswith("_") and inspect.iscoroutinefunction(getattr(LeasedKeyQueue, name))
    }
    assert names <= {call.split()[0] for call in CALLS} | {"requeue", "discard"}


async def load(queue: Queue, done: dict[str, int]) -> None:
    """Others at work: they put and settle what they get."""

    async def produce(name: str) -> None:
        for number in range(4):
            await queue.put(f"{name}{number}", number)
            await asyncio.sleep(0)

    async def consume() -> None:
        while True:
            try:
                key, _, lease = await queue.get(timeout=20)
            except TimeoutError:
                return
            await asyncio.sleep(0)
            if lease.attempt == 1 and key.endswith("3"):
                await queue.release(lease, requeue_front=True)
            else:
                await queue.ack(lease)
                done[key] = done.get(key, 0) + 1

    await asyncio.gather(*(produce(name) for name in "xyz"), consume(), consume())


@pytest.mark.parametrize("maxsize", [0, 2])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", ["cancel", "timeout", "both"])
def test_cancelled_at_every_step(call: str, way: str, maxsize: int) -> None:
    """Cancel after 0, 1, 2, ... steps of the event loop, until the call is done before that."""
    finished = 0
    for step in range(60):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            finished += runner.run(one_run(CALLS[call], way, maxsize, step))
        if finished > 2:
            return
    assert call in {"join", "get", "get with lease", "get_many", "take", "lease", "async for"} or (
        maxsize and call.startswith("put")
    ), "never finished by itself"


async def one_run(call: Call, way: str, maxsize: int, step: int) -> bool:
    """Returns whether the call was done before it was cancelled."""
    queue = Queue(maxsize=maxsize)
    await queue.put("held", 0)
    await queue.get()
    done: dict[str, int] = {}
    background = asyncio.create_task(load(queue, done))
    await asyncio.sleep(0)
    if way == "timeout":

        async def limited() -> None:
            async with asyncio.timeout(step * 0.5):
                await call(queue)

        task = asyncio.create_task(limited())
        await asyncio.sleep(step * 0.5)
    else:
        task = asyncio.create_task(call(queue))
        await steps(step)
        if way == "both":
            # The item is handed over and the task cancelled in one step.
            for key in ("wanted", "any"):
                if not queue.closed:
                    queue._put(key, 1, "update", None, None)
        task.cancel()
    [result] = await asyncio.gather(task, return_exceptions=True)
    was_done = not isinstance(result, asyncio.CancelledError | TimeoutError)
    check_invariants(queue)
    if queue.closed:
        await asyncio.gather(background, return_exceptions=True)
        return was_done
    await background
    check_invariants(queue)
    assert waiters(queue) == 0
    # Everything that was put is done once, or is there, or was taken by the call.
    for name in ("x", "y", "z"):
        for number in range(4):
            key = f"{name}{number}"
            mine = was_done or call is use_for
            assert done.get(key, 0) == 1 or (mine and key not in done)
    inflight = await queue.inflight_keys()
    if not was_done:
        assert inflight <= {"held"}, "a cancelled call holds a lease"
        left = set(await keys(queue)) | await queue.scheduled_keys()
        assert left <= {"wanted", "any", "held"}, "a cancelled call has put something"
    return was_done


class TestHandedOverThenCancelled:
    """The window between the hand-over and the moment that the task runs again."""

    async def test_the_item_is_where_it_was_and_was_not_attempted(self) -> None:
        queue = Queue()
        getter = await started(queue.get(lease_timeout=9))
        await queue.put("a", 1)
        await queue.put("b", 2)
        getter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getter
        assert await keys(queue) == ["a", "b"]
        assert (await queue.get())[2].attempt == 1

    async def test_the_next_in_line_gets_it(self) -> None:
        queue = Queue()
        first = await started(queue.get())
        second = await started(queue.get())
        await queue.put("a", 1)
        first.cancel()
        assert (await second)[0] == "a"

    async def test_a_waiting_take_comes_before_the_next_get(self) -> None:
        queue = Queue()
        first = await started(queue.take("a"))
        getter = await started(queue.get())
        second = await started(queue.take("a"))
        await queue.put("a", 1)
        first.cancel()
        assert (await second)[0] == "a"
        assert not getter.done()
        getter.cancel()

    async def test_many_at_once_keep_the_order(self) -> None:
        queue = LeasedKeyQueue[int, int]()
        getters = [await started(queue.get()) for _ in range(50)]
        for number in range(100):
            await queue.put(number, number)
        for getter in getters[::2] + getters[1::2]:
            getter.cancel()
        await asyncio.gather(*getters, return_exceptions=True)
        assert [item.key for item in await queue.snapshot()] == list(range(100))
        check_invariants(queue)

    async def test_neighbours_that_are_leased_do_not_mislead(self) -> None:
        queue = Queue(default_lease_timeout=60)
        first = await started(queue.get())
        await queue.put("a", 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await queue.get()
        both = [await started(queue.get()) for _ in range(2)]
        for name in "bcdef":
            await queue.put(name, 1)
        both[0].cancel()
        await asyncio.gather(*both, return_exceptions=True)
        assert await keys(queue) == ["b", "d", "e", "f"]
        check_invariants(queue)

    async def test_a_priority_given_meanwhile_counts(self) -> None:
        queue = Queue()
        getter = await started(queue.get())
        await queue.put("a", 1)
        await queue.put("b", 1, priority=5)
        await queue.put("a", 1, priority=5)
        getter.cancel()
        await asyncio.gather(getter, return_exceptions=True)
        assert await keys(queue) == ["b", "a"]

    async def test_a_buffered_priority_given_meanwhile_counts_from_then(self) -> None:
        queue = Queue()
        getter = await started(queue.get())
        await queue.put("a", 1)
        await queue.put("a", 2, if_in_flight="buffer", priority=1)
        await queue.put("b", 1, priority=1)
        getter.cancel()
        await asyncio.gather(getter, return_exceptions=True)
        assert await keys(queue) == ["a", "b"]

    async def test_an_observer_that_cancels_the_consumer_does_no_harm(self) -> None:
        class Cancels(QueueObserver[str]):
            def on_claim(self, key: str, attempt: int, waited: float) -> None:
                getter.cancel()

        queue = Queue(observer=Cancels())
        getter = await started(queue.get())
        await queue.put("a", 1)
        await asyncio.gather(getter, return_exceptions=True)
        assert await keys(queue) == ["a"]

    async def test_the_lease_expired_meanwhile(self) -> None:
        queue = Queue()
        getter = await started(queue.get(lease_timeout=1))
        await queue.put("a", 1)
        virtual_loop().jump(2)
        _, _, lease = queue.get_nowait()
        getter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getter
        assert lease.attempt == 2
        assert await queue.inflight_keys() == {"a"}

    async def test_the_key_was_removed_meanwhile(self) -> None:
        queue = Queue()
        getter = await started(queue.get())
        await queue.put("a", 1)
        await queue.remove("a")
        getter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getter
        assert await queue.snapshot() == []

    async def test_the_queue_was_closed_meanwhile(self) -> None:
        queue = Queue()
        getter = await started(queue.get())
        other = await started(queue.get())
        await queue.put("a", 1)
        await queue.close()
        with pytest.raises(QueueClosedError):
            await getter
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert await keys(queue) == ["a"]

    async def test_wait_for_gives_the_item_or_leaves_it(self) -> None:
        queue = Queue()
        waiting = await started(asyncio.wait_for(queue.get(), 5))
        await queue.put("a", 1, delay=5)
        [result] = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(result, TimeoutError):
            assert await keys(queue) == ["a"]
        else:
            assert await queue.inflight_keys() == {"a"}


class TestProducers:
    async def test_a_cancelled_put_has_put_nothing_even_when_it_was_its_turn(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        first = await started(queue.put("b", 1))
        second = await started(queue.put("c", 1))
        await queue.get()
        first.cancel()
        await second
        assert await keys(queue) == ["c"]

    async def test_a_cancelled_put_many_has_put_nothing(self) -> None:
        queue = Queue(maxsize=2)
        await queue.put("a", 1)
        many = await started(queue.put_many({"b": 1, "c": 1}))
        many.cancel()
        await asyncio.gather(many, return_exceptions=True)
        assert await keys(queue) == ["a"]
        assert waiters(queue) == 0
        assert queue._producers.by_key == {}

    async def test_a_cancelled_requeue_stays_buried(self) -> None:
        queue = Queue(maxsize=1)
        await queue.put("a", 1)
        buried = await queue.bury((await queue.get())[2])
        await queue.put("b", 1)
        requeue = await started(queue.requeue(buried))
        requeue.cancel()
        await asyncio.gather(requeue, return_exceptions=True)
        assert await queue.buried() == [buried]
        await queue.remove("b")
        await queue.requeue(buried)
        assert await keys(queue) == ["a"]
