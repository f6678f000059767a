"""A client of a server that fails: it works on a store, and notes what it asks for and is told.

Run by `tests.torture.outages.clients`, it reads orders from its input, one line each, and answers
them. Its store object stays open for all rounds: it has to live through all that its server does.
"""

import asyncio
import random
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from leasedkeyq import connect
from leasedkeyq.errors import InvalidLeaseError, StoreError
from leasedkeyq.model.requests import Ack, Change, Claim, Claimed, Extend, Put, Refusal, Release
from leasedkeyq.stores import Store, StoreQueue
from tests.engines.kill_facts import (
    KEPT,
    ClaimAsked,
    ClaimDone,
    Fact,
    How,
    Leased,
    PutAsked,
    PutDone,
    SettleAsked,
    SettleDone,
)

T = TypeVar("T")

KEYS: Final = ("k1", "k2", "k3", "k4", "k5", "k6")
BUFFERED_KEYS: Final = ("b1", "b2", "b3")
LEASE_TIMES: Final = (0.1, 0.4)
GET_TIME: Final = 0.5
"""Seconds for which a `get` waits for an item."""
LAST_CALLS: Final = 60.0
"""Seconds that the last calls of a round have, on a machine however busy."""
UNKNOWN: Final = "not known whether"
"""Says in an error that a change may have been made."""


class Settings(msgspec.Struct, kw_only=True):
    """How a client lives, on the command line."""

    name: str
    url: str
    options: dict[str, Any]
    """For `connect`."""


class Begin(msgspec.Struct, tag=True):
    """Begin a round: work until the order to stop."""

    seed: int


class Ask(msgspec.Struct, tag=True):
    """Tell how many calls of each task were answered."""


class Stop(msgspec.Struct, tag=True):
    """End the round, and tell what was noted."""


Order = Begin | Ask | Stop


class Progress(msgspec.Struct):
    """The answer to each order but `Stop`: how many calls of each task were answered."""

    answered: list[int]


class Diary(msgspec.Struct):
    """What a client asked for and was told in one round."""

    requests: list[Fact] = []
    """By requests, on a few keys that are put again and again. Items go by their ids."""
    waits: list[Fact] = []
    """By a queue whose consumers wait. Each key is put once, and stands for its item."""
    undone: list[str] = []
    """Values of puts that failed, and of which the error did not say that they may be there."""
    failed: int = 0
    """Calls that raised a `StoreError`."""
    unknown: int = 0
    """Those of them that may have changed something."""
    given_up: list[str] = []
    """Calls without a time of their own that raised a `StoreError`, in its words."""
    strange: list[str] = []
    """Errors of another kind, with their traces."""
    stuck: list[str] = []
    """Tasks whose last call did not come to an end."""


