"""Pauses holders past their leases, and lets them go on to settle.

A round is a store with twenty keys, and a process for each that claims it and is paused: stopped
(SIGSTOP) before it asks, in the midst of its request, or with a blocked event loop. When the leases
are over, others claim what is free, finish it, or put and claim the next value, or nobody does
anything. Then the paused holders go on, and each one's ack, release, extend or bury must be refused
and change nothing. A few go on while their leases last, and must be accepted.
"""

import asyncio
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from leasedkeyq.model.requests import Ack, Claim, Claimed, Put, StoredItem
from leasedkeyq.stores.store import Store
from tests.engines.kill_facts import QUEUE, ClaimDone, Leased, SettleDone
from tests.engines.kill_rounds import PATIENCE, Arena, Life, Site
from tests.torture.part import Findings, Part, Trial
from tests.torture.parts.kills import KINDS

PAUSES: Final = 20
"""In a round, side by side."""
IN_TIME: Final = 2
"""How many of them end before their lease."""
LEASE_TIME: Final = 0.3
LONG: Final = 3600.0
"""Seconds that a lease lasts which must not run out."""
Successor = Literal["nobody", "holds", "is done", "has the next"]
SUCCESSORS: Final[tuple[Successor, ...]] = ("nobody", "holds", "is done", "has the next")
CHANGES: Final = ("ack", "keep", "release", "extend", "bury")
ACCEPTED = "late settles accepted"
DISTURBED = "new holders disturbed"
LOST = "items lost"
REFUSED = "settles in time refused"
FENCES = "fences that did not grow"
FAILED = "holders that failed"


@dataclass
class Pause:
    """One holder, and what happens while it is paused."""

    key: str
    change: str
    late: bool
    door: bool
    blocked: bool
    point: str
    successor: Successor
    holder: Life
    held: Claimed | None = None
    """The lease of the successor, if it has one."""

    def leased(self) -> Leased | None:
        for fact in self.holder.facts():
            if isinstance(fact, ClaimDone):
                return fact.leases[0]
        return None

    def outcome(self) -> bool | None:
        """Whether the settling of the holder was accepted; None without an answer."""
        for fact in self.holder.facts():
            if isinstance(fact, SettleDone):
                return fact.accepted
        return None

    def __str__(self) -> str:
        how = "blocked its event loop" if self.blocked else f"was stopped {self.point}"
        door = "a queue" if self.door else "the store"
        return (
            f"{self.key}: {self.change} by {door}, the holder {how}, its successor {self.successor}"
        )


def run(trial: Trial) -> Findings:
    found = Findings()
    with Site(KINDS[trial.engine], trial.folder) as site:
        for seed in trial.seeds:
            try:
                with site.arena(seed) as arena:
                    asyncio.run(try_round(arena, seed, found))
            except Exception:
                found.violation(FAILED, seed, traceback.format_exc())
                site.begin_anew()
            else:
                for complaint in arena.complaints:
                    found.violation(FAILED, seed, complaint.words)
    return found


async def try_round(arena: Arena, seed: int, found: Findings) -> None:
    store = arena.open()
    keys = [f"k{number}" for number in range(PAUSES)]
    await store.put([Put(QUEUE, tuple((key, b'"first"') for key in keys))])
    go_on = arena.folder / "go on"
    # Whoever claims expires all leases of the queue that have run out. In one round of three nobody
    # does: a late request must be refused because of the time alone.
    successors = SUCCESSORS[:1] if seed % 3 == 0 else SUCCESSORS
    pauses = [
        begin(arena, key, go_on, successors if number >= IN_TIME else ())
        for number, key in enumerate(keys)
    ]
    for pause in pauses:
        await until_paused(arena, pause)
    await until_late(arena, pauses)
    for pause in pauses:
        if pause.late:
            await succeed(store, pause, seed, found)
    go_on.touch()
    for pause in pauses:
        if not pause.blocked:
            pause.holder.send(signal.SIGCONT)
    for pause in pauses:
        status = arena.wait(pause.holder)
        if status.stopped or status.code:
            found.violation(FAILED, seed, f"{pause}: {status}")
    for pause in pauses:
        await check(store, pause, seed, found)
        found.tried += pause.late
    await store.close()


# The pause


def begin(arena: Arena, key: str, go_on: Path, successors: Sequence[Successor]) -> Pause:
    """Start a holder; without successors, it goes on while its lease lasts."""
    dice = arena.dice
    late = bool(successors)
    door = dice.random() < 0.4
    change = dice.choice(("ack", "release", "extend") if door else CHANGES)
    blocked = dice.random() < 0.25
    point = "" if blocked else dice.choice(points_of(arena, change))
    holder = arena.start(
        "holder",
        key=key,
        change=change,
        door=door,
        lease_time=LEASE_TIME if late else LONG,
        point=point,
        until=str(go_on) if blocked else "",
        signal=signal.SIGSTOP,
    )
    successor = dice.choice(successors) if late else "nobody"
    return Pause(key, change, late, door, blocked, point, successor, holder)


