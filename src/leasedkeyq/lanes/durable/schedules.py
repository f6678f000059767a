"""`StoreSchedules`: schedules that outlive the process, fired once over all workers of a store.

A schedule is an item of one queue of the store. Its key is the name of the schedule, its value a
`ScheduleRecord`, its kind the lane, and it is scheduled for its next tick, by the clock of the
store. A worker that claims it submits the command and lets the item wait for the tick after it, in
one edit of both queues: a worker that dies before has changed nothing, and one that was held up for
longer than its lease is refused, so every tick is fired once.

A store that cannot edit two queues at once (`Capabilities.joint_edits`: a Redis cluster) takes two
steps. The command is put under the key of its tick, unless that is there or was done of late; then
the item goes on. A worker that dies in between has its tick fired again, and that puts nothing. It
does put the command again if that had failed meanwhile, or if the schedule has a `key` of its own.
"""

import asyncio
import logging
import random
import secrets
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from leasedkeyq.errors import (
    LeasedKeyQError,
    StoreClosedError,
    StoreError,
    UnstorableError,
    describe,
)
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.durable.envelope import Envelope, decode_envelope, encode_envelope
from leasedkeyq.lanes.durable.outbox import FIRST_PAUSE, LONGEST_PAUSE, report
from leasedkeyq.lanes.durable.submission import command_put
from leasedkeyq.lanes.errors import CommandPayloadError, UnknownScheduleError
from leasedkeyq.lanes.running.job import Handle
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.lanes.schedules.schedule import (
    CLOCK_LOOK,
    MOST_MISSED,
    Declaration,
    DueTicks,
    Schedule,
    ScheduleDefinition,
    ScheduleKeeper,
    ScheduleRecord,
    declared_again,
    decoded,
    due_now,
    encoded,
    new_record,
    resumed,
)
from leasedkeyq.model.admission import check_name, check_priority, check_size
from leasedkeyq.model.requests import (
    Answer,
    Cancel,
    Change,
    Claim,
    Claimed,
    Limits,
    Placed,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from leasedkeyq.stores import codec
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.system.holder import this_process

if TYPE_CHECKING:
    from leasedkeyq.lanes.durable.engine import StoreEngine

logger = logging.getLogger("leasedkeyq")
_encoder = msgspec.json.Encoder()

SCHEDULES_QUEUE = "leasedkeyq.schedules"
"""The queue of the store that has the schedules."""
LEASE_TIME = 10.0
"""Seconds for which a worker has a schedule to fire it. If it dies, another worker does it then."""
AT_A_TIME = 20
"""Schedules that a worker claims at once."""
GAP = 1.0
"""Seconds between two looks, at least, if no tick is due: some stores wake for every change."""
LONGEST_REST = 86400.0
"""Seconds after which it is looked again, in any case."""
CLOCK_KEPT = 30.0
"""Seconds for which a store keeps what tells its time."""
UNIQUE_FOR = 86400.0
"""Seconds for which a store without joint edits knows that a tick was fired."""
TRIED_AGAIN = 60.0
"""Seconds after which a schedule is due again that a worker could not fire."""
UNREADABLE = (CommandPayloadError, *codec.UNREADABLE)
"""What is raised for a record that cannot be read."""
PATIENCE = 5.0
"""Seconds for which closing waits for what is under way."""


class _Changed(Exception):  # noqa: N818  # it is no error: the schedule is looked at anew
    """A schedule is not what it was when it was claimed."""


class StoreSchedules(ScheduleKeeper):
    """The schedules of a store.

    Args:
        engine: Runs the commands.
        open_lane: The lane of a name, if it takes commands.
    """

    def __init__(self, engine: "StoreEngine", open_lane: Callable[[str], Lane]) -> None:
        super().__init__()
        self._engine = engine
        self._store = engine.store
        self._open_lane = open_lane
        self._unwritten: dict[str, ScheduleDefinition] = {}
        """What was declared here, and the store does not know yet."""
        self._writing = asyncio.Lock()
        self._clock_offset = 0.0
        """The clock of the store, less that of this process."""
        self._clock_known = False
        self._news = asyncio.Event()
        """Set when a schedule may have changed."""
        self._hurry = asyncio.Event()
        """Set when this process has changed one, or ends: then it is looked at without a gap."""
        self._stopped = False
        self._task: Task[None] | None = None

    def now(self) -> float:
        """The time of the store."""
        return self._engine.clock() + self._clock_offset

    # Declaring

    def declare(self, declared: Declaration) -> Schedule:
        """As `ScheduleKeeper.declare`.

        Raises:
            UnregisteredCommandError: The command is not of a registered type.
            CommandPayloadError: The command cannot be written down.
            LimitExceededError: The name or the command is too long for the store.
            ValueError: The name or the priority is none that the store can keep.
        """
        name, command, definition = declared
        limits = self._store.limits
        check_name("schedule", name, limits)
        check_priority(definition.priority)
        payload = self._engine.registry.encode(command, definition.lane)
        definition = msgspec.structs.replace(definition, payload=msgspec.Raw(payload))
        now = self.now()
        record = new_record(name, definition, now)
        check_name("key", definition.key_of(name, now + 0.5), limits)
        check_size(f"schedule {name!r}", name, write_record(record), limits)
        self._unwritten[name] = definition
        self.declared.add(name)
        self._look_soon()
        return self.shown(name, record, written=False)

    async def write(self) -> None:
        """As `ScheduleKeeper.write`."""
        async with self._writing:
            unwritten = dict(self._unwritten)
            if not unwritten:
                return

            def work(items: Sequence[StoredItem]) -> list[Put | Change]:
                now = self.now()
                heads = {item.key: item for item in items}
                return [
                    _declared(name, definition, heads.get(name), now)
                    for name, definition in unwritten.items()
                ]

            await self._edit([*unwritten], work)
            for name, definition in unwritten.items():
                if self._unwritten.get(name) is definition:
                    del self._unwritten[name]
        self._look_soon()

    async def _edit(
        self, names: Sequence[str], work: Callable[[Sequence[StoredItem]], list[Put | Change]]
    ) -> None:
        """Edit schedules, when it is known what time it is in the store."""
        await self._learn_clock()
        await self._store.edit(SCHEDULES_QUEUE, work, keys=names, heads_only=True)

    async def _learn_clock(self) -> None:
        """Learn by how much the clock of the store differs from that of this process."""
        if not self._clock_known:
            offset = await clock_offset(self._store, self._engine.clock)
            if offset is not None:
                self._clock_offset = offset
                self._clock_known = True

    # Looking

    async def look(self) -> list[Schedule]:
        """As `ScheduleKeeper.look`."""
        if self._task is not None:
            await self.write()  # what was declared before the start is there after it
        found: list[Schedule] = []
        cursor: str | None = None
        while True:
            page = await self._store.browse(SCHEDULES_QUEUE, cursor=cursor, limit=1000)
            for item in page.items:
                record = _record(item)
                if record is not None:
                    found.append(self.shown(item.key, record))
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda schedule: schedule.name)

    async def find(self, name: str) -> Schedule:
        """As `ScheduleKeeper.find`."""
        [found] = await self._store.look(SCHEDULES_QUEUE, [name])
        record = _record(found[0]) if found else None
        if record is not None:
            return self.shown(name, record)
        if name in self._unwritten:
            record = new_record(name, self._unwritten[name], self.now())
            return self.shown(name, record, written=False)
        raise _unknown(name)

    # Changing

    async def pause(self, name: str) -> None:
        """As `ScheduleKeeper.pause`."""
        await self._change(name, lambda record: msgspec.structs.replace(record, paused=True))

    async def resume(self, name: str) -> None:
        """As `ScheduleKeeper.resume`."""
        await self._change(name, lambda record: resumed(name, record, self.now()))
        self._look_soon()

    async def _change(self, name: str, change: Callable[[ScheduleRecord], ScheduleRecord]) -> None:
        if name in self._unwritten:
            await self.write()

        await self._learn_clock()
        await change_schedule(self._store, name, change, self.now)

    async def remove(self, name: str) -> bool:
        """As `ScheduleKeeper.remove`."""
        unwritten = self._unwritten.pop(name, None)
        async with self._writing:  # a write under way may still bring it
            self._unwritten.pop(name, None)
            [answer] = await self._store.settle([Cancel(SCHEDULES_QUEUE, name)])
        if isinstance(answer, LeasedKeyQError):
            raise answer
        return bool(answer) or unwritten is not None

    async def run_now(self, name: str) -> Handle[Any]:
        """As `ScheduleKeeper.run_now`."""
        definition = (await self.find(name))._record.definition
        lane = self._open_lane(definition.lane)
        key = hand_run_key(definition, name, self.now())
        put = self._command(lane, key, definition, definition.terms(None))
        [answer] = await self._store.put([put])
        if isinstance(answer, LeasedKeyQError):
            raise answer
        job = self._tell(lane, put, answer[0], definition.terms(None))
        return Handle(job, self._engine)

    # Firing

    async def start(self) -> None:
        """As `ScheduleKeeper.start`."""
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="leasedkeyq schedules"
            )
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """As `ScheduleKeeper.stop`."""
        self._stopped = True
        self._look_soon()

    async def close(self) -> None:
        """As `ScheduleKeeper.close`."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=PATIENCE)
            self._task.cancel()
            await asyncio.wait([self._task])

    def _ended(self, task: Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._engine._task_failed(task, repr(error), error)

    def _look_soon(self) -> None:
        """There is something to do; if nothing runs yet, it is done at the start."""
        self._hurry.set()
        self._news.set()

    async def _run(self) -> None:
        """Fire ticks as they come, until it is stopped."""
        pause = FIRST_PAUSE
        due = False
        try:
            unwatch = self._store.watch(SCHEDULES_QUEUE, self._news.set)
        except StoreClosedError:
            return  # the engine tells of it
        try:
            while not self._stopped and not self._engine.stopped:
                self._news.clear()
                self._hurry.clear()
                try:
                    seconds = await self._fire_all(due=due)
                except StoreClosedError:
                    return
                except Exception as error:
                    report("schedules could not be fired", error)
                    seconds = pause
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    pause = FIRST_PAUSE
                due = await self._rest(seconds)
        finally:
            unwatch()

    async def _rest(self, seconds: float | None) -> bool:
        """Wait until a tick is due, which is returned, or until a schedule may have changed.

        The clock of the event loop stands still while the machine is suspended, so the time of day
        is looked at, too. That asks nothing of the store.
        """
        loop = asyncio.get_running_loop()
        looked = loop.time()
        rest = inf if seconds is None else min(seconds, LONGEST_REST)
        due = self._engine.clock() + rest
        while True:
            until = min(looked + rest, loop.time() + CLOCK_LOOK)
            try:
                async with asyncio.timeout_at(None if seconds is None else until):
                    await self._news.wait()
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(looked + GAP):
                            await self._hurry.wait()
            except TimeoutError:
                if loop.time() >= looked + rest or self._engine.clock() >= due:
                    return True
            else:
                return False

    async def _fire_all(self, *, due: bool) -> float | None:
        """Write what was declared, fire what is due; returns the seconds until the next tick.

        If nothing is known to be `due`, it is counted first: most stores have no schedules, and
        their workers should not claim for them.
        """
        await self.write()
        if not due:
            counts = (await self._store.count([SCHEDULES_QUEUE]))[SCHEDULES_QUEUE]
            if not counts.available:
                return await self._next_tick() if counts.scheduled or counts.in_flight else None
        loop = asyncio.get_running_loop()
        lanes = tuple(self._engine.lanes)
        while lanes and not self._stopped and not self._engine.stopped:
            some = ((SCHEDULES_QUEUE, AT_A_TIME),)
            claim = Claim(some, AT_A_TIME, None, LEASE_TIME, kinds=lanes, holder=this_process())
            [claimed] = await self._store.claim([claim])
            more: list[bool] = []
            if claimed:
                # The clock of the store, from the moment of the claim on.
                moment = (claimed[0].expires_at or 0.0) - LEASE_TIME
                now = partial(_elapsed, loop, moment - loop.time())
                more = [await self._try_to_fire(item, now) for item in claimed]
            if len(claimed) < AT_A_TIME and not any(more):
                break
        return await self._next_tick()

    async def _next_tick(self) -> float | None:
        [seconds] = await self._store.sweep([SCHEDULES_QUEUE])
        return seconds

    async def _try_to_fire(self, item: Claimed, now: Callable[[], float]) -> bool:
        """As `_fire`. A schedule that this worker cannot fire holds up no other, and is left."""
        try:
            return await self._fire(item, now)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, UnstorableError):
                raise  # it passes, and the others could not be fired either
            logger.error(  # noqa: TRY400
                "schedule %r could not be fired here, and is tried again in %g s: %s",
                item.key,
                TRIED_AGAIN,
                error,
            )
        later = Release(SCHEDULES_QUEUE, item.key, item.token, delay=TRIED_AGAIN, undo=True)
        await self._store.settle([later])
        return False

    async def _fire(self, item: Claimed, now: Callable[[], float]) -> bool:
        """Submit the commands of a schedule that is due, and let it wait for its next tick.

        `now` tells the time of the store. Returns whether the next tick is due, too.
        """
        value = item.value
        while True:
            record = read_record(value)
            seen: list[bytes] = []
            due = due_now(item.key, record, now())
            lane = self._engine.lanes.get(record.definition.lane)
            if lane is None:  # it was declared for another lane meanwhile
                due = DueTicks((), record)
            puts = [] if lane is None else self._puts(item.key, lane, due)
            try:
                await self._apply(item, value, due, puts, seen=seen, now=now)
            except _Changed:
                value = seen[0]
                continue
            except Refusal:
                pass  # its lease has expired at this very moment
            return due.record.wait(now()) <= 0.0

    async def _apply(
        self,
        item: Claimed,
        value: bytes,
        due: DueTicks,
        puts: Sequence[tuple[Put, SubmitTerms]],
        *,
        seen: list[bytes],
        now: Callable[[], float],
    ) -> None:
        """Put the commands and move the schedule on, in one step where the store can.

        Raises:
            _Changed: The schedule is another one now; `seen` has its value. Nothing was done.
        """
        name, token = item.key, item.token
        joint = self._store.capabilities.joint_edits
        commands = [put for put, _ in puts]
        answers: list[Answer] = []
        if not joint and commands:
            if now() >= (item.expires_at or 0.0):
                return  # another worker has it by now
            answers = [*await self._store.put(commands)]
            for answer in answers:
                if isinstance(answer, LeasedKeyQError):
                    raise answer

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            if not items or items[0].token != token:
                return []  # the lease has expired: another worker has fired the tick, or does
            if items[0].value != value and joint:
                seen.append(items[0].value)
                raise _Changed
            kept = due.record if items[0].value == value else _merged(items[0].value, due.record)
            wait = kept.wait(now())
            # The release comes first: what may be refused is all that could be undone.
            return [
                Release(SCHEDULES_QUEUE, name, token, delay=wait, undo=True),
                Put(SCHEDULES_QUEUE, ((name, write_record(kept)),), kind=kept.definition.lane),
                *(commands if joint else ()),
            ]

        others = dict.fromkeys(put.queue for put in commands) if joint else ()
        done = await self._store.edit(
            SCHEDULES_QUEUE, work, keys=[name], heads_only=True, others=[*others]
        )
        if joint:
            answers = done[2:]
        if due.omitted and done:
            logger.warning(
                "schedule %r: more than %d ticks were missed; the oldest are left out",
                name,
                MOST_MISSED,
            )
        lane = self._engine.lanes.get(due.record.definition.lane)
        for (put, terms), answer in zip(puts, answers, strict=False):
            if lane is not None and isinstance(answer, tuple) and isinstance(answer[0], Placed):
                self._tell(lane, put, answer[0], terms)

    def _puts(self, name: str, lane: Lane, due: DueTicks) -> list[tuple[Put, SubmitTerms]]:
        """What submits the commands of ticks."""
        definition = due.record.definition
        puts: list[tuple[Put, SubmitTerms]] = []
        for tick in due.ticks:
            delay = random.uniform(0.0, definition.jitter) if definition.jitter else None
            terms = definition.terms(delay)
            if definition.key is None and not self._store.capabilities.joint_edits:
                terms = terms._replace(policy="skip", unique_for=UNIQUE_FOR)
            key = definition.key_of(name, tick)
            puts.append((self._command(lane, key, definition, terms), terms))
        return puts

    def _command(
        self, lane: Lane, key: str, definition: ScheduleDefinition, terms: SubmitTerms
    ) -> Put:
        """What submits a command of a schedule."""
        return schedule_put(
            definition, lane, key, terms, at=self._engine.clock(), limits=self._store.limits
        )

    def _tell(self, lane: Lane, put: Put, place: Placed, terms: SubmitTerms) -> Any:
        """Let this process know of a command that was submitted; returns its job."""
        key = put.items[0][0]
        return self._engine._submitted(lane.partition_of(key), place, key, put.kind, None, terms)


async def clock_offset(store: Store, clock: Callable[[], float]) -> float | None:
    """By how many seconds the clock of a store is ahead of `clock`; None if it did not tell.

    An item that comes and goes leaves a result, which tells when, and is forgotten soon.
    """
    key = f"clock {secrets.token_hex(8)}"
    began = clock()
    answers = await store.edit(
        SCHEDULES_QUEUE,
        lambda _: [
            Put(SCHEDULES_QUEUE, ((key, b"null"),)),
            Cancel(SCHEDULES_QUEUE, key, b"null", CLOCK_KEPT),
        ],
        keys=[key],
    )
    ended = clock()
    placed = answers[0]
    assert isinstance(placed, tuple)
    [result] = await store.results(SCHEDULES_QUEUE, [placed[0].id])
    if result is None or result.ended_at is None:
        return None
    if began <= result.ended_at <= ended:
        return 0.0
    return result.ended_at - (began + ended) / 2


async def change_schedule(
    store: Store,
    name: str,
    change: Callable[[ScheduleRecord], ScheduleRecord],
    now: Callable[[], float],
) -> bool:
    """Change the record of a schedule, in one step; returns whether that made a difference.

    Args:
        store: Where the schedule is.
        name: The schedule.
        change: Makes the new record of the old one.
        now: The time of the store.

    Raises:
        UnknownScheduleError: There is none.
    """

    def work(items: Sequence[StoredItem]) -> list[Put | Change]:
        record = _record(items[0]) if items else None
        if record is None:
            raise _unknown(name)
        changed = change(record)
        if changed == record or encoded(changed) == encoded(record):
            return []
        put = _put(name, changed, now())
        # A worker that is about to fire it has its lease revoked by that.
        return [Cancel(SCHEDULES_QUEUE, name), put] if items[0].token else [put]

    return bool(await store.edit(SCHEDULES_QUEUE, work, keys=[name], heads_only=True))


async def find_record(store: Store, name: str) -> ScheduleRecord:
    """The record of a schedule.

    Raises:
        UnknownScheduleError: There is none.
    """
    [found] = await store.look(SCHEDULES_QUEUE, [name])
    record = _record(found[0]) if found else None
    if record is None:
        raise _unknown(name)
    return record


def schedule_put(
    definition: ScheduleDefinition,
    lane: Lane,
    key: str,
    terms: SubmitTerms,
    *,
    at: float,
    limits: Limits,
) -> Put:
    """What submits a command of a schedule, at the Unix time `at`."""
    envelope = Envelope(
        definition.payload,
        at,
        timeout=definition.timeout,
        after=terms.delay or 0.0,
        coalesces=terms.coalesces,
        unique_for=terms.unique_for,
    )
    kind = definition.command_type
    value = encode_envelope(envelope, kind, key, limits)
    partition = lane.partition_of(key)
    return command_put(partition, ((key, value),), kind, terms, terms.priority)


def hand_run_key(definition: ScheduleDefinition, name: str, now: float) -> str:
    """The key of a command that a schedule submits out of turn."""
    return definition.key or f"{definition.key_of(name, now)}~{secrets.token_hex(4)}"


def write_record(record: ScheduleRecord) -> bytes:
    """A record as the value of its item, in the form of a command, which any `Storage` keeps."""
    return _encoder.encode(Envelope(msgspec.Raw(encoded(record)), record.declared_at))


def read_record(value: bytes) -> ScheduleRecord:
    """The record in the value of an item.

    Raises:
        CommandPayloadError: The value has none.
        msgspec.MsgspecError: It has one of a version that is not known here.
    """
    return decoded(bytes(decode_envelope(value).payload))


def _elapsed(loop: AbstractEventLoop, offset: float) -> float:
    return offset + loop.time()


def _declared(
    name: str, definition: ScheduleDefinition, head: StoredItem | None, now: float
) -> Put:
    """What writes down a schedule that a program has declared."""
    record = None if head is None else _record(head)
    if head is None or record is None:
        return _put(name, new_record(name, definition, now), now)
    declared = declared_again(name, record, definition, now, due=head.state != "scheduled")
    if declared.tick == record.tick:
        return Put(SCHEDULES_QUEUE, ((name, write_record(declared)),), kind=definition.lane)
    return _put(name, declared, now)


def _put(name: str, record: ScheduleRecord, now: float) -> Put:
    """What lets a schedule wait for its next tick."""
    value = write_record(record)
    lane = record.definition.lane
    return Put(SCHEDULES_QUEUE, ((name, value),), delay=record.wait(now), kind=lane)


def _merged(value: bytes, fired: ScheduleRecord) -> ScheduleRecord:
    """What was declared meanwhile, with the ticks that were fired."""
    record = read_record(value)
    return msgspec.structs.replace(record, tick=fired.tick, last=fired.last, runs=fired.runs)


def _record(item: StoredItem) -> ScheduleRecord | None:
    try:
        return read_record(item.value)
    except UNREADABLE as error:
        logger.warning("schedule %s cannot be read: %s", describe(item.key), error)
        return None


def _unknown(name: str) -> UnknownScheduleError:
    return UnknownScheduleError(
        f"there is no schedule {name!r}; await manager.schedules() lists those that there are",
        schedule=name,
    )
