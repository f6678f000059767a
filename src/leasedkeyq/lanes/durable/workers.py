"""`WorkerGroup`: the workers of a store tell each other what is paused, and which of them live.

All of it is in one queue of the store. A paused lane is an item that is scheduled for a time that
does not come. A worker is an item that it has leased: the lease is renewed as long as the worker
lives, and with each renewal the worker tells what it does. Every worker watches that queue. Those
that share the partitions of lanes divide them among the living.
"""

import asyncio
import logging
import os
import platform
import secrets
import socket
import time
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from hashlib import blake2b
from heapq import nsmallest
from importlib.metadata import version
from math import inf
from typing import Any

import msgspec

from leasedkeyq.errors import LeasedKeyQError, LimitExceededError, StoreClosedError
from leasedkeyq.lanes.durable.outbox import FIRST_PAUSE, LONGEST_PAUSE, report
from leasedkeyq.lanes.durable.reports.stack_answers import StackAnswers
from leasedkeyq.lanes.presence.catalog import Catalog
from leasedkeyq.lanes.presence.directory import forget_dead, tell_workers
from leasedkeyq.lanes.presence.records import (
    FOREVER,
    GRACE,
    MOST_RUNNING,
    MOST_RUNNING_TEXT,
    MOST_TYPES,
    PAUSED,
    WORKER,
    WORKERS_QUEUE,
    LaneLoad,
    Member,
    Presence,
    RunningRecord,
    ServedLane,
)
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.running.pending_write import PendingWrite
from leasedkeyq.model.requests import (
    Ack,
    Cancel,
    Claim,
    Claimed,
    Extend,
    Put,
    Refusal,
    StoredItem,
)
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.system.holder import this_process
from leasedkeyq.telemetry.process_memory import resident_memory

logger = logging.getLogger("leasedkeyq")

LONGEST_LEASE = 30.0
SHORTEST_LEASE = 5.0
"""Seconds for which a worker that shares no partitions is taken to live after it has told so. One
that does is taken to live for the lease time of its lanes."""
RARE_LEASE = 180.0
"""The same on a store for which each write is dear: see `Capabilities.minute_series`."""
LONGEST_BEAT = 10.0
"""Seconds between two renewals, at most."""
FIRST_BEAT = 0.7
"""Seconds after which a new worker tells what it does, at most."""
LOOK_GAP = 0.25
"""Seconds between two looks of a worker that shares no partitions: when many workers start or end,
each of them is news for all."""
CATALOG_EVERY = 86400.0
"""Seconds after which a worker tells again which lanes and command types it has."""
CATALOG_AGAIN = 60.0
"""The same after it could not be told."""
TELL_BLOCKED = 2.0
"""Seconds after which another thread tells that the event loop is blocked, and hears questions."""
HEAR_EVERY = 1.0
"""Seconds between two looks for questions then."""
VERSION = version("leasedkeyq")
PYTHON = platform.python_version()


