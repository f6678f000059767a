"""What a buried item does that holds its key: the line of that waits until its end."""

from leasedkeyq.errors import KeyAlreadyPresentError, QueueFullError
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Counts,
    Discard,
    Purge,
    Release,
    Requeue,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import (
    LONG,
    append,
    claim,
    claim_one,
    counts,
    everything,
    line_of,
    next_items,
    of_key,
    one,
    order,
    put_one,
    refused,
    settle,
    values_of,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check
from leasedkeyq.types import PutPolicy


class HeldKeyChecks(Suite):
    """`Bury` with `hold`, and all that ends it."""

    @check
    async def test_a_buried_item_can_hold_its_key(self, store: Store) -> None:
        """Its line waits, nothing of the key is leased, and what is put joins the line."""
        ids = await append(store, "a", 3)
        await append(store, "b", 1)
        held = await claim_one(store)
        [number] = await settle(store, Bury("q", "a", held.token, "broken", hold=True))
        assert number == ids[0]
        [buried] = await everything(store, "buried")
        assert (buried.id, buried.holds, buried.error) == (ids[0], True, "broken")
        assert await counts(store) == Counts(available=1, buried=1, held=2)
        [found] = await store.look("q", ["a"])
        assert [(item.id, item.state) for item in found] == [(ids[1], "in_line")]
        assert await values_of(store, "a") == [b"1", b"2"]
        assert await claim(store, of_key("a")) == ()
        assert [item.key for item in await claim(store, next_items(9))] == ["b"]
        assert await store.heads(["q"]) == [None]
        await refused(store, [Ack("q", "a", held.token)])
        placed = [
            await put_one(store, one("a", b"7", policy="append")),
            await put_one(store, one("a", b"8")),
            await put_one(store, one("a", b"9", policy="skip")),
        ]
        assert [each.outcome for each in placed] == ["appended", "updated", "skipped"]
        [refusal] = await store.put([one("a", policy="only_new")])
        assert isinstance(refusal, KeyAlreadyPresentError)
        assert await values_of(store, "a") == [b"1", b"2", b"8"]

    @check
    async def test_a_held_key_without_a_line_is_there(self, store: Store) -> None:
        """A put by any policy but skip and only_new is appended, the answer to skip is its id."""
        policies: tuple[PutPolicy, ...] = ("update", "buffer", "reject", "append")
        for policy in policies:
            await store.put([one("a")])
            held = await claim_one(store)
            await settle(store, Bury("q", "a", held.token, hold=True))
            assert await put_one(store, one("a", policy="skip")) == (held.id, "skipped")
            [refusal] = await store.put([one("a", policy="only_new")])
            assert isinstance(refusal, KeyAlreadyPresentError)
            assert (await put_one(store, one("a", b"2", policy=policy))).outcome == "appended"
            assert await claim(store, next_items(9)) == ()
            assert [item.state for item in await line_of(store, "a")] == ["in_line"]
            await settle(store, Purge("q"))

    @check
    async def test_a_requeued_holder_is_the_head_again(self, store: Store) -> None:
        """With its id, at the back of its priority, whatever the policy; it starts anew."""
        policies: tuple[PutPolicy, ...] = ("append", "update", "buffer", "reject", "only_new")
        for policy in policies:
            first = await put_one(store, one("a", b"1", priority=2, kind="mail", deadline=LONG))
            await store.put([one("a", b"2", policy="append", priority=9)])
            held = await claim_one(store)
            await settle(store, Release("q", "a", held.token, error="broken"))
            held = await claim_one(store)
            await settle(store, Bury("q", "a", held.token, hold=True))
            await store.put([one("b", priority=2)])
            [refusal] = await store.settle([Requeue("q", first.id, policy, max_items=2)])
            assert isinstance(refusal, QueueFullError)
            [[waiting]] = await store.look("q", ["a"])
            assert waiting.value == b"2"
            answers = await store.settle([Requeue("q", first.id, policy, max_items=3)] * 2)
            assert answers == [True, False]
            assert await order(store) == ["b", "a"]
            [head, behind] = await line_of(store, "a")
            assert (head.id, head.value, head.state) == (first.id, b"1", "available")
            assert (head.attempt, head.history, head.kind, head.priority) == (0, (), "mail", 2)
            assert head.deadline is None
            assert head.put_at >= held.put_at
            assert (behind.value, behind.state) == (b"2", "in_line")
            assert await counts(store) == Counts(available=3)
            again = await claim_one(store, of_key("a"))
            assert (again.id, again.attempt) == (first.id, 1)
            await settle(store, Purge("q"))

    @check
    async def test_a_held_key_goes_on_when_its_holder_is_forgotten(self, store: Store) -> None:
        """By a discard or a purge; the next is at the back, and the key is gone without one."""
        for part in ("discard", "buried"):
            for lined in (True, False):
                await store.put([one("a", b"1")])
                held = await claim_one(store)
                if lined:
                    await store.put([one("a", b"2", policy="append")])
                await settle(store, Bury("q", "a", held.token, hold=True))
                await store.put([one("b")])
                change = Discard("q", held.id) if part == "discard" else Purge("q", "buried")
                assert await store.settle([change]) == [1]
                assert await order(store) == (["b", "a"] if lined else ["b"])
                if lined:
                    follower = await claim_one(store, of_key("a"))
                    assert (follower.value, follower.attempt) == (b"2", 1)
                else:
                    assert (await put_one(store, one("a", policy="append"))).outcome == "added"
                await settle(store, Purge("q"))

    @site_check()
    async def test_a_held_key_goes_on_when_its_holder_makes_room(self, site: Site) -> None:
        """Beyond `Limits.buried` the oldest buried item is dropped, and so is its hold."""
        store = site.open_timed()
        await append(store, "a", 2)
        held = await claim_one(store)
        await settle(store, Bury("q", "a", held.token, hold=True))
        for start in range(0, store.limits.buried, 1000):
            most = min(1000, store.limits.buried - start)
            await store.put([one(f"k{start + number}") for number in range(most)])
            items = await claim(store, next_items(most))
            assert "a" not in [item.key for item in items]
            await settle(store, *(Bury("q", i.key, i.token) for i in items))
        follower = await claim_one(store)
        assert (follower.key, follower.value) == ("a", b"1")
        assert await counts(store) == Counts(in_flight=1, buried=store.limits.buried)

    @check
    async def test_a_cancel_ends_a_hold(self, store: Store) -> None:
        """The line goes, the buried item stays buried; requeueing it follows the rules of put."""
        ids = await append(store, "a", 3)
        held = await claim_one(store)
        await settle(store, Bury("q", "a", held.token, hold=True))
        assert await store.settle([Cancel("q", "a", id=ids[0])]) == [0]
        assert await store.settle([Cancel("q", "a", id=ids[1])]) == [1]
        assert await counts(store) == Counts(buried=1, held=1)
        assert await store.settle([Cancel("q", "a", only_line=True)]) == [1]
        assert (await put_one(store, one("a", b"8"))).outcome == "appended"
        assert await store.settle([Cancel("q", "a", b"1", LONG)]) == [1]
        assert await counts(store) == Counts(buried=1, done=1, done_cancelled=1)
        [buried] = await everything(store, "buried")
        assert (buried.id, buried.holds) == (ids[0], False)
        assert (await put_one(store, one("a", b"9"))).outcome == "added"
        assert await store.settle([Requeue("q", ids[0])]) == [True]
        assert await values_of(store, "a") == [b"9", b"0"]
        assert (await line_of(store, "a"))[1].id > ids[2]

    @check
    async def test_a_hold_of_an_empty_line_ends_with_a_cancel(self, store: Store) -> None:
        """It answers that no value went, and the key is absent."""
        await store.put([one("a")])
        held = await claim_one(store)
        await settle(store, Bury("q", "a", held.token, hold=True))
        assert await store.settle([Cancel("q", "a")]) == [0]
        assert (await put_one(store, one("a", policy="only_new"))).outcome == "added"
        assert (await claim_one(store)).key == "a"

    @check
    async def test_a_buffered_value_behind_a_held_key_waits_as_others_do(
        self, store: Store
    ) -> None:
        """What is buried was not released: the requeued head comes first, and stays."""
        await store.put([one("a", b"1")])
        held = await claim_one(store)
        await store.put([one("a", b"2", policy="buffer")])
        await settle(store, Bury("q", "a", held.token, hold=True))
        assert [item.state for item in await line_of(store, "a")] == ["in_line"]
        await settle(store, Requeue("q", held.id))
        again = await claim_one(store)
        await settle(store, Release("q", "a", again.token))
        last = await claim_one(store)
        assert (last.value, last.attempt) == (b"1", 2)
