"""The observer is told of everything, with times, and cannot do harm."""

import asyncio
from typing import Any

from leasedkeyq import LeasedKeyQueue, QueueObserver
from tests.support import keys, started, virtual_loop

Queue = LeasedKeyQueue[str, int]


class Recorder(QueueObserver[str]):
    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def on_put(self, key: str) -> None:
        self.notes.append(("put", key))

    def on_claim(self, key: str, attempt: int, waited: float) -> None:
        self.notes.append(("claim", key, attempt, waited))

    def on_ack(self, key: str, attempt: int, held: float) -> None:
        self.notes.append(("ack", key, attempt, held))

    def on_release(self, key: str, attempt: int, held: float) -> None:
        self.notes.append(("release", key, attempt, held))

    def on_expire(self, key: str, attempt: int, held: float) -> None:
        self.notes.append(("expire", key, attempt, held))

    def on_bury(self, key: str, attempt: int, held: float) -> None:
        self.notes.append(("bury", key, attempt, held))

    def on_remove(self, key: str) -> None:
        self.notes.append(("remove", key))

    def take(self) -> list[tuple[Any, ...]]:
        notes, self.notes = self.notes, []
        return notes


async def test_waiting_and_holding_are_timed() -> None:
    seen = Recorder()
    queue = Queue(observer=seen)
    await queue.put("a", 1)
    await asyncio.sleep(2)
    _, _, lease = await queue.get()
    await asyncio.sleep(3)
    await queue.release(lease)
    await asyncio.sleep(4)
    _, _, lease = await queue.get()
    await asyncio.sleep(5)
    await queue.ack(lease)
    assert seen.take() == [
        ("put", "a"),
        ("claim", "a", 1, 2),
        ("release", "a", 1, 3),
        ("claim", "a", 2, 4),
        ("ack", "a", 2, 5),
    ]


async def test_expiry_burial_and_removal() -> None:
    seen = Recorder()
    queue = Queue(observer=seen, default_lease_timeout=10)
    await queue.put("a", 1)
    await queue.get()
    await asyncio.sleep(12)
    _, _, lease = await queue.get()
    await asyncio.sleep(1)
    await queue.bury(lease)
    await queue.put("b", 1)
    await queue.remove("b")
    assert seen.take() == [
        ("put", "a"),
        ("claim", "a", 1, 0),
        ("expire", "a", 1, 10),
        ("claim", "a", 2, 2),
        ("bury", "a", 2, 1),
        ("put", "b"),
        ("remove", "b"),
    ]


async def test_a_scheduled_item_waits_from_the_moment_that_it_is_due() -> None:
    seen = Recorder()
    queue = Queue(observer=seen)
    await queue.put("a", 1, delay=5)
    await asyncio.sleep(8)
    _, _, lease = await queue.get()
    await queue.release(lease, delay=5)
    await asyncio.sleep(6)
    await queue.get()
    assert seen.take() == [
        ("put", "a"),
        ("claim", "a", 1, 3),
        ("release", "a", 1, 0),
        ("claim", "a", 2, 1),
    ]


async def test_a_hand_over_is_a_put_and_then_a_claim() -> None:
    seen = Recorder()
    queue = Queue(observer=seen)
    getter = await started(queue.get())
    await asyncio.sleep(3)
    await queue.put("a", 1)
    _, _, lease = await getter
    await queue.put("a", 2, if_in_flight="buffer")
    await asyncio.sleep(1)
    await queue.ack(lease)
    await asyncio.sleep(1)
    await queue.get()
    assert seen.take() == [
        ("put", "a"),
        ("claim", "a", 1, 0),
        ("put", "a"),
        ("ack", "a", 1, 1),
        ("claim", "a", 1, 1),
    ]


async def test_a_hand_over_that_is_undone_is_told_as_a_release() -> None:
    seen = Recorder()
    queue = Queue(observer=seen)
    getter = await started(queue.get())
    await queue.put("a", 1)
    getter.cancel()
    await asyncio.gather(getter, return_exceptions=True)
    assert seen.take() == [("put", "a"), ("claim", "a", 1, 0), ("release", "a", 1, 0)]


async def test_leases_that_close_ends_are_told_as_released() -> None:
    seen = Recorder()
    queue = Queue(observer=seen)
    await queue.put("a", 1)
    await queue.get()
    await asyncio.sleep(2)
    seen.take()
    await queue.close()
    assert seen.take() == [("release", "a", 1, 2)]


async def test_refused_calls_are_not_told() -> None:
    seen = Recorder()
    queue = Queue(observer=seen)
    await queue.put("a", 1)
    _, _, lease = await queue.get()
    await queue.ack(lease)
    seen.take()
    calls = (queue.ack(lease), queue.release(lease), queue.extend(lease, 1), queue.bury(lease))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, Exception) for result in results)
    assert seen.take() == []


async def test_a_failing_observer_does_no_harm() -> None:
    class Broken(Recorder):
        def on_put(self, key: str) -> None:
            raise RuntimeError("broken")

        def on_claim(self, key: str, attempt: int, waited: float) -> None:
            raise RuntimeError("broken")

        def on_ack(self, key: str, attempt: int, held: float) -> None:
            raise RuntimeError("broken")

        on_expire = on_ack

    reports: list[dict[str, Any]] = []
    virtual_loop().set_exception_handler(lambda _, context: reports.append(context))
    queue = Queue(observer=Broken(), default_lease_timeout=1)
    getter = await started(queue.get())
    await queue.put("a", 1)
    await getter
    await asyncio.sleep(1)
    assert await keys(queue) == ["a"]
    await queue.ack((await queue.get())[2])
    assert len(reports) == 5
    assert "observer" in reports[0]["message"]
    assert isinstance(reports[0]["exception"], RuntimeError)


async def test_an_observer_need_not_be_a_subclass() -> None:
    class Counter:
        puts = 0

        def on_put(self, key: str) -> None:
            self.puts += 1

        def on_claim(self, key: str, attempt: int, waited: float) -> None: ...
        def on_ack(self, key: str, attempt: int, held: float) -> None: ...
        def on_release(self, key: str, attempt: int, held: float) -> None: ...
        def on_expire(self, key: str, attempt: int, held: float) -> None: ...
        def on_bury(self, key: str, attempt: int, held: float) -> None: ...
        def on_remove(self, key: str) -> None: ...

    counter = Counter()
    queue = Queue(observer=counter)
    await queue.put("a", 1)
    assert counter.puts == 1


async def test_methods_that_are_not_overridden_do_nothing() -> None:
    class OnlyAcks(QueueObserver[str]):
        def __init__(self) -> None:
            self.acks = 0

        def on_ack(self, key: str, attempt: int, held: float) -> None:
            self.acks += 1

    seen = OnlyAcks()
    queue = Queue(observer=seen)
    await queue.put("a", 1)
    await queue.release((await queue.get())[2])
    await queue.ack((await queue.get())[2])
    assert seen.acks == 1
