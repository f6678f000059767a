"""Scripts about lines and held keys that mean the same at every door, as `scenarios` has them.

`SCENARIOS` are all of them, those of `scenarios` included.
"""

import asyncio
from typing import Any

from leasedkeyq import QueueObserver
from tests.doors.scenarios import LONG, SCENARIOS, MakeQueue, Queue, leased, look, scenario
from tests.doors.trace import Trace

__all__ = ["SCENARIOS"]


async def append(queue: Queue, key: str, *values: int) -> None:
    """Append values to a key."""
    await queue.put_many([(key, value) for value in values], if_present="append")


async def show(trace: Trace, queue: Queue, *keys: str) -> None:
    """Note the values of keys, in order."""
    for key in keys:
        trace.note(f"line of {key}", [value async for value in queue.line(key)])


async def ids(queue: Queue, key: str) -> list[int]:
    """The ids of the values of a key, which grow along its line."""
    found: list[int] = [value.id async for value in queue.line(key)]
    assert found == sorted(set(found)), "the ids of a line do not grow"
    return found


# Putting


@scenario
async def what_a_put_does(trace: Trace, make: MakeQueue) -> None:
    for options in (
        {},
        {"if_in_flight": "buffer"},
        {"if_in_flight": "reject"},
        {"if_present": "append"},
        {"if_present": "update"},
        {"if_present": "skip"},
        {"if_present": "reject"},
    ):
        queue = make()
        await queue.put("waits", 1)
        await queue.put("later", 1, delay=LONG)
        await leased(queue, "leased")
        await append(queue, "lined", 1, 2)
        await append(queue, "leased and lined", 1, 2)
        await queue.take("leased and lined")
        await queue.bury(await leased(queue, "held"), hold=True)
        for key in ("new", "waits", "later", "leased", "lined", "leased and lined", "held"):
            await trace.call(f"{options} {key}", queue.put(key, 9, **options))
        await look(trace, queue)


@scenario
async def many_with_lines(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    pairs = [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3)]
    await trace.call("append", queue.put_many(pairs, if_present="append"))
    await trace.call("append again", queue.put_many(dict(pairs), if_present="append", priority=3))
    await trace.call("skip", queue.put_many([("a", 9), ("d", 1), ("d", 2)], if_present="skip"))
    await trace.call("update", queue.put_many([("a", 8), ("a", 9)], if_present="update"))
    await trace.call("replace", queue.put_many([("b", 8), ("b", 9), ("e", 1)]))
    await trace.call("reject", queue.put_many([("x", 1), ("a", 1), ("c", 1)], if_present="reject"))
    await trace.call("reject twice", queue.put_many([("x", 1), ("x", 2)], if_present="reject"))
    await trace.call("nothing", queue.put_many([], if_present="append"))
    await look(trace, queue)


