"""A queue belongs to one event loop. Elsewhere it says so, and stays whole.

What holds for queues on stores as well is in tests/doors/test_event_loops.py.
"""

import asyncio
import threading
from typing import Any

import pytest
import uvloop

from leasedkeyq import LeasedKeyQueue, LeaseExpiredError, WrongEventLoopError
from tests.support import check_invariants

Queue = LeasedKeyQueue[str, int]


async def fill(queue: Queue) -> Any:
    await queue.put("a", 1)
    await queue.put("b", 2)
    return (await queue.get(lease_timeout=1000))[2]


async def use_all(queue: Queue, lease: Any) -> None:
    for call in (
        queue.start,
        lambda: queue.put("c", 1),
        lambda: queue.put_many({"c": 1}),
        queue.get,
        lambda: queue.get_many(2),
        lambda: queue.take("b"),
        lambda: queue.ack(lease),
        lambda: queue.release(lease),
        lambda: queue.extend(lease, 1),
        lambda: queue.bury(lease),
        lambda: queue.remove("b"),
        queue.join,
        lambda: queue.peek("b"),
        queue.qsize,
        queue.snapshot,
        queue.close,
        lambda: anext(queue),
    ):
        with pytest.raises(WrongEventLoopError, match="event loop"):
            await call()
    for now in (
        lambda: queue.put_nowait("c", 1),
        queue.get_nowait,
        lambda: queue.take_nowait("b"),
    ):
        with pytest.raises(WrongEventLoopError, match="event loop"):
            now()


def test_calls_left_in_a_closed_loop_do_no_harm() -> None:
    """A loop that is closed without the end of its tasks, which are thrown away much later."""
    queue = Queue(maxsize=1)
    loop = asyncio.new_event_loop()

    async def leave() -> list[asyncio.Task[Any]]:
        await queue.put("full", 1, delay=1000)
        calls = (queue.take("a"), queue.put("x", 1), queue.put("y", 1), queue.join())
        left = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        return left

    loop.set_exception_handler(lambda *_: None)  # tasks that are destroyed while pending: meant
    left = loop.run_until_complete(leave())
    loop.close()

    async def use() -> None:
        await queue.remove("full")
        await queue.put("b", 1)
        check_invariants(queue)
        for task in left:
            task.get_coro().close()  # what the garbage collector does
        check_invariants(queue)
        assert await queue.available_keys() == {"b"}
        assert (await queue.get())[0] == "b"
        await asyncio.wait_for(queue.put("c", 1), 10)

    asyncio.run(use())


def test_two_loops_that_take_turns_in_one_thread() -> None:
    queue = Queue()
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        lease = first.run_until_complete(fill(queue))
        second.run_until_complete(use_all(queue, lease))
        first.run_until_complete(queue.ack(lease))
        assert first.run_until_complete(queue.qsize()) == 1
    finally:
        first.close()
        second.close()


def test_a_loop_in_another_thread() -> None:
    failures: list[BaseException] = []

    async def main() -> None:
        queue = Queue()
        lease = await fill(queue)

        def other() -> None:
            try:
                asyncio.run(use_all(queue, lease))
            except BaseException as error:
                failures.append(error)

        await asyncio.to_thread(other)
        await queue.ack(lease)
        check_invariants(queue)
        assert await queue.qsize() == 1

    asyncio.run(main())
    assert failures == []


def test_without_a_loop() -> None:
    queue = Queue()
    with pytest.raises(WrongEventLoopError, match="outside a running event loop"):
        queue.put_nowait("a", 1)
    asyncio.run(fill(queue))
    caught: list[WrongEventLoopError] = []

    def other() -> None:
        try:
            queue.put_nowait("c", 1)
        except WrongEventLoopError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert isinstance(caught[0], RuntimeError)


def test_a_queue_made_outside_belongs_to_the_first_loop_that_uses_it() -> None:
    queue = Queue()
    asyncio.run(fill(queue))
    assert queue._state.in_flight.keys() == {"a"}


def test_a_closed_queue_can_be_read_from_anywhere() -> None:
    queue = Queue()

    async def first() -> None:
        await fill(queue)
        await queue.close()

    asyncio.run(first())
    assert asyncio.run(queue.available_keys()) == {"a", "b"}
    assert [item.key for item in asyncio.run(queue.snapshot())] == ["a", "b"]


def test_from_another_thread_through_the_loop() -> None:
    async def main() -> None:
        queue = Queue()
        loop = asyncio.get_running_loop()

        def other() -> None:
            asyncio.run_coroutine_threadsafe(queue.put("a", 1), loop).result()

        await asyncio.to_thread(other)
        assert (await queue.get())[0] == "a"

    asyncio.run(main())


def test_on_uvloop() -> None:
    """Not derived from asyncio's own loops, so found out in another way."""
    queue = Queue(default_lease_timeout=0.01)

    async def main() -> Any:
        lease = await fill(queue)
        taken = await queue.take("b")
        assert (await queue.get(timeout=10, lease_timeout=1000))[0] == "b"
        with pytest.raises(LeaseExpiredError):
            await queue.ack(taken[2])
        return lease

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        lease = runner.run(main())
        asyncio.run(use_all(queue, lease))
        runner.run(queue.ack(lease))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(queue.inflight_size()) == 1
