"""Scripts that mean the same at every door: each is run on `LeasedKeyQueue` and on all stores.

A scenario uses a queue as any caller would, in real time, and notes what the caller sees. It must
not depend on how fast a door is: whatever waits is given `Trace.pause` to get to where it waits.
"""

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from leasedkeyq import Lease, QueueClosedError, QueueObserver
from tests.doors.trace import Trace

Queue: TypeAlias = Any
"""`LeasedKeyQueue[str, int]`, or a `StoreQueue[int]`."""
MakeQueue: TypeAlias = Callable[..., Queue]
"""Makes a new, empty queue with the options that both doors take."""
Scenario: TypeAlias = Callable[[Trace, MakeQueue], Awaitable[None]]

LONG = 600
"""Seconds: a delay or a lease that does not end within the scenario."""

SCENARIOS: dict[str, Scenario] = {}


def scenario(script: Scenario) -> Scenario:
    """Have a script run at every door."""
    SCENARIOS[script.__name__] = script
    return script


async def look(trace: Trace, queue: Queue) -> None:
    """Note all that can be seen."""
    trace.note("waiting", await queue.available_keys(), await queue.qsize())
    trace.note("scheduled", await queue.scheduled_keys(), await queue.scheduled_size())
    trace.note("in flight", await queue.inflight_keys(), await queue.inflight_size())
    trace.note("snapshot", await queue.snapshot())
    trace.note("buried", await queue.buried())


async def leased(queue: Queue, key: str = "a", value: int = 1, **options: Any) -> Lease[str]:
    """Put a key and lease it."""
    await queue.put(key, value)
    lease: Lease[str] = (await queue.take(key, timeout=10, **options))[2]
    return lease


def pickled(lease: Lease[str]) -> Lease[str]:
    """The lease as it comes out of another process."""
    again: Lease[str] = pickle.loads(pickle.dumps(lease))
    return again


# Order