@scenario
async def terms_of_values_in_a_line(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.put("a", 1)
    await queue.put("b", 1, priority=1)
    await queue.put("a", 2, if_present="append", priority=1, delay=LONG)
    await trace.call("update keeps them", queue.put("a", 3))
    await show(trace, queue, "a")
    await trace.call("update sets them", queue.put("a", 4, priority=5, delay=0))
    await show(trace, queue, "a")
    await queue.ack((await queue.take("a"))[2])
    await look(trace, queue)
    await queue.put("c", 1)
    await queue.put("c", 2, if_present="append", delay=LONG)
    await queue.ack((await queue.take("c"))[2])
    await look(trace, queue)


# Order


@scenario
async def values_in_order_and_keys_by_turns(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2, 3)
    await append(queue, "b", 1)
    await append(queue, "c", 1, 2)
    await look(trace, queue)
    for _ in range(6):
        key, value, lease = await queue.get(timeout=10)
        trace.note(key, value, lease.attempt)
        await queue.ack(lease)
    await look(trace, queue)


@scenario
async def a_line_waits_for_its_head(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2, 3)
    await queue.put("b", 1)
    _, _, lease = await queue.take("a")
    await trace.call("peek", queue.peek("a"))
    await trace.call("contains", queue.contains("a"))
    await trace.call("take while leased", queue.take("a", timeout=0))
    await queue.release(lease)
    await look(trace, queue)
    _, _, lease = await queue.take("a")
    await queue.release(lease, requeue_front=True)
    await look(trace, queue)
    _, _, lease = await queue.take("a")
    await queue.release(lease, delay=LONG)
    await look(trace, queue)
    await trace.call("peek", queue.peek("a"))
    await trace.call("take while scheduled", queue.take("a", timeout=0))
    await trace.call("remove the head", queue.remove("a", id=(await ids(queue, "a"))[0]))
    await trace.call("take", queue.take("a", timeout=10))


@scenario
async def a_line_waits_for_an_expired_head(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2)
    await queue.put("b", 1)
    await queue.take("a", lease_timeout=trace.short)
    taking = trace.start("take", queue.take("a"))
    await asyncio.sleep(trace.short * 1.6)
    await trace.ended(taking)
    await show(trace, queue, "a")


@scenario
async def a_waiting_take_gets_the_next(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2, 3, 4)
    _, _, lease = await queue.get()
    taking = trace.start("take", queue.take("a"))
    getting = trace.start("get", queue.get())
    await trace.pause()
    await trace.call("ack", queue.ack(lease))
    await trace.ended(taking)
    trace.note("get waits", not getting.done())
    await queue.put("b", 1)
    await trace.ended(getting)
    await look(trace, queue)


@scenario
async def cancelled_takers_of_a_line(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2)
    _, _, lease = await queue.get()
    taking = trace.start("take", queue.take("a"))
    await trace.pause()
    await taking.cancel()
    await queue.ack(lease)
    await trace.ended(taking)
    await show(trace, queue, "a")
    await trace.call("get", queue.get(timeout=10))


@scenario
async def a_buffered_value_and_a_line(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    lease = await leased(queue)
    await trace.call("buffer", queue.put("a", 2, if_in_flight="buffer"))
    await trace.call("append", queue.put("a", 3, if_present="append"))
    await trace.call("update", queue.put("a", 4, if_present="update"))
    await show(trace, queue, "a")
    await queue.release(lease)
    await show(trace, queue, "a")
    _, _, lease = await queue.get()
    await queue.release(lease)
    await show(trace, queue, "a")
    await queue.ack((await queue.get())[2])
    await show(trace, queue, "a")


# Changing


@scenario
async def removing_from_a_line(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2, 3, 4, 5)
    await queue.put("b", 1)
    _, _, lease = await queue.take("a")
    first, second, third, *_ = await ids(queue, "a")
    await trace.call("one of the line", queue.remove("a", id=third))
    await trace.call("the same", queue.remove("a", id=third))
    await trace.call("of another key", queue.remove("b", id=second))
    await trace.call("of no key", queue.remove("absent", id=second))
    await show(trace, queue, "a")
    await trace.call("extend", queue.extend(lease, LONG))
    await trace.call("the head", queue.remove("a", id=first))
    await trace.call("ack", queue.ack(lease))
    await look(trace, queue)
    await trace.call("the head that waits", queue.remove("a", id=second))
    await show(trace, queue, "a")
    await trace.call("purge", queue.purge_line("a"))
    await trace.call("purge again", queue.purge_line("a"))
    await trace.call("purge of no key", queue.purge_line("absent"))
    await show(trace, queue, "a", "absent")
    await append(queue, "a", 6, 7)
    await trace.call("all", queue.remove("a"))
    await trace.call("all again", queue.remove("a"))
    await look(trace, queue)


@scenario
async def purging_the_line_of_a_leased_key(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2, 3)
    _, _, lease = await queue.get()
    await trace.call("purge", queue.purge_line("a"))
    await trace.call("ack", queue.ack(lease))
    await trace.call("put", queue.put("a", 4, if_present="append"))
    await look(trace, queue)


@scenario
async def requeueing_to_a_line(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2, 3)
    buried = [await queue.bury((await queue.take("a"))[2], f"error {n}") for n in range(2)]
    await show(trace, queue, "a")
    await trace.call("reject", queue.requeue(buried[0], if_present="reject"))
    await trace.call("skip", queue.requeue(buried[0], if_present="skip"))
    await trace.call("requeue", queue.requeue(buried[0]))
    await show(trace, queue, "a")
    await trace.call("update", queue.requeue(buried[1], if_present="update"))
    await show(trace, queue, "a")
    await look(trace, queue)


# Held keys


@scenario
async def a_held_key(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2, 3)
    await queue.put("b", 1)
    _, _, lease = await queue.get()
    buried = await trace.call("bury", queue.bury(lease, "given up", hold=True))
    await look(trace, queue)
    await show(trace, queue, "a")
    await trace.call("peek", queue.peek("a"))
    await trace.call("take", queue.take("a", timeout=0))
    await trace.call("get", queue.get())
    await trace.call("get", queue.get(timeout=0))
    await trace.call("append", queue.put("a", 4, if_present="append"))
    await trace.call("update", queue.put("a", 5))
    await trace.call("skip", queue.put("a", 6, if_present="skip"))
    await trace.call("reject", queue.put("a", 7, if_present="reject"))
    taking = trace.start("take", queue.take("a"))
    await trace.pause()
    await trace.call("requeue", queue.requeue(buried, if_present="reject"))
    await trace.ended(taking)
    await look(trace, queue)


@scenario
async def a_held_key_without_a_line(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await queue.bury(await leased(queue), "given up", hold=True)
    await look(trace, queue)
    await trace.call("contains", queue.contains("a"))
    await trace.call("skip", queue.put("a", 2, if_present="skip"))
    await trace.call("reject", queue.put("a", 2, if_present="reject"))
    await trace.call("remove", queue.remove("a"))
    await look(trace, queue)
    await trace.call("reject", queue.put("a", 3, if_present="reject"))
    await look(trace, queue)


@scenario
async def ends_of_a_hold(trace: Trace, make: MakeQueue) -> None:
    async def held(**options: Any) -> tuple[Queue, Any]:
        queue = make(**options)
        await append(queue, "a", 1, 2)
        buried = await queue.bury((await queue.get())[2], "given up", hold=True)
        await queue.put("b", 1)
        return queue, buried

    queue, buried = await held()
    taking = trace.start("take", queue.take("a"))
    await trace.pause()
    await trace.call("discard", queue.discard(buried))
    await trace.ended(taking)
    await trace.call("discard again", queue.discard(buried))
    await look(trace, queue)

    queue, buried = await held()
    await trace.call("purge", queue.purge_buried())
    await look(trace, queue)

    queue, buried = await held()
    await trace.call("remove", queue.remove("a"))
    await look(trace, queue)
    await trace.call("put", queue.put("a", 9))
    await trace.call("requeue", queue.requeue(buried))
    await look(trace, queue)

    queue, buried = await held(max_buried=1)
    await queue.bury((await queue.take("b"))[2], "given up, too")
    await trace.pause()
    await look(trace, queue)

    queue, buried = await held()
    await trace.call("remove one", queue.remove("a", id=(await ids(queue, "a"))[0]))
    await trace.call("purge line", queue.purge_line("a"))
    await look(trace, queue)
    await trace.call("discard", queue.discard(buried))
    await trace.call("reject", queue.put("a", 9, if_present="reject"))


@scenario
async def several_held_keys(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    for key in "abc":
        await append(queue, key, 1, 2)
    await queue.put("a", 3, if_present="append")
    for key in "cab":
        await queue.bury((await queue.take(key))[2], f"error of {key}", hold=True)
    await look(trace, queue)


@scenario
async def a_buffered_value_behind_a_held_key(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    lease = await leased(queue)
    await queue.put("a", 2, if_in_flight="buffer")
    buried = await queue.bury(lease, "given up", hold=True)
    await show(trace, queue, "a")
    await queue.requeue(buried)
    await queue.release((await queue.get())[2])
    await show(trace, queue, "a")


# Waiting for room, and for the end


@scenario
async def a_full_queue_with_lines(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=3)
    await append(queue, "a", 1, 2)
    await queue.put("b", 1)
    waiting = []
    for value in (3, 4, 5):
        waiting.append(trace.start(f"append {value}", queue.put("a", value, if_present="append")))
        await trace.pause()
    await trace.call("update", asyncio.wait_for(queue.put("b", 2, if_present="update"), 10))
    await trace.call("skip", asyncio.wait_for(queue.put("b", 3, if_present="skip"), 10))
    await trace.call("reject", asyncio.wait_for(queue.put("b", 3, if_present="reject"), 10))
    await trace.call("never", queue.put_many([("b", 1)] * 4, if_present="append"))
    trace.note("all wait", not any(each.done() for each in waiting))
    await waiting[1].cancel()
    await trace.call("get", queue.get())
    await trace.ended(waiting[0])
    await trace.call("get", queue.get())
    await trace.ended(waiting[2])
    await show(trace, queue, "a")
    blocked = trace.start("put", queue.put("c", 1))
    await trace.pause()
    await trace.call("purge", queue.purge_line("a"))
    await trace.ended(blocked)
    await look(trace, queue)


@scenario
async def many_appended_to_a_full_queue(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=3)
    await append(queue, "a", 1, 2)
    many = trace.start("many", queue.put_many([("a", 3), ("b", 1)], if_present="append"))
    await trace.pause()
    trace.note("waits", not many.done())
    await trace.call("get", queue.get())
    await trace.ended(many)
    await look(trace, queue)


@scenario
async def a_requeue_that_holds_its_key_waits_for_room(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=2)
    await append(queue, "a", 1, 2)
    buried = await queue.bury((await queue.get())[2], "given up", hold=True)
    await queue.put("b", 1)
    waiting = trace.start("requeue", queue.requeue(buried, if_in_flight="update"))
    await trace.pause()
    trace.note("waits", not waiting.done(), await queue.buried())
    await trace.call("get", queue.get())
    await trace.ended(waiting)
    await look(trace, queue)


@scenario
async def a_requeue_that_holds_its_key_waits_behind_others(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=2)
    await append(queue, "a", 1, 2)
    buried = await queue.bury((await queue.get())[2], "given up", hold=True)
    await queue.put("b", 1)
    first = trace.start("put", queue.put("c", 1))
    await trace.pause()
    second = trace.start("requeue", queue.requeue(buried, if_present="reject"))
    await trace.pause()
    trace.note("both wait", not first.done(), not second.done())
    await trace.call("get", queue.get())
    await trace.ended(first)
    trace.note("waits", not second.done())
    await trace.call("get", queue.get())
    await trace.ended(second)
    await look(trace, queue)


@scenario
async def a_requeue_that_waits_for_nothing(trace: Trace, make: MakeQueue) -> None:
    queue = make(maxsize=1)
    buried = await queue.bury(await leased(queue), "given up")
    await queue.put("b", 1)
    waiting = trace.start("requeue", queue.requeue(buried))
    await trace.pause()
    trace.note("waits", not waiting.done())
    await trace.call("purge", queue.purge_buried())
    await trace.ended(waiting)
    await look(trace, queue)


@scenario
async def joining_lines(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2)
    joining = trace.start("join", queue.join())
    await trace.pause()
    await queue.ack((await queue.get())[2])
    await trace.pause()
    trace.note("waits", not joining.done())
    await append(queue, "a", 3)
    await queue.bury((await queue.get())[2], "given up", hold=True)
    await trace.ended(joining)
    await look(trace, queue)
    await queue.purge_buried()
    joining = trace.start("join", queue.join())
    await trace.pause()
    trace.note("waits", not joining.done())
    await queue.remove("a")
    await trace.ended(joining)


@scenario
async def closing_with_lines(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    await append(queue, "a", 1, 2)
    await append(queue, "b", 1, 2)
    await queue.bury((await queue.take("b"))[2], "given up", hold=True)
    await queue.take("a")
    taking = trace.start("take", queue.take("b"))
    await trace.pause()
    await trace.call("close", queue.close())
    await trace.ended(taking)
    await look(trace, queue)
    await show(trace, queue, "a", "b")
    for label, call in {
        "append": queue.put("a", 3, if_present="append"),
        "discard": queue.discard((await queue.buried())[0]),
        "purge_line": queue.purge_line("a"),
        "remove one": queue.remove("a", id=1),
    }.items():
        await trace.call(label, call)


# Observing, and arguments


@scenario
async def an_observer_of_lines(trace: Trace, make: MakeQueue) -> None:
    seen: list[str] = []

    class Observer(QueueObserver[str]):
        def on_put(self, key: str) -> None:
            seen.append(f"put {key}")

        def on_claim(self, key: str, attempt: int, waited: float) -> None:
            seen.append(f"claim {key} {attempt}")

        def on_ack(self, key: str, attempt: int, held: float) -> None:
            seen.append(f"ack {key} {attempt}")

        def on_bury(self, key: str, attempt: int, held: float) -> None:
            seen.append(f"bury {key} {attempt}")

        def on_remove(self, key: str) -> None:
            seen.append(f"remove {key}")

    def told() -> None:
        trace.note(list(seen))
        seen.clear()

    queue = make(observer=Observer())
    await append(queue, "a", 1, 2, 3, 4)
    await queue.put("a", 9, if_present="skip")
    await queue.put_many({"a": 9, "b": 1}, if_present="skip")
    told()
    await queue.ack((await queue.take("a"))[2])
    buried = await queue.bury((await queue.take("a"))[2], hold=True)
    told()
    await queue.remove("a", id=10**9)
    await queue.remove("a", id=(await ids(queue, "a"))[1])
    await queue.purge_line("a")
    await queue.purge_line("a")
    told()
    await queue.put("a", 5)
    await queue.requeue(buried)
    told()
    buried = await queue.bury((await queue.take("a"))[2], hold=True)
    await queue.discard(buried)
    await queue.take("a")
    await queue.remove("a")
    told()


@scenario
async def wrong_arguments_about_lines(trace: Trace, make: MakeQueue) -> None:
    queue = make()
    lease = await leased(queue)
    buried = await queue.bury(await leased(queue, "buried"), "given up")
    for label, call in {
        "policy": queue.put("b", 1, if_present="wait"),
        "a policy of if_in_flight": queue.put("b", 1, if_present="buffer"),
        "many": queue.put_many({"b": 1}, if_present="wait"),
        "both": queue.put("b", 1, if_present="append", if_in_flight="update"),
        "both of many": queue.put_many({"b": 1}, if_present="skip", if_in_flight="update"),
        "skip": queue.requeue(buried, if_present="skip"),
        "both of requeue": queue.requeue(buried, if_present="append", if_in_flight="update"),
        "hold": queue.bury(lease, hold=1),
        "id": queue.remove("a", id=0),
        "id of another type": queue.remove("a", id="1"),
        "discard": queue.discard("a"),
        "purge_line": queue.purge_line(["a"]),
    }.items():
        if label == "purge_line":
            await trace.fails(label, call)
        else:
            await trace.call(label, call)
    await look(trace, queue)
