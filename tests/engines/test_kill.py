"""Processes that stop with the lock of a store, or die while they create it.

Stopping and killing them in numbers: the parts `kills` and `pauses` of `tests.torture`.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from leasedkeyq.model.requests import Ack, Claim, Claimed, Put
from leasedkeyq.stores.store import Store
from tests.engines.kill_facts import (
    QUEUE,
    ClaimDone,
    Leased,
    PutAsked,
    SettleDone,
    clock,
)
from tests.engines.kill_rounds import Arena, Kind, Life

KINDS = pytest.mark.parametrize("kind", ["sqlite-full", "yaml"])
APART = 1 if os.environ.get("TORTURE") == "1" else 3
"""Of so many statements that create a database, a process is killed at one."""
LEASE_TIME = 0.1
IN_TIME = 2.0
"""The lease of a holder that has to settle before it expires, however busy the machine is."""


# Stopped past the lease


def leased(life: Life) -> Leased:
    for fact in life.facts():
        if isinstance(fact, ClaimDone):
            return fact.leases[0]
    raise AssertionError("nothing was claimed")


def outcome(life: Life) -> bool:
    """Whether the settling of a holder was accepted."""
    (fact,) = (fact for fact in life.facts() if isinstance(fact, SettleDone))
    return fact.accepted


async def claim(store: Store) -> Claimed:
    (claimed,) = await store.claim([Claim(((QUEUE, 1),), 1, None, 3600.0)])
    (item,) = claimed
    return item


async def ack(store: Store, item: Claimed) -> None:
    assert await store.settle([Ack(QUEUE, item.key, item.token)]) == [None]


def stop_a_holder(arena: Arena, change: str, point: str, lease_time: float = LEASE_TIME) -> Life:
    """A process that has a lease is stopped until the lease has expired."""
    holder = arena.start(
        "holder", lease_time=lease_time, change=change, point=point, signal=signal.SIGSTOP
    )
    assert arena.wait(holder).stopped
    time.sleep(max(leased(holder).expires_at - clock(), 0.0) + 0.001)
    return holder


def go_on(arena: Arena, holder: Life) -> None:
    holder.send(signal.SIGCONT)
    status = arena.wait(holder)
    assert (status.stopped, status.code) == (False, 0)


@KINDS
def test_whoever_was_stopped_with_the_lock_is_refused_if_it_had_not_looked_at_the_clock(
    kind: Kind,
) -> None:
    async def scenario(arena: Arena, change: str) -> None:
        store = arena.open()
        await store.put([Put(QUEUE, (("a", b'"first"'),))])
        holder = stop_a_holder(arena, change, "with the lock")
        waiting = asyncio.create_task(claim(store))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        go_on(arena, holder)
        assert outcome(holder) is False
        await ack(store, await waiting)
        await store.close()

    with Arena(kind) as arena:
        for change in ("ack", "keep", "release", "bury"):
            asyncio.run(scenario(arena, change))


@pytest.mark.parametrize(
    "kind, points",
    [
        ("sqlite-full", ["before write", "after write", "before COMMIT"]),
        (
            "yaml",
            ["before write copy", "before rename copy", "before rename new", "after sync folder"],
        ),
    ],
)
def test_whoever_was_stopped_in_the_midst_of_its_write_has_settled_in_time(
    kind: Kind, points: list[str]
) -> None:
    """It holds the lock, so nobody else can have had the item meanwhile."""

    async def scenario(arena: Arena, point: str) -> None:
        store = arena.open()
        await store.put([Put(QUEUE, (("a", b'"first"'),))])
        holder = stop_a_holder(arena, "ack", point, IN_TIME)
        waiting = asyncio.create_task(store.claim([Claim(((QUEUE, 1),))]))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        go_on(arena, holder)
        assert outcome(holder) is True
        assert await waiting == [()]
        await store.close()

    with Arena(kind) as arena:
        for point in points:
            asyncio.run(scenario(arena, point))


# Killed while it creates the file


def test_killed_at_each_statement_that_creates_a_database() -> None:
    with Arena("sqlite-full") as arena:
        count = 0
        while True:
            count += APART
            life = arena.start(
                "requests", point="before any statement", count=count, signal=signal.SIGKILL
            )
            arena.dies(life)
            arena.inspect()
            for suffix in ("", "-wal", "-shm"):
                Path(f"{arena.path}{suffix}").unlink(missing_ok=True)
            if any(isinstance(fact, PutAsked) for fact in life.facts()):
                break
    assert count > 20
