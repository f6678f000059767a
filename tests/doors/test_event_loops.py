"""A queue belongs to one event loop at a time, with one rule and one error at every door.

Loops that come one after the other, each closed at its end, may use one queue. A second loop beside
one that is not closed is refused.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import WrongEventLoopError
from tests.doors.doors import STORES, address, local_door, open_store, store_door
from tests.doors.scenarios import LONG, look
from tests.doors.trace import Trace

Queue = Any
Step = Callable[[Trace, Queue], Coroutine[Any, Any, None]]

DOORS = ("local", *STORES)


def at_every_door(
    test: Callable[[Queue], list[str]], **options: Any
) -> Callable[[str, Path], None]:
    """Run a test on a local queue and on one of a store; both must leave the same trace."""

    @pytest.mark.parametrize("kind", DOORS)
    def compare(kind: str, tmp_path: Path) -> None:
        expected = test(local_door()(**options))
        assert expected
        if kind == "local":
            return
        with address(kind, tmp_path) as url:
            store = open_store(url)
            try:
                assert test(store_door(store)(**options)) == expected
            finally:
                asyncio.run(store.close())

    return compare


async def time_out(trace: Trace, queue: Queue) -> None:
    await trace.call("get", queue.get(timeout=0.05))
    await trace.call("take", queue.take("a", timeout=0.05))


async def put_while_one_waits(trace: Trace, queue: Queue) -> None:
    getting = trace.start("get", queue.get(timeout=20))
    await asyncio.sleep(0.1)
    await queue.put("a", 1)
    await trace.ended(getting)
    await trace.call("remove", queue.remove("a"))


async def leave_calls_behind(trace: Trace, queue: Queue) -> None:
    waiting = [queue.take("x"), queue.put("b", 1), queue.put("c", 1), queue.join()]
    trace.note("left", str(len([asyncio.ensure_future(call) for call in waiting])))
    await asyncio.sleep(0.2)


async def fill(trace: Trace, queue: Queue) -> None:
    await queue.put("full", 1, delay=LONG)
    await look(trace, queue)


async def make_room(trace: Trace, queue: Queue) -> None:
    await queue.remove("full")
    await trace.call("join", queue.join())
    await trace.call("put", queue.put("d", 1))
    await look(trace, queue)


async def close(trace: Trace, queue: Queue) -> None:
    await trace.call("close", queue.close())
    await look(trace, queue)


def one_after_the_other(queue: Queue) -> list[str]:
    trace = Trace()
    for step in (
        time_out,
        put_while_one_waits,
        fill,
        leave_calls_behind,
        make_room,
        time_out,
        close,
    ):
        asyncio.run(step(trace, queue))
    return trace.lines


def leases_and_schedules(queue: Queue) -> list[str]:
    trace = Trace()
    leases: list[Any] = []

    async def lease_two() -> None:
        await queue.put_many({"a": 1, "b": 1})
        leases.append((await queue.get())[2])
        leases.append((await queue.get(lease_timeout=trace.short))[2])

    async def settle() -> None:
        await trace.call("ack", queue.ack(leases[0]))
        await trace.call("ack again", queue.ack(leases[0]))
        await trace.call("the lease expires in this loop", queue.get(timeout=20))
        await trace.call("ack", queue.ack(leases[1]))

    asyncio.run(lease_two())
    asyncio.run(settle())
    return trace.lines


async def every_call(trace: Trace, queue: Queue, lease: Any) -> None:
    """Call all that can be called; from the wrong event loop, all of it is refused."""
    for name, call in {
        "start": queue.start,
        "put": lambda: queue.put("c", 1),
        "put_many": lambda: queue.put_many({"c": 1}),
        "get": queue.get,
        "get_many": lambda: queue.get_many(2),
        "take": lambda: queue.take("b"),
        "ack": lambda: queue.ack(lease),
        "release": lambda: queue.release(lease),
        "extend": lambda: queue.extend(lease, 1),
        "bury": lambda: queue.bury(lease),
        "remove": lambda: queue.remove("b"),
        "purge_buried": queue.purge_buried,
        "join": queue.join,
        "peek": lambda: queue.peek("b"),
        "contains": lambda: queue.contains("b"),
        "qsize": queue.qsize,
        "available_keys": queue.available_keys,
        "scheduled_keys": queue.scheduled_keys,
        "inflight_keys": queue.inflight_keys,
        "scheduled_size": queue.scheduled_size,
        "inflight_size": queue.inflight_size,
        "buried": queue.buried,
        "snapshot": queue.snapshot,
        "close": queue.close,
        "iterate": lambda: anext(queue),
    }.items():
        with pytest.raises(
            WrongEventLoopError, match=r"is not closed; use asyncio\.run_coroutine_"
        ):
            await call()
        await trace.call(name, call())


async def lease_one(queue: Queue) -> Any:
    await queue.put("a", 1)
    await queue.put("b", 2)
    return (await queue.get(lease_timeout=LONG))[2]


def a_loop_in_another_thread(queue: Queue) -> list[str]:
    trace = Trace()

    async def main() -> None:
        lease = await lease_one(queue)
        await asyncio.to_thread(lambda: asyncio.run(every_call(trace, queue, lease)))
        await trace.call("ack", queue.ack(lease))
        await look(trace, queue)

    asyncio.run(main())
    return trace.lines


def two_loops_that_take_turns(queue: Queue) -> list[str]:
    trace = Trace()
    with asyncio.Runner() as second:
        with asyncio.Runner() as first:
            lease = first.run(lease_one(queue))
            second.run(every_call(trace, queue, lease))
            first.run(trace.call("ack", queue.ack(lease)))
        second.run(look(trace, queue))
        second.run(queue.close())
    asyncio.run(look(trace, queue))  # what is closed can be read from anywhere
    return trace.lines


test_loops_one_after_the_other = at_every_door(one_after_the_other, maxsize=1)
test_leases_and_schedules_outlive_their_loop = at_every_door(leases_and_schedules)
test_a_loop_in_another_thread = at_every_door(a_loop_in_another_thread)
test_two_loops_that_take_turns = at_every_door(two_loops_that_take_turns)
