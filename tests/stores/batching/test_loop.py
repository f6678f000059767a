"""Batching in the event loop: who asks together is served together, and nobody harms another."""

import asyncio
import gc
import weakref
from collections.abc import Iterable, Iterator

import pytest

from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.stores.batching import BatchEngine, Done, LoopBatcher
from leasedkeyq.stores.batching.loop import LONELY


class Doubling(BatchEngine):
    """An engine that doubles numbers, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.abandoned = False
        self._tasks: set[asyncio.Task[None]] = set()

    def apply(self, requests: list[int], done: Done) -> None:
        self.batches.append(requests)
        task = asyncio.create_task(self._double(requests, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _double(self, requests: list[int], done: Done) -> None:
        await self.go.wait()
        thirteen = StoreError("thirteen")
        done(thirteen if 13 in requests else [2 * number for number in requests])

    def abandon(self) -> None:
        self.abandoned = True


def undo(request: int, answer: int) -> Iterator[int]:
    del answer
    if request > 0:
        yield -request


Doubler = LoopBatcher[int, int, Doubling]


def made() -> tuple[Doubling, Doubler]:
    engine = Doubling()
    return engine, LoopBatcher(lambda: engine, name="doubler", most=3, undo=undo)


async def test_calls_that_come_together_are_one_batch() -> None:
    engine, batcher = made()
    answers = await asyncio.gather(*(batcher.submit(number) for number in (1, 2, 3, 4)))
    assert answers == [2, 4, 6, 8]
    assert engine.batches == [[1, 2, 3], [4]]
    assert await batcher.submit_many([5, 6, 7, 8]) == [10, 12, 14, 16]
    await batcher.close()
    assert engine.abandoned


async def test_who_always_comes_alone_is_not_held_up() -> None:
    engine, batcher = made()
    for number in range(LONELY):
        asking = asyncio.ensure_future(batcher.submit(number))
        await asyncio.sleep(0)
        assert len(engine.batches) == number  # somebody might join in
        await asking
    engine.go.clear()
    asking = asyncio.ensure_future(batcher.submit(7))
    await asyncio.sleep(0)
    assert engine.batches[-1] == [7]
    joining = asyncio.ensure_future(batcher.submit(8))
    await asyncio.sleep(0)
    engine.go.set()
    await asyncio.gather(asking, joining)
    engine.batches.clear()
    await asyncio.gather(batcher.submit(5), batcher.submit(6))
    assert engine.batches == [[5, 6]]


async def test_one_that_wants_to_be_alone_is() -> None:
    engine, batcher = made()
    await asyncio.gather(batcher.submit(1), batcher.submit_many([2], alone=True), batcher.submit(3))
    assert engine.batches == [[1], [2], [3]]


class Tens:
    """Requests touch the same if they are of the same ten."""

    def __init__(self, requests: Iterable[int]) -> None:
        self._tens = {request // 10 for request in requests}

    def meets(self, other: "Tens") -> bool:
        return not self._tens.isdisjoint(other._tens)


async def test_batches_side_by_side_touch_different_things() -> None:
    engine = Doubling()
    batcher: Doubler = LoopBatcher(lambda: engine, name="doubler", at_a_time=2, touched=Tens)
    engine.go.clear()
    asking: list[asyncio.Future[int]] = []
    for number in (1, 2, 11, 21, 31, 22):
        asking.append(asyncio.ensure_future(batcher.submit(number)))
        await asyncio.sleep(0.02)
    # 2 waits for 1, and so do all behind it, as calls do not overtake each other.
    assert engine.batches == [[1]]
    engine.go.set()
    assert await asyncio.gather(*asking) == [2, 4, 22, 42, 62, 44]
    assert engine.batches == [[1], [2, 11, 21, 31, 22]]
    engine.batches.clear()
    engine.go.clear()
    asking.clear()
    for number in (1, 11, 21, 12):
        asking.append(asyncio.ensure_future(batcher.submit(number)))
        await asyncio.sleep(0.02)
    assert engine.batches == [[1], [11]]
    engine.go.set()
    assert await asyncio.gather(*asking) == [2, 22, 42, 24]
    await batcher.close()


async def test_a_request_of_which_nobody_knows_what_it_touches_is_answered() -> None:
    """The engine says what is wrong with it, and those beside it and behind it go on."""
    engine = Doubling()

    def touched(numbers: Iterable[int]) -> Tens:
        known = list(numbers)
        if 13 in known:
            raise TypeError("thirteen")
        return Tens(known)

    batcher: Doubler = LoopBatcher(lambda: engine, name="doubler", at_a_time=2, touched=touched)
    engine.go.clear()
    asking: list[asyncio.Future[int]] = []
    for number in (1, 13, 21):
        asking.append(asyncio.ensure_future(batcher.submit(number)))
        await asyncio.sleep(0.02)
    assert engine.batches == [[1]]
    engine.go.set()
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*asking, return_exceptions=True)
    assert list(map(str, answers)) == ["2", "thirteen", "thirteen"]
    assert await batcher.submit(21) == 42
    await batcher.close()


async def test_an_error_goes_to_its_batch_alone() -> None:
    _, batcher = made()
    outcomes = await asyncio.gather(
        *(batcher.submit(number) for number in (1, 2, 13, 4)), return_exceptions=True
    )
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [True, True, True, False]
    assert await batcher.submit(5) == 10


async def test_who_is_cancelled_in_time_has_asked_for_nothing() -> None:
    engine, batcher = made()
    engine.go.clear()
    first = asyncio.ensure_future(batcher.submit(1))
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(batcher.submit(2))
    await asyncio.sleep(0.1)
    second.cancel()
    await asyncio.sleep(0.1)
    engine.go.set()
    assert await first == 2
    await batcher.close()
    assert engine.batches == [[1]]


@pytest.mark.parametrize("together", [False, True])
async def test_what_was_done_for_one_who_has_gone_is_undone(together: bool) -> None:
    engine, batcher = made()
    engine.go.clear()
    asking = asyncio.ensure_future(batcher.submit(1))
    await asyncio.sleep(0.1)
    if together:
        engine.go.set()
        while not engine.batches or not asking.done():
            await asyncio.sleep(0)
            asking.cancel()
    else:
        asking.cancel()
        await asyncio.sleep(0.1)
        engine.go.set()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0.1)
    await batcher.close()
    assert asking.cancelled()
    assert engine.batches == [[1], [-1]]


async def test_what_cannot_be_undone_is_tried_again_with_the_next_call() -> None:
    engine = Doubling()
    batcher: Doubler = LoopBatcher(lambda: engine, name="doubler", undo=lambda *_: [13])
    engine.go.clear()
    asking = asyncio.ensure_future(batcher.submit(1))
    await asyncio.sleep(0.1)
    asking.cancel()
    engine.go.set()
    while not batcher._unwanted:
        await asyncio.sleep(0.001)
    assert engine.batches == [[1], [13]]
    await asyncio.gather(batcher.submit_many([5], alone=True), return_exceptions=True)
    await batcher.close()
    assert engine.batches == [[1], [13], [5], [13]]


async def test_after_closing_nothing_is_taken() -> None:
    engine, batcher = made()
    engine.go.clear()
    asking = asyncio.ensure_future(batcher.submit(1))
    await asyncio.sleep(0.1)
    closing = asyncio.ensure_future(batcher.close())
    await asyncio.sleep(0.1)
    with pytest.raises(StoreClosedError, match="the doubler is closed"):
        await batcher.submit(2)
    engine.go.set()
    await closing
    assert await asking == 2


async def test_what_was_done_for_one_who_goes_as_the_batcher_closes_is_undone() -> None:
    engine, batcher = made()
    asking = asyncio.ensure_future(batcher.submit(1))
    while not engine.batches or not all(task.done() for task in engine._tasks):
        await asyncio.sleep(0)
    assert not asking.done()
    asking.cancel()
    await batcher.close()
    assert asking.cancelled()
    assert engine.batches == [[1], [-1]]


async def test_a_fork_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, batcher = made()
    await batcher.submit(1)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(StoreError, match="opened before a fork"):
        await batcher.submit(2)


def test_each_event_loop_has_an_engine_that_ends_with_it() -> None:
    engines: list[Doubling] = []

    def engine() -> Doubling:
        engines.append(Doubling())
        return engines[-1]

    batcher: Doubler = LoopBatcher(engine, name="doubler")
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main(number: int) -> int:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        return await batcher.submit(number)

    assert [asyncio.run(main(number)) for number in (1, 2)] == [2, 4]
    assert [engine.abandoned for engine in engines] == [True, True]
    gc.collect()
    assert [loop() for loop in loops] == [None, None]


def test_event_loops_that_were_closed_without_a_word_are_forgotten() -> None:
    engines: list[weakref.ref[Doubling]] = []

    def engine() -> Doubling:
        made = Doubling()
        engines.append(weakref.ref(made))
        return made

    batcher: Doubler = LoopBatcher(engine, name="doubler")

    def use(number: int) -> None:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(batcher.submit(number)) == 2 * number
        loop.close()

    for number in (1, 2, 3):
        use(number)
    gc.collect()
    assert [each() for each in engines[:2]] == [None, None]
    asyncio.run(batcher.close())
    gc.collect()
    assert engines[2]() is None


def test_an_event_loop_of_another_thread_may_end_while_the_batcher_closes() -> None:
    other = asyncio.Runner()

    class Slow(Doubling):
        async def close(self) -> None:
            await asyncio.to_thread(other.close)

    batcher: Doubler = LoopBatcher(Slow, name="doubler")

    async def main() -> None:
        await batcher.submit(1)
        await asyncio.to_thread(other.run, batcher.submit(2))
        await batcher.close()

    asyncio.run(main())
    assert batcher.engines() == {}