def points_of(arena: Arena, change: str) -> tuple[str, ...]:
    """Where a holder is stopped that has not asked yet, or not to the end."""
    points = ("before asking", "before applying")
    if not arena.on_server:
        return points
    verb = "ack" if change == "keep" else change
    return (*points, f"before sending {verb}", f"halfway through {verb}")


async def until_paused(arena: Arena, pause: Pause) -> None:
    if not pause.blocked:
        status = arena.wait(pause.holder)
        assert status.stopped, (status, pause)
        return
    deadline = time.monotonic() + PATIENCE
    while pause.leased() is None:
        assert time.monotonic() < deadline, pause
        await asyncio.sleep(0.005)


async def until_late(arena: Arena, pauses: list[Pause]) -> None:
    leases = [pause.leased() for pause in pauses if pause.late]
    latest = max((lease.expires_at for lease in leases if lease is not None), default=0.0)
    while arena.clock() < latest + 0.002:
        await asyncio.sleep(latest + 0.002 - arena.clock())


# The others


async def claim(store: Store, key: str) -> Claimed | None:
    (claimed,) = await store.claim([Claim(((QUEUE, 1),), 1, key, LONG)])
    return claimed[0] if claimed else None


async def ack(store: Store, item: Claimed) -> bool:
    return await store.settle([Ack(QUEUE, item.key, item.token)]) == [None]


async def succeed(store: Store, pause: Pause, seed: int, found: Findings) -> None:
    """Do with the item what the successor does while the holder is paused."""
    if pause.successor == "nobody":
        return
    item = await claim(store, pause.key)
    if item is None or item.value != b'"first"':
        found.violation(LOST, seed, f"{pause}: {item} after the lease of the holder")
        return
    before = pause.leased()
    if before is None or item.fence <= before.fence:
        found.violation(FENCES, seed, f"{pause}: {item} after {before}")
    pause.held = item
    if pause.successor == "holds":
        return
    if not await ack(store, item):
        found.violation(DISTURBED, seed, f"{pause}: the ack of the successor was refused")
    pause.held = None
    if pause.successor == "has the next":
        await store.put([Put(QUEUE, ((pause.key, b'"second"'),))])
        pause.held = await claim(store, pause.key)
        if pause.held is None:
            found.violation(LOST, seed, f"{pause}: the second value cannot be claimed")


# Afterwards


async def check(store: Store, pause: Pause, seed: int, found: Findings) -> None:
    accepted = pause.outcome()
    if accepted is None:
        found.violation(FAILED, seed, f"{pause}: no answer")
        return
    if not pause.late:
        found.counted["settles in time"] += 1
        await check_in_time(store, pause, accepted, seed, found)
        return
    if accepted:
        found.violation(ACCEPTED, seed, f"{pause}")
    found.counted[f"late by {pause.change}"] += 1
    found.counted["blocked event loops" if pause.blocked else "stopped processes"] += 1
    (items,) = await store.look(QUEUE, [pause.key])
    if pause.held is not None:
        if not await ack(store, pause.held):
            found.violation(DISTURBED, seed, f"{pause}: its ack was refused, there is {items}")
    elif pause.successor == "is done":
        if waiting(items):
            found.violation(DISTURBED, seed, f"{pause}: it is back: {items}")
    elif pause.successor == "nobody":
        item = await claim(store, pause.key)
        if item is None or (item.value, item.attempt) != (b'"first"', 2):
            found.violation(LOST, seed, f"{pause}: {item} in place of the first value")


async def check_in_time(
    store: Store, pause: Pause, accepted: bool, seed: int, found: Findings
) -> None:
    (items,) = await store.look(QUEUE, [pause.key])
    expected = {"release": ["available"], "extend": ["in_flight"]}.get(pause.change, [])
    if not accepted or waiting(items) != expected:
        found.violation(REFUSED, seed, f"{pause}: there is {items}")


def waiting(items: tuple[StoredItem, ...]) -> list[str]:
    """The states of those that are neither done nor given up."""
    return [item.state for item in items if item.state not in ("done", "buried")]


PART = Part(
    name="pauses",
    title="Holders paused past their leases that go on to settle",
    unit="pauses",
    amounts=dict.fromkeys(KINDS, 56),
    slice={"sqlite": 3, "file": 1, "redis": 1},
    run=run,
    wrong=(ACCEPTED, DISTURBED, LOST, REFUSED, FENCES, FAILED),
    note=(
        f"Stopped with SIGSTOP or with a blocked event loop, for longer than their leases of "
        f"{LEASE_TIME:g} s. Beside them, some go on in time, and must be accepted."
    ),
)
