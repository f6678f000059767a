"""`WorkerGroup`: the workers of a store tell each other what is paused, and which of them live.

All of it is in one queue of the store. A paused lane is an item that is scheduled for a time that
does not come. A worker that shares the partitions of lanes with other workers is an item that it
has leased: the lease is renewed as long as the worker lives. Every worker watches that queue.
"""

import asyncio
import logging
import os
import secrets
import socket
from asyncio import Task
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import inf

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreClosedError
from leasedkeyq.lanes.durable.outbox import FIRST_PAUSE, LONGEST_PAUSE, report
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.running.pending_write import PendingWrite
from leasedkeyq.model.requests import (
    Ack,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Put,
    Refusal,
    StoredItem,
)
from leasedkeyq.stores.holder import this_process
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

WORKERS_QUEUE = "leasedkeyq.lanes"
"""The queue of the store in which workers tell each other things."""
PAUSED = "paused:"
WORKER = "worker:"
NEWS = "news"
"""How the keys in it begin. A worker that has changed something puts an item ``news`` and removes
it: the workers that watch the queue are woken by items that come and go."""
FOREVER = 100 * 365 * 86400.0
GRACE = 60.0
"""Seconds after which a worker is forgotten that has put its item and not leased it."""


class Member(msgspec.Struct, omit_defaults=True):
    """A worker, as the other workers see it."""

    lanes: dict[str, int]
    """The lanes whose partitions it shares, and how many of them it knows."""
    types: str
    """Stands for the command types that it knows. Workers share with those of the same types."""
    host: str = ""
    pid: int = 0


