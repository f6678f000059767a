"""What can be seen, and what closing does."""

from collections.abc import Awaitable, Callable
from typing import Any

from leasedkeyq.errors import StoreClosedError
from leasedkeyq.model.findings import SEVERITIES, Finding
from leasedkeyq.model.requests import Ack, Attempt, Bury, Counts, Put, Release
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.shorthand import (
    EVERY_STATE,
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
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check


class InspectionChecks(Suite):
    """Counting, listing, looking, and asking when to come back."""

    @check
    async def test_it_tells_of_itself_and_changes_nothing(self, store: Store) -> None:
        """Its findings say what to do, and its version is the one that this program works with."""
        await store.put([one("a")])
        before = await everything(store)
        findings = await store.diagnose()
        assert all(isinstance(finding, Finding) for finding in findings)
        for finding in findings:
            assert finding.severity in SEVERITIES
            assert finding.code
            assert finding.what
            assert finding.advice
        state = await store.schema_state()
        assert state is None or not state.outdated, "an open store is up to date"
        assert await everything(store) == before

    @check
    async def test_counts_and_items_tell_every_state(self, store: Store) -> None:
        """Of each item all that is known, and no token: looking gives no lease away."""
        await store.put([one(key, priority=2, kind="mail") for key in "abcd"])
        await store.put([one("later", delay=LONG)])
        a, b, c = await claim(store, next_items(3))
        await store.put([one("a", b"2", policy="buffer")])
        await settle(
            store, Bury("q", "b", b.token, "broken"), Ack("q", "c", c.token, b'"done"', LONG)
        )
        assert await counts(store) == Counts(
            available=2, scheduled=1, in_flight=1, buried=1, done=1
        )
        items = {(item.key, item.state): item for item in await everything(store)}
        assert set(items) == {
            ("a", "in_flight"),
            ("a", "buffered"),
            ("b", "buried"),
            ("c", "done"),
            ("d", "available"),
            ("later", "scheduled"),
        }
        assert not any(item.token for item in items.values())
        leased = items["a", "in_flight"]
        assert (leased.id, leased.attempt, leased.priority, leased.kind) == (a.id, 1, 2, "mail")
        assert (leased.put_at, leased.due) == (a.put_at, a.expires_at)
        assert leased.leased_at is not None
        assert leased.put_at <= leased.leased_at <= (leased.due or 0)
        assert items["d", "available"].leased_at is None
        assert _how(items["b", "buried"].history) == [(1, "buried", "broken")]
        assert items["c", "done"].value == b'"done"'
        later = items["later", "scheduled"]
        assert later.due is not None
        assert 0 < later.due - later.put_at <= LONG + 1

    @check
    async def test_look_shows_the_live_items_of_a_key(self, store: Store) -> None:
        """None, one, or the leased one and the buffered one; in the order of the keys."""
        await store.put([one("a"), one("b"), one("gone")])
        await claim_one(store)
        await settle(store, Bury("q", "gone", (await claim_one(store, of_key("gone"))).token))
        await store.put([one("a", b"2", policy="buffer")])
        found = await store.look("q", ["b", "absent", "a", "gone"])
        assert [[(i.state, i.value) for i in items] for items in found] == [
            [("available", b"1")],
            [],
            [("in_flight", b"1"), ("buffered", b"2")],
            [],
        ]

    @site_check()
    async def test_heads_are_what_a_claim_would_lease(self, site: Site) -> None:
        """Of each queue the next one, in the order of the queues; None where nothing is."""
        store = site.open_timed()
        await store.put([one("a"), one("b", priority=1), one("later", priority=2, delay=SHORT)])
        await store.put([Put("other", (("x", b"1"),)), Put("waits", (("y", b"1"),), delay=LONG)])
        queues = ["waits", "q", "absent", "other", "q"]
        heads = await store.heads(queues)
        assert [(i.queue, i.key) if i else None for i in heads] == [
            None,
            ("q", "b"),
            None,
            ("other", "x"),
            ("q", "b"),
        ]
        assert await store.look("q", ["b"]) == [(heads[1],)]
        assert await store.heads([]) == []
        assert (await counts(store)).in_flight == 0

        held = await claim_one(store, next_items(1, SHORT))
        assert held.key == "b"
        [head] = await store.heads(["q"])
        assert head is not None
        assert head.key == "a"
        await claim_one(store, of_key("a"))
        await store.put([one("a", b"2", policy="buffer")])
        assert await store.heads(["q"]) == [None]
        await site.pass_time(SHORT * 1.5)
        [head] = await store.heads(["q"])
        assert head is not None
        assert (head.key, head.state, head.priority) == ("later", "available", 2)
        assert (await claim_one(store)).id == head.id
        [head] = await store.heads(["q"])
        assert head is not None
        assert (head.key, head.attempt) == ("b", 1)

    @check
    async def test_listing_goes_page_by_page(self, store: Store) -> None:
        """With a filter on state and key, and a cursor; none is told twice, none is left out."""
        await store.put([Put("q", tuple((f"a{n:02}", b"1") for n in range(25))), one("b")])
        await store.claim([next_items(5)])
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.browse(
                "q", states=("available",), prefix="a", cursor=cursor, limit=7
            )
            seen += [item.key for item in page.items]
            assert len(page.items) <= 7
            cursor = page.cursor
            if cursor is None or len(seen) > 25:
                break
        assert seen == [f"a{n:02}" for n in range(5, 25)]
        assert set(await store.count()) == {"q"}

    @check
    async def test_a_page_begins_behind_any_id(self, store: Store) -> None:
        """Whoever knows the id of an item finds it among many: the cursor is the id before."""
        answers: Any = await store.put([one(key) for key in "abcdefgh"])
        ids = [placed.id for (placed,) in answers]
        items = await claim(store, next_items(6))
        await settle(
            store,
            Bury("q", "a", items[0].token),
            Bury("q", "b", items[1].token),
            Ack("q", "c", items[2].token, b"1", LONG),
            Ack("q", "d", items[3].token, b"1", LONG),
        )
        for number, key in reversed(list(zip(ids, "abcdefgh", strict=True))):
            page = await store.browse("q", states=EVERY_STATE, cursor=str(number - 1), limit=1)
            assert [(item.id, item.key) for item in page.items] == [(number, key)]
            assert page.cursor == (None if key == "h" else str(number))
        buried = await store.browse("q", states=("buried",), cursor=str(ids[0]))
        assert [item.key for item in buried.items] == ["b"]

    @check
    async def test_the_newest_items_can_come_first(self, store: Store) -> None:
        """The same items from the highest id down; the cursor is the id below which a page is."""
        await store.put([one(key) for key in "abcdefgh"])
        await store.put([one("i", delay=LONG), one("ab"), one("b", b"2", policy="append")])
        items = await claim(store, next_items(4))
        await settle(
            store,
            Bury("q", "a", items[0].token),
            Ack("q", "c", items[2].token, b"1", LONG),
        )
        oldest_first = [item.id for item in await everything(store)]
        assert len(oldest_first) == 11
        seen: list[int] = []
        cursor: str | None = None
        while True:
            page = await store.browse(
                "q", states=EVERY_STATE, cursor=cursor, limit=3, newest_first=True
            )
            seen += [item.id for item in page.items]
            cursor = page.cursor
            if cursor is None or len(seen) > 11:
                break
            assert cursor == str(seen[-1])
        assert seen == oldest_first[::-1]
        for state in EVERY_STATE:
            up = (await store.browse("q", states=(state,))).items
            down = (await store.browse("q", states=(state,), newest_first=True)).items
            assert down == up[::-1], state
        page = await store.browse(
            "q", states=EVERY_STATE, cursor=str(seen[4]), limit=2, newest_first=True
        )
        assert [item.id for item in page.items] == seen[5:7]
        page = await store.browse("q", states=EVERY_STATE, prefix="a", newest_first=True)
        assert [item.key for item in page.items] == ["ab", "a"]
        page = await store.browse("q", cursor=str(oldest_first[0]), newest_first=True)
        assert page.items == ()

    @check
    async def test_a_prefix_is_taken_literally(self, store: Store) -> None:
        """No character in it has a meaning of its own."""
        keys = ["%", "%a", "_", "*", "?", "[a]", "\\", "a%", "A", "a", "ä", "\U0010ffff"]
        await store.put([one(key) for key in keys])
        for prefix in ["", *keys]:
            page = await store.browse("q", prefix=prefix)
            assert [i.key for i in page.items] == [k for k in keys if k.startswith(prefix)], prefix

    @site_check()
    async def test_sweep_tells_when_to_come_back(self, site: Site) -> None:
        """In seconds, for each queue, and None when nothing is going to happen."""
        store = site.open_timed()
        assert await store.sweep(["q"]) == [None]
        assert await store.sweep([]) == []
        await store.put([one("a"), one("later", delay=LONG), Put("other", (("a", b"1"),))])
        await claim_one(store, next_items(1, LONG / 2))
        [seconds] = await store.sweep(["q"])
        assert seconds is not None
        assert LONG / 4 < seconds <= LONG / 2
        assert await store.sweep(["other"]) == [None]
        several = await store.sweep(["other", "q", "never", "q"])
        assert [wait is None for wait in several] == [True, False, True, False], several

    @site_check()
    async def test_what_is_due_is_seen_without_a_sweep(self, site: Site) -> None:
        """By every verb that looks."""
        store = site.open_timed()
        await store.put([one("a"), one("b"), one("c", delay=SHORT)])
        b = await claim_one(store, of_key("b", LONG))
        await claim_one(store, next_items(1, SHORT))
        await settle(store, Ack("q", "b", b.token, b"1", SHORT))
        await site.pass_time(SHORT * 1.5)
        assert [item.state for item in await everything(store)] == ["available", "available"]
        assert (await store.look("q", ["a"]))[0][0].state == "available"
        assert await counts(store) == Counts(available=2)
        assert await store.results("q", [b.id]) == [None]

    @check
    async def test_a_closed_store_says_so(self, store: Store) -> None:
        """With a `StoreClosedError`, from every verb; closing again does nothing."""
        await store.put([one("a")])
        held = await claim_one(store)
        await store.close()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.put([one("b")]),
            lambda: store.claim([next_items()]),
            lambda: store.settle([Release("q", "a", held.token)]),
            lambda: store.edit("q", _nothing),
            lambda: store.sweep(["q"]),
            store.count,
            lambda: store.heads(["q"]),
            lambda: store.look("q", ["a"]),
            lambda: store.line("q", "a"),
            lambda: store.browse("q"),
            lambda: store.results("q", [1]),
        ]
        for call in calls:
            await expect(StoreClosedError, call())
        await store.close()


def _how(history: tuple[Attempt, ...]) -> list[tuple[int, str, str]]:
    return [(attempt.number, attempt.how, attempt.error) for attempt in history]


def _nothing(_: object) -> list[Put]:
    return []
