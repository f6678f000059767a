"""What a store that claims durability keeps: what it has acknowledged, whoever dies.

Loss of power cannot be tried from here. A store that claims ``"system"`` or ``"power"`` needs tests
of its own for it.
"""

import msgspec

from leasedkeyq.model.requests import Ack, Bury, Refusal, Release, StoredItem
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
    order,
    put_one,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, site_check

ROUNDS = 3
"""How many processes are killed."""
ENOUGH = 20
"""How much each has done before."""


class DurabilityChecks(Suite):
    """Nothing acknowledged is lost when a store is closed or its process is killed."""

    @site_check(needs="durability")
    async def test_all_is_there_when_the_store_is_opened_again(self, site: Site) -> None:
        """In every state, in order, with leases that still hold."""
        store = site.open_timed()
        await store.put([one(key, priority=1, kind="mail") for key in "abcdef"])
        await store.put([one("later", delay=LONG), one("front"), one("back")])
        a, b, c, d = await claim(store, next_items(4))
        await store.put([one("a", b"2", policy="buffer", kind="call")])
        await settle(
            store,
            Bury("q", "b", b.token, "broken"),
            Ack("q", "c", c.token, b'"done"', LONG),
            Release("q", "d", d.token, front=True, error="busy"),
        )
        front = await claim_one(store, of_key("front"))
        await settle(store, Release("q", "front", front.token, front=True))
        before, in_order = await everything(store), await order(store)
        await site.close_stores()

        store = site.open_timed()
        after = await everything(store)
        assert await order(store) == in_order == ["d", "e", "f", "front", "back"]
        # Places may be given anew as long as the order is the same.
        assert [_without_place(item) for item in after] == [_without_place(i) for i in before]
        new = await put_one(store, one("new"))
        assert new.id > max(item.id for item in before), "an id was given twice"
        again = await claim_one(store)
        assert (again.key, again.attempt) == ("d", 2)
        assert again.fence > max(a.fence, front.fence), "a fence was given twice"
        await settle(store, Ack("q", "a", a.token))

    @site_check(needs="durability")
    async def test_what_is_due_while_nobody_has_it_open_comes(self, site: Site) -> None:
        """Time passes for a store that is closed, too."""
        store = site.open_timed()
        await store.put([one("a"), one("later", delay=SHORT)])
        held = await claim_one(store, next_items(1, SHORT))
        await site.close_stores()
        await site.pass_time(SHORT * 1.5)
        store = site.open_timed()
        assert sorted(await order(store)) == ["a", "later"]
        assert isinstance((await store.settle([Ack("q", "a", held.token)]))[0], Refusal)
        assert (await claim_one(store, of_key("a"))).attempt == 2

    @site_check(needs="durability")
    async def test_what_a_killed_process_has_put_is_there(self, site: Site) -> None:
        """Every put that returned before the kill."""
        said: list[str] = []
        for number in range(ROUNDS):
            worker = site.start_process()
            worker.tell(processes.produce, f"{number}-", 3 * ENOUGH)
            said += [await worker.hear() for _ in range(ENOUGH)]
            said += await worker.hear_after_kill()
        found = set(await order(site.open()))
        lost = set(said) - found
        assert not lost, f"{len(lost)} of {len(said)} acknowledged puts are lost: {sorted(lost)}"
        # Each process may have stored one more than it could say.
        assert len(found) <= len(said) + ROUNDS

    @site_check(needs="durability")
    async def test_what_a_killed_process_has_acknowledged_does_not_come_back(
        self, site: Site
    ) -> None:
        """And what it had not, is leased or available still."""
        keys = {f"k{number}" for number in range(3 * ROUNDS * ENOUGH)}
        store = site.open()
        await store.put([one(key) for key in sorted(keys)])
        await site.close_stores()
        done: set[str] = set()
        for _ in range(ROUNDS):
            worker = site.start_process()
            worker.tell(processes.finish, 3 * ENOUGH)
            done.update([await worker.hear() for _ in range(ENOUGH)])
            done.update(await worker.hear_after_kill())
        left = {item.key for item in await everything(site.open())}
        assert not left & done
        # Each process may have acknowledged one more than it could say.
        assert len(keys - left - done) <= ROUNDS


def _without_place(item: StoredItem) -> StoredItem:
    return msgspec.structs.replace(item, place=0)
