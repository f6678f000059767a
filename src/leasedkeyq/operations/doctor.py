"""What goes wrong with a store and its workers, and what to do about it: `examine`.

A store tells about itself by `Store.diagnose`. What this module adds can be seen by the contract
and by what workers tell: leases, keys, lanes, types of commands and schedules. It looks at a
bounded number of items, and changes nothing.
"""

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from leasedkeyq import __version__
from leasedkeyq.connect import connect
from leasedkeyq.errors import LeasedKeyQError, StoreDamagedError, StoreError
from leasedkeyq.lanes.durable.envelope import decode_envelope
from leasedkeyq.lanes.durable.schedules import SCHEDULES_QUEUE, UNREADABLE, read_record
from leasedkeyq.lanes.errors import CommandPayloadError
from leasedkeyq.model.findings import SEVERITIES, Finding, Severity
from leasedkeyq.model.requests import Counts, StoredItem, StoredState
from leasedkeyq.operations.items.burying import BURYING
from leasedkeyq.operations.live.series import SeriesReader
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.store_layout import is_internal
from leasedkeyq.operations.views import LaneView, ScheduleView, WorkerView
from leasedkeyq.stores.store import Store

MOST_ITEMS: Final = 1000
"""Items of a queue in one state that are looked at."""
MOST_QUEUES: Final = 1000
"""Queues of which items are looked at: those with the most items."""
MOST_CLOCKED: Final = 20
"""Queues whose newest items are looked at for times in the future: a clock is that of a store."""
MOST_NAMED: Final = 3
"""Keys, types or queues that a finding names."""
LATE_TICK: Final = 60.0
"""Seconds after which a tick that has not fired is missed."""
DECLARED_BEFORE: Final = 60.0
"""Seconds by which a schedule was declared before every worker started that no program declares."""
CLOCK_BACK: Final = 60.0
"""Seconds by which items may have been put in the future."""
FULL_SHARE: Final = 0.9
"""The share of the dead letters that a queue keeps from which on it is full soon."""
GROWTH_SPAN: Final = 1800.0
GROWTH_LOOKS: Final = 6
GROWTH_FACTOR: Final = 1.5
GROWTH_LEAST: Final = 100
"""A lane only grows if, over this span in so many looks, it never got shorter, and has grown by
this factor and so many commands."""
LARGEST_PROCESS: Final = 2**31 - 1
"""The number of a process is at most this."""
MOST_TYPES: Final = 1000
"""A worker with so many command types may know others that it does not tell of."""


async def examine_url(
    url: str, options: Mapping[str, Any] | None = None, *, look_again: float = 0.0
) -> list[Finding]:
    """As `examine`, of a store that is opened for it, without a migration.

    A store that cannot be opened is a finding, too. What is wrong with the URL or the options
    themselves is raised as by `connect`.

    Args:
        url: What to open.
        options: What else the store is told.
        look_again: As in `examine`.
    """
    try:
        # Opening may wait for a server.
        store = await asyncio.to_thread(_open, url, dict(options or {}))
    except StoreError as error:
        return [_out_of_reach(str(error), "")]
    async with store:
        return await examine(store, look_again=look_again)


def _open(url: str, options: dict[str, Any]) -> Store:
    return connect(url, migrate=False, **options)


async def examine(
    store: Store, *, look_again: float = 0.0, clock: Callable[[], float] = time.time
) -> list[Finding]:
    """What is wrong with a store and its workers, the worst first.

    Args:
        store: The store. A store that fails meanwhile is a finding, and no error.
        look_again: Seconds after which queues are counted a second time, to see which ones only
            grow; 0: they are not. Lanes whose workers have kept minute values are seen without.
        clock: Unix time.
    """
    found: list[Finding] = []
    try:
        found += await store.diagnose()
        outdated = await _of_schema(store)
        if outdated is None:
            found += await _StoreExamination(store, clock).run(look_again)
        else:
            found.append(outdated)
    except StoreDamagedError as error:
        found.append(_damaged(error))
    except StoreError as error:
        found.append(_out_of_reach(str(error), store.name))
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _out_of_reach(what: str, where: str) -> Finding:
    return Finding(
        code="store-out-of-reach",
        severity="error",
        what=what,
        where=where,
        advice="see that the server runs, that the URL and its password are right, and that the "
        "network lets this machine through",
    )


def _damaged(error: StoreDamagedError) -> Finding:
    return Finding(
        code="queue-damaged",
        severity="error",
        what=str(error),
        where=f"queue {error.queue}" if error.queue else "",
        advice="call RedisStore.repair(queue), and find out who removes keys of the store",
    )