class Round:
    """The tasks of a client in one round."""

    def __init__(self, store: Store, name: str, seed: int) -> None:
        self._store = store
        self._name = name
        self._few = f"few-{seed}"
        self._many = f"many-{seed}"
        self._dice = random.Random(f"{name} {seed}")
        self._over = False
        self._calls = 0
        self.diary = Diary()
        self._queue: StoreQueue[str] = store.queue(self._many, value_type=str)
        tasks: list[Callable[[int], Coroutine[Any, Any, None]]] = [
            *(self.produce, self.consume, self.consume),
            *(self.fill, self.get, self.get),
        ]
        self.answered = [0] * len(tasks)
        self._tasks = {
            asyncio.create_task(self._repeat(task, number)): f"{task.__name__} {number}"
            for number, task in enumerate(tasks)
        }

    async def end(self) -> Diary:
        """Wait for the last calls; those that do not end are named."""
        self._over = True
        _, stuck = await asyncio.wait(self._tasks, timeout=LAST_CALLS)
        self.diary.stuck = [self._tasks[task] for task in stuck]
        for task in stuck:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(StoreError):  # leases that it cannot give back expire
            await self._queue.close()
        return self.diary

    async def _repeat(self, task: Callable[[int], Coroutine[Any, Any, None]], number: int) -> None:
        while not self._over:
            try:
                await task(number)
            except StoreError:
                pass  # it is noted, and the next call is made
            except Exception:
                self.diary.strange.append(traceback.format_exc())
                await asyncio.sleep(0.1)

    async def _call(self, number: int, call: Awaitable[T], *, timed: bool = False) -> T:
        try:
            answer = await call
        except StoreError as error:
            self.diary.failed += 1
            self.diary.unknown += UNKNOWN in str(error)
            if not timed:
                self.diary.given_up.append(f"{type(error).__name__}: {error}")
            raise
        self.answered[number] += 1
        return answer

    def _number(self) -> int:
        self._calls += 1
        return self._calls

    async def _pause(self, most: float) -> None:
        await asyncio.sleep(self._dice.random() * most)

    # By requests: few keys, short leases

    async def produce(self, number: int) -> None:
        key = self._dice.choice(KEYS + BUFFERED_KEYS)
        buffered = key in BUFFERED_KEYS
        call = self._number()
        value = f"{self._name}.{call}"
        self.diary.requests.append(PutAsked(call, time.time(), key, value, buffered))
        items = ((key, f'"{value}"'.encode()),)
        put = Put(self._few, items, "buffer" if buffered else "update")
        try:
            (answer,) = await self._call(number, self._store.put([put]))
        except StoreError as error:
            if UNKNOWN not in str(error):
                self.diary.undone.append(value)
            raise
        assert isinstance(answer, tuple), answer
        self.diary.requests.append(PutDone(call, time.time(), str(answer[0].id)))
        await self._pause(0.04)

    async def consume(self, number: int) -> None:
        lease_time = self._dice.choice(LEASE_TIMES)
        most = self._dice.choice((1, 1, 2, 3))
        call = self._number()
        self.diary.requests.append(ClaimAsked(call, time.time(), most))
        claim = Claim(((self._few, most),), most, None, lease_time)
        (claimed,) = await self._call(number, self._store.claim([claim]))
        leases = [_leased(item, lease_time) for item in claimed]
        self.diary.requests.append(ClaimDone(call, time.time(), leases))
        for item in claimed:
            await self._work(number, item, lease_time)
        await self._pause(0.04)

    async def _work(self, number: int, item: Claimed, lease_time: float) -> None:
        names = (self._few, item.key, item.token)
        chance = self._dice.random()
        if chance < 0.1:
            return  # it is never settled
        if chance < 0.25:
            front = self._dice.random() < 0.5
            await self._settle(number, "release", item.fence, Release(*names, front))
            return
        if chance < 0.45:
            await self._settle(number, "extend", item.fence, Extend(*names, lease_time))
        elif chance < 0.5:
            await asyncio.sleep(lease_time)
        if self._dice.random() < 0.5:
            await self._settle(number, "ack", item.fence, Ack(*names))
        else:
            kept = Ack(*names, b"%d" % item.fence, KEPT)
            await self._settle(number, "keep", item.fence, kept)

    async def _settle(self, number: int, how: How, fence: int, change: Change) -> None:
        """Settle a lease. After an error nothing more is asked of it: its state is not known."""
        call = self._number()
        self.diary.requests.append(SettleAsked(call, time.time(), how, fence))
        (answer,) = await self._call(number, self._store.settle([change]))
        accepted = not isinstance(answer, Refusal)
        expires_at = answer if isinstance(answer, float) else None
        self.diary.requests.append(SettleDone(call, time.time(), accepted, expires_at))

    # By a queue: many keys, each put once, and consumers that wait

    async def fill(self, number: int) -> None:
        call = self._number()
        key = f"{self._name}.{call}"
        self.diary.waits.append(PutAsked(call, time.time(), key, key))
        await self._call(number, self._queue.put(key, key))
        self.diary.waits.append(PutDone(call, time.time(), key))
        await self._pause(0.04)

    async def get(self, number: int) -> None:
        lease_time = self._dice.choice(LEASE_TIMES)
        call = self._number()
        self.diary.waits.append(ClaimAsked(call, time.time(), 1))
        try:
            getting = self._queue.get(GET_TIME, lease_timeout=lease_time)
            key, value, lease = await self._call(number, getting, timed=True)
        except TimeoutError:
            self.answered[number] += 1
            self.diary.waits.append(ClaimDone(call, time.time(), []))
            return
        end = lease.expires_at
        assert end is not None
        leased = Leased(key, key, value, lease.fence, lease.attempt, end - lease_time, end)
        self.diary.waits.append(ClaimDone(call, time.time(), [leased]))
        await self._pause(0.05)
        call = self._number()
        self.diary.waits.append(SettleAsked(call, time.time(), "ack", lease.fence))
        accepted = True
        try:
            await self._call(number, self._queue.ack(lease))
        except InvalidLeaseError:
            accepted = False
        self.diary.waits.append(SettleDone(call, time.time(), accepted))


def _leased(item: Claimed, lease_time: float) -> Leased:
    end = item.expires_at
    assert end is not None
    value = item.value.decode()[1:-1]
    return Leased(str(item.id), item.key, value, item.fence, item.attempt, end - lease_time, end)


async def obey(settings: Settings) -> None:
    """Do what the lines of the input say, until they end."""
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    decoder: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
    store = connect(settings.url, **settings.options)
    working: Round | None = None
    while line := await orders.readline():
        order = decoder.decode(line)
        if isinstance(order, Begin):
            working = Round(store, settings.name, order.seed)
        assert working is not None
        if isinstance(order, Stop):
            told = msgspec.json.encode(await working.end())
        else:
            told = msgspec.json.encode(Progress(working.answered))
        sys.stdout.buffer.write(told + b"\n")
        sys.stdout.buffer.flush()
    await store.close()


if __name__ == "__main__":
    asyncio.run(obey(msgspec.json.decode(sys.argv[1], type=Settings)))