class WorkerGroup:
    """The membership of this worker in the group of all workers of a store.

    Args:
        store: Where they tell it.
        lanes: The lanes of this worker.
        own: Told which partitions are this worker's.
        wake: Called when a command may be able to start.
        types: The types of commands that this worker knows.
        heard: Called with all items of the queue whenever this worker has looked at it.

    Attributes:
        known: Set when it is known what is paused, and which partitions are this worker's.
    """

    def __init__(
        self,
        store: Store,
        lanes: Mapping[str, Lane],
        *,
        own: Callable[[Partition, bool], None],
        wake: Callable[[], None],
        types: Callable[[], Iterable[str]],
        heard: Callable[[Sequence[StoredItem]], None] = lambda _: None,
    ) -> None:
        self.known = asyncio.Event()
        self._store = store
        self._lanes = lanes
        self._own = own
        self._wake = wake
        self._types = types
        self._heard = heard
        self._unwritten: dict[str, bool] = {}
        """The lanes that this worker has paused or resumed, and the store does not know yet."""
        self._decided: set[str] = set()
        """Lanes of which a look at the store that is under way may tell old news."""
        self._writing: Task[None] | None = None
        self._news = asyncio.Event()
        self._name = ""
        self._told = b""
        """What the other workers know of this one."""
        self._lease: Claimed | None = None
        self._renewed = 0.0
        self._clock_offset = 0.0
        """The clock of the store, less that of the event loop."""
        self._leaving = False

    # Pausing

    def pause(self, lane: Lane, paused: bool) -> PendingWrite:
        """Pause or resume a lane, here at once and everywhere soon."""
        lane.paused = paused
        self._unwritten[lane.id] = paused
        self._decided.add(lane.id)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # it is written when there is an event loop
        else:
            self.write()
        return PendingWrite(self._written)

    def write(self) -> None:
        """Begin to tell the store what was paused and resumed here."""
        if self._unwritten and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(_failed)

    async def _written(self) -> None:
        self.write()
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        pause = FIRST_PAUSE
        while self._unwritten:
            unwritten = dict(self._unwritten)
            try:
                puts = [
                    Put(WORKERS_QUEUE, ((PAUSED + lane, b"null"),), delay=FOREVER)
                    for lane, paused in unwritten.items()
                    if paused
                ]
                if puts:
                    _check(await self._store.put(puts))
                cancels = [
                    Cancel(WORKERS_QUEUE, PAUSED + lane)
                    for lane, paused in unwritten.items()
                    if not paused
                ]
                if cancels:
                    await self._store.settle(cancels)
                await self._tell()
            except StoreClosedError:
                self._unwritten.clear()
                raise
            except Exception as error:
                report("lanes could not be paused or resumed for others", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            for lane, paused in unwritten.items():
                if self._unwritten.get(lane) is paused:
                    del self._unwritten[lane]

    async def _tell(self) -> None:
        """Let all workers of the store look."""
        _check(await self._store.put([Put(WORKERS_QUEUE, ((NEWS, b"null"),))]))
        await self._store.settle([Cancel(WORKERS_QUEUE, NEWS)])

    # Watching

    async def run(self) -> None:
        """Follow what other workers tell, and tell that this one lives, until it leaves.

        Raises:
            StoreClosedError: The store was closed.
        """
        unwatch = self._store.watch(WORKERS_QUEUE, self._news.set)
        pause = FIRST_PAUSE
        try:
            while True:
                self._news.clear()
                try:
                    seconds = await self._look()
                except StoreClosedError:
                    raise
                except Exception as error:
                    report("the other workers could not be heard", error)
                    if self._leaving:
                        return
                    seconds = pause
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    if self._leaving and self._lease is None:
                        return
                    pause = FIRST_PAUSE
                    self.known.set()
                try:
                    async with asyncio.timeout(seconds):
                        await self._news.wait()
                except TimeoutError:
                    pass
        finally:
            self.known.set()
            unwatch()

    async def _look(self) -> float | None:
        """See what is paused and which workers live; returns the seconds until the next look."""
        shared = [lane for lane in self._lanes.values() if lane.shared and not self._leaving]
        if shared:
            await self._stay(shared)
        elif self._lease is not None:
            await self._go()
        self._decided = set(self._unwritten)
        found = await self._browse()
        self._heard(found)
        paused = {item.key for item in found if item.key.startswith(PAUSED)}
        for lane in self._lanes.values():
            if lane.id not in self._decided:
                lane.paused = PAUSED + lane.id in paused
        if not shared:
            self._wake()
            return None
        await self._forget_dead(found)
        self._divide(shared, found)
        self._wake()
        [due] = await self._store.sweep([WORKERS_QUEUE])
        beat = min(lane.heartbeat for lane in shared)
        return beat if due is None else min(beat, due + 0.01)

    async def _browse(self) -> list[StoredItem]:
        found: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await self._store.browse(WORKERS_QUEUE, cursor=cursor, limit=1000)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    # Sharing partitions

    async def _stay(self, shared: Sequence[Lane]) -> None:
        """Lease the item of this worker, or renew its lease: so the others see that it lives."""
        loop = asyncio.get_running_loop()
        lease_time = min(lane.lease_time for lane in shared)
        me = Member(
            {lane.id: len(lane.partitions) for lane in shared},
            blake2b("\n".join(sorted(self._types())).encode(), digest_size=8).hexdigest(),
            socket.gethostname(),
            os.getpid(),
        )
        value = msgspec.json.encode(me)
        if self._lease is not None:
            beat = min(lane.heartbeat for lane in shared)
            if value == self._told and loop.time() - self._renewed < beat / 2:
                return
            extend = Extend(WORKERS_QUEUE, self._name, self._lease.token, lease_time)
            answer = (await self._store.settle([extend]))[0]
            if isinstance(answer, Refusal):
                self._lease = None  # it was taken for dead
            else:
                self._renewed = loop.time()
                if value == self._told:
                    return
                _check(await self._store.put([Put(WORKERS_QUEUE, ((self._name, value),))]))
        while self._lease is None:
            # A name of its own for each try: the answer to the last one may have been lost.
            self._name = WORKER + secrets.token_hex(8)
            _check(await self._store.put([Put(WORKERS_QUEUE, ((self._name, value),))]))
            only = ((WORKERS_QUEUE, 1),)
            claim = Claim(only, 1, self._name, lease_time, holder=this_process())
            for claimed in (await self._store.claim([claim]))[0]:
                self._lease = claimed
                self._renewed = loop.time()
                self._clock_offset = (claimed.expires_at or 0.0) - lease_time - loop.time()
        self._told = value
        await self._tell()

    def renewal(self) -> Extend | None:
        """How to renew the lease of this worker, if it has one; for another thread, too."""
        lease = self._lease
        times = [lane.lease_time for lane in list(self._lanes.values()) if lane.shared]
        if lease is None or not times:
            return None
        return Extend(WORKERS_QUEUE, lease.key, lease.token, min(times))

    async def _forget_dead(self, found: Sequence[StoredItem]) -> None:
        """Remove workers whose leases have ended, or that died before they had one."""
        old = asyncio.get_running_loop().time() + self._clock_offset - GRACE
        dead = {
            item.key: item.id
            for item in found
            if item.key.startswith(WORKER) and item.state == "available"
            if item.attempt or item.put_at < old
        }

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [
                Cancel(WORKERS_QUEUE, item.key)
                for item in items
                if item.state == "available" and item.id == dead[item.key]
            ]

        if dead:
            await self._store.edit(WORKERS_QUEUE, work, keys=[*dead])

    def _divide(self, shared: Sequence[Lane], found: Sequence[StoredItem]) -> None:
        """Give each partition to one of the living, the same one in the eyes of all."""
        members: dict[str, Member] = {}
        for item in found:
            if item.key.startswith(WORKER) and item.state == "in_flight":
                try:
                    members[item.key] = msgspec.json.decode(item.value, type=Member)
                except msgspec.MsgspecError:
                    logger.warning("worker %r of another version is left out", item.key)
        me = members.get(self._name)
        if me is None:
            # It was taken for dead, which the store says when the lease is renewed.
            self._renewed = -inf
            self._news.set()
            return
        alike = {name: member for name, member in members.items() if member.types == me.types}
        for lane in shared:
            known = {name: member.lanes.get(lane.id, 0) for name, member in alike.items()}
            owners = divide(lane.id, known)
            for partition in lane.partitions:
                mine = partition.index < len(owners) and owners[partition.index] == self._name
                if partition.owned != mine:
                    self._own(partition, mine)

    def look(self) -> None:
        """Share out anew: there is another lane."""
        self._news.set()

    def leave(self) -> None:
        """Let the other workers have the partitions of this one, and end."""
        self._leaving = True
        self._news.set()

    async def _go(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._store.settle([Ack(WORKERS_QUEUE, self._name, lease.token)])

    async def written(self) -> None:
        """Wait until the store knows what was paused and resumed here."""
        self.write()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self) -> None:
        """Tell nothing any more."""
        if self._writing is not None:
            self._writing.cancel()


def divide(lane: str, known: Mapping[str, int]) -> list[str]:
    """The owner of each partition of a lane, the same in the eyes of all.

    No worker has more than its fair share, as long as each knows all partitions. The worker
    that weighs most for a partition has it, if it has room: so a change of workers moves few
    partitions.

    Args:
        lane: The name of the lane.
        known: How many partitions each worker knows: that many, from the first on.
    """
    owners = [""] * max(known.values(), default=0)
    fair = -(-len(owners) // len(known)) if known else 0
    loads = dict.fromkeys(known, 0)
    weights = {
        (worker, part): blake2b(f"{worker} {lane} {part}".encode(), digest_size=8).digest()
        for worker, parts in known.items()
        for part in range(parts)
    }
    for worker, part in sorted(weights, key=weights.__getitem__, reverse=True):
        if not owners[part] and loads[worker] < fair:
            owners[part] = worker
            loads[worker] += 1
    for part, owner in enumerate(owners):
        if not owner:  # the workers that know it have their share already
            able = [worker for worker, parts in known.items() if part < parts]
            owners[part] = min(able, key=lambda worker: (loads[worker], weights[worker, part]))
            loads[owners[part]] += 1
    return owners


def _check(answers: Sequence[object]) -> None:
    for answer in answers:
        if isinstance(answer, LeasedKeyQError):
            raise answer


def _failed(task: Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a pause or resume is not known to other workers: %s", task.exception())