async def _of_schema(store: Store) -> Finding | None:
    state = await store.schema_state()
    if state is None or not state.outdated:
        return None
    if not state.version:
        return Finding(
            code="schema-missing",
            severity="note",
            what="there is nothing in the store yet",
            where=store.name,
            advice="start a worker, or run leasedkeyq migrate",
        )
    return Finding(
        code="schema-old",
        severity="warning",
        what=f"what is stored is of version {state.version}, and this leasedkeyq works with "
        f"version {state.wanted}: items were not looked at",
        where=store.name,
        advice="run leasedkeyq migrate, which shows what would change; programs of an older "
        "version may not be able to use the store then",
    )


class _StoreExamination:
    """One look at a store that can be used."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._operator = Operator(store, clock=clock)
        self._found: list[Finding] = []

    def _add(self, code: str, severity: Severity, what: str, where: str, advice: str) -> None:
        self._found.append(
            Finding(code=code, severity=severity, what=what, where=where, advice=advice)
        )

    async def run(self, look_again: float) -> list[Finding]:
        counts = await self._store.count()
        queues = [name for name in counts if not is_internal(name)]
        await self._sweep(queues)
        heads = dict(zip(queues, await self._store.heads(queues), strict=True)) if queues else {}
        workers = await self._operator.workers()
        lanes = await self._lanes_in_use(heads)
        largest = sorted(queues, key=lambda name: -_all_of(counts[name]))[:MOST_QUEUES]
        for name in sorted(largest):
            await self._of_queue(name, counts[name], workers)
        await self._of_clock(largest[:MOST_CLOCKED])
        for lane in lanes:
            await self._of_lane(lane, workers)
        await self._of_schedules(workers)
        self._of_workers(workers)
        grown = await self._of_series(lanes)
        if look_again > 0:
            await self._of_growth(counts, heads, look_again, grown)
        return self._found

    async def _sweep(self, queues: Sequence[str]) -> None:
        """See whether what is stored fits together: a store that can tell does so when it sweeps.

        Raises:
            StoreError: The store is out of reach.
        """
        try:
            await self._store.sweep(queues)
        except StoreDamagedError:
            for queue in queues:
                try:
                    await self._store.sweep([queue])
                except StoreDamagedError as error:
                    self._found.append(_damaged(error))

    async def _lanes_in_use(self, heads: Mapping[str, StoredItem | None]) -> list[LaneView]:
        """The lanes that workers have told of, and the queues whose next item is a command."""
        return [
            lane
            for lane in await self._operator.lanes()
            if lane.seen_at is not None
            or any(_is_command(heads.get(queue)) for queue in lane.queues)
        ]

    async def _page(self, queue: str, state: StoredState) -> tuple[StoredItem, ...]:
        page = await self._store.browse(queue, states=(state,), limit=MOST_ITEMS)
        return page.items

    # Queues

    async def _of_queue(self, queue: str, counts: Counts, workers: Sequence[WorkerView]) -> None:
        where = f"queue {queue}"
        if counts.in_flight:
            self._of_leases(where, await self._page(queue, "in_flight"), workers)
        if counts.held:
            buried = await self._page(queue, "buried")
            keys = list(dict.fromkeys(item.key for item in buried if item.holds))
            self._add(
                "key-held",
                "warning",
                f"{_counted(counts.held, 'item waits', 'items wait')} behind dead letters that "
                f"hold their keys: {_named(keys)}",
                where,
                f"look at the dead letters (leasedkeyq list {queue} --state buried), and requeue "
                "or remove each of them: then its line goes on",
            )
        most = self._store.limits.buried
        if most and counts.buried >= FULL_SHARE * most:
            self._add(
                "dead-letters-full",
                "warning",
                f"{counts.buried:,} dead letters are kept, of at most {most:,}: beyond that the "
                "oldest is dropped",
                where,
                f"requeue or purge them (leasedkeyq requeue-all {queue}), or raise Limits.buried",
            )

    async def _of_clock(self, queues: Sequence[str]) -> None:
        ahead, where = 0.0, ""
        for queue in queues:
            newest = await self._store.browse(queue, limit=1, newest_first=True)
            for item in newest.items:
                if item.put_at - self._clock() > ahead:
                    ahead, where = item.put_at - self._clock(), queue
        if ahead > CLOCK_BACK:
            self._add(
                "clock-back",
                "warning",
                f"items were put {ahead:,.0f} s in the future: the clock by which they were put "
                "was set back, or is not that of this machine",
                f"queue {where}",
                "set the clocks by NTP; leases and schedules of that time last longer by as much",
            )

    def _of_leases(
        self, where: str, items: Iterable[StoredItem], workers: Sequence[WorkerView]
    ) -> None:
        endless: list[str] = []
        orphaned: list[str] = []
        stuck: list[str] = []
        for item in items:
            gone = _is_gone(item.holder, workers)
            if item.due is None:
                (stuck if gone else endless).append(item.key)
            elif gone:
                orphaned.append(item.key)
        if stuck:
            self._add(
                "lease-stuck",
                "error",
                f"{len(stuck):,} leases never end, and their holders are gone: {_named(stuck)}",
                where,
                "release them (leasedkeyq release); give leases a time, so that they expire",
            )
        if orphaned:
            self._add(
                "lease-without-holder",
                "note",
                f"the holders of {len(orphaned):,} leases are gone: {_named(orphaned)}",
                where,
                "nothing: they expire by themselves; leasedkeyq release ends them now",
            )
        if endless:
            self._add(
                "lease-without-expiry",
                "warning",
                f"{len(endless):,} leases never end by themselves: {_named(endless)}",
                where,
                "give leases a time (lease_timeout=, default_lease_timeout=): the items of a "
                "holder that dies stay leased otherwise",
            )

    # Lanes

    async def _of_lane(self, lane: LaneView, workers: Sequence[WorkerView]) -> None:
        where = f"lane {lane.name}"
        serving = [worker for worker in workers if worker.id in lane.workers]
        waiting = lane.available
        if not serving and waiting:
            since = "" if lane.oldest is None else f", for {lane.oldest:,.0f} s at most"
            self._add(
                "lane-without-workers",
                "error",
                f"{waiting:,} commands wait{since}, and no living worker runs the lane",
                where,
                "start a worker with this lane (leasedkeyq worker), or move the commands",
            )
        if lane.paused and waiting:
            self._add(
                "lane-paused",
                "note",
                f"the lane is paused, and {waiting:,} commands wait",
                where,
                f"leasedkeyq resume {lane.name}, if that is not meant so",
            )
        known = {kind for worker in serving for kind in worker.types}
        complete = bool(serving) and all(len(worker.types) < MOST_TYPES for worker in serving)
        unknown: Counter[str] = Counter()
        unreadable: list[str] = []
        half_buried: list[str] = []
        for queue in lane.queues if waiting else ():
            for item in await self._page(queue, "available"):
                if item.kind.startswith(BURYING):
                    half_buried.append(item.key)
                if item.kind.startswith("leasedkeyq."):
                    continue  # an item on its way elsewhere
                if not _is_command(item):
                    unreadable.append(item.key)
                elif complete and item.kind not in known:
                    unknown[item.kind] += 1
        if unknown:
            self._add(
                "type-unknown",
                "error",
                f"no living worker of the lane knows the types of {unknown.total():,} commands: "
                f"{_named([*unknown])}",
                where,
                "deploy workers that register these types, or remove the commands",
            )
        if half_buried:
            self._add(
                "command-half-buried",
                "warning",
                f"somebody has begun to bury {len(half_buried):,} commands, and may have died "
                f"meanwhile: {_named(half_buried)}",
                where,
                f"leasedkeyq bury {lane.name} KEY finishes it, and requeue takes it back then",
            )
        if unreadable:
            self._add(
                "command-undecodable",
                "error",
                f"{_counted(len(unreadable), 'item is no command', 'items are no commands')} that "
                "this leasedkeyq can read: "
                f"{_named(unreadable)}",
                where,
                "put commands by submit, not by put; upgrade leasedkeyq if a newer version has "
                "submitted them; remove them otherwise",
            )

    async def _of_series(self, lanes: Sequence[LaneView]) -> set[str]:
        """The lanes whose minute values say that they only grow; returns their queues."""
        reader = SeriesReader(self._store, clock=self._clock)
        try:
            await reader.refresh()
        except LeasedKeyQError:
            return set()  # the store keeps none
        grown: set[str] = set()
        known = set(reader.lanes())
        for lane in lanes:
            if lane.name not in known:
                continue
            series = reader.lane(lane.name, since=self._clock() - GROWTH_SPAN)
            looks = [waiting for waiting in series.waiting if waiting is not None]
            if only_grows(looks):
                grown.update(lane.queues)
                self._grows(
                    f"lane {lane.name}",
                    f"{looks[0]:,} commands waited half an hour ago, and {looks[-1]:,} wait now; "
                    "the number never fell meanwhile",
                )
        return grown

    def _grows(self, where: str, what: str) -> None:
        self._add(
            "queue-grows",
            "warning",
            what,
            where,
            "start more workers, raise max_concurrency, or submit less",
        )

    async def _of_growth(
        self,
        before: Mapping[str, Counts],
        heads: Mapping[str, StoredItem | None],
        seconds: float,
        told: set[str],
    ) -> None:
        """Look a second time: a queue that got longer, and whose next item is still the same."""
        await asyncio.sleep(seconds)
        queues = [name for name in heads if name not in told]
        if not queues:
            return
        after = await self._store.count(queues)
        later = await self._store.heads(queues)
        for queue, head in zip(queues, later, strict=True):
            first = heads[queue]
            was, now = before[queue].available, after.get(queue, Counts()).available
            if now > was and first is not None and head is not None and head.id == first.id:
                self._grows(
                    f"queue {queue}",
                    f"{_counted(was, 'item', 'items')} waited, and {now:,} did {seconds:g} s "
                    "later: nothing was taken out meanwhile",
                )

    # Schedules and workers

    async def _of_schedules(self, workers: Sequence[WorkerView]) -> None:
        now = self._clock()
        alive = [worker for worker in workers if worker.alive]
        for schedule in await self._operator.schedules():
            where = f"schedule {schedule.name}"
            late = now - schedule.next_runs[0] if schedule.next_runs else 0.0
            if late > LATE_TICK + schedule.jitter:
                self._add(
                    "schedule-missed",
                    "error",
                    f"its tick of {late:,.0f} s ago has not fired",
                    where,
                    "no worker fires schedules of its lane: start one with the lane "
                    f"{schedule.lane!r}, or see in the log of the workers why they cannot",
                )
            if _is_undeclared(schedule, alive):
                self._add(
                    "schedule-undeclared",
                    "note",
                    "no program has declared it since the workers started that run now, and it "
                    "still fires",
                    where,
                    "remove it (manager.schedules.remove), if no program is to declare it any more",
                )
        unreadable: list[str] = []
        for item in await self._page(SCHEDULES_QUEUE, "scheduled"):
            try:
                read_record(item.value)
            except UNREADABLE:
                unreadable.append(item.key)
        if unreadable:
            self._add(
                "schedule-undecodable",
                "error",
                f"schedules that this leasedkeyq cannot read: {_named(unreadable)}",
                f"queue {SCHEDULES_QUEUE}",
                "upgrade leasedkeyq if a newer version has declared them; declare them anew",
            )

    def _of_workers(self, workers: Sequence[WorkerView]) -> None:
        alive = [worker for worker in workers if worker.alive]
        newest = max([_version(worker.version) for worker in alive] + [_version(__version__)])
        for worker in alive:
            where = f"worker {worker.id} (process {worker.pid} on {worker.host})"
            if _version(worker.version) < newest:
                self._add(
                    "worker-old",
                    "note",
                    f"it runs leasedkeyq {worker.version or 'of unknown version'}, older than the "
                    "newest here",
                    where,
                    "upgrade and restart it",
                )
            if worker.blocked is not None:
                self._add(
                    "worker-blocked",
                    "warning",
                    f"its event loop has been blocked for {worker.blocked:,.0f} s: it starts "
                    "nothing new",
                    where,
                    "see in its log which command blocks it; let commands that compute run in a "
                    'thread (a plain def) or in a process (run_in="process")',
                )
        for worker in workers:
            if not worker.alive:
                self._add(
                    "worker-died",
                    "note",
                    "the worker died without saying so: its commands run again elsewhere when "
                    "their leases expire",
                    f"worker {worker.id} (process {worker.pid} on {worker.host})",
                    "find out why: memory, a kill, a crash of its machine",
                )


def only_grows(looks: Sequence[int]) -> bool:
    """Whether numbers of waiting commands, one for each look, never fall and grow by much."""
    if len(looks) < GROWTH_LOOKS:
        return False
    falls = any(later < earlier for earlier, later in pairwise(looks))
    growth = looks[-1] - looks[0]
    return not falls and growth >= GROWTH_LEAST and looks[-1] >= GROWTH_FACTOR * looks[0]


def _all_of(counts: Counts) -> int:
    return counts.available + counts.scheduled + counts.in_flight + counts.buried + counts.held


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    shown = ", ".join(repr(name) for name in names[:MOST_NAMED])
    return f"{shown} and {more:,} more" if more > 0 else shown


def _is_command(item: StoredItem | None) -> bool:
    if item is None or not item.kind:
        return False
    try:
        decode_envelope(item.value)
    except CommandPayloadError:
        return False
    return True


def _is_gone(holder: str, workers: Sequence[WorkerView]) -> bool:
    """Whether the process that holds a lease has ended, as far as can be told from here."""
    host, _, number = holder.rpartition(":")
    # A holder is any text that a program chose, and not every number is that of a process.
    if not host or not number.isdecimal() or int(number) > LARGEST_PROCESS:
        return False
    pid = int(number)
    known = [worker.alive for worker in workers if (worker.host, worker.pid) == (host, pid)]
    if known:
        return not any(known)
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it is somebody else's, and lives
    return False


def _is_undeclared(schedule: ScheduleView, alive: Sequence[WorkerView]) -> bool:
    if schedule.declared_at is None or not alive:
        return False
    first = min(worker.started_at for worker in alive)
    return schedule.declared_at + DECLARED_BEFORE < first


def _version(text: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
