"""What an edit does: it looks and changes in one step, all or nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from leasedkeyq.errors import KeyAlreadyInFlightError, QueueFullError, StoreClosedError
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    EditWork,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
)
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
    put_one,
    refused,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check

EditChanges: TypeAlias = list[Put | Change]
"""What the function of an edit asks for."""


class EditChecks(Suite):
    """`edit`, which looks at a queue and changes it while nobody else can."""

    @check
    async def test_an_edit_sees_the_items_in_every_state(self, store: Store) -> None:
        """By id, or those of some keys; with the token of each lease."""
        await store.put([one(key) for key in "abcd"])
        await store.put([one("later", delay=LONG)])
        a, b, c = await claim(store, next_items(3))
        await store.put([one("a", b"2", policy="buffer")])
        await settle(store, Bury("q", "b", b.token), Ack("q", "c", c.token, b"1", LONG))
        seen: list[StoredItem] = []

        def look(items: Sequence[StoredItem]) -> EditChanges:
            seen.extend(items)
            return []

        assert await store.edit("q", look) == []
        assert [(item.key, item.state) for item in seen] == [
            ("a", "in_flight"),
            ("b", "buried"),
            ("c", "done"),
            ("d", "available"),
            ("later", "scheduled"),
            ("a", "buffered"),
        ]
        assert [item.token for item in seen] == [a.token, "", "", "", "", ""]
        seen.clear()
        await store.edit("q", look, keys=["b", "a", "absent"])
        assert [(item.key, item.state) for item in seen] == [
            ("a", "in_flight"),
            ("b", "buried"),
            ("a", "buffered"),
        ]

    @check
    async def test_an_edit_of_heads_shows_no_lines(self, store: Store) -> None:
        """With `heads_only`, all but the values in lines; what it returns is applied."""
        await store.put([one(key, policy="append") for key in "aabbcdd"])
        items = await claim(store, next_items(4))
        await settle(store, Bury("q", "b", items[1].token, hold=True))
        await settle(store, Ack("q", "c", items[2].token, b"1", LONG))
        for keys in (None, ["a", "b", "c", "d"]):
            seen: list[StoredItem] = []

            def look(items: Sequence[StoredItem], seen: list[StoredItem] = seen) -> EditChanges:
                seen.extend(items)
                return []

            await store.edit("q", look, keys=keys, heads_only=True)
            assert [(item.key, item.state) for item in seen] == [
                ("a", "in_flight"),
                ("b", "buried"),
                ("c", "done"),
                ("d", "in_flight"),
            ]
            assert seen[0].token == items[0].token
        await store.edit("q", lambda found: [Ack("q", "a", found[0].token)], heads_only=True)
        [[a]] = await store.look("q", ["a"])
        assert a.state == "available"

    @check
    async def test_an_edit_applies_its_changes_in_order(self, store: Store) -> None:
        """Every kind of change, also to what it has just put; its answers are theirs."""
        await store.put([one(key) for key in "abcdef"])
        items = await claim(store, next_items(4))
        [buried] = await settle(store, Bury("q", "d", items[3].token))
        assert isinstance(buried, int)

        def work(found: Sequence[StoredItem]) -> EditChanges:
            token = {item.key: item.token for item in found}
            return [
                Put("q", (("new", b"1"), ("e", b"2"))),
                Ack("q", "a", token["a"], b'"done"', LONG),
                Release("q", "b", token["b"], front=True),
                Extend("q", "c", token["c"], None),
                Requeue("q", buried),
                Cancel("q", "f"),
                Cancel("q", "new"),
                Purge("q", "results"),
            ]

        answers = await store.edit("q", work)
        assert answers[1:] == [None, None, None, True, 1, 1, 1]
        assert await order(store) == ["b", "e", "d"]
        assert [(i.key, i.due) for i in await everything(store, "in_flight")] == [("c", None)]

    @check
    async def test_an_edit_that_is_refused_or_fails_changes_nothing(self, store: Store) -> None:
        """What its work raises, or the refusal of any of its changes, is raised."""
        await store.put([one("a"), one("b")])
        held = await claim_one(store)
        before = await everything(store)
        changes: EditChanges = [
            one("new"),
            one("b", b"2", priority=5),
            Ack("q", "a", held.token, b"1", LONG),
        ]

        def fails(_: Sequence[StoredItem]) -> EditChanges:
            raise ArithmeticError

        await expect(ArithmeticError, store.edit("q", fails))
        await expect(Refusal, store.edit("q", lambda _: [*changes, Ack("q", "a", held.token)]))
        rejected = one("a", policy="reject")
        await expect(KeyAlreadyInFlightError, store.edit("q", lambda _: [one("new"), rejected]))
        elsewhere = Put("other", (("a", b"1"),))
        await expect(ValueError, store.edit("q", lambda _: [*changes, elsewhere]))
        assert await everything(store) == before
        assert set(await store.count()) == {"q"}
        await store.edit("q", lambda _: changes)
        await refused(store, [Ack("q", "a", held.token)])
        assert await order(store) == ["b", "new"]

    @check
    async def test_edits_do_not_run_into_each_other(self, store: Store) -> None:
        """Nobody else changes the queue between what an edit sees and what it does."""
        await store.put([one("sum", b"0")])
        calls: list[int] = []

        def add(items: Sequence[StoredItem]) -> EditChanges:
            calls.append(1)
            [found] = [item for item in items if item.key == "sum"]
            return [one("sum", b"%d" % (int(found.value) + 1))]

        async def others(number: int) -> None:
            await store.put([one(f"k{number}")])

        await asyncio.gather(
            *(store.edit("q", add, keys=["sum"] if n % 2 else None) for n in range(20)),
            *(others(number) for number in range(20)),
        )
        [[found]] = await store.look("q", ["sum"])
        assert found.value == b"20"
        assert len(calls) == 20, "the work of an edit is called once"
        assert (await counts(store)).available == 21

    @check
    async def test_a_put_in_an_edit_may_change_what_is_leased(self, store: Store) -> None:
        """The lease goes on, and its holder can settle it."""
        await store.put([one("a")])
        held = await claim_one(store)
        await store.edit("q", lambda _: [one("a", b"2", kind="mail")])
        [item] = await everything(store)
        assert (item.state, item.value, item.kind, item.id) == ("in_flight", b"2", "mail", held.id)
        await settle(store, Release("q", "a", held.token))
        assert (await claim_one(store)).value == b"2"

    @check
    async def test_a_refusal_undoes_whatever_came_before_it(self, store: Store) -> None:
        """All is as it was: items, their order, leases, schedules, and the ids of new items."""
        await store.put([one(key, kind="call") for key in ("gone", "done", "held")])
        gone, done, held = await claim(store, next_items(3))
        await settle(
            store, Bury("q", "gone", gone.token, "bad"), Ack("q", "done", done.token, b"1", LONG)
        )
        await store.put([one("held", b"2", policy="buffer", delay=LONG)])
        await store.put([one("later", delay=LONG), one("high", priority=7), one("next")])
        before, in_order = await everything(store), await order(store)
        changes: EditChanges = [
            one("new", delay=LONG),
            one("high", b"2", priority=9, kind="mail"),
            one("held", b"8", priority=3, delay=SHORT, kind="mail"),
            Cancel("q", "next", b"7", LONG),
            Requeue("q", gone.id),
            Extend("q", "held", held.token, None),
            Release("q", "held", held.token, delay=LONG, error="no"),
        ]
        wrong: list[tuple[type[Exception], Any]] = [
            (Refusal, Ack("q", "held", "nobody")),
            (QueueFullError, one("more", max_items=1)),
            (ValueError, Cancel("other", "held")),
            (ValueError, Claim((("q", 1),), 1)),
        ]
        for count in range(len(changes) + 1):
            for error, change in wrong:
                await expect(error, store.edit("q", _wanting(*changes[:count], change)))
                assert await everything(store) == before
                assert await order(store) == in_order
        await settle(store, Ack("q", "held", held.token))
        placed = await put_one(store, one("another"))
        assert placed.id > before[-1].id

    @site_check("joint_edits")
    async def test_an_edit_changes_other_queues_in_the_same_step(self, site: Site) -> None:
        """Those that it names, in the order of its changes; whoever watches them is woken."""
        store = site.open()
        await store.put([one("a"), one("b")])
        held = await claim_one(store)
        woken = asyncio.Event()
        unwatch = store.watch("other", woken.set)
        answers = await store.edit(
            "q",
            lambda items: [
                Release("q", "a", items[0].token, delay=LONG),
                Put("other", (("new", b"1"),), kind="mail"),
                one("a", b"2"),
                Put("third", (("new", b"2"),), delay=LONG),
                Put("other", (("new", b"3"),), "skip"),
            ],
            keys=["a"],
            others=["other", "third", "q"],
        )
        assert len(answers) == 5
        await self.soon(woken.wait(), "the watcher of another queue of an edit was not woken")
        unwatch()
        await refused(store, [Ack("q", "a", held.token)])
        [[a]] = await store.look("q", ["a"])
        assert (a.state, a.value) == ("scheduled", b"2")
        [[new]] = await store.look("other", ["new"])
        assert (new.state, new.value, new.kind) == ("available", b"1", "mail")
        [[third]] = await store.look("third", ["new"])
        assert third.state == "scheduled"

    @site_check("joint_edits")
    async def test_a_refusal_undoes_the_changes_of_other_queues(self, site: Site) -> None:
        """Nothing has changed anywhere, and a queue that was not named is not changed at all."""
        store = site.open()
        await store.put([one("a"), Put("other", (("there", b"1"),)), Put("third", (("k", b"1"),))])
        held = await claim_one(store)
        changes: EditChanges = [
            Put("other", (("new", b"1"),)),
            Put("other", (("there", b"2"),), priority=4, delay=LONG),
            Put("third", (("k", b"2"),), "append"),
            Release("q", "a", held.token),
            one("b"),
        ]
        wrong: list[tuple[type[Exception], Any]] = [
            (Refusal, Ack("q", "a", "nobody")),
            (QueueFullError, Put("other", (("more", b"1"),), max_items=1)),
            (ValueError, Cancel("fourth", "a")),
        ]
        for error, change in wrong:
            work = _wanting(*changes, change)
            await expect(error, store.edit("q", work, others=["other", "third"]))
            assert [item.key for item in await everything(store)] == ["a"]
            [[there], new] = await store.look("other", ["there", "new"])
            assert (there.state, there.value, there.priority) == ("available", b"1", 0)
            assert not new
            assert (await store.count(["third"]))["third"].available == 1
        await settle(store, Ack("q", "a", held.token))
        await put_one(store, Put("other", (("free", b"1"),)))

    @site_check("joint_edits")
    async def test_edits_of_each_others_queues_do_not_wait_for_ever(self, site: Site) -> None:
        """Edits of two queues, each of which changes the other, too: all of them happen."""
        stores = [site.open(), site.open()] if self._shared(site) else [site.open()] * 2

        async def count(store: Store, mine: str, other: str) -> None:
            for number in range(10):
                work = _wanting(Put(other, ((f"{mine}-{number}", b"1"),)))
                await store.edit(mine, work, keys=["sum"], others=[other])

        counting = asyncio.gather(
            *(count(stores[0], *names) for names in (("q", "r"), ("r", "q"))),
            *(count(stores[1], *names) for names in (("q", "s"), ("r", "s"))),
        )
        await self.soon(counting, "edits that change each other's queues have not ended")
        counts = await stores[0].count(["q", "r", "s"])
        assert [counts[name].available for name in "qrs"] == [10, 10, 20]

    @staticmethod
    def _shared(site: Site) -> bool:
        """Whether another store object would have the same items."""
        return site.open().capabilities.cross_process

    @check
    async def test_a_cancelled_edit_happens_or_does_not(self, store: Store) -> None:
        """In full or not at all, and its work is called at most once."""
        calls: list[int] = []

        def work(items: Sequence[StoredItem]) -> EditChanges:
            calls.append(1)
            return [_one_more(items, "first"), _one_more(items, "second")]

        for number in range(40):
            edit = asyncio.create_task(store.edit("q", work))
            for _ in range(number % 10):
                # A store without threads is done in a few turns, others take some time.
                await asyncio.sleep(0 if number < 20 else 0.001)
            edit.cancel()
            await asyncio.gather(edit, return_exceptions=True)
            await store.sweep(["q"])  # Whatever was under way comes before it.
            assert len(calls) <= number + 1
        found = {item.key: item.value for item in await everything(store)}
        assert found == (dict.fromkeys(("first", "second"), b"%d" % len(calls)) if calls else {})

    @check
    async def test_a_closed_store_does_not_call_the_work(self, store: Store) -> None:
        """It could not do what the work wants."""
        await store.close()
        calls: list[int] = []

        def work(_: Sequence[StoredItem]) -> EditChanges:
            calls.append(1)
            return []

        await expect(StoreClosedError, store.edit("q", work))
        assert not calls

    @site_check("cross_process")
    async def test_edits_of_several_stores_do_not_run_into_each_other(self, site: Site) -> None:
        """Two stores on the same items: each edit sees what those of the other did."""
        stores = [site.open(), site.open()]

        async def count(store: Store) -> None:
            for _ in range(15):
                await store.edit("q", lambda items: [_one_more(items, "sum")])

        await asyncio.gather(*(count(store) for store in stores for _ in range(2)))
        assert (await claim_one(stores[0], of_key("sum"))).value == b"60"


def _wanting(*changes: Any) -> EditWork:
    """The work of an edit that wants these changes, whatever it sees."""
    return lambda _: changes


def _one_more(items: Sequence[StoredItem], key: str) -> Put:
    """A put of a number that is one more than the one that is there."""
    found = next((int(item.value) for item in items if item.key == key), 0)
    return one(key, b"%d" % (found + 1))
