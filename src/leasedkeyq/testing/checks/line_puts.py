"""What a put does where its key is there: it appends, updates, is skipped or is refused."""

import asyncio
from typing import Any

from leasedkeyq.errors import (
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
    QueueFullError,
    UnstorableError,
)
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Counts,
    Discard,
    Placed,
    Purge,
    Put,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import (
    LONG,
    SHORT,
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
    placed_by,
    put_one,
    settle,
    values_of,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check
from leasedkeyq.types import PutPolicy


class LinePutChecks(Suite):
    """The policies of puts, and what they answer."""

    @check
    async def test_put_says_what_it_did(self, store: Store) -> None:
        """By every policy, where the key is absent, waits, is scheduled, leased, or has a line."""
        policies: list[tuple[PutPolicy, list[str]]] = [
            ("update", ["added", "updated", "updated", "updated", "updated"]),
            ("buffer", ["added", "updated", "updated", "buffered", "updated"]),
            ("append", ["added", "appended", "appended", "appended", "appended"]),
            ("skip", ["added", "skipped", "skipped", "skipped", "skipped"]),
            ("reject", ["added", "updated", "updated", "", ""]),
            ("only_new", ["added", "", "", "", ""]),
        ]
        for policy, outcomes in policies:
            await store.put([one("lined"), one("leased")])
            await claim(store, next_items(2))
            await store.put([one("lined", b"2", policy="append"), one("waits")])
            await store.put([one("later", delay=LONG)])
            keys = ("absent", "waits", "later", "leased", "lined")
            said: list[str] = []
            for answer in await store.put([one(key, b"9", policy=policy) for key in keys]):
                refusal = isinstance(answer, KeyAlreadyInFlightError | KeyAlreadyPresentError)
                said += [""] if refusal else [placed.outcome for placed in placed_by(answer)]
            assert said == outcomes, f"{policy}: {said}"
            await settle(store, Purge("q"))

    @check
    async def test_an_appended_value_replaces_nothing(self, store: Store) -> None:
        """It has an id of its own, above those before it; what is there stays as it is."""
        first = await put_one(store, one("a", b"1", priority=3, kind="mail"))
        second = await put_one(store, one("a", b"2", policy="append", kind="bill"))
        held = await claim_one(store)
        third = await put_one(store, one("a", b"3", policy="append", priority=7))
        assert first.id < second.id < third.id
        assert (held.value, held.kind, held.priority) == (b"1", "mail", 3)
        shown = await line_of(store, "a")
        assert [(i.id, i.value, i.state, i.kind, i.priority) for i in shown] == [
            (first.id, b"1", "in_flight", "mail", 3),
            (second.id, b"2", "in_line", "bill", 0),
            (third.id, b"3", "in_line", "", 7),
        ]
        assert await counts(store) == Counts(available=2, in_flight=1)

    @check
    async def test_one_request_puts_a_key_several_times(self, store: Store) -> None:
        """Each of its items in order: all are appended, only the first is not skipped."""
        items = (("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4"), ("b", b"5"))
        [appended] = await store.put([Put("q", items, "append")])
        placed = placed_by(appended)
        assert [each.outcome for each in placed] == ["added", "added", *["appended"] * 3]
        assert [each.id for each in placed] == sorted(each.id for each in placed)
        assert await values_of(store, "a") == [b"1", b"3", b"4"]
        assert await values_of(store, "b") == [b"2", b"5"]
        new = tuple((key.upper(), value) for key, value in items)
        [skipped] = await store.put([Put("q", new, "skip")])
        placed = placed_by(skipped)
        assert [each.outcome for each in placed] == ["added", "added", *["skipped"] * 3]
        assert [each.id for each in placed[2:]] == [placed[0].id, placed[0].id, placed[1].id]
        assert await values_of(store, "A") == [b"1"]
        [refusal] = await store.put([Put("q", (("c", b"1"), ("d", b"2"), ("c", b"3")), "only_new")])
        assert isinstance(refusal, KeyAlreadyPresentError)
        assert refusal.keys == ("c",)
        assert await store.look("q", ["c", "d"]) == [(), ()]

    @check
    async def test_an_update_replaces_the_last_of_a_line(self, store: Store) -> None:
        """The newest that waits, whatever its head does; it keeps its id and its place."""
        policies: tuple[PutPolicy, ...] = ("update", "buffer", "reject")
        for policy in policies:
            for leased in (False, True):
                ids = await append(store, "a", 3)
                if leased:
                    await claim_one(store)
                [answer] = await store.put([one("a", b"9", policy=policy, kind="mail")])
                if leased and policy == "reject":
                    assert isinstance(answer, KeyAlreadyInFlightError)
                    assert await values_of(store, "a") == [b"0", b"1", b"2"]
                else:
                    assert answer == (Placed(ids[2], "updated"),)
                    assert await values_of(store, "a") == [b"0", b"1", b"9"]
                    assert [i.kind for i in await line_of(store, "a")] == ["", "", "mail"]
                    assert [i.id for i in await line_of(store, "a")] == ids
                await settle(store, Purge("q"))

    @check
    async def test_a_value_in_line_keeps_the_terms_that_it_was_put_with(self, store: Store) -> None:
        """An update without a priority or a delay leaves them, one with them changes them."""
        await append(store, "a", 1)
        await store.put([one("a", b"1", policy="append", priority=4, delay=LONG)])
        await store.put([one("a", b"2")])
        [_, last] = await line_of(store, "a")
        assert (last.value, last.priority, last.due is None) == (b"2", 4, False)
        await store.put([one("a", b"3", priority=5, delay=0)])
        [_, last] = await line_of(store, "a")
        assert (last.value, last.priority, last.due) == (b"3", 5, None)

    @check
    async def test_a_present_key_can_be_skipped_or_refused(self, store: Store) -> None:
        """In every state; the answer names the newest value, the error every key that is there."""
        await store.put([one("leased"), one("waits"), one("later", delay=LONG)])
        await claim_one(store)
        await append(store, "lined", 3)
        keys = ("leased", "waits", "later", "lined")
        before = await everything(store)
        newest = [(await line_of(store, key))[-1].id for key in keys]
        for key, number in zip(keys, newest, strict=True):
            placed = await put_one(store, one(key, b"9", policy="skip", kind="mail", priority=9))
            assert placed == Placed(number, "skipped")
        items = tuple((key, b"9") for key in ("new", "later", "leased", "later"))
        [refusal] = await store.put([Put("q", items, "only_new")])
        assert isinstance(refusal, KeyAlreadyPresentError)
        assert refusal.keys == ("later", "leased")
        assert await everything(store) == before

    @site_check()
    async def test_a_key_stays_unique_for_some_time_after_its_end(self, site: Site) -> None:
        """As long as its result is kept, counted from the end of the value that ended last."""
        store = site.open_timed()
        await store.put([one("a"), one("b"), one("c")])
        a, b, c = await claim(store, next_items(3))
        assert await put_one(store, one("a", policy="skip", unique_for=LONG)) == (a.id, "skipped")
        await settle(
            store,
            Ack("q", "a", a.token, b"1", LONG),
            Ack("q", "b", b.token, b"1", SHORT),
            Ack("q", "c", c.token),
        )
        [done] = await store.results("q", [a.id])
        assert done is not None
        assert done.ended_at is not None
        assert done.put_at <= done.ended_at < (done.due or 0.0)
        puts = [one(key, b"2", policy="skip", unique_for=LONG) for key in "abc"]
        placed = [placed_by(answer)[0] for answer in await store.put(puts)]
        assert [each.outcome for each in placed] == ["skipped", "skipped", "added"]
        assert [each.id for each in placed[:2]] == [a.id, b.id]
        await site.pass_time(SHORT * 1.5)
        again = [
            one("a", b"3", policy="skip", unique_for=LONG),
            one("b", b"3", policy="skip", unique_for=LONG),
            one("a", b"4", policy="skip", unique_for=SHORT),
            one("a", b"5", policy="skip"),
        ]
        placed = [placed_by(answer)[0] for answer in await store.put(again)]
        assert [each.outcome for each in placed] == ["skipped", "added", "added", "skipped"]
        assert placed[3].id == placed[2].id

    @check
    async def test_the_last_end_of_a_key_decides_whether_it_is_unique(self, store: Store) -> None:
        """Not the highest id: values of a line may end before their turn. Only completed ones."""
        ids = await append(store, "a", 3)
        held = await claim_one(store)
        await settle(
            store,
            Cancel("q", "a", keep=LONG, id=ids[1], outcome="completed"),
            Cancel("q", "a", keep=LONG, id=ids[2]),
        )
        assert await put_one(store, one("a", policy="skip")) == (ids[0], "skipped")
        await asyncio.sleep(0.01)
        await settle(store, Ack("q", "a", held.token, b"1", LONG))
        unique = one("a", policy="skip", unique_for=LONG)
        for newest in ids[:2]:
            assert await put_one(store, unique) == (newest, "skipped")
            await settle(store, Discard("q", newest))
        assert (await put_one(store, unique)).outcome == "added"

    @check
    async def test_values_in_lines_count_for_the_size_of_a_queue(self, store: Store) -> None:
        """All of them, those behind held keys too; what adds nothing gets in."""
        await append(store, "a", 2)
        await append(store, "held", 2)
        held = await claim_one(store, of_key("held"))
        await settle(store, Bury("q", "held", held.token, hold=True))
        answers = await store.put(
            [
                one("a", b"9", policy="append", max_items=3),
                one("b", max_items=3),
                one("a", b"8", max_items=3),
                one("a", policy="skip", max_items=3),
                one("held", b"8", max_items=3),
                Put("q", (("a", b"9"), ("a", b"9")), "append", max_items=4),
                one("a", b"9", policy="append", max_items=4),
            ]
        )
        full = [isinstance(answer, QueueFullError) for answer in answers]
        assert full == [True, True, False, False, False, True, False], answers
        assert await values_of(store, "a") == [b"0", b"8", b"9"]
        assert await values_of(store, "held") == [b"8"]

    @check
    async def test_a_policy_that_is_none_is_refused(self, store: Store) -> None:
        """Nothing is stored."""
        nonsense: Any = "replace"
        answers = await store.put([one("a", policy=nonsense), one("b")])
        assert isinstance(answers[0], UnstorableError), answers[0]
        endless = one("c", policy="skip", unique_for=float("inf"))
        [answer] = await store.put([endless])
        assert isinstance(answer, UnstorableError), answer
        assert await order(store) == ["b"]