class WorkerGroup:
    """The membership of this worker in the group of all workers of a store.

    Args:
        store: Where they tell it.
        lanes: The lanes of this worker.
        own: Told which partitions are this worker's.
        wake: Called when a command may be able to start.
        types: The types of commands that this worker knows.
        heard: Called with all items of the queue whenever this worker has looked at it.
        running: The jobs whose commands run.
        catalog: Tells which lanes and command types there are.
        blocked: For how many seconds the event loop has been blocked, if it is.
        clock: Unix time, for tests.
        answers: Answers what operators ask this worker.

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
        running: Collection[Job],
        catalog: Catalog,
        blocked: Callable[[], float],
        clock: Callable[[], float],
        answers: StackAnswers,
    ) -> None:
        self.known = asyncio.Event()
        self._store = store
        self._lanes = lanes
        self._own = own
        self._wake = wake
        self._types = types
        self._heard = heard
        self._running = running
        self._catalog = catalog
        self._blocked = blocked
        self._clock = clock
        self._answers = answers
        self._unwritten: dict[str, bool] = {}
        """The lanes that this worker has paused or resumed, and the store does not know yet."""
        self._decided: set[str] = set()
        """Lanes of which a look at the store that is under way may tell old news."""
        self._writing: Task[None] | None = None
        self._news = asyncio.Event()
        self._looked = -inf
        self._hurry = asyncio.Event()
        """Set when there is something that cannot wait for the next look."""
        self._loop: AbstractEventLoop | None = None
        self._name = ""
        self._host = ""
        self._started_at = 0.0
        self._told = b""
        """What the other workers know of this one."""
        self._told_shares: tuple[dict[str, int], str] = ({}, "")
        """What of it decides how partitions are shared."""
        self._lease: Claimed | None = None
        self._renewed = 0.0
        self._is_new = False
        """Whether it has told that it lives, but not yet what it does."""
        self._is_mute = False
        """Whether the store has no room for what a worker tells."""
        self._clock_offset: float | None = None
        """The clock of the store, less that of the event loop."""
        self._listed: tuple[frozenset[str], frozenset[str]] | None = None
        """Which lanes and types are in the catalog of the store."""
        self._list_again = inf
        self._hear_at = 0.0
        self._apart_at = 0.0
        """When another thread tells next that the event loop is blocked, by the monotonic clock."""
        self._told_apart = False
        """Whether it has told that."""
        self._leaving = self._ended = False

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
                await tell_workers(self._store)
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

    # Watching

    async def run(self) -> None:
        """Follow what other workers tell, and tell that this one lives, until its end.

        Raises:
            StoreClosedError: The store was closed.
        """
        self._loop = asyncio.get_running_loop()
        self._started_at = self._clock()
        self._host = socket.gethostname()
        unwatch = self._store.watch(WORKERS_QUEUE, self._news.set)
        pause = FIRST_PAUSE
        heard = True
        try:
            while True:
                if heard and not self._shared():
                    await self._wait_for_more()
                self._news.clear()
                try:
                    seconds = await (self._look() if heard else self._beat())
                except StoreClosedError:
                    raise
                except Exception as error:
                    report("the other workers could not be heard", error)
                    if self._ended:
                        return
                    heard = True
                    seconds = pause
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    if self._ended and self._lease is None:
                        return
                    pause = FIRST_PAUSE
                    # Those that share partitions look at each beat, the others when they hear.
                    heard = bool(self._shared())
                    self.known.set()
                try:
                    async with asyncio.timeout(seconds):
                        await self._news.wait()
                    heard = True
                except TimeoutError:
                    pass
        finally:
            self.known.set()
            unwatch()

    async def _wait_for_more(self) -> None:
        """Let news gather, if the last look was a moment ago and nothing is in a hurry."""
        if asyncio.get_running_loop().time() < self._looked + LOOK_GAP:
            try:
                async with asyncio.timeout_at(self._looked + LOOK_GAP):
                    await self._hurry.wait()
            except TimeoutError:
                pass
        self._hurry.clear()

    async def _look(self) -> float | None:
        """See what is paused and which workers live; returns the seconds until the next look."""
        shared = self._shared()
        if shared:
            await self._stay()
        elif self._ended:
            await self._go()
            return None
        self._looked = asyncio.get_running_loop().time()
        self._decided = set(self._unwritten)
        found = await self._browse()
        self._heard(found)
        if self._lease is not None:
            self._answers.hear(self._name.removeprefix(WORKER), found)
        paused = {item.key for item in found if item.key.startswith(PAUSED)}
        changed = not self.known.is_set()
        for lane in self._lanes.values():
            is_paused = PAUSED + lane.id in paused
            if lane.id not in self._decided and lane.paused is not is_paused:
                lane.paused = is_paused
                changed = True
        if not shared:
            # Commands need not wait until this worker has told of itself.
            self.known.set()
            if changed:
                self._wake()
            await self._forget_dead(found)
            return await self._beat()
        await self._forget_dead(found)
        self._divide(shared, found)
        self._wake()
        await self._list()
        [due] = await self._store.sweep([WORKERS_QUEUE])
        beat = self._until_beat()
        return beat if due is None else min(beat, due + 0.01)

    async def _beat(self) -> float | None:
        """Tell that this worker lives, if it runs any lane and it is time; returns as `_look`."""
        runs = any(lane.runs_here or lane.shared for lane in self._lanes.values())
        if self._ended or self._is_mute or not runs:
            return None
        await self._stay()
        if self._lease is None:
            return None
        await self._list()
        return self._until_beat()

    async def _forget_dead(self, found: Sequence[StoredItem]) -> None:
        """Take away workers that have died, and questions that nobody has answered."""
        await forget_dead(self._store, found, self.store_time() - GRACE)

    def _until_beat(self) -> float:
        """Seconds until it is time to tell that this worker lives."""
        beat = min(self._times()[1], FIRST_BEAT if self._is_new else inf)
        return max(0.0, self._renewed + beat - asyncio.get_running_loop().time())

    def _shared(self) -> list[Lane]:
        """The lanes whose partitions this worker shares with others."""
        return [lane for lane in list(self._lanes.values()) if lane.shared and not self._leaving]

    def _times(self) -> tuple[float, float]:
        """How long the lease of this worker lasts, and how often it is renewed."""
        shared = self._shared()
        if shared:
            lease_time = min(lane.lease_time for lane in shared)
            return lease_time, min(LONGEST_BEAT, *(lane.heartbeat for lane in shared))
        if not self._store.capabilities.minute_series:
            return RARE_LEASE, RARE_LEASE / 3
        shortest = min((lane.lease_time for lane in list(self._lanes.values())), default=inf)
        lease_time = max(SHORTEST_LEASE, min(LONGEST_LEASE, shortest))
        return lease_time, lease_time / 3

    def store_time(self) -> float:
        """The time of the store, as far as it is known."""
        if self._clock_offset is None:
            return self._clock()
        return asyncio.get_running_loop().time() + self._clock_offset

    async def _list(self) -> None:
        """Tell which lanes and command types this worker has, if that is new or long ago."""
        now = asyncio.get_running_loop().time()
        contents = self._catalog.contents
        if contents != self._listed or now >= self._list_again:
            self._list_again = now + CATALOG_EVERY
            try:
                await self._catalog.write(self.store_time())
            except StoreClosedError:
                raise
            except Exception as error:  # commands do not depend on it
                unforeseen = None if isinstance(error, LeasedKeyQError) else error
                text = "the lanes of this worker are not shown to operators: %s"
                logger.info(text, error, exc_info=unforeseen)
                if not isinstance(error, LimitExceededError):
                    self._list_again = now + CATALOG_AGAIN
            self._listed = contents

    async def _browse(self) -> list[StoredItem]:
        found: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await self._store.browse(WORKERS_QUEUE, cursor=cursor, limit=1000)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    # Living

    async def _stay(self) -> None:
        """Lease the item of this worker, or renew its lease: so the others see that it lives."""
        loop = asyncio.get_running_loop()
        lease_time, beat = self._times()
        me = self._member(lease_time)
        shares = me.lanes, me.types
        value = self._encoded(me)
        if self._lease is not None:
            # A look that comes by chance renews what would be renewed soon.
            soon = min(beat, FIRST_BEAT if self._is_new else inf) / 2
            if value == self._told and not self._told_apart and loop.time() - self._renewed < soon:
                return
            if await self._renew(self._lease, lease_time):
                if value == self._told:
                    return
                _check(await self._store.put([Put(WORKERS_QUEUE, ((self._name, value),))]))
        joins = self._lease is None
        while self._lease is None:
            # A name of its own for each try: the answer to the last one may have been lost.
            self._name = WORKER + secrets.token_hex(8)
            [placed] = await self._store.put([Put(WORKERS_QUEUE, ((self._name, value),))])
            if isinstance(placed, LimitExceededError) and not me.lanes:
                self._is_mute = True
                logger.info("this worker is not shown to operators: %s", placed)
                return
            _check([placed])
            only = ((WORKERS_QUEUE, 1),)
            claim = Claim(only, 1, self._name, lease_time, holder=this_process())
            for claimed in (await self._store.claim([claim]))[0]:
                self._lease = claimed
                self._is_new = True
                self._renewed = loop.time()
                self._set_clock(claimed.expires_at, lease_time)
        self._told = value
        if joins:
            self._listed = None  # the store may have lost the catalog with the lease
        if shares != self._told_shares or (joins and me.lanes):
            self._told_shares = shares
            await tell_workers(self._store)

    async def _renew(self, lease: Claimed, lease_time: float) -> bool:
        """Renew the lease of this worker, and tell what it does; returns whether it still held."""
        progress = self._presence()
        extend = Extend(WORKERS_QUEUE, lease.key, lease.token, lease_time, progress)
        [answer] = await self._store.settle([extend])
        if isinstance(answer, Refusal):
            self._lease = None  # it was taken for dead
            return False
        _check([answer])
        self._renewed = asyncio.get_running_loop().time()
        self._is_new = self._told_apart = False
        self._apart_at = 0.0
        if isinstance(answer, float):
            self._set_clock(answer, lease_time)
        return True

    def _set_clock(self, expires_at: float | None, lease_time: float) -> None:
        if expires_at is not None:
            self._clock_offset = expires_at - lease_time - asyncio.get_running_loop().time()

    def _member(self, lease_time: float) -> Member:
        """Who this worker is."""
        shared = self._shared()
        types = sorted(self._types())
        stands_for = blake2b("\n".join(types).encode(), digest_size=8).hexdigest()
        return Member(
            {lane.id: len(lane.partitions) for lane in shared},
            stands_for if shared else "",
            self._host,
            os.getpid(),
            VERSION,
            PYTHON,
            self._started_at,
            lease_time,
            tuple(
                ServedLane(lane.id, lane.config.min_concurrency, lane.most)
                for lane in self._lanes.values()
                if lane.runs_here or lane.shared
            ),
            tuple(types[:MOST_TYPES]),
        )

    def _encoded(self, me: Member) -> bytes:
        value = msgspec.json.encode(me)
        if len(value) > self._store.limits.value_size:
            value = msgspec.json.encode(Member(me.lanes, me.types, me.host, me.pid))
        return value

    def _presence(self, blocked: float | None = None) -> bytes | None:
        """What this worker does, written down; may be called in another thread.

        None: it is more than the store takes.
        """
        offset = self._clock_offset or 0.0
        jobs = list(self._running)
        running: list[RunningRecord] = []
        text = 0
        for job in nsmallest(MOST_RUNNING, jobs, key=lambda job: (job.started_at, job.id)):
            queue = job.partition.queue
            text += len(queue) + len(job.key) + len(job.kind)
            if text > MOST_RUNNING_TEXT:
                break
            since = round(job.started_at + offset, 3)
            running.append(RunningRecord(job.id, queue, job.key, job.kind, since, job.attempt))
        presence = Presence(
            tuple(running),
            len(jobs),
            resident_memory(),
            {
                lane.id: LaneLoad(lane.active, _owned(lane))
                for lane in list(self._lanes.values())
                if lane.runs_here or lane.shared
            },
            blocked,
        )
        progress = msgspec.json.encode(presence)
        return progress if len(progress) <= self._store.limits.value_size else None

    def renewal(self) -> Extend | None:
        """How to renew the lease by which this worker has partitions, if it shares any.

        For another thread, too.
        """
        lease = self._lease
        times = [lane.lease_time for lane in self._shared()]
        if lease is None or not times:
            return None
        return Extend(WORKERS_QUEUE, lease.key, lease.token, min(times))

    # While the event loop is blocked, in another thread

    def is_late(self) -> bool:
        """Whether this worker should have told by now that it lives."""
        loop = self._loop
        if loop is None or self._lease is None:
            return False
        return loop.time() > self._renewed + 1.5 * self._times()[1]

    def errand(self) -> Coroutine[Any, Any, None] | None:
        """What to do while the event loop is blocked; None: nothing, as yet."""
        lease, blocked = self._lease, self._blocked()
        if lease is None or blocked < TELL_BLOCKED:
            return None
        self._answers.sample_apart()
        now = time.monotonic()
        if now >= self._apart_at:
            lease_time, beat = self._times()
            self._apart_at = now + beat
            return self._tell_apart(lease, lease_time, blocked)
        if now >= self._hear_at and self._store.serves_other_loops:
            self._hear_at = now + HEAR_EVERY
            return self._answers.answer_apart(lease.key.removeprefix(WORKER))
        return None

    async def _tell_apart(self, lease: Claimed, lease_time: float, blocked: float) -> None:
        """Tell that this worker lives, and that its event loop is blocked."""
        progress = self._presence(round(blocked, 1))
        if not self._told_apart:
            self._told_apart = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._news.set)  # it tells when it goes on
        extend = Extend(WORKERS_QUEUE, lease.key, lease.token, lease_time, progress)
        await self._store.extend_apart([extend])

    # Sharing partitions

    def _divide(self, shared: Sequence[Lane], found: Sequence[StoredItem]) -> None:
        """Give each partition to one of the living, the same one in the eyes of all."""
        members: dict[str, Member] = {}
        for item in found:
            if item.key.startswith(WORKER) and item.state == "in_flight":
                try:
                    members[item.key] = msgspec.json.decode(item.value, type=Member)
                except UNREADABLE:
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
        self._hurry.set()
        self._news.set()

    def leave(self) -> None:
        """Let the other workers have the partitions of this one. It goes on to tell of itself."""
        self._leaving = True
        self._hurry.set()
        self._news.set()

    def end(self) -> None:
        """Let no worker know this one any more, and end."""
        self._leaving = self._ended = True
        self._hurry.set()
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
        self._answers.close()
        if self._writing is not None:
            self._writing.cancel()


def _owned(lane: Lane) -> tuple[int, ...] | None:
    """Which partitions of a lane are run here; None: all."""
    owned = tuple(partition.index for partition in lane.partitions if partition.owned)
    return None if len(owned) == len(lane.partitions) else owned


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
