"""What putting does."""

import asyncio
from typing import Any

from leasedkeyq.errors import (
    KeyAlreadyInFlightError,
    LimitExceededError,
    QueueFullError,
    UnstorableError,
)
from leasedkeyq.model.requests import Ack, Bury, Cancel, Change, Claim, Put, Release
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import (
    LONG,
    SHORT,
    claim,
    claim_one,
    counts,
    everything,
    expect,
    next_items,
    of_key,
    one,
    order,
    placed_by,
    put_one,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check


class PutChecks(Suite):
    """Items get in, all of a request or none of it, and keep their order."""

    @check
    async def test_put_answers_ids_that_grow(self, store: Store) -> None:
        """A new item has a new id, an update has that of its item."""
        many = Put("q", (("c", b"3"), ("d", b"4")))
        puts = [one("a"), one("b"), one("a", b"2"), many]
        answers: Any = await store.put(puts)
        [[a], [b], [again], [c, d]] = answers
        assert a.id == again.id
        assert a.id < b.id < c.id < d.id
        assert [each.outcome for each in (a, b, again, c, d)] == [
            "added",
            "added",
            "updated",
            "added",
            "added",
        ]

    @check
    async def test_everything_that_was_put_can_be_claimed(self, store: Store) -> None:
        """Alone, in batches, in one request, and by many callers at a time."""
        many = Put("q", tuple((f"many{number}", b"1") for number in range(30)))
        await store.put([many])
        await store.put([one(f"batch{number}") for number in range(30)])
        await asyncio.gather(*(store.put([one(f"caller{number}")]) for number in range(30)))
        for number in range(10):
            await store.put([one(f"alone{number}")])
        got = [item.key for item in await claim(store, next_items(1000))]
        assert len(got) == len(set(got)) == 100

    @check
    async def test_calls_of_one_event_loop_act_in_their_order(self, store: Store) -> None:
        """Though nobody waits for one before the next is made, and a store may batch them."""
        for _ in range(5):
            calls: list[Any] = [
                store.put([one("a")]),
                store.settle([Cancel("q", "a")]),
                store.settle([Cancel("q", "b")]),
                store.put([one("b", b"1")]),
                store.put([one("b", b"2"), one("c")]),
                store.settle([Cancel("q", "c")]),
            ]
            _, *gone, _, _, last = await asyncio.gather(*calls)
            assert [*gone, last] == [[1], [0], [1]]
            [a, b, c] = await store.look("q", ["a", "b", "c"])
            assert (a, [item.value for item in b], c) == ((), [b"2"], ())
            await settle(store, Cancel("q", "b"))

    @check
    async def test_values_come_back_byte_by_byte(self, store: Store) -> None:
        """A store does not look into them."""
        values = [
            b"",
            b" 1 ",
            b'{"b": 1, "a": 2.50}',
            b"\xff\x00{",
            "ö\u2028".encode(),
            b"x" * 9999,
        ]
        await store.put([one(f"k{number}", value) for number, value in enumerate(values)])
        assert [item.value for item in await claim(store, next_items(10))] == values

    @check
    async def test_first_in_first_out(self, store: Store) -> None:
        """In the order of their first put, also within a batch; an update keeps the place."""
        await store.put([one("a"), one("b")])
        await store.put([one("c"), one("a", b"9")])
        claimed = await claim(store, next_items(3))
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
        got = [item.key for item in await claim(store, next_items(4))]
        assert got == ["high", "b", "a", "low"]

    @check
    async def test_queues_do_not_mix(self, store: Store) -> None:
        """One key in two queues is two items."""
        await store.put([one("a"), Put("other", (("a", b"2"),))])
        other = await claim_one(store, Claim((("other", 1),), 1))
        mine = await claim_one(store)
        assert (other.queue, other.value) == ("other", b"2")
        assert (mine.queue, mine.value) == ("q", b"1")
        await settle(store, Release("other", "a", other.token))
        assert await claim(store, next_items()) == ()
        assert set(await store.count()) == {"q", "other"}

    @check
    async def test_names_are_told_apart_by_every_character(self, store: Store) -> None:
        """Capitals, spaces, accents in either spelling: keys and queues are compared exactly."""
        names = [
            "a",
            "A",
            " a",
            "a ",
            "ä",
            "a\u0308",
            "%",
            "_",
            "*",
            "a:b",
            "{a}",
            "a\nb",
            "'",
            '"',
        ]
        await store.put([one(name) for name in names])
        await store.put([Put(name, (("key", name.encode()),)) for name in names])
        assert await order(store) == names
        for name in names:
            assert (await claim_one(store, of_key(name))).key == name
            item = await claim_one(store, Claim(((name, 9),), 9))
            assert (item.queue, item.value) == (name, name.encode())

    @site_check()
    async def test_a_delayed_item_comes_in_its_time(self, site: Site) -> None:
        """A put without a delay leaves the schedule, a delay of 0 ends it."""
        store = site.open_timed()
        await store.put([one("a", delay=SHORT), one("b", delay=LONG), one("c", delay=LONG)])
        await store.put([one("b", b"2"), one("c", b"3", delay=0)])
        claimed = await claim(store, next_items(9))
        assert [(item.key, item.value) for item in claimed] == [("c", b"3")]
        assert (await counts(store)).scheduled == 2
        await site.pass_time(SHORT * 1.5)
        assert [item.key for item in await claim(store, next_items(9))] == ["a"]
        assert (await counts(store)).scheduled == 1

    @check
    async def test_a_refused_put_does_nothing_and_spoils_nobody(self, store: Store) -> None:
        """All of a request or none of it; the others of the batch go on."""
        await store.put([one("leased")])
        await claim_one(store)
        both = Put("q", (("new", b"1"), ("leased", b"2")), "reject")
        before, refusal, after = await store.put([one("before"), both, one("after")])
        assert isinstance(refusal, KeyAlreadyInFlightError)
        assert refusal.keys == ("leased",)
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
        both = Put("q", (("x", b"1"), ("y", b"1")), max_items=3)
        assert isinstance((await store.put([both]))[0], QueueFullError)
        assert await order(store) == ["a"]

    @check
    async def test_a_buffered_value_waits_for_the_end_of_the_lease(self, store: Store) -> None:
        """It counts, it is not handed out, and then it takes its place at the back."""
        await store.put([one("a"), one("b")])
        held = await claim_one(store)
        new = await put_one(store, one("a", b"2", policy="buffer"))
        newer = await put_one(store, one("a", b"3"))
        assert new.id == newer.id != held.id
        assert (new.outcome, newer.outcome) == ("buffered", "updated")
        assert (await counts(store)).available == 2
        assert await store.claim([of_key("a")]) == [()]
        states = [item.state for item in (await store.look("q", ["a"]))[0]]
        assert states == ["in_flight", "buffered"]
        await settle(store, Release("q", "a", held.token, front=True))
        assert await order(store) == ["b", "a"]
        last = await claim_one(store, of_key("a"))
        assert (last.value, last.attempt, last.id) == (b"3", 2, new.id)

    @site_check()
    async def test_a_buffered_value_takes_over_attempts_and_history(self, site: Site) -> None:
        """When it replaces one that was released or has expired; an undone claim counts for none.

        So a key that keeps failing is given up in the end, whatever is put meanwhile.
        """
        store = site.open_timed()
        await store.put([one("a")])
        first = await claim_one(store)
        await store.put([one("a", b"2", policy="buffer")])
        await settle(store, Release("q", "a", first.token, error="broken"))
        undone = await claim_one(store)
        await store.put([one("a", b"3", policy="buffer")])
        await settle(store, Release("q", "a", undone.token, undo=True))
        await claim_one(store, next_items(lease_time=SHORT))
        await store.put([one("a", b"4", policy="buffer")])
        [_, beside] = (await store.look("q", ["a"]))[0]
        assert (beside.state, beside.attempt, beside.history) == ("buffered", 0, ())
        await site.pass_time(SHORT)
        third = await claim_one(store)
        assert (third.value, third.attempt) == (b"4", 3)
        [[item]] = await store.look("q", ["a"])
        past = [(attempt.number, attempt.how, attempt.error) for attempt in item.history]
        assert past == [(1, "released", "broken"), (2, "expired", "")]

    @check
    async def test_a_buffered_value_waits_for_the_delay_of_a_release(self, store: Store) -> None:
        """And for its own delay, if that is longer: no put cuts a backoff short."""
        for key, own in (("a", None), ("b", 0.0), ("c", 2 * LONG)):
            await store.put([one(key)])
            held = await claim_one(store)
            await store.put([one(key, b"2", policy="buffer", delay=own)])
            await settle(store, Release("q", key, held.token, delay=LONG))
        found = [(i.key, i.state, i.attempt) for i in await everything(store)]
        assert found == [(key, "scheduled", 1) for key in "abc"]
        first, second, third = [i.due or 0.0 for i in await everything(store)]
        assert third - max(first, second) > LONG / 2

    @check
    async def test_a_buffered_value_begins_anew_behind_one_that_is_over(self, store: Store) -> None:
        """What is done, buried or cancelled takes its attempts with it."""
        for end in ("ack", "bury", "cancel"):
            await store.put([one(end)])
            await settle(store, Release("q", end, (await claim_one(store)).token, error="broken"))
            held = await claim_one(store)
            assert held.attempt == 2
            await store.put([one(end, b"2", policy="buffer")])
            change: Change = Cancel("q", end, id=held.id)
            if end != "cancel":
                change = (Ack if end == "ack" else Bury)("q", end, held.token)
            await settle(store, change)
            [[item]] = await store.look("q", [end])
            assert (item.value, item.attempt, item.history) == (b"2", 0, ())
            await settle(store, Cancel("q", end))

    @check
    async def test_what_is_beyond_the_limits_is_refused(self, store: Store) -> None:
        """Before anything is stored, as an answer; the other requests of the batch go on."""
        limits = store.limits
        long = "k" * (limits.key_length + 1)
        too_many = tuple((str(number), b"1") for number in range(limits.batch_size + 1))
        beyond = {
            "key_length": [one(long), Put(long, (("a", b"1"),)), one("a", kind=long)],
            "value_size": [one("a", b"v" * (limits.value_size + 1))],
            "batch_size": [Put("q", too_many)],
        }
        for limit, puts in beyond.items():
            answers = await store.put([one(f"before {limit}"), *puts, one(f"after {limit}")])
            for answer in answers[1:-1]:
                assert isinstance(answer, LimitExceededError), f"{limit}: {answer!r}"
                assert answer.limit == limit, f"{answer!r} has the limit {answer.limit}"
            assert isinstance(answers[0], tuple), f"the put before it: {answers[0]!r}"
            assert isinstance(answers[-1], tuple), f"the put after it: {answers[-1]!r}"
        bad = ("", "a\x00b", "a\ud800b")
        puts = [one(name) for name in bad] + [Put(name, (("a", b"1"),)) for name in bad]
        puts += [one("a", kind=name) for name in bad[1:]] + [one("a", priority=2**63)]
        for endless in (float("inf"), float("nan")):
            puts += [one("a", delay=endless), one("a", deadline=endless)]
        for put, answer in zip(puts, await store.put(puts), strict=True):
            assert isinstance(answer, UnstorableError), f"{put} is answered by {answer!r}"
        good = [f"{place} {limit}" for limit in beyond for place in ("before", "after")]
        assert await order(store) == good
        assert set(await store.count()) == {"q"}
        most = await store.put(
            [one("k" * limits.key_length, b"v" * limits.value_size, kind="k" * limits.key_length)]
        )
        assert isinstance(most[0], tuple), f"what the limits allow is refused: {most[0]!r}"

    @check
    async def test_a_put_of_nothing_does_nothing(self, store: Store) -> None:
        """And is answered, alone and beside others."""
        assert await store.put([Put("q", ())]) == [()]
        answers: Any = await store.put([one("a", priority=1), Put("q", ()), one("b")])
        assert [len(placed_by(answer)) for answer in answers] == [1, 0, 1]
        again: Any = await store.put([one("a", delay=0), Put("q", ()), Put("p", ())])
        assert [[each.id for each in answer] for answer in again] == [
            [each.id for each in answer] for answer in [answers[0], (), ()]
        ]
        assert await order(store) == ["a", "b"]

    @check
    async def test_an_edit_keeps_to_the_limits(self, store: Store) -> None:
        """It is refused as a whole."""
        large = one("b", b"v" * (store.limits.value_size + 1))
        await expect(LimitExceededError, store.edit("q", lambda _: [one("a"), large]))
        await expect(UnstorableError, store.edit("q", lambda _: [one("a"), one("")]))
        assert await order(store) == []

    @check
    async def test_calls_act_in_the_order_in_which_they_were_made(self, store: Store) -> None:
        """Those of one event loop, whether or not they are under way at a time."""
        for _ in range(5):
            await asyncio.gather(store.put([one("a")]), store.settle([Cancel("q", "a")]))
            assert await order(store) == [], "a put went behind the removal that followed it"
        values = [str(number).encode() for number in range(20)]
        await asyncio.gather(*(store.put([one("a", value)]) for value in values))
        claiming = store.claim([next_items()])
        _, [[first]], after = await asyncio.gather(store.put([one("b")]), claiming, counts(store))
        assert (first.key, first.value) == ("a", values[-1]), "the newest put is not the last one"
        assert (after.available, after.in_flight) == (1, 1), "a look goes before earlier changes"
        none, _ = await asyncio.gather(store.claim([of_key("c")]), store.put([one("c")]))
        assert none == [()], "a claim found what was put after it"
        release = Release("q", "a", first.token, front=True)
        _, [[again]], _ = await asyncio.gather(
            store.settle([release]), store.claim([next_items()]), store.settle([Cancel("q", "a")])
        )
        assert again.key == "a", "a claim does not see what was released before it"
        assert await order(store) == ["b", "c"]
