"""Batches of calls that blocking threads make: what each thread gets, and when the loop ends."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future

import pytest

from leasedkeyq.stores.batching import CallerBatcher

WAIT = 10


class World:
    """An event loop in a thread, and a batcher whose batches wait until they are let go."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.started = 0
        self.refuses = False
        self.batches: list[list[int]] = []
        self.lost: list[int] = []
        self.entered = threading.Semaphore(0)
        self.batcher: CallerBatcher[int, int] = CallerBatcher(
            self.start, self.apply, lost=self.lost.append
        )
        self.gate = asyncio.Semaphore(0)

    def start(self, function: Callable[[], object]) -> None:
        if self.refuses:
            raise RuntimeError("the loop takes no more calls")
        self.started += 1
        self.loop.call_soon_threadsafe(function)

    async def apply(self, requests: list[int]) -> Sequence[int]:
        self.batches.append(requests)
        self.entered.release()
        await self.gate.acquire()
        if -1 in requests:
            raise ValueError("minus one")
        return [2 * request for request in requests]

    def let_go(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.loop.call_soon_threadsafe(self.gate.release)

    def wait_for_batch(self) -> None:
        assert self.entered.acquire(timeout=WAIT)

    def cancel_all(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT)
        self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def submit(world: World, *requests: int) -> list[Future[int]]:
    return [world.batcher.submit(request) for request in requests]


def test_calls_that_come_meanwhile_are_the_next_batch(world: World) -> None:
    [first] = submit(world, 1)
    world.wait_for_batch()
    others = submit(world, 2, 3, 4)
    world.let_go(2)
    assert [answer.result(WAIT) for answer in (first, *others)] == [2, 4, 6, 8]
    assert world.batches == [[1], [2, 3, 4]]
    assert world.started == 1, "the loop is woken by the first call only"


def test_the_loop_is_woken_again_after_a_rest(world: World) -> None:
    for request in range(20):
        world.let_go()
        assert world.batcher.submit(request).result(WAIT) == 2 * request
    assert len(world.batches) == 20


def test_no_call_of_many_threads_is_forgotten(world: World) -> None:
    world.let_go(10_000)
    answers: list[int] = []

    def call(number: int) -> None:
        requests = range(100 * number, 100 * number + 50)
        answers.extend(world.batcher.submit(request).result(WAIT) for request in requests)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(answers) == sorted(2 * (100 * n + t) for n in range(8) for t in range(50))


def test_an_error_is_for_all_of_its_batch_and_for_none_behind_it(world: World) -> None:
    [first] = submit(world, 0)
    world.wait_for_batch()
    failing = submit(world, 1, -1)
    world.let_go()
    world.wait_for_batch()
    [last] = submit(world, 5)
    world.let_go(2)
    assert first.result(WAIT) == 0
    for answer in failing:
        with pytest.raises(ValueError, match="minus one"):
            answer.result(WAIT)
    assert last.result(WAIT) == 10


def test_a_caller_that_has_gone_withdraws_or_loses_its_answer(world: World) -> None:
    applied, stays = submit(world, 1, 2)
    world.wait_for_batch()
    [waiting] = submit(world, 3)
    assert applied.cancel()
    assert waiting.cancel()
    [last] = submit(world, 4)
    world.let_go(3)
    assert [stays.result(WAIT), last.result(WAIT)] == [4, 8]
    assert [request for batch in world.batches for request in batch] == [1, 2, 4]
    assert world.lost == [2]


def test_the_end_of_the_loop_sends_all_threads_away(world: World) -> None:
    [applied] = submit(world, 1)
    world.wait_for_batch()
    waiting = submit(world, 2, 3)
    world.refuses = True
    world.loop.call_soon_threadsafe(world.cancel_all)
    for answer in (applied, *waiting):
        with pytest.raises(CancelledError):
            answer.result(WAIT)
    assert world.batches == [[1]]
    with pytest.raises(RuntimeError):
        submit(world, 4)
    assert not world.batcher._line
