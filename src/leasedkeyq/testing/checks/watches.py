"""How waiting callers are woken, and the queue on a store."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from leasedkeyq.errors import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    LeaseAlreadyAcknowledgedError,
    LeaseExpiredError,
    LimitExceededError,
    QueueClosedError,
    StoreClosedError,
)
from leasedkeyq.lease import Lease
from leasedkeyq.model.requests import Ack, Amend, Bury, Cancel, Purge, Release, Requeue
from leasedkeyq.stores.queue.store_queue import StoreQueue
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import (
    LONG,
    SHORT,
    expect,
    next_items,
    one,
    order,
    put_one,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check

T = TypeVar("T")

QUIET = 0.02
"""After so many seconds no watcher is woken any more by earlier changes."""


class WatchChecks(Suite):
    """No wake-up is lost, and no caller that gives up takes an item along."""

    @check
    async def test_an_empty_queue_is_no_outage(self, store: Store) -> None:
        """A store that answers says so: a `get` in vain hears that there was nothing."""
        assert store.outage is None, "a store that has just been opened has an outage"
        queue: StoreQueue[int] = StoreQueue(store, "q")
        await expect(TimeoutError, queue.get(timeout=SHORT))
        await store.put([one("a")])
        assert store.outage is None, "a store that answers has an outage"

    @check
    async def test_watch_tells_of_every_kind_of_change(self, store: Store) -> None:
        """Whatever makes an item available, makes room or ends an item."""
        woken = asyncio.Event()
        stop = store.watch("q", woken.set)

        async def wakes(call: Awaitable[Any]) -> Any:
            # A wake-up by an earlier change does not count.
            while woken.is_set():
                woken.clear()
                await asyncio.sleep(QUIET)
            answer = await call
            await self.soon(woken.wait(), "no watcher was woken")
            return answer

        await wakes(store.put([one("a")]))
        [[held]] = await wakes(store.claim([next_items()]))  # makes room
        await wakes(store.settle([Release("q", "a", held.token)]))
        [[held]] = await wakes(store.claim([next_items()]))
        await wakes(store.settle([Release("q", "a", held.token, undo=True)]))
        [[held]] = await wakes(store.claim([next_items()]))
        [number] = await wakes(store.settle([Bury("q", "a", held.token)]))
        await wakes(store.settle([Requeue("q", number)]))
        [[held]] = await wakes(store.claim([next_items()]))
        await wakes(store.settle([Ack("q", "a", held.token)]))
        await store.put([one("a", delay=LONG)])
        await wakes(store.put([one("a", delay=0)]))
        placed = await put_one(store, one("a", delay=LONG))
        await wakes(store.settle([Amend("q", "a", placed.id, delay=0)]))
        await wakes(store.settle([Cancel("q", "a")]))
        await wakes(store.put([one("a")]))
        await wakes(store.settle([Purge("q")]))
        await wakes(store.edit("q", lambda _: [one("a")]))
        stop()

    @check
    async def test_watch_tells_each_of_those_who_watch_until_they_stop(self, store: Store) -> None:
        """In the event loop from which they asked."""
        loop = asyncio.get_running_loop()
        woken = [asyncio.Event() for _ in range(3)]
        heard: list[asyncio.AbstractEventLoop] = []

        def wake(event: asyncio.Event) -> None:
            heard.append(asyncio.get_running_loop())
            event.set()

        stops = [store.watch("q", partial(wake, event)) for event in woken]
        stops[0]()
        await store.put([one("a")])
        for event in woken[1:]:
            await self.soon(event.wait(), "a watcher was not woken")
        assert not woken[0].is_set()
        assert set(heard) == {loop}
        for stop in stops:
            stop()

    @site_check()
    async def test_sweep_wakes_those_who_watch_if_something_has_come_due(self, site: Site) -> None:
        """A delay that is over, and a lease that has expired."""
        store = site.open_timed()
        woken = asyncio.Event()
        stop = store.watch("q", woken.set)
        for lease_time in (None, SHORT):
            await store.put([one("a", delay=None if lease_time else SHORT)])
            await store.claim([next_items(1, lease_time)])
            await self.soon(woken.wait(), "no watcher was woken")
            while woken.is_set():
                woken.clear()
                await asyncio.sleep(QUIET)
            await site.pass_time(SHORT * 1.5)
            await store.sweep(["q"])
            await self.soon(woken.wait(), "no watcher was woken")
        stop()

    @check
    async def test_waiting_is_no_busy_loop(self, store: Store) -> None:
        """A waiting call is woken when something has changed, and not by having asked."""
        asked = 0

        def counted(verb: Callable[[T], Awaitable[Any]]) -> Callable[[T], Awaitable[Any]]:
            def call(requests: T) -> Awaitable[Any]:
                nonlocal asked
                asked += 1
                return verb(requests)

            return call

        patched: Any = store  # to the type checkers, a method cannot be replaced
        patched.do_claim = counted(store.do_claim)
        patched.do_sweep = counted(store.do_sweep)
        queue: StoreQueue[int] = StoreQueue(store, "q")
        await queue.put("later", 1, delay=LONG)
        await expect(TimeoutError, queue.get(timeout=1))
        assert asked < 50, f"{asked} calls in one second in which nothing happened"

    # The queue on a store

    @check
    async def test_a_waiting_get_is_woken(self, store: Store) -> None:
        """By a put, a release, an expiry, and a delay that is over."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        getter = asyncio.create_task(queue.get())
        await asyncio.sleep(0.02)
        await queue.put("a", 1)
        _, value, lease = await self.soon(getter, "a put did not wake a waiting get")
        assert value == 1
        taker = asyncio.create_task(queue.take("a"))
        await asyncio.sleep(0.02)
        await queue.release(lease)
        _, _, lease = await self.soon(taker, "a release did not wake a waiting take")
        await queue.extend(lease, SHORT)
        _, _, again = await queue.get(timeout=self.patience)
        assert again.attempt == 3
        await queue.release(again, delay=SHORT)
        assert (await queue.get(timeout=self.patience))[2].attempt == 4

    @site_check()
    async def test_closing_the_store_ends_the_waiting(self, site: Site) -> None:
        """No call waits for ever on a store that was closed."""
        for way in ("get", "put", "join"):
            store = site.open()
            queue: StoreQueue[int] = store.queue(way, maxsize=1)
            if way != "get":
                await queue.put("a", 1)
            ways: dict[str, Callable[[], Awaitable[Any]]] = {
                "get": queue.get,
                "put": partial(queue.put, "b", 2),
                "join": queue.join,
            }
            waiting = asyncio.ensure_future(ways[way]())
            await asyncio.sleep(0.1)
            assert not waiting.done(), f"{way} did not wait"
            await store.close()
            await expect(StoreClosedError, self.soon(waiting, f"{way} waits for ever"))

    @check
    async def test_room_that_is_made_at_once_is_not_missed(self, store: Store) -> None:
        """By a call that looks whether there is room, or whether anything is left."""
        queue: StoreQueue[int] = store.queue("q", maxsize=1)
        await queue.put("a", 1)
        putting = asyncio.gather(queue.put("b", 2), store.settle([Cancel("q", "a")]))
        await self.soon(putting, "a producer waits for ever")
        joining = asyncio.gather(queue.join(), store.settle([Cancel("q", "b")]))
        await self.soon(joining, "join waits for ever")

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
        rest = [(await queue.get(timeout=self.patience))[0] for _ in range(5)]
        assert rest == [f"k{number:02}" for number in range(10, 15)]

    @check
    async def test_what_a_cancelled_get_was_given_goes_back(self, store: Store) -> None:
        """Cancelled at any moment, a consumer has the item or has left it in the queue."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        keys = [f"k{number}" for number in range(3)]
        for moment in range(12):
            getters = [asyncio.create_task(queue.get()) for _ in keys]
            await asyncio.sleep(0.002)
            await queue.put_many(dict.fromkeys(keys, moment))
            for _ in range(moment % 6):
                await asyncio.sleep(0 if moment < 6 else 0.001)
            for getter in getters:
                getter.cancel()
            results = await asyncio.gather(*getters, return_exceptions=True)
            got = [result for result in results if isinstance(result, tuple)]
            await self.soon(_shrinks_to(queue, len(got)), "what was given to nobody came not back")
            rest = await queue.available_keys()
            assert sorted([*(key for key, _, _ in got), *rest]) == keys
            for _, _, lease in got:
                await queue.ack(lease)
            await store.settle([Purge("q")])

    @check
    async def test_time_outs(self, store: Store) -> None:
        """A total; 0 means now or never."""
        queue: StoreQueue[int] = StoreQueue(store, "q")
        for timeout in (0, 0.05):
            for waiting in (queue.get(timeout=timeout), queue.take("a", timeout=timeout)):
                await self.soon(expect(TimeoutError, waiting), "a time-out did not come")
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
        await queue.get(timeout=self.patience)
        await queue.get(timeout=self.patience)
        await expect(KeyAlreadyInFlightError, queue.put("b", 1, if_in_flight="reject"))

    @check
    async def test_producers_wait_for_room(self, store: Store) -> None:
        """And go on, in order, when a consumer has made some."""
        queue: StoreQueue[int] = StoreQueue(store, "q", maxsize=2)
        other: StoreQueue[int] = StoreQueue(store, "q")
        producers = [asyncio.create_task(queue.put(f"k{n}", n)) for n in range(6)]
        while await queue.qsize() < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert await queue.qsize() == 2
        got: list[str] = []
        for _ in range(6):
            async with other.lease(timeout=self.patience) as item:
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
            _, _, lease = await queue.get(timeout=self.patience)
            await asyncio.sleep(QUIET)
            assert not join.done()
            await queue.ack(lease)
        await self.soon(join, "join did not end")

    @check
    async def test_close_gives_back_its_own_leases(self, store: Store) -> None:
        """And wakes the calls that wait in it."""
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
        assert (await queue.get(timeout=self.patience))[:2] == ("good", 7)
        assert {item.key for item in await queue.buried()} == {"bad", "worse"}
        unstorable: Any = object()
        await expect(TypeError, queue.put("a", unstorable))
        await expect(LimitExceededError, queue.put("k" * 10_000, 1))
        await expect(ValueError, queue.put("", 1))


async def _shrinks_to(queue: StoreQueue[int], leases: int) -> None:
    while await queue.inflight_size() > leases:
        await asyncio.sleep(0.01)
