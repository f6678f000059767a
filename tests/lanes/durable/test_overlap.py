"""A store on a server and its worker do not wait for each other: two large calls are under way."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.model.requests import Answer, Change, Claim, Claimed
from tests.lanes.support import clock, is_of_commands

TRIP = 1.0
"""Seconds that a call takes."""
SLOTS = 100


class Server(MemoryStore):
    """Every call is a trip."""

    calls_at_a_time = 2

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.under_way = Counter[str]()
        self.together = Counter[str]()
        self.claims: list[int] = []
        self.acks: list[int] = []
        self._line: deque[tuple[str, asyncio.Future[None]]] = deque()

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        found = await super().do_claim(requests)
        if not is_of_commands(requests):
            return found
        self.claims.append(sum(len(answer) for answer in found))
        await self._trip("claim")
        return found

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await super().do_settle(requests)
        if not is_of_commands(requests):
            return answers
        self.acks.append(len(requests))
        await self._trip("settle")
        return answers

    async def _trip(self, name: str) -> None:
        """What is asked for at a time is answered at a time, and nobody overtakes another."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append((name, turn))
        self.under_way[name] += 1
        self.together[name] = max(self.together[name], self.under_way[name])
        loop.call_later(TRIP, self._arrive)
        await turn

    def _arrive(self) -> None:
        name, turn = self._line.popleft()
        self.under_way[name] -= 1
        if not turn.done():
            turn.set_result(None)


def worker(
    store: MemoryStore, ran: list[int], *, capacity: int | None = None, slots: int = SLOTS
) -> tuple[QueueManager, Any]:
    built = QueueManagerBuilder(clock=clock).with_storage(store)
    if capacity is not None:
        built = built.with_capacity(capacity)
    manager = built.with_lane("jobs", LaneConfig(0, slots), 0).build()
    running = 0

    @manager.command("job")
    async def job(number: int, seconds: float = 0.0) -> None:
        nonlocal running
        running += 1
        assert running <= slots
        if seconds:
            await asyncio.sleep(seconds)
        running -= 1
        ran.append(number)

    return manager, job


async def test_half_of_what_is_leased_is_settled_while_the_other_half_runs() -> None:
    store, ran = Server(), list[int]()
    manager, job = worker(store, ran)
    await manager.submit_many("jobs", [job(number) for number in range(1000)])
    async with manager:
        await manager.drain()
    assert sorted(ran) == list(range(1000))
    assert store.together == {"claim": 2, "settle": 2}
    assert store.claims[:3] == [SLOTS, 2 * SLOTS, SLOTS]  # nothing is claimed ahead at first
    assert set(store.acks) == {SLOTS}
    assert asyncio.get_running_loop().time() <= 8 * TRIP


@pytest.mark.parametrize("slots", [SLOTS, 1000, 1100, 2100])
async def test_commands_begin_in_their_order(slots: int) -> None:
    store, ran = Server(), list[int]()
    manager, job = worker(store, ran, slots=slots)
    async with manager:
        await asyncio.sleep(10 * TRIP)
        await manager.submit_many("jobs", [job(number) for number in range(2500)])
        await manager.drain()
    assert ran == list(range(2500))


async def test_no_more_run_at_a_time_than_may() -> None:
    store, ran = Server(), list[int]()
    manager, job = worker(store, ran)
    await manager.submit_many("jobs", [job(number, number % 7 * TRIP / 5) for number in range(999)])
    async with manager:
        await manager.drain()
    assert sorted(ran) == list(range(999))
    assert store.together["claim"] == 2


async def test_where_lanes_share_slots_one_claim_is_under_way() -> None:
    store, ran = Server(), list[int]()
    manager, job = worker(store, ran, capacity=SLOTS)
    await manager.submit_many("jobs", [job(number) for number in range(500)])
    async with manager:
        await manager.drain()
    assert sorted(ran) == list(range(500))
    assert store.together["claim"] == 1


async def test_few_commands_go_together() -> None:
    store, ran = Server(), list[int]()
    manager, job = worker(store, ran)
    async with manager:
        for number in range(60):
            await manager.submit("jobs", job(number))
            await asyncio.sleep(TRIP / 10)
        await manager.drain()
    assert sorted(ran) == list(range(60))
    assert store.together == {"claim": 1, "settle": 1}


@pytest.mark.parametrize("calls", [1, 2])
async def test_what_comes_during_a_claim_that_finds_nothing_is_claimed_next(calls: int) -> None:
    store, ran = Server(), list[int]()
    store.calls_at_a_time = calls
    manager, job = worker(store, ran)
    async with manager:
        await asyncio.sleep(10 * TRIP)
        manager.queue()._engine.wake()
        await asyncio.sleep(TRIP / 2)
        await manager.submit("jobs", job(1))
        await asyncio.sleep(2 * TRIP)
        assert ran == [1]
