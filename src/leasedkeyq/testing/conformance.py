"""The conformance kit: what a store must do to be one.

Subclass `StoreConformance`, say how to open a store, and let pytest find the class::

    class TestMyStore(StoreConformance):
        def open_store(self) -> Store:
            return MyStore(...)

Every check is an ordinary test method that needs no plugin. Each gets a store that is empty.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec

from leasedkeyq.errors import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    LeaseAlreadyAcknowledgedError,
    LeaseExpiredError,
    LimitExceededError,
    QueueClosedError,
    QueueFullError,
)
from leasedkeyq.lease import Lease
from leasedkeyq.stores.contract import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Counts,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
)
from leasedkeyq.stores.queue import StoreQueue
from leasedkeyq.stores.store import Store

SHORT = 0.5
"""A lease time or a delay that passes soon, in seconds."""
LONG = 60.0

P = ParamSpec("P")


def check(
    method: Callable[["StoreConformance", Store], Awaitable[None]],
) -> Callable[["StoreConformance"], None]:
    """Make a test of a coroutine method that is given a store."""

    @wraps(method)
    def test(self: "StoreConformance") -> None:
        async def main() -> None:
            store = self.open_store()
            try:
                await asyncio.wait_for(method(self, store), self.time_limit)
            finally:
                await store.close()

        asyncio.run(main())

    del test.__wrapped__  # pytest would ask for a fixture named store
    return test


def one(key: str, value: bytes = b"1", **options: Any) -> Put:
    """A put of one item into the queue ``"q"``."""
    return Put("q", ((key, value),), **options)


def next_item(limit: int = 1, lease_time: float | None = LONG) -> Claim:
    """A claim of the next items of the queue ``"q"``."""
    return Claim((("q", limit),), limit, None, lease_time)


def of_key(key: str, lease_time: float | None = LONG) -> Claim:
    """A claim of one key of the queue ``"q"``."""
    return Claim((("q", 1),), 1, key, lease_time)


async def claim_one(store: Store, request: Claim | None = None) -> Claimed:
    """Claim one item that must be there."""
    [[claimed]] = await store.claim([request or next_item()])
    return claimed


async def order(store: Store) -> list[str]:
    """The available keys of the queue ``"q"`` in hand-out order."""
    page = await store.browse("q", states=("available",), limit=10_000)
    return [i.key for i in sorted(page.items, key=lambda i: (-i.priority, i.place))]


class StoreConformance(ABC):
    """The checks. Subclass it and supply `open_store`."""

    time_limit = 30.0
    """No check takes longer, in seconds."""

    @abstractmethod
    def open_store(self) -> Store:
        """Open an empty store."""

    # Putting

    @check
    async def test_put_answers_ids_that_grow(self, store: Store) -> None:
        """A new item has a new id, an update has that of its item."""
        many = Put("q", (("c", b"3"), ("d", b"4")))
        puts = [one("a"), one("b"), one("a", b"2"), many]
        answers: Any = await store.put(puts)
        [[a], [b], [again], [c, d]] = answers
        assert a == again
        assert a < b < c < d

    @check
    async def test_first_in_first_out(self, store: Store) -> None:
        """In the order of their first put, also within a batch."""
        await store.put([one("a"), one("b")])
        await store.put([one("c"), one("a", b"9")])
        [claimed] = await store.claim([next_item(3)])
        assert [(item.key, item.value) for item in claimed] == [
            ("a", b"9"),
            ("b", b"1"),
            ("c", b"1"),
        ]

    @check
    async def test_priority_goes_before_arrival(self, store: Store) -> None:
        """Higher first; another priority moves an item, its own does not."""
        await store.put([one("a"), one("b"), one("high", priority=2), one("low", priority=-1)])
        assert await order(store) == ["high", "a", "b", "low"]
        await store.put([one("b", priority=1), one("a", priority=0)])
        assert await order(store) == ["high", "b", "a", "low"]

    @check
    async def test_queues_do_not_mix(self, store: Store) -> None:
        """One key in two queues is two items."""
        await store.put([one("a"), Put("other", (("a", b"2"),))])
        [[first], [second]] = await store.claim([next_item(), Claim((("other", 1),), 1)])
        assert (first.queue, first.value, second.queue, second.value) == ("q", b"1", "other", b"2")

    @check
    async def test_a_delayed_item_comes_in_its_time(self, store: Store) -> None:
        """A put without a delay leaves the schedule, a delay of 0 ends it."""
        await store.put([one("a", delay=SHORT), one("b", delay=LONG), one("c", delay=LONG)])
        await store.put([one("b", b"2"), one("c", b"3", delay=0)])
        [claimed] = await store.claim([next_item(9)])
        assert [(item.key, item.value) for item in claimed] == [("c", b"3")]
        await asyncio.sleep(SHORT * 1.5)
        [claimed] = await store.claim([next_item(9)])
        assert [item.key for item in claimed] == ["a"]
        assert (await store.count(["q"]))["q"].scheduled == 1

    @check
    async def test_a_refused_put_does_nothing_and_spoils_nobody(self, store: Store) -> None:
        """All of a request or none of it; the others of the batch go on."""
        await store.put([one("leased")])
        await claim_one(store)
        both = Put("q", (("new", b"1"), ("leased", b"2")), "reject")
        before, refused, after = await store.put([one("before"), both, one("after")])
        assert isinstance(refused, KeyAlreadyInFlightError)
        assert refused.keys == ("leased",)
        assert not isinstance(before, Exception)
        assert not isinstance(after, Exception)
        assert await order(store) == ["before", "after"]

    @check
    async def test_a_full_queue_refuses(self, store: Store) -> None:
        """Scheduled and buffered items count, leased ones do not, updates always get in."""
        await store.put([one("leased"), one("later", delay=LONG)])
        await claim_one(store)
        answers = await store.put(
            [
                one("a", max_items=2),
                one("b", max_items=2),
                one("a", b"2", max_items=2),
                one("leased", b"2", policy="buffer", max_items=2),
                one("leased", b"3", max_items=2),
            ]
        )
        full = [isinstance(answer, QueueFullError) for answer in answers]
        assert full == [False, True, False, True, False]

    # Leases

    @check
    async def test_one_key_one_lease(self, store: Store) -> None:
        """However many claims there are, each key is handed out once."""
        await store.put([one(f"k{number}") for number in range(50)])
        batches = await asyncio.gather(*(store.claim([next_item(3)] * 2) for _ in range(20)))
        got = [item.key for batch in batches for answer in batch for item in answer]
        assert sorted(got) == sorted(f"k{number}" for number in range(50))

    @check
    async def test_fences_grow_and_tokens_differ(self, store: Store) -> None:
        """Across queues, and across the leases of one key."""
        await store.put([one("a"), Put("other", (("a", b"1"),))])
        first = await claim_one(store)
        second = await claim_one(store, Claim((("other", 1),), 1))
        await store.settle([Release("q", "a", first.token)])
        third = await claim_one(store)
        assert first.fence < second.fence < third.fence
        assert len({first.token, second.token, third.token}) == 3
        assert (first.attempt, third.attempt) == (1, 2)
        assert first.id == third.id

    @check
    async def test_claims_over_several_queues_keep_the_limits(self, store: Store) -> None:
        """In the order given, each up to its limit, all together up to the total."""
        for name in ("x", "y", "z"):
            await store.put([Put(name, tuple((f"{name}{n}", b"1") for n in range(5)))])
        wanted = Claim((("y", 2), ("x", 9), ("absent", 3), ("z", 9)), 8, None, LONG)
        [claimed] = await store.claim([wanted])
        assert [item.key for item in claimed] == ["y0", "y1", "x0", "x1", "x2", "x3", "x4", "z0"]

    @check
    async def test_claim_by_key(self, store: Store) -> None:
        """Only an available one."""
        await store.put([one("a"), one("b"), one("later", delay=LONG)])
        answers = await store.claim([of_key("b"), of_key("b"), of_key("later"), of_key("absent")])
        assert [len(answer) for answer in answers] == [1, 0, 0, 0]
        assert await order(store) == ["a"]

    @check
    async def test_an_expired_item_goes_to_the_front_and_its_lease_is_void(
        self, store: Store
    ) -> None:
        """No stale lease settles anything."""
        await store.put([one("a"), one("b"), one("c")])
        [stale] = await store.claim([next_item(2, SHORT)])
        await asyncio.sleep(SHORT * 1.5)
        assert await order(store) == ["a", "b", "c"]
        [fresh] = await store.claim([next_item(2)])
        assert [item.attempt for item in fresh] == [2, 2]
        token = stale[0].token
        changes: list[Change] = [
            Ack("q", "a", token),
            Release("q", "a", token),
            Extend("q", "a", token, LONG),
            Bury("q", "a", token),
        ]
        answers = await store.settle(changes)
        assert all(isinstance(answer, Refusal) for answer in answers)
        assert (await store.count(["q"]))["q"].in_flight == 2

    @check
    async def test_extend_prolongs_and_limits(self, store: Store) -> None:
        """It counts from now, in both directions."""
        await store.put([one("a"), one("b")])
        [[a, b]] = await store.claim([next_item(2, SHORT)])
        longer, never = await store.settle(
            [Extend("q", "a", a.token, LONG), Extend("q", "b", b.token, None)]
        )
        assert isinstance(longer, float)
        assert a.expires_at is not None
        assert longer > a.expires_at
        assert never is None
        await asyncio.sleep(SHORT * 1.5)
        assert (await store.count(["q"]))["q"].in_flight == 2

    @check
    async def test_release_front_back_and_later(self, store: Store) -> None:
        """Where a released item goes."""
        await store.put([one(name) for name in "abcd"])
        [[a, b, c]] = await store.claim([next_item(3)])
        await store.settle(
            [
                Release("q", "a", a.token),
                Release("q", "b", b.token, front=True),
                Release("q", "c", c.token, delay=LONG, error="busy"),
            ]
        )
        assert await order(store) == ["b", "d", "a"]
        [[later]] = await store.look("q", ["c"])
        assert later.state == "scheduled"
        assert [(attempt.how, attempt.error) for attempt in later.history] == [("released", "busy")]

    @check
    async def test_undo_is_as_if_nothing_had_been_claimed(self, store: Store) -> None:
        """The place and the number of attempts are as before."""
        await store.put([one(name) for name in "abcd"])
        [[a, b, c]] = await store.claim([next_item(3)])
        await store.settle([Release("q", i.key, i.token, undo=True) for i in (b, a, c)])
        assert await order(store) == ["a", "b", "c", "d"]
        assert (await claim_one(store)).attempt == 1

    @check
    async def test_a_bad_lease_in_a_batch_spoils_nobody(self, store: Store) -> None:
        """Each gets its own answer."""
        await store.put([one("a"), one("b")])
        [[a, b]] = await store.claim([next_item(2)])
        answers = await store.settle(
            [Ack("q", "a", a.token), Ack("q", "a", "forged"), Ack("q", "b", b.token)]
        )
        assert [isinstance(answer, Refusal) for answer in answers] == [False, True, False]
        assert (await store.count(["q"]))["q"] == Counts()

    @check
    async def test_a_buffered_value_waits_for_the_end_of_the_lease(self, store: Store) -> None:
        """It counts, it is not handed out, and it takes its place at the back."""
        await store.put([one("a"), one("b")])
        held = await claim_one(store)
        answers: Any = await store.put([one("a", b"2", policy="buffer"), one("a", b"3")])
        [[new], [newer]] = answers
        assert new == newer != held.id
        assert (await store.count(["q"]))["q"].available == 2
        assert await store.claim([of_key("a")]) == [()]
        states = [item.state for item in (await store.look("q", ["a"]))[0]]
        assert states == ["in_flight", "buffered"]
        await store.settle([Release("q", "a", held.token, front=True)])
        assert await order(store) == ["b", "a"]
        last = await claim_one(store, of_key("a"))
        assert (last.value, last.attempt, last.id) == (b"3", 1, new)

    # Burying, cancelling, results

    @check
    async def test_buried_items_leave_their_key_and_can_come_back(self, store: Store) -> None:
        """Several of one key may lie there; requeueing one starts it anew."""
        ids: list[Any] = []
        for value in (b"1", b"2"):
            await store.put([one("a", value, priority=3)])
            held = await claim_one(store)
            ids += await store.settle([Bury("q", "a", held.token, "broken")])
        page = await store.browse("q", states=("buried",))
        assert [(i.id, i.value, i.error) for i in page.items] == [
            (ids[0], b"1", "broken"),
            (ids[1], b"2", "broken"),
        ]
        answers = await store.settle([Requeue("q", ids[1]), Requeue("q", ids[1])])
        assert answers == [True, False]
        back = await claim_one(store)
        assert (back.value, back.priority, back.attempt) == (b"2", 3, 1)
        assert await store.settle([Purge("q", "buried")]) == [1]

    @check
    async def test_cancel_revokes(self, store: Store) -> None:
        """From every state; the holder is refused."""
        await store.put([one("a"), one("b"), one("c", delay=LONG)])
        held = await claim_one(store)
        cancels = [Cancel("q", key) for key in ("a", "b", "c", "d")]
        assert await store.settle(cancels) == [True, True, True, False]
        [refused] = await store.settle([Ack("q", "a", held.token)])
        assert isinstance(refused, Refusal)

    @check
    async def test_results_are_kept_for_their_time(self, store: Store) -> None:
        """By the id of the item, and forgotten afterwards."""
        await store.put([one("a"), one("b")])
        [[a, b]] = await store.claim([next_item(2)])
        await store.settle(
            [Ack("q", "a", a.token, b'"done"', LONG), Ack("q", "b", b.token, b"2", SHORT)]
        )
        first, second, none = await store.results("q", [a.id, b.id, 10**9])
        assert first is not None
        assert (first.state, first.value, first.key) == ("done", b'"done"', "a")
        assert second is not None
        assert none is None
        await asyncio.sleep(SHORT * 1.5)
        assert [r is None for r in await store.results("q", [a.id, b.id])] == [False, True]

    @check
    async def test_listing_goes_page_by_page(self, store: Store) -> None:
        """With a filter on state and key, and a cursor."""
        await store.put([Put("q", tuple((f"a{n:02}", b"1") for n in range(25))), one("b")])
        await store.claim([next_item(5)])
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.browse(
                "q", states=("available",), prefix="a", cursor=cursor, limit=7
            )
            seen += [item.key for item in page.items]
            assert len(page.items) <= 7
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [f"a{n:02}" for n in range(5, 25)]
        assert set(await store.count()) == {"q"}

    @check
    async def test_sweep_tells_when_to_come_back(self, store: Store) -> None:
        """In seconds, and None when nothing is going to happen."""
        assert await store.sweep("q") is None
        await store.put([one("a"), one("later", delay=LONG)])
        await claim_one(store, next_item(1, LONG / 2))
        seconds = await store.sweep("q")
        assert seconds is not None
        assert LONG / 2 - 10 < seconds <= LONG / 2

    @check
    async def test_watch_tells_of_every_kind_of_change(self, store: Store) -> None:
        """No lost wake-up."""
        woken = asyncio.Event()
        stop = store.watch("q", woken.set)

        async def expect_wake(call: Awaitable[Any]) -> Any:
            woken.clear()
            answer = await call
            await asyncio.wait_for(woken.wait(), 5)
            return answer

        await expect_wake(store.put([one("a")]))
        held = await claim_one(store)
        await expect_wake(store.settle([Release("q", "a", held.token)]))
        held = await claim_one(store)
        await expect_wake(store.settle([Ack("q", "a", held.token)]))
        stop()

    # The queue on it

    @check
    async def test_a_waiting_get_is_woken(self, store: Store) -> None:
        """By a put, a release, an expiry, and a delay that is over."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        getter = asyncio.create_task(queue.get())
        await asyncio.sleep(0.02)
        await queue.put("a", 1)
        _, value, lease = await getter
        assert value == 1
        taker = asyncio.create_task(queue.take("a"))
        await asyncio.sleep(0.02)
        await queue.release(lease)
        _, _, lease = await taker
        await queue.extend(lease, SHORT)
        _, _, again = await queue.get(timeout=5)
        assert again.attempt == 3
        await queue.release(again, delay=SHORT)
        assert (await queue.get(timeout=5))[2].attempt == 4

    @check
    async def test_waiters_are_served_in_turn_and_cancelled_ones_lose_nothing(
        self, store: Store
    ) -> None:
        """First come, first served; what a cancelled one was given goes back."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        getters = [asyncio.create_task(queue.get()) for _ in range(20)]
        await asyncio.sleep(0.02)
        for getter in getters[::2]:
            getter.cancel()
        await queue.put_many({f"k{number:02}": number for number in range(15)})
        results = await asyncio.gather(*getters, return_exceptions=True)
        got = [result[0] for result in results if isinstance(result, tuple)]
        assert got == [f"k{number:02}" for number in range(10)]
        rest = [(await queue.get(timeout=5))[0] for _ in range(5)]
        assert rest == [f"k{number:02}" for number in range(10, 15)]

    @check
    async def test_time_outs(self, store: Store) -> None:
        """A total; 0 means now or never."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        for timeout in (0, 0.05):
            await expect(TimeoutError, queue.get(timeout=timeout))
            await expect(TimeoutError, queue.take("a", timeout=timeout))
        await queue.put("a", 1)
        assert (await queue.get(timeout=0))[0] == "a"

    @check
    async def test_the_errors_of_leases(self, store: Store) -> None:
        """As `LeasedKeyQueue` raises them."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        await queue.put_many({"a": 1, "b": 2, "c": 3})
        _, _, a = await queue.get()
        _, _, b = await queue.get(lease_timeout=SHORT)
        _, _, c = await queue.get()
        await queue.ack(a)
        await expect(LeaseAlreadyAcknowledgedError, queue.ack(a))
        await expect(LeaseAlreadyAcknowledgedError, queue.release(a))
        await asyncio.sleep(SHORT * 1.5)
        await expect(LeaseExpiredError, queue.ack(b))
        await queue.release(c)
        await expect(InvalidLeaseError, queue.ack(c))
        await expect(InvalidLeaseError, queue.ack(Lease("forged", "c")))
        await queue.get(timeout=5)
        await queue.get(timeout=5)
        await expect(KeyAlreadyInFlightError, queue.put("b", 1, if_in_flight="reject"))

    @check
    async def test_producers_wait_for_room(self, store: Store) -> None:
        """And go on, in order, when there is some."""
        queue: StoreQueue[int] = StoreQueue(store, "q", maxsize=2)
        producers = [asyncio.create_task(queue.put(f"k{n}", n)) for n in range(6)]
        while await queue.qsize() < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert await queue.qsize() == 2
        got: list[str] = []
        for _ in range(6):
            async with queue.lease(timeout=5) as item:
                got.append(item.key)
        await asyncio.gather(*producers)
        assert got == [f"k{n}" for n in range(6)]

    @check
    async def test_join_waits_until_nothing_is_left(self, store: Store) -> None:
        """Available, scheduled or leased."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        await queue.put("a", 1)
        await queue.put("b", 2, delay=SHORT)
        join = asyncio.create_task(queue.join())
        for _ in range(2):
            await asyncio.sleep(0.02)
            assert not join.done()
            await queue.ack((await queue.get(timeout=5))[2])
        await join

    @check
    async def test_close_gives_back_its_own_leases(self, store: Store) -> None:
        """And wakes those who wait in it."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        other: StoreQueue[int] = StoreQueue(store, "q")
        await queue.put_many({"a": 1, "b": 2, "c": 3})
        await queue.get()
        await queue.get()
        await other.get()
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0.02)
        await queue.close()
        await expect(QueueClosedError, waiting)
        await expect(QueueClosedError, queue.put("x", 1))
        assert await order(store) == ["a", "b"]
        assert await other.inflight_keys() == {"c"}
        await other.close()

    @check
    async def test_values_are_checked_both_ways(self, store: Store) -> None:
        """What cannot be stored is refused; what cannot be read is buried, and the next comes."""
        await store.put([one("bad", b'"text"'), one("worse", b"\xff{"), one("good", b"7")])
        queue: StoreQueue[int] = StoreQueue(store, "q", value_type=int)
        assert (await queue.get(timeout=5))[:2] == ("good", 7)
        assert {item.key for item in await queue.buried()} == {"bad", "worse"}
        unstorable: Any = object()
        await expect(TypeError, queue.put("a", unstorable))
        await expect(LimitExceededError, queue.put("k" * 10_000, 1))
        await expect(ValueError, queue.put("", 1))


async def expect(error: type[BaseException], call: Awaitable[Any]) -> None:
    """Await `call`, which must raise `error`."""
    try:
        await call
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")
