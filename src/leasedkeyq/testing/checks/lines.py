"""What a line does: every value of a key, in order, one at a time."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from leasedkeyq.errors import (
    KeyAlreadyPresentError,
)
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Cap,
    Change,
    Claim,
    Claimed,
    Counts,
    Discard,
    Placed,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
    Urgency,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import processes
from leasedkeyq.testing.shorthand import (
    EVERY_STATE,
    LONG,
    SHORT,
    append,
    claim,
    claim_one,
    counts,
    everything,
    expect,
    line_of,
    next_items,
    of_key,
    one,
    order,
    placed_by,
    put_one,
    refused,
    settle,
    values_of,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check

PROCESSES = 3
QUIET = 0.02
"""After so many seconds nobody is woken any more by what happened before."""


class LineChecks(Suite):
    """Values behind the head of a key: how they come out, how they go, what is shown of them."""

    # Order

    @site_check()
    async def test_the_values_of_a_key_come_one_at_a_time_and_in_order(self, site: Site) -> None:
        """Through releases to the front and back, delays, expired leases and undone claims."""
        store = site.open_timed()
        ids = await append(store, "a", 6)
        for number, value_id in enumerate(ids):
            held = await claim_one(store, next_items(9))
            ways = [
                Release("q", "a", held.token),
                Release("q", "a", held.token, front=True),
                Release("q", "a", held.token, delay=SHORT),
                Release("q", "a", held.token, undo=True),
                Release("q", "a", held.token, delay=SHORT, undo=True),
                None,
            ]
            way = ways[number]
            if way is not None:
                await settle(store, way)
            else:
                await settle(store, Release("q", "a", held.token, undo=True))
                await claim_one(store, next_items(9, SHORT))
            assert (held.id, held.value, held.attempt) == (value_id, b"%d" % number, 1)
            if way is None or way.delay:
                assert await claim(store, next_items(9)) == (), "a line did not wait for its head"
                assert await claim(store, of_key("a")) == ()
                await site.pass_time(SHORT * 1.5)
            again = await claim_one(store, next_items(9))
            assert (again.id, again.value) == (value_id, b"%d" % number)
            assert again.attempt == (1 if way is not None and way.undo else 2)
            await settle(store, Ack("q", "a", again.token))
        assert await counts(store) == Counts()

    @check
    async def test_keys_take_turns(self, store: Store) -> None:
        """The next of a line goes to the back when it is its turn, however long it has waited."""
        await append(store, "a", 4)
        await append(store, "b", 1)
        await append(store, "c", 2)
        seen: list[str] = []
        for number in range(8):
            held = await claim_one(store)
            seen.append(f"{held.key}{held.value.decode()}")
            if number == 2:
                await store.put([one("d", b"0")])
            await settle(store, Ack("q", held.key, held.token))
        assert seen == ["a0", "b0", "c0", "a1", "d0", "c1", "a2", "a3"]

    @check
    async def test_a_batch_leases_one_value_of_a_line(self, store: Store) -> None:
        """In one request, by equal requests at a time, and after acks of one batch."""
        for key in "abc":
            await append(store, key, 3)
        for number in range(3):
            claimed = [item for items in await store.claim([next_items(2)] * 3) for item in items]
            assert sorted((item.key, item.value) for item in claimed) == [
                (key, b"%d" % number) for key in "abc"
            ]
            await settle(store, *(Ack("q", item.key, item.token) for item in claimed))
        assert await counts(store) == Counts()

    @site_check()
    async def test_the_next_of_a_line_begins_anew(self, site: Site) -> None:
        """After an ack, a burial or a cancel: attempts, history, and the terms of its own put."""
        store = site.open_timed()
        for end in ("ack", "bury", "cancel"):
            await store.put([one(end, b"1", priority=9, kind="first", deadline=LONG)])
            [_, answer] = await store.put(
                [
                    one("other", priority=2),
                    one(end, b"2", policy="append", priority=2, kind="next", deadline=2 * LONG),
                ]
            )
            await settle(store, Release("q", end, (await claim_one(store)).token, error="broken"))
            await site.pass_time(SHORT)
            held = await claim_one(store)
            assert (held.key, held.attempt) == (end, 2)
            change: Change = Cancel("q", end, id=held.id)
            if end != "cancel":
                change = (Ack if end == "ack" else Bury)("q", end, held.token)
            await settle(store, change)
            [[item]] = await store.look("q", [end])
            assert (item.id, item.value, item.state) == (placed_by(answer)[0].id, b"2", "available")
            assert (item.attempt, item.history, item.kind, item.priority) == (0, (), "next", 2)
            assert item.put_at < held.put_at + SHORT, "the age of a value does not begin anew"
            assert item.deadline is not None
            assert LONG < item.deadline - item.put_at <= 2 * LONG + 1
            assert await order(store) == ["other", end], "it goes to the back of its priority"
            follower = await claim_one(store, of_key(end))
            assert (follower.attempt, follower.kind, follower.id) == (1, "next", item.id)
            await settle(store, Purge("q"))

    @site_check()
    async def test_a_delay_in_a_line_counts_from_the_put(self, site: Site) -> None:
        """It may be over when its turn comes; otherwise the key is scheduled for the rest."""
        store = site.open_timed()
        await store.put([one("a"), one("b")])
        await store.put([one("a", b"2", policy="append", delay=SHORT)])
        await store.put([one("b", b"2", policy="append", delay=LONG)])
        a, b = await claim(store, next_items(2))
        shown = [(await line_of(store, key))[1] for key in "ab"]
        assert [item.state for item in shown] == ["in_line", "in_line"]
        assert [SHORT / 2 < (i.due or 0) - i.put_at <= LONG + 1 for i in shown] == [True, True]
        await site.pass_time(SHORT * 1.5)
        await settle(store, Ack("q", "a", a.token), Ack("q", "b", b.token))
        assert await counts(store) == Counts(available=1, scheduled=1)
        assert (await claim_one(store)).value == b"2"
        [[item]] = await store.look("q", ["b"])
        assert (item.state, item.due) == ("scheduled", shown[1].due)

    @check
    async def test_a_line_waits_behind_a_scheduled_head(self, store: Store) -> None:
        """Nothing of it is handed out before the head, though nothing keeps it back."""
        await store.put([one("a", b"1", delay=LONG)])
        await store.put([one("a", b"2", policy="append", priority=9)])
        assert await counts(store) == Counts(available=1, scheduled=1)
        assert await store.heads(["q"]) == [None]
        assert await claim(store, next_items(9)) == ()
        assert await claim(store, of_key("a")) == ()
        await store.put([one("b")])
        assert (await claim_one(store, next_items(9))).key == "b"

    @check
    async def test_a_buffered_value_goes_before_the_rest_of_its_line(self, store: Store) -> None:
        """It replaces a head that is released; what was appended behind it waits for its turn."""
        await store.put([one("a", b"1")])
        held = await claim_one(store)
        buffered = await put_one(store, one("a", b"2", policy="buffer"))
        appended = await put_one(store, one("a", b"3", policy="append"))
        updated = await put_one(store, one("a", b"4", policy="buffer"))
        assert (buffered.outcome, appended.outcome) == ("buffered", "appended")
        assert updated == Placed(appended.id, "updated")
        shown = [(item.state, item.value) for item in await line_of(store, "a")]
        assert shown == [("in_flight", b"1"), ("buffered", b"2"), ("in_line", b"4")]
        await settle(store, Release("q", "a", held.token))
        second = await claim_one(store)
        assert (second.value, second.attempt, second.id) == (b"2", 2, buffered.id)
        await settle(store, Release("q", "a", second.token))
        assert await values_of(store, "a") == [b"2", b"4"], "what was appended replaces nothing"
        third = await claim_one(store)
        assert (third.value, third.attempt) == (b"2", 3)
        await settle(store, Ack("q", "a", third.token))
        last = await claim_one(store)
        assert (last.value, last.attempt, last.id) == (b"4", 1, appended.id)

    @check
    async def test_a_requeued_item_goes_to_the_end_of_the_line(self, store: Store) -> None:
        """Unless the request says otherwise; nothing newer is replaced by it."""
        await append(store, "a", 3)
        held = await claim_one(store)
        [number] = await settle(store, Bury("q", "a", held.token, "broken"))
        assert isinstance(number, int)
        assert await values_of(store, "a") == [b"1", b"2"]
        assert await store.settle([Requeue("q", number)]) == [True]
        assert await values_of(store, "a") == [b"1", b"2", b"0"]
        assert (await line_of(store, "a"))[2].id > held.id
        held = await claim_one(store)
        [number] = await settle(store, Bury("q", "a", held.token))
        assert isinstance(number, int)
        [refusal] = await store.settle([Requeue("q", number, "only_new")])
        assert isinstance(refusal, KeyAlreadyPresentError)
        assert await store.settle([Requeue("q", number, "update")]) == [True]
        assert await values_of(store, "a") == [b"2", b"1"]

    # Changing

    @check
    async def test_one_value_can_be_cancelled(self, store: Store) -> None:
        """The head, and the next takes its place; or one of the line, and the lease goes on."""
        ids = await append(store, "a", 5)
        await store.put([one("b")])
        held = await claim_one(store)
        cancels = [
            Cancel("q", "a", b'"gone"', LONG, ids[2]),
            Cancel("q", "a", id=ids[2]),
            Cancel("q", "b", id=ids[3]),
            Cancel("q", "a", id=ids[4]),
        ]
        assert await store.settle(cancels) == [1, 0, 0, 1]
        assert await values_of(store, "a") == [b"0", b"1", b"3"]
        [done] = await everything(store, "done")
        assert (done.id, done.value, done.outcome) == (ids[2], b'"gone"', "cancelled")
        await settle(store, Release("q", "a", held.token, front=True))
        assert await store.settle([Cancel("q", "a", id=ids[0])]) == [1]
        assert await order(store) == ["b", "a"], "the next goes to the back"
        assert await values_of(store, "a") == [b"1", b"3"]
        held = await claim_one(store, of_key("a"))
        assert await store.settle([Cancel("q", "a", id=ids[1])]) == [1]
        await refused(store, [Ack("q", "a", held.token)])
        last = await claim_one(store, of_key("a"))
        assert (last.value, last.id) == (b"3", ids[3])

    @check
    async def test_a_line_can_be_cancelled_with_its_head_or_without(self, store: Store) -> None:
        """The answer says how many values went; each leaves its result."""
        ids = await append(store, "a", 4)
        held = await claim_one(store)
        assert await store.settle([Cancel("q", "a", b"1", LONG, only_line=True)]) == [3]
        assert await store.settle([Cancel("q", "a", only_line=True)]) == [0]
        assert [item.id for item in await everything(store, "done")] == ids[1:]
        assert await counts(store) == Counts(in_flight=1, done=3, done_cancelled=3)
        await store.put([one("a", b"8", policy="append"), one("a", b"9", policy="append")])
        assert await values_of(store, "a") == [b"0", b"8", b"9"]
        assert await store.settle([Cancel("q", "a", b"1", LONG)]) == [3]
        await refused(store, [Ack("q", "a", held.token)])
        assert await counts(store) == Counts(done=6, done_cancelled=6)
        assert await store.look("q", ["a"]) == [()]

    @check
    async def test_purge_takes_lines_along(self, store: Store) -> None:
        """And counts their values, held ones too."""
        await append(store, "a", 3)
        await append(store, "b", 4)
        held = await claim_one(store, of_key("b"))
        await settle(store, Bury("q", "b", held.token, hold=True))
        await claim_one(store)
        assert await store.settle([Purge("q")]) == [7]
        assert await counts(store) == Counts()
        assert await everything(store) == []
        assert (await put_one(store, one("a", policy="append"))).outcome == "added"
        assert (await put_one(store, one("b", policy="append"))).outcome == "added"
        assert [item.key for item in await claim(store, next_items(9))] == ["a", "b"]

    # Looking

    @check
    async def test_look_shows_two_values_and_line_all_in_pages(self, store: Store) -> None:
        """The head and the first behind it; and all by id, from any id on."""
        ids = await append(store, "a", 7)
        await append(store, "b", 1)
        [a, b, c] = await store.look("q", ["a", "b", "c"])
        assert [(item.id, item.state) for item in a] == [
            (ids[0], "available"),
            (ids[1], "in_line"),
        ]
        assert (len(b), c) == (1, ())
        seen: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await store.line("q", "a", cursor=cursor, limit=3)
            assert len(page.items) <= 3
            seen += page.items
            cursor = page.cursor
            if cursor is None or len(seen) > 7:
                break
        assert [item.id for item in seen] == ids
        assert [item.state for item in seen] == ["available", *["in_line"] * 6]
        assert not any(item.token for item in seen)
        for number, value_id in enumerate(ids):
            page = await store.line("q", "a", cursor=str(value_id - 1), limit=1)
            assert [item.id for item in page.items] == [value_id]
            assert (page.cursor is None) == (number == 6)
        assert (await store.line("q", "absent")).items == ()
        assert (await store.line("nowhere", "a")).items == ()

    @check
    async def test_browse_shows_the_values_in_lines(self, store: Store) -> None:
        """By id among the others, in a state of their own, with what is known of each."""
        await store.put([one("a"), one("b")])
        await claim_one(store)
        await store.put([one("a", b"2", policy="buffer")])
        await store.put(
            [
                one("a", b"3", policy="append", priority=4, kind="mail", delay=LONG),
                one("b", b"2", policy="append", deadline=LONG),
                one("c"),
            ]
        )
        shown = await everything(store)
        assert [(item.key, item.state, item.value) for item in shown] == [
            ("a", "in_flight", b"1"),
            ("b", "available", b"1"),
            ("a", "buffered", b"2"),
            ("a", "in_line", b"3"),
            ("b", "in_line", b"2"),
            ("c", "available", b"1"),
        ]
        assert [item.id for item in shown] == sorted(item.id for item in shown)
        lined = await everything(store, "in_line")
        assert lined == shown[3:5]
        first, second = lined
        assert (first.priority, first.kind, first.attempt) == (4, "mail", 0)
        assert (first.due is None, first.deadline) == (False, None)
        assert (second.due, second.deadline is None) == (None, False)
        assert await everything(store, "buffered") == [shown[2]]
        seen: list[str] = []
        cursor: str | None = None
        for _ in shown:
            page = await store.browse("q", states=EVERY_STATE, cursor=cursor, limit=1)
            seen += [item.value.decode() for item in page.items]
            cursor = page.cursor
        assert (seen, cursor) == (["1", "1", "2", "3", "2", "1"], None)
        prefixed = await store.browse("q", states=("in_line",), prefix="b")
        assert list(prefixed.items) == [second]
        assert await counts(store) == Counts(available=5, in_flight=1)

    @check
    async def test_an_edit_sees_and_changes_lines(self, store: Store) -> None:
        """All values of its keys, by id; and undoes what it did to a line if it is refused."""
        ids = await append(store, "a", 4)
        await append(store, "b", 2)
        b = await claim_one(store, of_key("b"))
        await settle(store, Bury("q", "b", b.token, hold=True))
        held = await claim_one(store)
        seen: list[StoredItem] = []
        wanted: list[Put | Change] = [
            Cancel("q", "a", b"1", LONG, ids[2]),
            one("a", b"8", policy="append"),
            one("a", b"9"),
            Ack("q", "a", held.token),
            Requeue("q", b.id),
        ]

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            seen.extend(items)
            return wanted

        before, in_order = await everything(store), await order(store)
        for count in range(1, len(wanted) + 1):

            def fails(_: object, count: int = count) -> list[Put | Change]:
                return [*wanted[:count], Ack("q", "a", "nobody")]

            await expect(Refusal, store.edit("q", fails))
            assert await everything(store) == before
            assert await order(store) == in_order
            assert await counts(store) == Counts(available=3, in_flight=1, buried=1, held=1)
        answers = await store.edit("q", work, keys=["b", "a"])
        assert [(item.id, item.state) for item in seen] == [(i.id, i.state) for i in before]
        assert [item.token != "" for item in seen] == [True, *[False] * 5]
        assert [item.holds for item in seen] == [False] * 4 + [True, False]
        [appended, updated] = [placed_by(answer)[0] for answer in answers[1:3]]
        assert (appended.outcome, updated) == ("appended", Placed(appended.id, "updated"))
        assert [answers[0], *answers[3:]] == [1, None, True]
        assert await values_of(store, "a") == [b"1", b"3", b"9"]
        assert await values_of(store, "b") == [b"0", b"1"]
        assert await order(store) == ["a", "b"]

    @check
    async def test_a_claim_of_some_kinds_does_not_reach_into_a_line(self, store: Store) -> None:
        """Only the head counts: its kind, its priority, its deadline, and the caps of its key."""
        await store.put([one("a", b"1", kind="mail"), one("b", b"1", kind="mail")])
        await store.put([one("a", b"2", policy="append", kind="bill", priority=9, deadline=0.0)])
        assert await claim(store, next_items(9, kinds=("bill",))) == ()
        urgent = next_items(1, urgencies=(Urgency(0, None, ((1.0, 3),)),))
        assert (await claim(store, urgent))[0].value == b"1"
        [head] = await store.heads(["q"])
        assert head is not None
        assert head.key == "b"
        await settle(store, Cancel("q", "b"))
        [[a, _]] = await store.look("q", ["a"])
        assert a.state == "in_flight"
        await settle(store, Cancel("q", "a", id=a.id))
        capped = Claim((("q", 9),), 9, None, LONG, ("bill",), (Cap("q", "a", in_flight=0),))
        assert await claim(store, capped) == ()
        [item] = await claim(store, next_items(9, kinds=("bill",)))
        assert (item.value, item.kind, item.priority) == (b"2", "bill", 9)

    @check
    async def test_watch_tells_when_the_next_of_a_line_is_available(self, store: Store) -> None:
        """However its head went: acknowledged, buried, cancelled, or forgotten by its key."""
        woken = asyncio.Event()
        stop = store.watch("q", woken.set)

        async def next_after(change: Change) -> Claimed:
            # Whoever was woken by what came before does not count.
            while woken.is_set():
                woken.clear()
                await asyncio.sleep(QUIET)
            await settle(store, change)
            await self.soon(woken.wait(), f"nobody was woken by {change}")
            return await claim_one(store)

        ids = await append(store, "a", 6)
        held = await claim_one(store)
        held = await next_after(Ack("q", "a", held.token))
        held = await next_after(Bury("q", "a", held.token))
        held = await next_after(Cancel("q", "a", id=held.id))
        await settle(store, Bury("q", "a", held.token, hold=True))
        held = await next_after(Requeue("q", held.id))
        await settle(store, Bury("q", "a", held.token, hold=True))
        held = await next_after(Discard("q", held.id))
        await settle(store, Bury("q", "a", held.token, hold=True))
        held = await next_after(Purge("q", "buried"))
        assert held.id == ids[5]
        stop()

    # Keeping, and several processes

    @site_check(needs="durability")
    async def test_lines_are_there_when_the_store_is_opened_again(self, site: Site) -> None:
        """In order, with their terms, and behind the buried items that hold their keys."""
        store = site.open_timed()
        await append(store, "a", 3)
        await append(store, "b", 2)
        b = await claim_one(store, of_key("b"))
        await settle(store, Bury("q", "b", b.token, hold=True))
        a = await claim_one(store)
        await store.put([one("a", b"9", policy="append", priority=3, kind="mail", delay=LONG)])
        await store.put([one("c")])
        c = await claim_one(store)
        await store.put([one("c", b"2", policy="buffer"), one("c", b"3", policy="append")])
        before = await everything(store)
        numbers = await counts(store)
        await site.close_stores()

        store = site.open_timed()
        assert await everything(store) == before
        assert await counts(store) == numbers
        assert await claim(store, next_items(9)) == ()
        new = await put_one(store, one("a", b"10", policy="append"))
        assert new.id > max(item.id for item in before), "an id was given twice"
        await settle(store, Ack("q", "a", a.token), Release("q", "c", c.token))
        assert await order(store) == ["a", "c"]
        again = await claim_one(store, of_key("c"))
        assert (again.value, again.attempt) == (b"2", 2)
        await settle(store, Ack("q", "c", again.token), Requeue("q", b.id))
        assert await order(store) == ["a", "c", "b"]
        assert await values_of(store, "a") == [b"1", b"2", b"9", b"10"]
        assert await values_of(store, "b") == [b"0", b"1"]
        assert await values_of(store, "c") == [b"3"]

    @site_check(needs="cross_process")
    async def test_processes_keep_the_order_of_a_line(self, site: Site) -> None:
        """They append to the same few keys and work on them together; some leases are given back.

        The values of a key are worked on in the order of their ids, one at a time, each once, and
        those that one process has put in the order in which it has put them.
        """
        names = [f"process{number}" for number in range(PROCESSES)]
        shares: list[tuple[list[tuple[str, int]], list[processes.Held]]] = await asyncio.gather(
            *(site.start_process().ask(processes.share_lines, name, PROCESSES) for name in names)
        )
        leases = sorted(
            (lease for _, leases in shares for lease in leases), key=lambda held: held.item.fence
        )
        assert not [held for held in leases if held.end == "refused"], "a valid lease was refused"
        for key in {key for put, _ in shares for key, _ in put}:
            of_it = [held for held in leases if held.item.key == key]
            for before, after in pairwise(of_it):
                assert before.until <= after.since, f"two held {key!r} at a time"
            done = [held.item.id for held in of_it if held.end == "acknowledged"]
            assert done == sorted(set(done)), f"the line of {key!r} was not kept in order: {done}"
            worked = [held.item.id for held in of_it]
            assert worked == sorted(worked), f"{key!r}: a value came before its turn: {worked}"
            put = [number for puts, _ in shares for name, number in puts if name == key]
            assert set(done) == set(put), f"a value of {key!r} was lost, or came from nowhere"
            for puts, _ in shares:
                mine = [number for name, number in puts if name == key]
                assert mine == sorted(mine), f"{key!r}: a later put has a lower id"
        assert not await everything(site.open())