@scenario
async def first_in_first_out(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    trace.note(queue.maxsize, queue.closed)
    await trace.call("start", queue.start())
    for key in "abc":
        await trace.call("put", queue.put(key, 1))
    await trace.call("update", queue.put("a", 2))
    await look(trace, queue)
    for _ in range(3):
        await trace.call("get", queue.get())
    await look(trace, queue)


@scenario
async def priorities(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put("normal", 1)
    await queue.put("low", 1, priority=-1)
    await queue.put("high", 1, priority=5)
    await queue.put("later high", 1, priority=5)
    await look(trace, queue)
    await queue.put("low", 2, priority=9)
    await queue.put("normal", 2, priority=0)
    trace.note(await queue.get_many(10))


@scenario
async def delays(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put("soon", 1, delay=trace.short)
    await queue.put("later", 1, delay=LONG)
    await queue.put("brought forward", 1, delay=LONG)
    await queue.put("soon", 2)
    await queue.put("brought forward", 2, delay=0)
    await look(trace, queue)
    await trace.call("peek", queue.peek("soon"))
    await trace.call("contains", queue.contains("soon"))
    await trace.call("get", queue.get())
    await trace.call("get too early", queue.get(timeout=0))
    await trace.call("get waits", queue.get(timeout=20))
    await trace.call("take too early", queue.take("later", timeout=0.01))


@scenario
async def many_at_once(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await trace.call("put_many", queue.put_many({"a": 1, "b": 2}))
    await trace.call("put_many pairs", queue.put_many([("c", 3), ("a", 4), ("c", 5)]))
    await trace.call("put_many nothing", queue.put_many({}))
    await trace.call("get_many", queue.get_many(2))
    await trace.call("get_many", queue.get_many(2))
    await trace.call("get_many in vain", queue.get_many(2, timeout=0))
    await trace.call("reject", queue.put_many({"new": 1, "a": 1, "b": 1}, if_in_flight="reject"))
    await trace.call("delayed", queue.put_many({"d": 1, "e": 1}, delay=LONG, priority=3))
    await look(trace, queue)


@scenario
async def leased_by_one_call(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put_many({"a": 1, "b": 1, "c": 1})
    await queue.release((await queue.get())[2])
    await queue.get_many(3)
    trace.note("leased", [item.key for item in await queue.snapshot()])


# Policies


@scenario
async def update_of_a_leased_key(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    lease = await leased(queue)
    await trace.call("update", queue.put("a", 2))
    await trace.call("update priority", queue.put("a", 3, priority=2))
    await look(trace, queue)
    await trace.call("release", queue.release(lease))
    _, _, lease = await queue.get()
    await look(trace, queue)
    await trace.call("update delay", queue.put("a", 4, delay=LONG))
    await trace.call("release", queue.release(lease))
    await look(trace, queue)


@scenario
async def reject_of_a_leased_key(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await leased(queue)
    await trace.call("reject", queue.put("a", 2, if_in_flight="reject"))
    await trace.call("reject of a free key", queue.put("b", 2, if_in_flight="reject"))
    await look(trace, queue)


@scenario
async def buffer_beside_a_leased_key(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    lease = await leased(queue)
    await queue.put("b", 1)
    await trace.call("buffer", queue.put("a", 2, if_in_flight="buffer"))
    await trace.call("newer", queue.put("a", 3, if_in_flight="buffer", priority=1))
    await trace.call("update", queue.put("a", 4))
    await look(trace, queue)
    await trace.call("peek", queue.peek("a"))
    await trace.call("get", queue.get())
    await trace.call("get finds none", queue.get(timeout=0))
    await trace.call("ack", queue.ack(lease))
    _, _, lease = await queue.get()
    await look(trace, queue)
    await queue.put("a", 5, if_in_flight="buffer", delay=LONG)
    await trace.call("bury", queue.bury(lease, "given up"))
    await look(trace, queue)


# Leases


@scenario
async def settling_twice(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    for first in ("ack", "release", "bury"):
        lease = await leased(queue, first)
        await trace.call(first, getattr(queue, first)(lease))
        for second in ("ack", "release", "extend", "bury"):
            await trace.call(f"{second} after {first}", getattr(queue, second)(lease))
    await look(trace, queue)


@scenario
async def copied_and_pickled_leases(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    for first in ("ack", "release", "bury"):
        lease = await leased(queue, first)
        other = pickled(lease)
        trace.note(
            "equal", lease == other, lease == copy.copy(lease), lease == copy.deepcopy(lease)
        )
        await trace.call(f"{first} of the copy", getattr(queue, first)(other))
        for again in (other, pickled(other), lease, copy.copy(lease), pickled(lease)):
            await trace.call(f"ack after {first}", queue.ack(again))
    lease = await leased(queue, "original first")
    other = pickled(lease)
    await trace.call("ack", queue.ack(lease))
    await trace.call("ack of the copy", queue.ack(other))
    await trace.call("release of the copy", queue.release(other))


@scenario
async def pickled_leases_that_ended(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    removed = pickled(await leased(queue, "removed", lease_timeout=LONG))
    await queue.remove("removed")
    expired = pickled(await leased(queue, "expired", lease_timeout=trace.short / 2))
    await asyncio.sleep(trace.short)
    for lease in (removed, expired):
        await trace.call("ack", queue.ack(lease))
        await trace.call("extend", queue.extend(lease))
    await trace.call("get", queue.get(timeout=10))
    await trace.call("ack after another lease", queue.ack(expired))


@scenario
async def leases_of_nobody(trace: Trace, make: MakeQueue) -> None:
    queue, other = make(), make()
    foreign = await leased(other)
    await leased(queue)
    await trace.call("made up", queue.ack(Lease("no such token", "a")))
    await trace.call("no such key", queue.release(Lease("no such token", "b")))
    await trace.call("of another queue", queue.ack(foreign))
    await trace.call("no lease", queue.ack("a"))
    await trace.call("still good", other.ack(foreign))


@scenario
async def expiry(trace: Trace, make: MakeQueue) -> None:
    queue = make(default_lease_timeout=trace.short)
    lease = await leased(queue)
    trace.note("expires", lease.expires_at is not None)
    await queue.put("b", 1)
    await asyncio.sleep(trace.short * 1.6)
    await look(trace, queue)
    await trace.call("ack", queue.ack(lease))
    await trace.call("release", queue.release(lease))
    await trace.call("extend", queue.extend(lease))
    await trace.call("bury", queue.bury(lease))
    await trace.call("get", queue.get(lease_timeout=LONG))
    await trace.call("get", queue.get(lease_timeout=LONG))
    await trace.call("ack", queue.ack(lease))


@scenario
async def waiting_for_an_expiry(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await leased(queue, lease_timeout=trace.short)
    await trace.call("get", queue.get(timeout=20))
    await leased(queue, "b", lease_timeout=trace.short)
    await trace.call("take", queue.take("b", timeout=20))


@scenario
async def extending(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    first = await leased(queue, "first", lease_timeout=trace.short)
    before = first.expires_at or 0.0
    await trace.call("extend", queue.extend(first, LONG))
    trace.note("later", (first.expires_at or 0.0) > before)
    second = await leased(queue, "second", lease_timeout=trace.short)
    await trace.call("extend without end", queue.extend(second))
    trace.note(second.expires_at)
    await asyncio.sleep(trace.short * 1.6)
    await trace.call("ack", queue.ack(first))
    await trace.call("ack", queue.ack(second))


@scenario
async def releasing(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put_many({"a": 1, "b": 1, "c": 1, "d": 1})
    batch = await queue.get_many(3)
    leases = {key: lease for key, _, lease in batch}
    await trace.call("back", queue.release(leases["a"]))
    await trace.call("front", queue.release(leases["b"], requeue_front=True))
    await trace.call("later", queue.release(leases["c"], delay=LONG))
    await look(trace, queue)
    await trace.call("both", queue.release(leases["a"], requeue_front=True, delay=1))
    trace.note(await queue.get_many(10))


@scenario
async def removing(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put("waiting", 1)
    await queue.put("scheduled", 1, delay=LONG)
    lease = await leased(queue, "leased", lease_timeout=LONG)
    endless = await leased(queue, "leased without end")
    beside = await leased(queue, "buffered")
    await queue.put("buffered", 2, if_in_flight="buffer")
    for key in ("waiting", "scheduled", "leased", "leased without end", "buffered", "absent"):
        await trace.call(f"remove {key}", queue.remove(key))
    await look(trace, queue)
    for ended in (lease, endless, beside):
        for settle in (queue.ack, queue.release, queue.extend, queue.bury):
            await trace.call("settle", settle(ended))
    await queue.put("leased", 3)
    await trace.call("ack after a new put", queue.ack(lease))
    await trace.call("get", queue.get())


@scenario
async def burying(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put("a", 1, priority=2)
    await queue.put("b", 1)
    _, _, first = await queue.get()
    _, _, second = await queue.get()
    other = await trace.call("bury b", queue.bury(second, "the second"))
    buried = await trace.call("bury a", queue.bury(first, "the first"))
    await look(trace, queue)
    await queue.put("a", 2)
    await trace.call("requeue", queue.requeue(buried))
    await trace.call("requeue twice", queue.requeue(buried))
    await look(trace, queue)
    lease = await leased(queue, "b")
    await trace.call("requeue a leased key", queue.requeue(other, if_in_flight="reject"))
    await trace.call("purge", queue.purge_buried())
    await trace.call("requeue after purge", queue.requeue(other))
    await trace.call("purge", queue.purge_buried())
    await trace.call("bury no text", queue.bury(lease, ValueError("x")))


@scenario
async def a_limit_of_buried_items(trace: Trace, make: MakeQueue) -> None:
    queue = make(max_buried=2)
    await queue.put_many({"a": 1, "b": 1, "c": 1, "d": 1})
    leases = [lease for _, _, lease in await queue.get_many(4)]
    for lease in reversed(leases):
        await trace.call("bury", queue.bury(lease, "given up"))
        trace.note(await queue.buried())
    none = make(max_buried=0)
    await trace.call("bury", none.bury(await leased(none), "given up"))
    trace.note(await none.buried())


# Waiting


@scenario
async def time_outs(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await leased(queue)
    for timeout in (0, 0.01, 0.1):
        await trace.call("get", queue.get(timeout=timeout))
        await trace.call("take", queue.take("a", timeout=timeout))
        await trace.call("get_many", queue.get_many(3, timeout=timeout))
    await trace.call("negative", queue.get(timeout=-1))
    await trace.call("no number", queue.take("a", timeout="1"))
    await trace.call("no lease time", queue.get(lease_timeout=0))


@scenario
async def consumers_in_line(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    waiting = []
    for number in range(3):
        waiting.append(trace.start(f"get {number}", queue.get()))
        await trace.pause()
    await waiting[0].cancel()
    for key in "ab":
        await queue.put(key, 1)
        await trace.pause()
    await trace.ended(*waiting)
    await look(trace, queue)


@scenario
async def takers_go_first(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    waiting = [trace.start("get", queue.get())]
    await trace.pause()
    waiting.append(trace.start("take b", queue.take("b")))
    await trace.pause()
    await queue.put("b", 1)
    await trace.pause()
    await queue.put("a", 1)
    await trace.ended(*waiting)


@scenario
async def a_cancelled_get_leaves_no_trace(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    for turns in range(6):
        getting = asyncio.ensure_future(queue.get())
        await trace.pause()
        await queue.put("a", turns)
        for _ in range(turns):
            await asyncio.sleep(0)
        got = not getting.cancel()
        try:
            _, _, lease = await getting
        except asyncio.CancelledError:
            assert not got
        else:
            await queue.release(lease)
        _, value, lease = await queue.get(timeout=10)
        trace.note(value)
        await queue.ack(lease)
    await look(trace, queue)


@scenario
async def join(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await trace.call("join an empty queue", queue.join())
    lease = await leased(queue)
    await queue.put("later", 1, delay=LONG)
    joining = trace.start("join", queue.join())
    await trace.pause()
    trace.note("waits", not joining.done())
    await queue.ack(lease)
    await trace.pause()
    trace.note("waits for the scheduled", not joining.done())
    await queue.remove("later")
    await trace.ended(joining)
    await queue.bury(await leased(queue), "given up")
    await trace.call("join beside buried items", queue.join())
    await queue.close()
    await trace.call("join a closed, empty queue", queue.join())


@scenario
async def join_of_a_closed_queue_with_items(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put("a", 1)
    await queue.close()
    await trace.call("join", queue.join())


# A full queue


@scenario
async def producers_in_line(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    await queue.put("a", 1)
    waiting = []
    for key in "bcd":
        waiting.append(trace.start(f"put {key}", queue.put(key, 1)))
        await trace.pause()
    trace.note("wait", not any(task.done() for task in waiting))
    await waiting[1].cancel()
    for _ in range(3):
        key, _, lease = await queue.get(timeout=10)
        trace.note("got", key)
        await queue.ack(lease)
        await trace.pause()
    await trace.ended(*waiting)
    await look(trace, queue)


@scenario
async def puts_that_add_nothing_do_not_wait(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=2)
    lease = await leased(queue, "leased")
    await queue.put("a", 1)
    await queue.put("b", 1, delay=LONG)
    waiting = [trace.start("put c", queue.put("c", 1)), trace.start("put d", queue.put("d", 1))]
    await trace.pause()
    await trace.call("a waiting key", queue.put("a", 2))
    await trace.call("a scheduled key", queue.put("b", 2))
    await trace.call("waiting keys", queue.put_many({"a": 3, "b": 3, "leased": 3}))
    await trace.call("a leased key", queue.put("leased", 4))
    await trace.call("reject", queue.put("leased", 5, if_in_flight="reject"))
    await trace.call("reject of many", queue.put_many({"leased": 5, "e": 1}, if_in_flight="reject"))
    buffering = trace.start("buffer", queue.put("leased", 6, if_in_flight="buffer"))
    await trace.pause()
    trace.note("buffering waits", not buffering.done())
    await trace.call("reject", queue.put("leased", 7, if_in_flight="reject"))
    await trace.call("release", queue.release(lease))
    await trace.pause()
    trace.note("it adds nothing now", buffering.done())
    await look(trace, queue)
    trace.note("others wait", not any(task.done() for task in waiting))
    for task in waiting:
        await task.cancel()
    await trace.ended(*waiting, buffering)


@scenario
async def a_worker_puts_its_own_key(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    lease = await leased(queue)
    await queue.put("b", 1)
    waiting = trace.start("put c", queue.put("c", 1))
    await trace.pause()
    async with asyncio.timeout(10):
        await trace.call("own key", queue.put("a", 2))
    await trace.call("ack", queue.ack(lease))
    trace.note("waits", not waiting.done())
    await trace.call("get", queue.get())
    await trace.ended(waiting)


@scenario
async def one_key_keeps_its_order_in_a_full_queue(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    await queue.put("a", 1)
    waiting = []
    for value in (1, 2, 3):
        waiting.append(trace.start(f"put b={value}", queue.put("b", value)))
        await trace.pause()
    await trace.call("get", queue.get())
    await trace.ended(*waiting)
    await trace.call("get", queue.get(timeout=10))


@scenario
async def a_consumer_that_waits_needs_no_room(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    await queue.put("later", 1, delay=LONG)
    getting = trace.start("get", queue.get())
    await trace.pause()
    await trace.call("put", asyncio.wait_for(queue.put("a", 1), 5))
    await trace.ended(getting)
    blocked = trace.start("put", queue.put("b", 1))
    await trace.pause()
    trace.note("waits", not blocked.done())
    taking = trace.start("take", queue.take("c"))
    await trace.pause()
    await trace.call("put for a take", asyncio.wait_for(queue.put("c", 1), 5))
    await trace.ended(taking)
    trace.note("waits", not blocked.done())
    getting = trace.start("get", queue.get())
    await trace.ended(blocked, getting)
    await look(trace, queue)


@scenario
async def many_into_a_full_queue(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=2)
    await trace.call("too many", queue.put_many({"a": 1, "b": 1, "c": 1}))
    await trace.call("as many as fit", queue.put_many({"a": 1, "b": 1}))
    _, _, lease = await queue.get()
    await queue.put("c", 1)
    await trace.call("more than fit, but known", queue.put_many({"a": 2, "b": 2, "c": 2}))
    waiting = trace.start("both", queue.put_many({"d": 1, "e": 1}))
    await trace.pause()
    await trace.call("get", queue.get())
    await trace.pause()
    trace.note("waits for room for both", not waiting.done())
    await trace.call("release", queue.release(lease))
    await trace.call("get", queue.get())
    await trace.call("get", queue.get())
    await trace.ended(waiting)
    await look(trace, queue)


@scenario
async def scheduled_and_released_items_in_a_full_queue(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    lease = await leased(queue)
    await queue.put("later", 1, delay=LONG)
    await trace.call("a released item gets in", queue.release(lease))
    waiting = trace.start("put", queue.put("b", 1))
    await trace.pause()
    await trace.call("remove", queue.remove("later"))
    await trace.pause()
    trace.note("waits", not waiting.done())
    await trace.call("remove", queue.remove("a"))
    await trace.ended(waiting)
    await look(trace, queue)


@scenario
async def requeue_waits_for_room(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    buried = await queue.bury(await leased(queue), "given up")
    await queue.put("b", 1)
    waiting = trace.start("requeue", queue.requeue(buried))
    await trace.pause()
    trace.note("waits", not waiting.done(), await queue.buried())
    await waiting.cancel()
    trace.note("stays buried", await queue.buried())
    waiting = trace.start("requeue", queue.requeue(buried))
    await trace.pause()
    await trace.call("get", queue.get())
    await trace.ended(waiting)
    await look(trace, queue)


@scenario
async def cancelled_producers(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    await queue.put("a", 1)
    first = trace.start("put b", queue.put("b", 1))
    second = trace.start("put c", queue.put("c", 1))
    await trace.pause()
    await first.cancel()
    await trace.call("get", queue.get())
    await trace.ended(first, second)
    await look(trace, queue)


# Closing


async def closed_while(trace: Trace, queue: Queue, calls: Mapping[str, Awaitable[Any]]) -> None:
    """Close a queue while calls wait, and note how each of them ends."""
    waiting = [trace.start(label, call) for label, call in calls.items()]
    await trace.pause()
    await trace.call("close", queue.close())
    await trace.ended(*waiting)
    await look(trace, queue)


@scenario
async def closing_ends_the_wait_of_consumers(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    lease = await leased(queue, "leased")

    async def iterate() -> str:
        async for key, _, _ in queue:
            return f"got {key}"
        return "ended"

    async def work() -> None:
        async with queue.lease("absent"):
            trace.note("got it")

    calls = {
        "get": queue.get(),
        "get with time-out": queue.get(timeout=LONG),
        "get_many": queue.get_many(3),
        "take": queue.take("absent"),
        "take a leased key": queue.take("leased"),
        "join": queue.join(),
        "iterate": iterate(),
        "lease": work(),
    }
    await closed_while(trace, queue, calls)
    await trace.call("ack", queue.ack(lease))


@scenario
async def closing_ends_the_wait_of_producers(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    buried = await queue.bury(await leased(queue, "buried"), "given up")
    await leased(queue, "leased")
    await queue.put("full", 1, delay=LONG)
    calls = {
        "put": queue.put("new", 1),
        "another put": queue.put("newer", 1),
        "the same put": queue.put("new", 2),
        "put_many": queue.put_many({"x": 1}),
        "buffer": queue.put("leased", 1, if_in_flight="buffer"),
        "requeue": queue.requeue(buried),
        "join": queue.join(),
    }
    await closed_while(trace, queue, calls)


@scenario
async def a_closed_queue(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put_many({"a": 1, "b": 1, "c": 1})
    first = (await queue.get())[2]
    second = (await queue.get())[2]
    buried = await queue.bury((await queue.get())[2], "given up")
    await queue.put("d", 1)
    await trace.call("close", queue.close())
    await trace.call("close", queue.close())
    trace.note(queue.closed)
    await look(trace, queue)
    for label, call in {
        "start": queue.start(),
        "put": queue.put("x", 1),
        "put_many": queue.put_many({"x": 1}),
        "get": queue.get(),
        "get in vain": queue.get(timeout=0),
        "get_many": queue.get_many(2),
        "take": queue.take("a"),
        "ack": queue.ack(first),
        "ack of a copy": queue.ack(pickled(first)),
        "release": queue.release(second),
        "extend": queue.extend(first),
        "bury": queue.bury(first),
        "requeue": queue.requeue(buried),
        "remove": queue.remove("a"),
        "purge_buried": queue.purge_buried(),
        "peek": queue.peek("a"),
        "contains": queue.contains("a"),
    }.items():
        await trace.call(label, call)
    async for _ in queue:
        trace.note("got an item")
    with_block = make()
    async with with_block as entered:
        trace.note("the same", entered is with_block)
    trace.note("closed", with_block.closed)


@scenario
async def a_put_that_waits_while_the_queue_is_closed_puts_nothing(
    trace: Trace, make: MakeQueue
) -> None:
    queue = make(maxsize=1)
    await queue.put("a", 1)
    waiting = [asyncio.ensure_future(queue.put(key, 1)) for key in "bc"]
    await trace.pause()
    removing = asyncio.ensure_future(queue.remove("a"))
    await asyncio.sleep(0)
    await asyncio.gather(queue.close(), removing)
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    # Whether the removal made room before the close is a matter of luck. What matters: who was
    # told that it is closed has put nothing.
    refused = {k for k, end in zip("bc", ended, strict=True) if isinstance(end, BaseException)}
    types = {type(end) for end in ended if isinstance(end, BaseException)}
    trace.note(types <= {QueueClosedError}, "c" in refused)
    trace.note("nothing of them is there", not refused & await queue.available_keys())


# The lease as a context manager


@scenario
async def the_lease_block(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put_many({"good": 1, "bad": 1, "settled": 1, "expires": 1, "removed": 1})

    async def work(what: str, **options: Any) -> None:
        async with queue.lease(what, timeout=10, **options) as item:
            trace.note(tuple(item))
            if what == "bad":
                raise ValueError(what)
            if what == "settled":
                await queue.release(item.lease)
            if what == "expires":
                await asyncio.sleep(trace.short)
            if what == "removed":
                await queue.remove(what)

    await trace.call("good", work("good"))
    await trace.call("bad", work("bad", requeue_front=True))
    await trace.call("settled", work("settled"))
    await trace.call("expires", work("expires", lease_timeout=trace.short / 2))
    await trace.call("removed", work("removed"))
    await trace.call("absent", anext(aiter_of(queue.lease("absent", timeout=0))))
    await look(trace, queue)
    await trace.call("bad later", work("bad", delay=LONG))
    await look(trace, queue)


def aiter_of(block: Any) -> Any:
    """Enter an asynchronous context manager as an iterator, to have one call to trace."""

    async def enter() -> Any:
        async with block as item:
            yield item

    return enter()


@scenario
async def the_lease_block_of_a_queue_that_is_closed(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put("a", 1)

    async def work(fails: bool) -> None:
        async with queue.lease():
            await queue.close()
            if fails:
                raise ValueError("the work failed")

    await trace.call("work", work(False))
    other, queue = queue, make()
    await queue.put("a", 1)
    await trace.call("failing work", work(True))
    await look(trace, other)


# Calls at a time


@scenario
async def calls_act_in_the_order_in_which_they_were_made(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    for _ in range(5):
        await asyncio.gather(queue.put("a", 1), queue.remove("a"))
        trace.note(await queue.qsize())
    await asyncio.gather(*(queue.put("a", value) for value in range(10)))
    trace.note(await queue.peek("a"))
    got = (await asyncio.gather(queue.remove("a"), queue.put("b", 1), queue.get(timeout=10)))[2]
    trace.note(got)
    lease = got[2]
    put, acked, again = await asyncio.gather(
        queue.put("b", 2, if_in_flight="buffer"), queue.ack(lease), queue.put("b", 3)
    )
    trace.note(put, acked, again, await queue.snapshot())
    await asyncio.gather(queue.put("c", 1), queue.put("d", 1), queue.put("c", 2))
    trace.note(await queue.get_many(10))
    looks = await asyncio.gather(queue.put("e", 1), queue.qsize(), queue.remove("e"), queue.qsize())
    trace.note(list(looks))


@scenario
async def a_get_acts_before_the_calls_that_follow_it(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    for _ in range(3):
        await queue.put("a", 1)
        trace.note(list(await asyncio.gather(queue.get(timeout=10), queue.remove("a"))))
        calls = (queue.take("b", timeout=0), queue.put("b", 1))
        trace.note(list(await asyncio.gather(*calls, return_exceptions=True)))
        joining = trace.start("join", queue.join())  # The queue object listens from here on.
        await trace.pause()
        more = (queue.get(timeout=10), queue.remove("b"), queue.get(timeout=0), queue.qsize())
        trace.note(list(await asyncio.gather(*more, return_exceptions=True)))
        await trace.ended(joining)


@scenario
async def calls_of_a_full_queue_in_order(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=2)
    await asyncio.gather(queue.put("a", 1), queue.put("a", 2), queue.put("b", 1), queue.put("a", 3))
    await look(trace, queue)
    puts = asyncio.gather(queue.put("c", 1), queue.put("c", 2), queue.put("d", 1))
    await trace.pause()
    trace.note(await queue.get_many(2))
    await trace.call("puts", puts)
    await look(trace, queue)


# Observing


@scenario
async def an_observer(trace: Trace, make: MakeQueue) -> None:
    seen: list[str] = []

    class Observer(QueueObserver[str]):
        def on_put(self, key: str) -> None:
            seen.append(f"put {key}")

        def on_claim(self, key: str, attempt: int, waited: float) -> None:
            seen.append(f"claim {key} {attempt} {0 <= waited < 60}")

        def on_ack(self, key: str, attempt: int, held: float) -> None:
            seen.append(f"ack {key} {attempt} {0 <= held < 60}")

        def on_release(self, key: str, attempt: int, held: float) -> None:
            seen.append(f"release {key} {attempt} {0 <= held < 60}")

        def on_expire(self, key: str, attempt: int, held: float) -> None:
            seen.append(f"expire {key} {attempt} {0 <= held < 60}")

        def on_bury(self, key: str, attempt: int, held: float) -> None:
            seen.append(f"bury {key} {attempt} {0 <= held < 60}")

        def on_remove(self, key: str) -> None:
            seen.append(f"remove {key}")

    def told() -> None:
        trace.note(list(seen))
        seen.clear()

    queue = make(observer=Observer())
    await queue.put("a", 1)
    await queue.put_many({"b": 1, "a": 2})
    told()
    _, _, first = await queue.get()
    _, _, second = await queue.take("b")
    told()
    await queue.ack(first)
    await queue.release(second)
    _, _, second = await queue.get()
    buried = await queue.bury(second, "given up")
    await queue.requeue(buried)
    told()
    await queue.remove("b")
    await queue.remove("b")
    told()
    await leased(queue, "c", lease_timeout=trace.short)
    await asyncio.sleep(trace.short * 1.6)
    await trace.call("get", queue.get(timeout=10))
    told()
    await queue.close()
    told()
    await trace.fails("no observer", an_observer_that_is_none(make))


async def an_observer_that_is_none(make: MakeQueue) -> None:
    make(observer=object())


# Arguments


@scenario
async def wrong_arguments(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    lease = await leased(queue)
    for label, call in {
        "policy": queue.put("b", 1, if_in_flight="wait"),
        "priority": queue.put("b", 1, priority=1.5),
        "delay": queue.put("b", 1, delay=-1),
        "endless delay": queue.put("b", 1, delay=float("inf")),
        "items": queue.put_many(["ab"]),
        "no items": queue.put_many(3),
        "n": queue.get_many(0),
        "n of another type": queue.get_many("2"),
        "front": queue.release(lease, requeue_front=2),
        "release delay": queue.release(lease, delay=-1),
        "extend": queue.extend(lease, 0),
        "requeue": queue.requeue("a"),
        "requeue policy": queue.requeue(lease, if_in_flight="wait"),
        "no lease": queue.extend(None),
    }.items():
        await trace.call(label, call)
    for options in ({"maxsize": -1}, {"max_buried": -1}, {"default_lease_timeout": 0}):
        try:
            make(**options)
        except (TypeError, ValueError) as error:
            trace.note(type(error).__name__, str(error))
    await look(trace, queue)
