"""What a store that claims to be shared by processes does over processes."""

import asyncio

from leasedkeyq.model.requests import Ack, Claimed, Counts, Purge, Put, Refusal, Release
from leasedkeyq.stores.queue.store_queue import StoreQueue
from leasedkeyq.testing import processes
from leasedkeyq.testing.checks.leases import settlings
from leasedkeyq.testing.shorthand import (
    claim,
    claim_one,
    counts,
    everything,
    next_items,
    of_key,
    one,
    refused,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, site_check

PROCESSES = 3
LEASE = 2.0
"""Long enough for a claim to come back and be looked at, short enough to wait for its end."""


class ProcessChecks(Suite):
    """One meaning, however many processes there are."""

    @site_check(needs="cross_process")
    async def test_processes_hold_each_key_once_and_finish_each_item_once(self, site: Site) -> None:
        """They put the same few keys and work on them together; some leases are given back."""

        def puts(name: str) -> list[Put]:
            """Only a cold key is given back: a newer value would take the place of a hot one."""
            return [
                Put(
                    "q",
                    (("hot", b"1"), (f"warm{n % 4}", b"1"), (f"cold-{name}-{n}", b"1")),
                    "buffer" if n % 2 else "update",
                )
                for n in range(15)
            ]

        names = [f"process{number}" for number in range(PROCESSES)]
        shares: list[tuple[set[int], list[processes.Held]]] = await asyncio.gather(
            *(
                site.start_process().ask(processes.share_work, name, puts(name), PROCESSES)
                for name in names
            )
        )
        put = {number for ids, _ in shares for number in ids}
        leases = [lease for _, leases in shares for lease in leases]
        leases.sort(key=lambda held: held.item.fence)
        fences = [held.item.fence for held in leases]
        assert len(set(fences)) == len(fences), "two leases have one fence"
        last: dict[str, processes.Held] = {}
        for held in leases:
            before = last.get(held.item.key)
            assert before is None or before.until <= held.since, (
                f"two processes held {held.item.key!r} at a time: {before}, {held}"
            )
            last[held.item.key] = held
        assert not [held for held in leases if held.end == "refused"], "a valid lease was refused"
        done = [held.item.id for held in leases if held.end == "acknowledged"]
        assert len(done) == len(set(done)), "an item was finished twice"
        assert set(done) == put, "an item was lost, or came from nowhere"
        store = site.open()
        assert not await everything(store)

    @site_check(needs="cross_process")
    async def test_changes_in_one_process_wake_those_who_wait_in_another(self, site: Site) -> None:
        """A put, a release, and the end of a lease that kept a newer value waiting."""
        store = site.open()
        worker = site.start_process()
        for number in range(3):
            await _starts_to_wait(worker)
            await store.put([one(f"put{number}")])
            claimed = await self._woken(worker, "a put")
            await settle(store, Ack("q", claimed.key, claimed.token))
        await store.put([one("a")])
        held = await claim_one(store)
        await _starts_to_wait(worker)
        await settle(store, Release("q", "a", held.token))
        held = await self._woken(worker, "a release")
        await store.put([one("a", b"2", policy="buffer")])
        await _starts_to_wait(worker)
        await settle(store, Ack("q", "a", held.token))
        last = await self._woken(worker, "an acknowledgement")
        assert last.value == b"2"

    @site_check(needs="cross_process")
    async def test_a_waiting_get_is_woken_by_another_process(self, site: Site) -> None:
        """Many times in a row, so that no put falls between asking and waiting."""
        queue: StoreQueue[int] = StoreQueue(site.open(), "q")
        worker = site.start_process()
        for number in range(10):
            getting = asyncio.create_task(queue.get(timeout=self.patience))
            # Now and then the put comes while the consumer is on its way to wait.
            await asyncio.sleep(0 if number % 2 else 0.05)
            await worker.ask(processes.put, [one(f"k{number}")])
            key, _, lease = await getting
            assert key == f"k{number}"
            await queue.ack(lease)
        await queue.close()

    @site_check(needs="cross_process")
    async def test_the_lease_of_a_killed_process_expires(self, site: Site) -> None:
        """Its item comes back to the front, to those who wait, with the attempt counted."""
        store = site.open()
        await store.put([one("a"), one("b")])
        worker = site.start_process()
        [lost] = await worker.ask(processes.claim, next_items(1, LEASE))
        worker.kill()
        await claim_one(store, of_key("b"))
        queue: StoreQueue[int] = StoreQueue(store, "q")
        key, _, lease = await queue.get(timeout=LEASE + self.patience)
        assert (key, lease.attempt) == ("a", 2)
        assert lease.fence > lost.fence
        [[item]] = await store.look("q", ["a"])
        assert [(a.number, a.how) for a in item.history] == [(1, "expired")]
        await refused(store, settlings("a", lost.token))
        await queue.close()

    @site_check(needs="cross_process")
    async def test_a_lease_is_checked_wherever_it_is_used(self, site: Site) -> None:
        """A stale one is refused in the process that held it; a valid one is good in any."""
        store = site.open()
        await store.put([one("a")])
        worker = site.start_process()
        [stale] = await worker.ask(processes.claim, next_items(1, LEASE))
        queue: StoreQueue[int] = StoreQueue(store, "q")
        _, _, lease = await queue.get(timeout=LEASE + self.patience)
        changes = settlings("a", stale.token)
        answers = await worker.ask(processes.settle, changes)
        for change, answer in zip(changes, answers, strict=True):
            assert isinstance(answer, Refusal), f"{change} was not refused but answered {answer!r}"
        assert (await counts(store)).in_flight == 1
        assert await worker.ask(processes.settle, [Ack("q", "a", lease.token)]) == [None]
        assert await counts(store) == Counts()
        await queue.close()

    @site_check(needs="cross_process")
    async def test_store_objects_on_one_place_are_one_store(self, site: Site) -> None:
        """What one of them does, the others see at once."""
        first, second = site.open(), site.open()
        await first.put([one("a"), one("b")])
        held = await claim_one(second)
        assert [item.key for item in await claim(first, next_items(9))] == ["b"]
        await settle(first, Release("q", "a", held.token))
        assert (await claim_one(second)).attempt == 2
        await second.edit("q", lambda _: [Purge("q")])
        assert await counts(first) == Counts()

    async def _woken(self, worker: processes.Worker, by: str) -> Claimed:
        failure = f"{by} did not wake who waits in another process"
        [claimed] = await self.soon(worker.hear(), failure)
        assert isinstance(claimed, Claimed)
        return claimed


async def _starts_to_wait(worker: processes.Worker) -> None:
    worker.tell(processes.claim_when_woken, next_items())
    assert await worker.hear() == "waiting"
