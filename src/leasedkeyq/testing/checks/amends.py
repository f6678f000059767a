"""What `Amend` does: a value that waits is changed where it is, by its id."""

from collections.abc import Sequence

from msgspec.structs import replace

from leasedkeyq.errors import LeasedKeyQError, LimitExceededError, UnstorableError
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Answer,
    Bury,
    Change,
    Counts,
    Extend,
    Put,
    Release,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import (
    LONG,
    SHORT,
    append,
    claim_one,
    counts,
    everything,
    expect,
    line_of,
    of_key,
    one,
    order,
    put_one,
    settle,
    values_of,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check


async def amend(store: Store, *requests: Amend) -> list[Answer]:
    """Amend what must not be refused; whether each was there."""
    return await settle(store, *requests)


async def head(store: Store, key: str) -> StoredItem:
    """The head of a key, which must be there."""
    return (await line_of(store, key))[0]


class AmendChecks(Suite):
    """`Amend` of heads and of values in lines."""

    @check
    async def test_an_amended_value_keeps_its_place(self, store: Store) -> None:
        """And its id, age, attempts, history, deadline and progress; an empty value is one."""
        await store.put([one("a", deadline=LONG, kind="mail"), one("b"), one("c")])
        held = await claim_one(store, of_key("a"))
        await settle(
            store,
            Extend("q", "a", held.token, LONG, b"half"),
            Release("q", "a", held.token, error="no", front=True),
        )
        assert await order(store) == ["a", "b", "c"]
        before = await head(store, "a")
        assert await amend(store, Amend("q", "a", before.id, b'"new"')) == [True]
        after = await head(store, "a")
        assert after == replace(before, value=b'"new"')
        assert await amend(store, Amend("q", "a", before.id, kind="bill")) == [True]
        assert await head(store, "a") == replace(after, kind="bill")
        assert await amend(store, Amend("q", "a", before.id, b"", kind="")) == [True]
        assert await amend(store, Amend("q", "a", before.id)) == [True]
        assert await head(store, "a") == replace(before, value=b"", kind="")
        assert await order(store) == ["a", "b", "c"]
        again = await claim_one(store)
        assert (again.id, again.value, again.attempt) == (before.id, b"", 2)
        assert again.deadline == before.deadline

    @check
    async def test_an_amended_priority_moves_an_item(self, store: Store) -> None:
        """To the back of that; one that is its own leaves it where it is."""
        await store.put([one(key) for key in "abc"])
        await store.put([one("high", priority=1), one("later", delay=LONG)])
        ids = {item.key: item.id for item in await everything(store)}
        assert await amend(store, Amend("q", "a", ids["a"], priority=0)) == [True]
        assert await order(store) == ["high", "a", "b", "c"]
        assert await amend(store, Amend("q", "b", ids["b"], priority=1)) == [True]
        assert await order(store) == ["high", "b", "a", "c"]
        # Asked again, it is the same.
        assert await amend(store, Amend("q", "b", ids["b"], priority=1)) == [True]
        assert await amend(store, Amend("q", "high", ids["high"], b"2", priority=0)) == [True]
        assert await order(store) == ["b", "a", "c", "high"]
        assert await amend(store, Amend("q", "later", ids["later"], priority=7)) == [True]
        assert await amend(store, Amend("q", "later", ids["later"], delay=0)) == [True]
        assert await order(store) == ["later", "b", "a", "c", "high"]

    @site_check()
    async def test_an_amended_delay_schedules_anew(self, site: Site) -> None:
        """From now on; 0 is now, at the back, and leaves what is available where it is."""
        store = site.open_timed()
        await store.put([one("a"), one("b"), one("c", delay=LONG)])
        ids = {item.key: item.id for item in await everything(store)}
        assert await amend(store, Amend("q", "a", ids["a"], delay=0)) == [True]
        assert await order(store) == ["a", "b"]
        assert await amend(store, Amend("q", "a", ids["a"], b"2", delay=LONG)) == [True]
        assert await counts(store) == Counts(available=1, scheduled=2)
        item = await head(store, "a")
        assert (item.state, item.value) == ("scheduled", b"2")
        assert item.due is not None
        assert await amend(store, Amend("q", "a", ids["a"], delay=2 * LONG)) == [True]
        later = await head(store, "a")
        assert later.due is not None
        assert later.due > item.due + LONG / 2
        assert await amend(store, Amend("q", "a", ids["a"], b"3")) == [True]
        assert (await head(store, "a")).due == later.due
        both = [Amend("q", "c", ids["c"], delay=0), Amend("q", "a", ids["a"], delay=SHORT)]
        assert await amend(store, *both) == [True, True]
        assert await order(store) == ["b", "c"]
        await site.pass_time(SHORT * 1.5)
        assert await order(store) == ["b", "c", "a"]
        assert await counts(store) == Counts(available=3)

    @check
    async def test_values_in_lines_are_amended_for_their_turn(self, store: Store) -> None:
        """Each by its own id, in its place in the line: also behind a leased or a held head."""
        ids = await append(store, "a", 4)
        await store.put([one("b", priority=1)])
        held = await claim_one(store, of_key("a"))
        changes = [
            Amend("q", "a", ids[1], b'"one"', priority=2, kind="mail"),
            Amend("q", "a", ids[2], delay=LONG),
        ]
        assert await amend(store, *changes) == [True, True]
        assert await values_of(store, "a") == [b"0", b'"one"', b"2", b"3"]
        assert [item.id for item in await line_of(store, "a")] == ids
        assert await counts(store) == Counts(available=4, in_flight=1)
        await settle(store, Ack("q", "a", held.token))
        assert await order(store) == ["a", "b"]
        first = await claim_one(store)
        assert (first.id, first.value, first.kind) == (ids[1], b'"one"', "mail")
        await settle(store, Ack("q", "a", first.token))
        assert (await head(store, "a")).state == "scheduled"
        assert await amend(store, Amend("q", "a", ids[2], delay=0)) == [True]
        second = await claim_one(store, of_key("a"))
        await settle(store, Bury("q", "a", second.token, hold=True))
        assert await amend(store, Amend("q", "a", ids[3], b"9", priority=3)) == [True]
        [waiting] = await line_of(store, "a")
        assert (waiting.state, waiting.value, waiting.priority) == ("in_line", b"9", 3)
        assert (await counts(store)).held == 1

    @check
    async def test_a_buffered_value_is_amended(self, store: Store) -> None:
        """It takes the place of what is released, with what it was amended to."""
        await store.put([one("a"), one("b")])
        held = await claim_one(store)
        placed = await put_one(store, one("a", b"2", policy="buffer"))
        assert await amend(store, Amend("q", "a", placed.id, b"3", priority=1)) == [True]
        assert [(i.value, i.state) for i in await line_of(store, "a")] == [
            (b"1", "in_flight"),
            (b"3", "buffered"),
        ]
        await settle(store, Release("q", "a", held.token))
        again = await claim_one(store)
        assert (again.id, again.value, again.attempt) == (placed.id, b"3", 2)
        assert again.priority == 1

    @check
    async def test_what_does_not_wait_is_not_amended(self, store: Store) -> None:
        """Leased, buried, holding its key, done or gone: the answer is False, and all is left."""
        answers = await store.put([one(key) for key in ("leased", "buried", "holds", "done", "x")])
        ids = [placed.id for answer in answers if isinstance(answer, tuple) for placed in answer]
        tokens = [(await claim_one(store)).token for _ in range(4)]
        await store.put([one("holds", b"2", policy="append")])
        await settle(
            store,
            Bury("q", "buried", tokens[1]),
            Bury("q", "holds", tokens[2], hold=True),
            Ack("q", "done", tokens[3], b"1", LONG),
        )
        before = await everything(store)
        keys = ("leased", "buried", "holds", "done")
        wrong = [Amend("q", key, ids[n], b"7", 5, 0, "mail") for n, key in enumerate(keys)]
        wrong += [
            Amend("q", "x", ids[4] + 1000, b"7"),
            Amend("q", "x", ids[0], b"7"),
            Amend("q", "leased", ids[4], b"7"),
            Amend("q", "absent", ids[4], b"7"),
            Amend("other", "x", ids[4], b"7"),
        ]
        assert await amend(store, *wrong) == [False] * len(wrong)
        assert await everything(store) == before
        await settle(store, Ack("q", "leased", tokens[0]))

    @check
    async def test_an_edit_amends(self, store: Store) -> None:
        """What it has seen, together with its other changes; a refusal undoes it."""
        await store.put([one("a"), one("b"), one("c", delay=LONG)])
        ids = await append(store, "d", 2)

        def work(items: Sequence[StoredItem]) -> list[Change]:
            return [Amend("q", i.key, i.id, b"2", 1, 0) for i in items if i.key != "b"]

        before = await everything(store)

        def refused(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [*work(items), one("more", max_items=1)]

        await expect(LeasedKeyQError, store.edit("q", refused))
        assert await everything(store) == before
        assert await order(store) == ["a", "b", "d"]
        assert await store.edit("q", work) == [True] * 4
        assert await order(store) == ["a", "c", "d", "b"]
        assert await values_of(store, "d") == [b"2", b"2"]
        absent = Amend("q", "d", ids[1] + 1000, b"3")
        assert await store.edit("q", lambda _: [absent]) == [False]

    @check
    async def test_an_amend_beyond_the_limits_is_refused(self, store: Store) -> None:
        """As a put would be, and the item stays as it is."""
        placed = await put_one(store, one("a"))
        [before] = await everything(store)
        limits = store.limits
        for wrong, error in (
            (Amend("q", "a", placed.id, b"v" * (limits.value_size + 1)), LimitExceededError),
            (Amend("q", "a", placed.id, kind="k" * (limits.key_length + 1)), LimitExceededError),
            (Amend("q", "a", placed.id, kind="\x00"), UnstorableError),
            (Amend("q", "a", placed.id, priority=2**64), UnstorableError),
            (Amend("q", "a", placed.id, delay=float("inf")), UnstorableError),
            (Amend("q", "a", 2**64, b"2"), UnstorableError),
        ):
            [answer] = await store.settle([wrong])
            assert isinstance(answer, error), f"{wrong} is answered by {answer!r}"
        assert await everything(store) == [before]
