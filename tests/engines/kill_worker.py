"""A program that works on a store, notes what it asks for and what it is told, and may be killed.

Run by `tests.engines.kill_rounds`, it is a nursery: it reads orders, forks a process for each plan
(forking is a hundred times quicker than starting Python), and tells how processes end.
"""

import asyncio
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from leasedkeyq import Lease, StoreQueue, connect
from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Change,
    Claim,
    Claimed,
    Extend,
    Placed,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from tests.engines.kill_facts import (
    KEPT,
    QUEUE,
    Arrived,
    ClaimAsked,
    ClaimDone,
    How,
    Journal,
    Leased,
    Plan,
    PutAsked,
    PutDone,
    SettleAsked,
    SettleDone,
    clock,
    server_clock,
)
from tests.engines.kill_points import (
    MarkedOps,
    Trap,
    mark_postgres,
    mark_redis,
    mark_sqlite,
    mark_store,
)

KEYS = ("k1", "k2", "k3", "k4", "k5", "k6")
BUFFERED_KEYS = ("b1", "b2", "b3")
LEASE_TIMES = (0.02, 0.1, 0.4)
LIFETIME = 300
"""Seconds after which a process ends that nobody has ended."""


class Worker:
    """Lives by a plan on a store that it opens."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dice = random.Random(plan.seed)
        self.journal = Journal(plan.journal)
        self.trap = Trap(plan.point, plan.count, plan.signal, self._last_words)
        options = dict(plan.options)
        self.clock = clock
        began = clock()
        store_clock = (lambda: began) if plan.stuck_clock else clock
        if plan.url.startswith("sqlite:"):
            mark_sqlite(self.trap, plan.checkpoint)
            options |= {"busy_timeout": 60.0, "clock": store_clock}
        elif plan.url.startswith("file:"):
            options |= {"ops": MarkedOps(self.trap), "clock": store_clock}
        else:
            self.clock = server_clock
            (mark_postgres if plan.url.startswith("postgresql:") else mark_redis)(self.trap)
        self.store = connect(plan.url, **options)
        mark_store(self.store, self.trap)

    def _last_words(self, point: str) -> None:
        self.journal.note(Arrived(point))

    async def live(self) -> None:
        lives = {
            "requests": self.by_requests,
            "queue": self.by_queue,
            "holder": self.as_holder,
            "renewer": self.as_renewer,
        }
        await lives[self.plan.life]()
        await self.store.close()

    async def by_requests(self) -> None:
        steps = (self.produce, self.produce, self.edit, *4 * [self.consume])
        await asyncio.gather(*(self.repeat(step) for step in steps))

    async def repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except StoreError as error:
                # On Redis an edit has a time limit, which a busy machine may exceed. Where editors
                # are killed one after the other, calls that wait for them give up: no answer.
                if "edit_time" not in str(error) and "others edit" not in str(error):
                    raise

    # Calls and what is noted of them

    async def put(self, key: str) -> None:
        call = self.journal.call()
        value = f"{self.plan.name}.{call}"
        buffered = key in BUFFERED_KEYS
        self.journal.note(PutAsked(call, self.clock(), key, value, buffered))
        items = ((key, f'"{value}"'.encode()),)
        (answer,) = await self.store.put([Put(QUEUE, items, "buffer" if buffered else "update")])
        self.trap("after answering")
        assert isinstance(answer, tuple), answer
        self.journal.note(PutDone(call, self.clock(), str(answer[0].id)))

    async def put_by_edit(self, key: str) -> None:
        """Change a value after a look at it."""
        call = self.journal.call()
        value = f"{self.plan.name}.{call}"

        def work(items: Sequence[StoredItem]) -> list[Put]:
            assert all(item.key == key for item in items), items
            return [Put(QUEUE, ((key, f'"{value}"'.encode()),))]

        self.journal.note(PutAsked(call, self.clock(), key, value))
        (answer,) = await self.store.edit(QUEUE, work, keys=[key])
        self.trap("after answering")
        assert isinstance(answer, tuple), answer
        assert isinstance(answer[0], Placed), answer
        self.journal.note(PutDone(call, self.clock(), str(answer[0].id)))

    async def claim(
        self, most: int, lease_time: float, key: str | None = None
    ) -> tuple[Claimed, ...]:
        call = self.journal.call()
        self.journal.note(ClaimAsked(call, self.clock(), most))
        (claimed,) = await self.store.claim([Claim(((QUEUE, most),), most, key, lease_time)])
        self.trap("after answering")
        leases: list[Leased] = []
        for item in claimed:
            assert item.expires_at is not None
            leases.append(
                Leased(
                    str(item.id),
                    item.key,
                    item.value.decode()[1:-1],
                    item.fence,
                    item.attempt,
                    item.expires_at - lease_time,
                    item.expires_at,
                )
            )
        self.journal.note(ClaimDone(call, self.clock(), leases))
        return claimed

    async def settle(self, how: How, fence: int, change: Change) -> bool:
        call = self.journal.call()
        self.journal.note(SettleAsked(call, self.clock(), how, fence))
        (answer,) = await self.store.settle([change])
        self.trap("after answering")
        accepted = not isinstance(answer, Refusal)
        expires_at = answer if isinstance(answer, float) else None
        self.journal.note(SettleDone(call, self.clock(), accepted, expires_at))
        return accepted

    async def ack(self, item: Claimed, *, keep: bool) -> bool:
        names = (QUEUE, item.key, item.token)
        if keep:
            change = Ack(*names, b"%d" % item.fence, KEPT)
            return await self.settle("keep", item.fence, change)
        return await self.settle("ack", item.fence, Ack(*names))

    # Calls of a queue

    async def feed(self, queue: StoreQueue[str]) -> None:
        """Put a key of its own, which stands for its item."""
        call = self.journal.call()
        key = f"{self.plan.name}.{call}"
        self.journal.note(PutAsked(call, self.clock(), key, key))
        await queue.put(key, key)
        self.journal.note(PutDone(call, self.clock(), key))

    async def get(
        self, queue: StoreQueue[str], lease_time: float, key: str | None = None
    ) -> Lease[str]:
        call = self.journal.call()
        self.journal.note(ClaimAsked(call, self.clock(), 1))
        if key is None:
            key, value, lease = await queue.get(lease_timeout=lease_time)
        else:
            _, value, lease = await queue.take(key, lease_timeout=lease_time)
        end = lease.expires_at
        assert end is not None
        leased = Leased(key, key, value, lease.fence, lease.attempt, end - lease_time, end)
        self.journal.note(ClaimDone(call, self.clock(), [leased]))
        return lease

    async def settle_by(self, how: How, lease: Lease[str], settling: Awaitable[None]) -> bool:
        """Whether it was accepted."""
        call = self.journal.call()
        self.journal.note(SettleAsked(call, self.clock(), how, lease.fence))
        accepted = True
        try:
            await settling
        except LeasedKeyQError:
            accepted = False
        expires_at = lease.expires_at if how == "extend" and accepted else None
        self.journal.note(SettleDone(call, self.clock(), accepted, expires_at))
        return accepted

    # A life by requests: few keys, short leases, everything at once

    async def produce(self) -> None:
        await self.put(self.dice.choice(KEYS + BUFFERED_KEYS))
        await asyncio.sleep(self.dice.random() * 0.01)

    async def edit(self) -> None:
        await asyncio.sleep(self.dice.random() * 0.05)
        await self.put_by_edit(self.dice.choice(KEYS))

    async def consume(self) -> None:
        lease_time = self.dice.choice(LEASE_TIMES)
        claimed = await self.claim(self.dice.choice((1, 1, 2, 3)), lease_time)
        for item in claimed:
            await self.work(item, lease_time)
        if not claimed:
            await asyncio.sleep(0.002)

    async def work(self, item: Claimed, lease_time: float) -> None:
        chance = self.dice.random()
        names = (QUEUE, item.key, item.token)
        if chance < 0.1:
            return  # it is never settled
        if chance < 0.25:
            front = self.dice.random() < 0.5
            await self.settle("release", item.fence, Release(*names, front))
            return
        if chance < 0.4:
            await self.settle("extend", item.fence, Extend(*names, lease_time))
        elif chance < 0.5 and lease_time < 0.05:
            await asyncio.sleep(lease_time)
        done = await self.ack(item, keep=self.dice.random() < 0.5)
        if done and self.dice.random() < 0.2:
            await self.ack(item, keep=self.dice.random() < 0.5)

    # A life with a queue: many keys, each put once, and consumers that wait

    async def by_queue(self) -> None:
        queue = self.store.queue(QUEUE, value_type=str, maxsize=20)

        async def produce() -> None:
            while True:
                await self.feed(queue)

        async def consume() -> None:
            while True:
                lease_time = self.dice.choice(LEASE_TIMES)
                lease = await self.get(queue, lease_time)
                if self.dice.random() < 0.1:
                    await asyncio.sleep(2 * self.dice.random() * lease_time)
                await self.settle_by("ack", lease, queue.ack(lease))

        await asyncio.gather(*(task() for task in (*2 * [produce], *6 * [consume])))

    # A life with one lease

    async def as_holder(self) -> None:
        """Claim, stop, and settle when it goes on: before the request, or in the midst of it."""
        lease_time = self.plan.lease_time
        point, self.trap.point = self.trap.point, ""
        how: Any = self.plan.change
        if self.plan.door:
            queue = self.store.queue(QUEUE, value_type=str)
            lease = await self.get(queue, lease_time, self.plan.key)
            doors = {
                "ack": queue.ack(lease),
                "release": queue.release(lease),
                "extend": queue.extend(lease, lease_time),
            }
            settling = doors.pop(how)
            for other in doors.values():
                other.close()
            self.pause(point)
            await self.settle_by(how, lease, settling)
            return
        (item,) = await self.claim(1, lease_time, self.plan.key or None)
        names = (QUEUE, item.key, item.token)
        changes: dict[str, Change] = {
            "ack": Ack(*names),
            "keep": Ack(*names, b"%d" % item.fence, KEPT),
            "release": Release(*names),
            "extend": Extend(*names, lease_time),
            "bury": Bury(*names, "late"),
        }
        self.pause(point)
        await self.settle(how, item.fence, changes[how])

    def pause(self, point: str) -> None:
        """Be stopped here or later on, at a point, or block the event loop."""
        self.trap.point = point
        self.trap("before asking")
        while self.plan.until and not Path(self.plan.until).exists():
            time.sleep(0.005)

    # A life with leases that are renewed until the end

    async def as_renewer(self) -> None:
        queue = self.store.queue(QUEUE, value_type=str)
        for _ in range(self.plan.feed):
            await self.feed(queue)
        lease_time = self.plan.lease_time
        while True:
            lease = await self.get(queue, lease_time)
            held = True
            while held:
                await asyncio.sleep(lease_time / 3)
                held = await self.settle_by("extend", lease, queue.extend(lease, lease_time))


# The nursery


def live(plan: Plan) -> NoReturn:
    """The whole life of a forked process."""
    signal.alarm(LIFETIME)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    code = 1
    try:
        worker = Worker(plan)
        asyncio.run(worker.live())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Start(msgspec.Struct, tag=True):
    plan: Plan


class Wait(msgspec.Struct, tag=True):
    """Wait until a process has ended or stopped."""

    process: int


class Status(msgspec.Struct):
    process: int
    stopped: bool = False
    code: int = 0
    """As `subprocess.Popen.returncode`."""


Order = Start | Wait


def obey(order: Order) -> Status:
    if isinstance(order, Start):
        process = os.fork()
        if not process:
            live(order.plan)
        return Status(process)
    _, status = os.waitpid(order.process, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return Status(order.process, stopped=True)
    return Status(order.process, code=os.waitstatus_to_exitcode(status))


def main(engines: Sequence[str]) -> None:
    for name in engines:
        import_module(f"leasedkeyq.engines.{name}.store")
        if name == "redis":
            import_module("redis")  # which the store imports when it is opened
    decoder: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
    for line in sys.stdin.buffer:
        os.write(1, msgspec.json.encode(obey(decoder.decode(line))) + b"\n")
    # Nobody gives orders any more.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
