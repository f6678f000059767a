"""The time of a lease counts from the moment in which it is given, however long its batch waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.stores import Ack, Claim, Claimed, Extend, Put, Urgency
from tests.engines.postgres.test_races import one, uncommitted, with_store

LEASE = 5.0
WAIT = 0.6
MARGIN = 0.1
"""Seconds; the clock of the server is that of this machine."""

Asking = Callable[[PostgresStore, Claimed], Awaitable[Any]]

CLAIMS: dict[str, Claim] = {
    "any": Claim((("jobs", 1),), 1, None, LEASE),
    "of a key": Claim((("jobs", 1),), 1, "j", LEASE),
    "of kinds": Claim((("jobs", 1),), 1, None, LEASE, ("",)),
    "of queues": Claim((("jobs", 1), ("other", 1)), 1, None, LEASE),
    "by urgency": Claim(
        (("jobs", 1), ("other", 1)), 1, None, LEASE, urgencies=(Urgency(1), Urgency(2))
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("behind", ["put", "ack", "extend"])
def test_a_lease_that_is_given_after_its_batch_has_waited(claim: str, behind: str) -> None:
    async def test(store: PostgresStore) -> None:
        await store.put([one("k"), Put("jobs", (("j", b"1"),))])
        [[held]] = await store.claim([Claim((("q", 1),), 1, None, 60.0)])
        async with uncommitted(store, one("k", b"2")):
            waiting: Awaitable[Any]
            if behind == "put":
                waiting = store.put([one("k", b"3")])
            elif behind == "ack":
                waiting = store.settle([Ack("q", "k", held.token)])
            else:
                waiting = store.settle([Extend("q", "k", held.token, LEASE)])
            answers = asyncio.gather(waiting, store.claim([CLAIMS[claim]]))
            await asyncio.sleep(WAIT)
            assert not answers.done()
            before = time.time()
        answered: Any = await answers
        [first, [[leased]]] = answered
        assert leased.expires_at is not None
        assert leased.expires_at > before + LEASE - MARGIN
        if behind == "extend":
            assert first[0] > before + LEASE - MARGIN
        assert await store.settle([Ack("jobs", "j", leased.token)]) == [None]

    with_store(test)


def test_a_worker_whose_acks_have_waited() -> None:
    """Acks and a claim of one queue go together, in a function of their own."""

    async def test(store: PostgresStore) -> None:
        await store.put([one("k"), one("j")])
        [[held]] = await store.claim([Claim((("q", 1),), 1, None, 60.0)])
        async with uncommitted(store, one("k", b"2")):
            claim = store.claim([Claim((("q", 1),), 1, None, LEASE)])
            answers = asyncio.gather(store.settle([Ack("q", "k", held.token)]), claim)
            await asyncio.sleep(WAIT)
            assert not answers.done()
            before = time.time()
        [_, [[leased]]] = await answers
        assert leased.expires_at is not None
        assert leased.expires_at > before + LEASE - MARGIN

    with_store(test)
