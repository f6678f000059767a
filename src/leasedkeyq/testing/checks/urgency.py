"""Claims over several queues by urgency, and the deadlines that they go by.

Which share of a deadline lifts an item by how much, the random checks compare.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from leasedkeyq.model.requests import (
    Bury,
    Cancel,
    Cap,
    Claim,
    Claimed,
    Put,
    Release,
    Requeue,
    Urgency,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import processes
from leasedkeyq.testing.shorthand import (
    LONG,
    SHORT,
    claim,
    claim_one,
    everything,
    next_items,
    of_key,
    one,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check

AT_ONCE: Final = ((1.0, 5),)
"""Steps that lift whatever has a deadline."""
SLOWLY: Final = 1 / LONG
PROCESSES: Final = 2
ROUNDS: Final = 5


def put(queue: str, *keys: str, **options: Any) -> Put:
    """A put of some keys."""
    return Put(queue, tuple((key, b"1") for key in keys), **options)


def by_urgency(urgencies: dict[str, Urgency], limit: int, most: int = 99, **options: Any) -> Claim:
    """A claim over these queues, of up to `most` items in each of them."""
    queues = tuple((queue, most) for queue in urgencies)
    return Claim(queues, limit, None, LONG, urgencies=tuple(urgencies.values()), **options)


def keys_of(items: Sequence[Claimed]) -> list[str]:
    """The keys of what was leased, in order."""
    return [item.key for item in items]


def moments(items: Sequence[Any]) -> list[bool]:
    """Which of the items have a deadline."""
    return [item.deadline is not None for item in items]


class UrgencyChecks(Suite):
    """The store itself decides who is the most urgent, when it leases."""

    @check
    async def test_the_most_urgent_of_several_queues_is_next(self, store: Store) -> None:
        """For each item anew; the lower priority goes first, then what was put first."""
        await store.put([put("y", "y1"), put("x", "x1"), put("y", "y2"), put("z", "z1")])
        await store.put([put("x", "x2", "x3")])
        alike = {queue: Urgency(7) for queue in ("x", "absent", "y", "z")}
        claimed = await claim(store, by_urgency(alike, 4))
        assert keys_of(claimed) == ["y1", "x1", "y2", "z1"]
        by_queue = sorted(claimed, key=lambda item: item.queue)
        assert by_queue == sorted(claimed, key=lambda item: (item.queue, item.fence))
        await store.put([put("y", "y3", "y4", "y5"), put("z", "z2", "z3")])
        some = {"x": Urgency(1), "y": Urgency(-1), "z": Urgency(0)}
        assert keys_of(await claim(store, by_urgency(some, 4, 2))) == ["y3", "y4", "z2", "z3"]
        assert keys_of(await claim(store, by_urgency(some, 9))) == ["y5", "x2", "x3"]

    @check
    async def test_a_deadline_lifts_a_queue_above_others(self, store: Store) -> None:
        """That of an item, or that of the queue."""
        await store.put([put("low", "a"), put("high", "c", "d", "e")])
        queues = {"low": Urgency(9, steps=AT_ONCE), "high": Urgency(5)}
        assert keys_of(await claim(store, by_urgency(queues, 1))) == ["c"]
        lifted = queues | {"low": Urgency(9, LONG, AT_ONCE)}
        assert keys_of(await claim(store, by_urgency(lifted, 1))) == ["a"]
        # It is up five levels, which is not enough; without steps it is up none.
        await store.put([put("low", "b", deadline=LONG)])
        assert keys_of(await claim(store, by_urgency(queues | {"high": Urgency(3)}, 1))) == ["d"]
        await store.put([put("high", "f")])
        assert keys_of(await claim(store, by_urgency(queues | {"low": Urgency(9)}, 1))) == ["e"]
        assert keys_of(await claim(store, by_urgency(queues, 9))) == ["b", "f"]

    @check
    async def test_a_deadline_brings_an_item_forward_in_its_queue(self, store: Store) -> None:
        """By turns as in order; the nearest first, and only if it is up more than the first."""
        await store.put([put("q", *(f"p{n}" for n in range(9)), priority=3)])
        await store.put([put("q", "far", deadline=3 * LONG), put("q", "near", deadline=LONG)])
        await store.put([put("q", "late", deadline=0.0), put("q", "later", deadline=0.0)])
        await store.put([put("q", "last")])
        nothing = {"q": Urgency(0)}
        assert keys_of(await claim(store, by_urgency(nothing, 1))) == ["p0"]
        assert keys_of(await claim(store, next_items())) == ["p1"]
        past = {"q": Urgency(0, steps=((0.001, 1),))}
        assert keys_of(await claim(store, by_urgency(past, 3, in_order=True))) == [
            "late",
            "later",
            "p2",
        ]
        both = {"q": Urgency(0, steps=AT_ONCE)}
        assert keys_of(await claim(store, by_urgency(both, 1))) == ["near"]
        # Those without a deadline of their own have that of the queue: they are up as much.
        alike = {"q": Urgency(0, 2 * LONG, AT_ONCE)}
        assert keys_of(await claim(store, by_urgency(alike, 1, in_order=True))) == ["p3"]
        of_key_far = Claim((("q", 1),), 1, "p8", LONG, urgencies=(both["q"],), in_order=True)
        assert keys_of(await claim(store, of_key_far)) == ["p8"]
        rest = ["far", "p4", "p5", "p6", "p7", "last"]
        assert keys_of(await claim(store, by_urgency(both, 9, in_order=True))) == rest

    @check
    async def test_in_order_the_queues_come_one_after_the_other(self, store: Store) -> None:
        """Whatever is urgent in the second one; each brings its own forward."""
        await store.put([put("a", "a1", "a2", "a3"), put("b", "b1", "b2")])
        await store.put([put("a", "a4", deadline=LONG), put("b", "b3", deadline=0.0)])
        queues = {"a": Urgency(5, steps=AT_ONCE), "b": Urgency(0, steps=AT_ONCE)}
        request = by_urgency(queues, 4, 3, in_order=True)
        assert keys_of(await claim(store, request)) == ["a4", "a1", "a2", "b3"]
        assert keys_of(await claim(store, request)) == ["a3", "b1", "b2"]

    @check
    async def test_what_is_brought_forward_may_be_leased(self, store: Store) -> None:
        """It is of the right kind, has room under caps, and takes a token."""
        await store.put([put("q", *(f"x{n}" for n in range(6)))])
        await store.put([put("q", "other", kind="mail", deadline=0.0)])
        await store.put([put("q", "full", "k1", "k2", "k3", deadline=LONG)])
        queues = {"q": Urgency(0, steps=AT_ONCE)}
        caps = Cap("q", "full", in_flight=0), Cap("q", "k*", rate=SLOWLY, burst=2)
        for in_order in (True, False):
            wanted = by_urgency(queues, 2, kinds=("",), caps=caps, in_order=in_order)
            expected = ["k1", "k2"] if in_order else ["x0", "x1"]
            assert keys_of(await claim(store, wanted)) == expected
        busy = (Cap("q", in_flight=6),)
        assert keys_of(await claim(store, by_urgency(queues, 9, caps=busy))) == ["other", "full"]
        mail = by_urgency(queues, 9, kinds=("mail",), in_order=True)
        assert await claim(store, mail) == ()
        assert keys_of(await claim(store, by_urgency(queues, 2))) == ["k3", "x2"]

    @check
    async def test_who_comes_back_has_its_deadline(self, store: Store) -> None:
        """After a retry, an undone claim, a schedule, beside a lease, and with another deadline."""
        queues = {"q": Urgency(0, steps=AT_ONCE)}
        request = by_urgency(queues, 1, in_order=True)
        await store.put([put("q", "x1", "x2", "x3", "x4"), put("q", "a", deadline=LONG)])
        for undo in (False, True):
            [held] = await claim(store, request)
            await settle(store, Release("q", held.key, held.token, undo=undo))
        [held] = await claim(store, request)
        assert held.key == "a"
        await store.put([put("q", "a", policy="buffer", deadline=2 * LONG)])
        await settle(store, Release("q", "a", held.token))
        [held] = await claim(store, request)
        assert held.key == "a"
        await settle(store, Release("q", "a", held.token, delay=LONG))
        assert keys_of(await claim(store, request)) == ["x1"]
        await store.put([put("q", "a", delay=0.0, deadline=LONG)])
        await store.put([put("q", "b", deadline=LONG / 2)])
        await store.put([put("q", "a")])  # without a deadline
        assert keys_of(await claim(store, by_urgency(queues, 2))) == ["b", "x2"]
        await store.put([put("q", "x4", deadline=LONG)])  # with one
        await settle(store, Cancel("q", "x3"))
        assert keys_of(await claim(store, by_urgency(queues, 9, in_order=True))) == ["x4", "a"]

    @site_check()
    async def test_what_is_past_its_deadline_is_above_everything(self, site: Site) -> None:
        """By the clock of the store, at the moment of the claim."""
        store = site.open_timed()
        queues = {
            "worst": Urgency(10**9, SHORT),
            "low": Urgency(9, steps=((0.001, 1),)),
            "high": Urgency(-(10**9), steps=AT_ONCE),
        }
        await store.put([put("low", "l1", deadline=SHORT), put("low", "l2")])
        await store.put([put("high", "h1", "h2", deadline=LONG), put("worst", "w1")])
        assert keys_of(await claim(store, by_urgency(queues, 1))) == ["h1"]
        await site.pass_time(SHORT * 1.5)
        await store.put([put("worst", "w2")])
        assert keys_of(await claim(store, by_urgency(queues, 9))) == ["l1", "w1", "h2", "l2", "w2"]
        # Where there is neither a deadline of the queue nor a step, nothing is lifted.
        await store.put([put("low", "l3", deadline=0.0), put("high", "h3")])
        unmoved = queues | {"low": Urgency(9)}
        assert keys_of(await claim(store, by_urgency(unmoved, 9))) == ["h3", "l3"]

    @check
    async def test_urgency_is_that_of_what_may_be_leased(self, store: Store) -> None:
        """Other kinds, and what has no room under caps, are passed over."""
        await store.put([put("a", "a1", kind="x", deadline=0.0), put("b", "b1", "b2")])
        await store.put([put("a", "a2")])
        queues = {"a": Urgency(1, steps=AT_ONCE), "b": Urgency(0)}
        assert keys_of(await claim(store, by_urgency(queues, 1, kinds=("",)))) == ["b1"]
        await store.put([put("a", "a3", "a4", deadline=0.0)])
        full = Cap("a", "a3", in_flight=0), Cap("a", "a1", in_flight=0)
        assert keys_of(await claim(store, by_urgency(queues, 1, caps=full))) == ["a4"]
        assert keys_of(await claim(store, by_urgency(queues, 1, caps=full, kinds=("",)))) == ["b2"]
        assert await claim(store, by_urgency(queues, 9, kinds=())) == ()
        assert keys_of(await claim(store, by_urgency(queues, 9))) == ["a1", "a3", "a2"]

    @check
    async def test_urgency_takes_tokens_for_what_it_leases(self, store: Store) -> None:
        """And for nothing else."""
        await store.put([put("a", "a1", "a2", "a3"), put("b", "b1", "b2", "b3")])
        queues = {"a": Urgency(0), "b": Urgency(1)}
        caps = Cap("a", rate=SLOWLY, burst=2), Cap("b", rate=SLOWLY, burst=2)
        for expected in (["a1"], ["a2", "b1"], ["b2"], []):
            request = by_urgency(queues, max(len(expected), 1), caps=caps)
            assert keys_of(await claim(store, request)) == expected
        busy = Cap("a", in_flight=3), Cap("b", in_flight=2)
        assert keys_of(await claim(store, by_urgency(queues, 9, caps=busy))) == ["a3"]

    @check
    async def test_each_queue_can_have_its_own_lease_time(self, store: Store) -> None:
        """With urgencies, and without."""
        await store.put([put("a", "a1", "a2"), put("b", "b1", "b2"), put("c", "c1", "c2")])
        queues = {"a": Urgency(2), "b": Urgency(1), "c": Urgency(0)}
        times = (None, LONG, 3 * LONG)
        for urgencies in (tuple(queues.values()), ()):
            names = tuple((queue, 1) for queue in queues)
            request = Claim(names, 9, urgencies=urgencies, lease_times=times)
            claimed = {item.queue: item for item in await claim(store, request)}
            assert claimed["a"].expires_at is None
            first, second = claimed["b"].expires_at, claimed["c"].expires_at
            assert first is not None
            assert second is not None
            assert abs(second - first - 2 * LONG) < 1.0
        for queue, lease_time in zip(queues, times, strict=True):
            await store.put([put(queue, "last")])
            [item] = await claim(store, Claim(((queue, 1),), 1, lease_times=(lease_time,)))
            assert (item.expires_at is None) == (lease_time is None)

    @check
    async def test_a_deadline_stays_with_its_item(self, store: Store) -> None:
        """When a lease ends, and beside it; an update sets it anew, and a burial ends it."""
        await store.put([one("a", deadline=LONG)])
        [item] = await everything(store)
        assert item.deadline is not None
        assert abs(item.deadline - item.put_at - LONG) < 1e-3
        for front, undo in ((False, False), (True, False), (False, True)):
            held = await claim_one(store)
            assert held.deadline == item.deadline
            await settle(store, Release("q", "a", held.token, front, undo=undo))
            assert [found.deadline for found in await everything(store)] == [item.deadline]
        held = await claim_one(store)
        await store.put([one("a", policy="buffer", deadline=2 * LONG)])
        first, beside = await everything(store)
        assert first.deadline == item.deadline
        assert beside.deadline is not None
        assert beside.deadline > item.deadline + LONG / 2
        await settle(store, Release("q", "a", held.token))
        assert [found.deadline for found in await everything(store)] == [beside.deadline]
        held = await claim_one(store)
        await store.put([one("a")])
        assert moments(await everything(store)) == [False]
        await store.put([one("a", deadline=LONG)])
        await settle(store, Bury("q", "a", held.token))
        [buried] = await everything(store)
        assert buried.deadline is None
        await settle(store, Requeue("q", buried.id))
        assert moments(await everything(store)) == [False]
        await store.put([one("a", deadline=LONG)])
        assert moments(await everything(store)) == [True]
        await store.put([one("a"), one("later", delay=LONG, deadline=LONG)])
        assert moments(await everything(store)) == [False, True]
        assert (await claim_one(store, of_key("a"))).deadline is None

    @site_check()
    async def test_an_expired_lease_leaves_the_deadline(self, site: Site) -> None:
        """The item is as urgent as it was, or more so."""
        store = site.open_timed()
        await store.put([one("a", deadline=LONG)])
        held = await claim_one(store, next_items(lease_time=SHORT))
        await site.pass_time(SHORT * 1.5)
        assert (await claim_one(store)).deadline == held.deadline

    @site_check(needs="durability")
    async def test_deadlines_are_there_when_it_is_opened_again(self, site: Site) -> None:
        """Also that of an item that waits beside a leased one."""
        store = site.open_timed()
        await store.put([one("a", deadline=LONG), one("b")])
        await claim_one(store)
        await store.put([one("a", policy="buffer", deadline=LONG)])
        before = [item.deadline for item in await everything(store)]
        await site.close_stores()
        after = [item.deadline for item in await everything(site.open_timed())]
        assert [moment is not None for moment in after] == [True, False, True]
        assert after == before

    @site_check(needs="cross_process")
    async def test_the_most_urgent_go_first_over_processes(self, site: Site) -> None:
        """Who claims at the same time takes what is next, and nothing that is behind that."""
        store = site.open()
        workers = [site.start_process() for _ in range(PROCESSES)]
        queues = {"low": Urgency(1, steps=AT_ONCE), "high": Urgency(0)}
        for number in range(ROUNDS):
            # In the one queue something urgent is followed by what is not.
            await store.put([put("low", f"{number}.0", f"{number}.1", deadline=0.0)])
            await store.put([put("low", *(f"{number}.low{n}" for n in range(9)))])
            await store.put([put("high", *(f"{number}.{n}" for n in range(2, 6)))])
            request = by_urgency(queues, 2)
            answers = await asyncio.gather(
                claim(store, request),
                *(worker.ask(processes.claim, request) for worker in workers),
            )
            got = sorted(key for answer in answers for key in keys_of(answer))
            assert got == [f"{number}.{n}" for n in range(6)], f"{got} were leased"
            left = await claim(store, by_urgency({"low": Urgency(), "high": Urgency()}, 99))
            assert len(left) == 9
