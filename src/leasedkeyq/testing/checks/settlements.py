"""What becomes of items that are done, given up or not wanted any more."""

from typing import Any

from leasedkeyq.errors import LimitExceededError, UnstorableError
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Counts,
    Discard,
    Purge,
    Refusal,
    Release,
    Requeue,
    ResultOutcome,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import (
    LONG,
    SHORT,
    claim,
    claim_one,
    counts,
    everything,
    next_items,
    one,
    order,
    put_one,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check


class SettleChecks(Suite):
    """Burying, cancelling, purging, and results that are kept."""

    @check
    async def test_buried_items_leave_their_key_and_can_come_back(self, store: Store) -> None:
        """Several of one key may lie there; requeueing one starts it anew."""
        ids: list[Any] = []
        for value in (b"1", b"2"):
            await store.put([one("a", value, priority=3, kind="mail")])
            held = await claim_one(store)
            ids += await settle(store, Bury("q", "a", held.token, "broken"))
        buried = await everything(store, "buried")
        assert [(i.id, i.value, i.error, i.kind) for i in buried] == [
            (ids[0], b"1", "broken", "mail"),
            (ids[1], b"2", "broken", "mail"),
        ]
        assert [(a.number, a.how, a.error) for a in buried[0].history] == [(1, "buried", "broken")]
        answers = await store.settle([Requeue("q", ids[1]), Requeue("q", ids[1])])
        assert answers == [True, False]
        back = await claim_one(store)
        assert (back.value, back.priority, back.attempt, back.kind) == (b"2", 3, 1, "mail")
        assert await store.settle([Purge("q", "buried")]) == [1]
        assert (await counts(store)).buried == 0

    @check
    async def test_a_refused_requeue_leaves_the_item_buried(self, store: Store) -> None:
        """It follows the rules of put."""
        await store.put([one("a")])
        [number] = await settle(store, Bury("q", "a", (await claim_one(store)).token))
        assert isinstance(number, int)
        await store.put([one("a", b"2")])
        await claim_one(store)
        [refusal] = await store.settle([Requeue("q", number, "reject")])
        assert isinstance(refusal, Exception)
        assert [item.value for item in await everything(store, "buried")] == [b"1"]

    @site_check()
    async def test_the_oldest_buried_items_are_dropped_beyond_the_limit(self, site: Site) -> None:
        """Nothing grows without bound: `Limits.buried`, and `Limits.history` for each item."""
        store = site.open_timed()
        most = store.limits.buried
        keys = [f"k{number}" for number in range(most + 1)]
        for start in range(0, len(keys), 1000):
            await store.put([one(key) for key in keys[start : start + 1000]])
            items = await claim(store, next_items(1000))
            await settle(store, *(Bury("q", i.key, i.token) for i in items))
        assert [item.key for item in await everything(store, "buried")] == keys[1:]

        await store.put([one("a")])
        for _ in range(store.limits.history + 1):
            await settle(store, Release("q", "a", (await claim_one(store)).token))
        [item] = await everything(store, "available")
        numbers = [attempt.number for attempt in item.history]
        assert numbers == list(range(2, store.limits.history + 2))

    @check
    async def test_cancel_revokes(self, store: Store) -> None:
        """From every state; the holder is refused."""
        await store.put([one("a"), one("b"), one("c", delay=LONG)])
        held = await claim_one(store)
        await store.put([one("a", b"2", policy="buffer")])
        cancels = [Cancel("q", key) for key in ("a", "b", "c", "d")]
        assert await store.settle(cancels) == [2, 1, 1, 0]
        [refusal] = await store.settle([Ack("q", "a", held.token)])
        assert isinstance(refusal, Refusal)
        assert await counts(store) == Counts()

    @check
    async def test_cancel_of_one_item(self, store: Store) -> None:
        """Of the leased item and the one buffered beside it, either can go alone."""
        await store.put([one("a"), one("b"), one("c", delay=LONG)])
        a, b = await claim(store, next_items(2))
        ids = [(await put_one(store, one(k, b"2", policy="buffer"))).id for k in ("a", "b")]
        cancels = [
            Cancel("q", "a", b'"gone"', LONG, a.id),
            Cancel("q", "a", id=a.id),
            Cancel("q", "b", b'"gone"', LONG, ids[1]),
            Cancel("q", "b", id=ids[1]),
            Cancel("q", "c", id=a.id),
            Cancel("q", "absent", id=a.id),
        ]
        assert await store.settle(cancels) == [1, 0, 1, 0, 0, 0]
        [refusal] = await store.settle([Ack("q", "a", a.token)])
        assert isinstance(refusal, Refusal)
        assert await counts(store) == Counts(
            available=1, scheduled=1, in_flight=1, done=2, done_cancelled=2
        )
        follower = await claim_one(store)
        assert (follower.key, follower.value, follower.id) == ("a", b"2", ids[0])
        await settle(store, Ack("q", "b", b.token), Ack("q", "a", follower.token))
        assert await counts(store) == Counts(scheduled=1, done=2, done_cancelled=2)
        done = await everything(store)
        assert [i.id for i in done if i.state == "done"] == sorted((a.id, ids[1]))

    @site_check()
    async def test_results_are_kept_for_their_time(self, site: Site) -> None:
        """By the id of the item, and forgotten afterwards."""
        store = site.open_timed()
        await store.put([one("a"), one("b"), one("c")])
        a, b, c = await claim(store, next_items(3))
        await settle(
            store,
            Ack("q", "a", a.token, b'"done"', LONG),
            Ack("q", "b", b.token, b"2", SHORT),
            Ack("q", "c", c.token, b"3"),
        )
        first, second, third, none = await store.results("q", [a.id, b.id, c.id, 10**9])
        assert first is not None
        assert (first.state, first.value, first.key) == ("done", b'"done"', "a")
        assert second is not None
        assert third is none is None
        assert (await counts(store)).done == 2
        await site.pass_time(SHORT * 1.5)
        assert [r is None for r in await store.results("q", [a.id, b.id])] == [False, True]
        assert (await counts(store)).done == 1

    @site_check()
    async def test_results_are_counted_by_their_outcome(self, site: Site) -> None:
        """However they come and go: acks, cancels, their time, `Discard`, `Purge` and edits."""
        store = site.open_timed()
        endings: tuple[ResultOutcome, ...] = ("completed", "failed", "failed", "cancelled")

        async def finish(keep: float) -> None:
            """Keep two results of each of the four."""
            await store.put([one(key) for key in "abcdefgh"])
            items = await claim(store, next_items(4))
            acks = [
                Ack("q", item.key, item.token, b"1", keep, outcome)
                for item, outcome in zip(items, endings, strict=True)
            ]
            cancels = [
                Cancel("q", key, b"2", keep, outcome=outcome)
                for key, outcome in zip("efgh", endings, strict=True)
            ]
            await settle(store, *acks, *cancels)

        await finish(LONG)
        shown = await everything(store)
        long = [item.id for item in shown]
        assert [item.outcome for item in shown] == [*endings, *endings]
        found = await store.results("q", long)
        assert [item and item.outcome for item in found] == [*endings, *endings]
        assert await counts(store) == Counts(done=8, done_failed=4, done_cancelled=2)
        await finish(SHORT)
        assert await counts(store) == Counts(done=16, done_failed=8, done_cancelled=4)
        await site.pass_time(SHORT * 1.5)
        assert await counts(store) == Counts(done=8, done_failed=4, done_cancelled=2)
        await store.sweep(["q"])
        assert await counts(store) == Counts(done=8, done_failed=4, done_cancelled=2)
        await store.settle([Discard("q", number) for number in long[:2]])
        assert await store.edit("q", lambda _: [Discard("q", long[3])]) == [True]
        assert await counts(store) == Counts(done=5, done_failed=3, done_cancelled=1)

        # What says nothing is completed if it was acknowledged, and else cancelled.
        await store.put([one("a")])
        await settle(store, Ack("q", "a", (await claim_one(store)).token, keep=LONG))
        await store.put([one("a"), one("b")])
        await claim_one(store)
        await store.put([one("a", b"2", policy="buffer")])

        def work(_: object) -> list[Change]:
            return [Cancel("q", "a", keep=LONG), Cancel("q", "b", keep=LONG, outcome="failed")]

        assert await store.edit("q", work) == [2, 1]
        assert await counts(store) == Counts(done=9, done_failed=4, done_cancelled=3)
        assert await store.settle([Purge("q", "results")]) == [9]
        assert await counts(store) == Counts()
        assert await everything(store) == []

    @check
    async def test_an_outcome_that_is_none_is_refused(self, store: Store) -> None:
        """The lease goes on, and the item stays."""
        await store.put([one("a")])
        held = await claim_one(store)
        nonsense: Any = "done"
        answers = await store.settle(
            [
                Ack("q", "a", held.token, b"1", LONG, nonsense),
                Cancel("q", "a", b"1", LONG, outcome=nonsense),
            ]
        )
        for answer in answers:
            assert isinstance(answer, UnstorableError), f"it is answered by {answer!r}"
        assert await counts(store) == Counts(in_flight=1)

    @check
    async def test_cancel_can_leave_a_result(self, store: Store) -> None:
        """Under the id of each item that goes; none where there was no item."""
        await store.put([one("a", kind="mail"), one("b")])
        held = await claim_one(store)
        placed = await put_one(store, one("a", b"2", policy="buffer"))
        answers = await store.settle(
            [
                Cancel("q", "a", b'"gone"', LONG),
                Cancel("q", "b", b'"gone"'),
                Cancel("q", "absent", b'"gone"', LONG),
            ]
        )
        assert answers == [2, 1, 0]
        done = await everything(store)
        assert [(i.id, i.key, i.state, i.value) for i in done] == [
            (held.id, "a", "done", b'"gone"'),
            (placed.id, "a", "done", b'"gone"'),
        ]

    @check
    async def test_one_buried_item_can_be_discarded(self, store: Store) -> None:
        """By its id and in its queue, whatever became of its key; nothing else is touched."""
        ids: list[Any] = []
        for value in (b"1", b"2"):
            await store.put([one("a", value)])
            held = await claim_one(store)
            ids += await settle(store, Bury("q", "a", held.token))
        await store.put([one("a", b"3"), one("b")])
        live, done = await claim(store, next_items(2))
        await settle(store, Ack("q", "b", done.token, b"1", LONG))
        wrong = [Discard("other", ids[0]), Discard("q", live.id), Discard("q", 10**9)]
        assert await store.settle(wrong) == [False] * 3
        assert await store.settle([Discard("q", ids[0]), Discard("q", ids[0])]) == [True, False]
        assert [(item.state, item.value) for item in await everything(store)] == [
            ("buried", b"2"),
            ("in_flight", b"3"),
            ("done", b"1"),
        ]
        assert await counts(store) == Counts(in_flight=1, buried=1, done=1)
        assert await store.settle([Requeue("q", ids[0])]) == [False]

    @check
    async def test_one_result_can_be_discarded(self, store: Store) -> None:
        """By its id and in its queue, as long as it is kept; nothing else is touched."""
        await store.put([one(key) for key in "abc"])
        a, b, c = await claim(store, next_items(3))
        await settle(store, Ack("q", "a", a.token, b"1", LONG), Ack("q", "b", b.token, b"2", LONG))
        assert await store.settle([Discard("other", a.id), Discard("q", c.id)]) == [False] * 2
        assert await store.settle([Discard("q", a.id), Discard("q", a.id)]) == [True, False]
        assert [item and item.value for item in await store.results("q", [a.id, b.id])] == [
            None,
            b"2",
        ]
        assert await counts(store) == Counts(in_flight=1, done=1)
        await store.put([one("a", b"3")])
        assert await order(store) == ["a"]
        # In an edit, too.
        assert await store.edit("q", lambda _: [Discard("q", b.id)], keys=["b"]) == [True]
        assert await counts(store) == Counts(available=1, in_flight=1)

    @check
    async def test_purge_forgets_what_it_is_told_to(self, store: Store) -> None:
        """The buried items, the results, or all, leases included."""
        await store.put([one(key) for key in "abcd"])
        a, b, c = await claim(store, next_items(3))
        await store.put([one("c", b"2", policy="buffer")])
        await settle(store, Bury("q", "a", a.token), Ack("q", "b", b.token, b"1", LONG))
        assert await store.settle([Purge("q", "results")]) == [1]
        assert [item.state for item in await everything(store, "buried", "done")] == ["buried"]
        assert await order(store) == ["d"]
        assert await store.settle([Purge("q"), Purge("q")]) == [4, 0]
        assert await counts(store) == Counts()
        assert isinstance((await store.settle([Ack("q", "c", c.token)]))[0], Refusal)

    @check
    async def test_a_result_beyond_the_limit_is_refused(self, store: Store) -> None:
        """The lease goes on, and the item stays."""
        await store.put([one("a")])
        held = await claim_one(store)
        large = b"v" * (store.limits.value_size + 1)
        answers = await store.settle(
            [Ack("q", "a", held.token, large, LONG), Cancel("q", "a", large, LONG)]
        )
        for answer in answers:
            assert isinstance(answer, LimitExceededError), f"it is answered by {answer!r}"
        assert await counts(store) == Counts(in_flight=1)
        await settle(store, Ack("q", "a", held.token, large[1:], LONG))
        assert [len(item.value) for item in await everything(store)] == [len(large) - 1]
