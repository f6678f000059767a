"""What leases are: one for each key, fenced, and void when they have ended."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from leasedkeyq.errors import LimitExceededError
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Counts,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
    Urgency,
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
    of_key,
    one,
    order,
    refused,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check


def settlings(key: str, token: str) -> list[Change]:
    """Every way to settle a lease, the one that ends nothing first."""
    names = ("q", key, token)
    return [
        Extend(*names, LONG),
        Release(*names),
        Release(*names, undo=True),
        Bury(*names),
        Ack(*names, b"1", LONG),
    ]


class LeaseChecks(Suite):
    """One lease for each key at a time, in every way it may begin and end."""

    @check
    async def test_one_key_one_lease(self, store: Store) -> None:
        """However many claims there are, each key is handed out once."""
        keys = [f"k{number:02}" for number in range(50)]
        await store.put([one(key) for key in keys])
        batches = await asyncio.gather(*(store.claim([next_items(3)] * 2) for _ in range(20)))
        got = [item.key for batch in batches for answer in batch for item in answer]
        assert sorted(got) == keys
        answers = await store.claim([of_key(key) for key in keys])
        assert not any(answers), "a key was handed out that is leased"

    @check
    async def test_fences_grow_and_attempts_are_counted(self, store: Store) -> None:
        """Fences across queues; attempts for each item."""
        await store.put([one("a"), Put("other", (("a", b"1"),))])
        first = await claim_one(store)
        second = await claim_one(store, Claim((("other", 1),), 1))
        await settle(store, Release("q", "a", first.token))
        third = await claim_one(store)
        assert first.fence < second.fence < third.fence
        assert (first.attempt, second.attempt, third.attempt) == (1, 1, 2)
        assert first.id == third.id

    @site_check()
    async def test_tokens_cannot_be_guessed(self, site: Site) -> None:
        """They differ between leases, and between stores to which the same happened."""
        tokens: list[str] = []
        for where in (site, self.site()):
            try:
                store = where.open()
                await store.put([one("a"), one("b")])
                for _ in range(3):
                    items = await claim(store, next_items(2))
                    tokens += [item.token for item in items]
                    await settle(store, *(Release("q", i.key, i.token) for i in items))
            finally:
                await where.close()
        assert len(set(tokens)) == 12
        assert min(map(len, tokens)) >= 16

    @check
    async def test_claims_over_several_queues_keep_the_limits(self, store: Store) -> None:
        """In the order given, each up to its limit, all together up to the total."""
        for name in ("x", "y", "z"):
            await store.put([Put(name, tuple((f"{name}{n}", b"1") for n in range(5)))])
        wanted = Claim((("y", 2), ("x", 9), ("absent", 3), ("z", 9)), 8, None, LONG)
        claimed = await claim(store, wanted)
        assert [item.key for item in claimed] == ["y0", "y1", "x0", "x1", "x2", "x3", "x4", "z0"]

    @check
    async def test_claim_by_key(self, store: Store) -> None:
        """Only an available one."""
        await store.put([one("a"), one("b"), one("later", delay=LONG)])
        answers = await store.claim([of_key("b"), of_key("b"), of_key("later"), of_key("absent")])
        assert [len(answer) for answer in answers] == [1, 0, 0, 0]
        assert await order(store) == ["a"]

    @check
    async def test_claims_of_some_kinds_pass_over_the_others(self, store: Store) -> None:
        """In the same order; what is passed over stays where it is."""
        await store.put(
            [
                one("a", kind="mail"),
                one("b", kind="call"),
                one("c", kind="mail", priority=1),
                one("d"),
                one("e", kind="call"),
            ]
        )
        first = await claim_one(store, next_items(1, kinds=("call",)))
        assert (first.key, first.kind) == ("b", "call")
        rest = await claim(store, next_items(9, kinds=("call", "absent")))
        assert [item.key for item in rest] == ["e"]
        assert await claim(store, next_items(9, kinds=())) == ()
        assert await claim(store, Claim((("q", 1),), 1, "a", LONG, ("call",))) == ()
        assert await order(store) == ["c", "a", "d"]
        both = await claim(store, next_items(2, kinds=("mail", "")))
        assert [item.key for item in both] == ["c", "a"]

    @check
    async def test_an_item_keeps_its_kind(self, store: Store) -> None:
        """Through release and buffering; a put sets it anew, and a buffered value has its own."""
        await store.put([one("a", kind="mail")])
        held = await claim_one(store)
        await store.put([one("a", b"2", policy="buffer", kind="call")])
        kinds = [(item.state, item.kind) for item in await everything(store)]
        assert kinds == [("in_flight", "mail"), ("buffered", "call")]
        await settle(store, Ack("q", "a", held.token))
        held = await claim_one(store, next_items(kinds=("call",)))
        await settle(store, Release("q", "a", held.token))
        assert (await claim_one(store, next_items(kinds=("call",)))).value == b"2"
        await store.put([one("b", kind="mail"), one("b", kind="call")])
        assert (await claim_one(store, next_items(kinds=("call",)))).key == "b"

    @site_check()
    async def test_an_expired_item_goes_to_the_front_and_its_lease_is_void(
        self, site: Site
    ) -> None:
        """No stale lease settles anything, before its item is leased again and after."""
        store = site.open_timed()
        await store.put([one("a"), one("b"), one("c")])
        stale = await claim(store, next_items(2, SHORT))
        await site.pass_time(SHORT * 1.5)
        await refused(store, settlings("b", stale[1].token))
        assert await order(store) == ["a", "b", "c"]
        fresh = await claim(store, next_items(2))
        assert [(item.key, item.attempt) for item in fresh] == [("a", 2), ("b", 2)]
        await refused(store, settlings("a", stale[0].token))
        [item] = (await store.look("q", ["a"]))[0]
        assert item.state == "in_flight"
        assert [(attempt.number, attempt.how) for attempt in item.history] == [(1, "expired")]
        await settle(store, Ack("q", "a", fresh[0].token))

    @check
    async def test_a_settled_lease_settles_nothing_any_more(self, store: Store) -> None:
        """However it ended: acknowledged, released, buried, cancelled or purged."""
        for ending in range(6):
            await store.put([one("a")])
            held = await claim_one(store)
            ways = [*settlings("a", held.token)[1:], Cancel("q", "a"), Purge("q")]
            await settle(store, ways[ending])
            await refused(store, settlings("a", held.token))
            # Nor when the key is leased to somebody else.
            await store.put([one("a", b"2")])
            other = await claim_one(store)
            await refused(store, settlings("a", held.token))
            await settle(store, Ack("q", "a", other.token))

    @check
    async def test_a_token_that_was_never_given_settles_nothing(self, store: Store) -> None:
        """Nor does that of another key, or of another queue."""
        await store.put([one("a"), one("b"), Put("other", (("a", b"1"),))])
        a, b = await claim(store, next_items(2))
        other = await claim_one(store, Claim((("other", 1),), 1))
        for token in ("", "forged", b.token, other.token):
            await refused(store, settlings("a", token))
        assert (await counts(store)).in_flight == 2
        await settle(store, Ack("q", "a", a.token), Ack("q", "b", b.token))

    @site_check()
    async def test_extend_prolongs_and_limits(self, site: Site) -> None:
        """It counts from now, in both directions."""
        store = site.open_timed()
        await store.put([one("a"), one("b"), one("c")])
        a, b = await claim(store, next_items(2, SHORT))
        c = await claim_one(store, next_items(1, LONG))
        longer, never, shorter = await settle(
            store,
            Extend("q", "a", a.token, LONG),
            Extend("q", "b", b.token, None),
            Extend("q", "c", c.token, SHORT),
        )
        assert isinstance(longer, float)
        assert isinstance(shorter, float)
        assert a.expires_at is not None
        assert c.expires_at is not None
        assert longer > a.expires_at
        assert shorter < c.expires_at
        assert never is None
        await site.pass_time(SHORT * 1.5)
        assert (await counts(store)).in_flight == 2
        assert await order(store) == ["c"]

    @check
    async def test_the_holder_of_a_lease_is_shown(self, store: Store) -> None:
        """As each claim has told it, wherever items are shown, and with any text."""
        await store.put([one(key, kind="mail") for key in "abcdefg"])
        odd = "wörker 7%20@host\n" + "x" * 150
        [first], [second], [third], [fourth], [none] = await store.claim(
            [
                next_items(holder="one:1"),
                next_items(holder="two:2"),
                next_items(kinds=("mail",), holder=odd),
                next_items(urgencies=(Urgency(deadline=LONG),), holder="urgent"),
                next_items(),
            ]
        )
        [last] = await claim(store, Claim((("q", 1),), 1, "g", LONG, holder="of a key"))
        wanted = {
            first.key: "one:1",
            second.key: "two:2",
            third.key: odd,
            fourth.key: "urgent",
            none.key: "",
            last.key: "of a key",
            "f": "",
        }
        looked = [item for [item] in await store.look("q", [*wanted])]
        assert {item.key: item.holder for item in looked} == wanted
        assert {item.key: item.holder for item in await everything(store)} == wanted
        assert (await store.line("q", first.key)).items[0].holder == "one:1"
        seen: dict[str, str] = {}

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            seen.update((item.key, item.holder) for item in items)
            return []

        await store.edit("q", work)
        assert seen == wanted
        leases = (first, second, third, fourth, none, last)
        await settle(store, *(Ack("q", item.key, item.token) for item in leases))

    @site_check()
    async def test_the_holder_goes_with_its_lease(self, site: Site) -> None:
        """However the lease ends, and the next one has its own; an extension leaves it."""
        store = site.open_timed()
        await store.put([one(key) for key in "abcde"])
        held = await claim(store, next_items(5, SHORT, holder="dead:1"))
        a, b, c, d, _ = held
        await settle(
            store,
            Release("q", "a", a.token),
            Bury("q", "b", b.token),
            Ack("q", "c", c.token, b"1", LONG),
            Extend("q", "d", d.token, LONG, b"half"),
        )
        await site.pass_time(SHORT * 1.5)
        holders = {item.key: item.holder for item in await everything(store)}
        assert holders == {"a": "", "b": "", "c": "", "d": "dead:1", "e": ""}
        await claim(store, of_key("a"))
        await claim(store, Claim((("q", 1),), 1, "e", LONG, holder="alive:2"))
        [[again], [expired]] = await store.look("q", ["a", "e"])
        assert (again.state, again.holder) == ("in_flight", "")
        assert (expired.state, expired.holder) == ("in_flight", "alive:2")

    @check
    async def test_progress_is_kept_with_the_item(self, store: Store) -> None:
        """The newest counts, and an extension that tells none leaves it; looking shows it."""
        await store.put([one("a"), one("b"), one("c")])
        a, b, _ = await claim(store, next_items(3))
        [[untold]] = await store.look("q", ["a"])
        assert untold.progress is None
        first, second, _ = await settle(
            store,
            Extend("q", "a", a.token, LONG, b"1"),
            Extend("q", "b", b.token, LONG, b"\xff\x00"),
            Extend("q", "a", a.token, LONG, b"2"),
        )
        assert isinstance(first, float)
        assert isinstance(second, float)
        await settle(store, Extend("q", "a", a.token, LONG))
        told = {"a": b"2", "b": b"\xff\x00", "c": None}
        looked = [item for [item] in await store.look("q", [*told])]
        assert {item.key: item.progress for item in looked} == told
        assert {item.key: item.progress for item in await everything(store)} == told
        assert (await store.line("q", "a")).items[0].progress == b"2"
        await settle(store, Extend("q", "a", a.token, LONG, b""))
        [[empty]] = await store.look("q", ["a"])
        assert empty.progress == b"", "progress without a byte is not the same as none"

    @site_check()
    async def test_progress_stays_until_the_next_attempt_tells(self, site: Site) -> None:
        """It survives the end of a lease, however that comes, and goes where the history goes."""
        store = site.open_timed()
        await store.put([one(key) for key in "abcd"])
        a, b, c, d = await claim(store, next_items(4, SHORT))
        await settle(
            store,
            *(Extend("q", item.key, item.token, SHORT, item.key.encode()) for item in (a, b, c, d)),
            Release("q", "a", a.token, error="busy"),
            Bury("q", "b", b.token, "bad"),
            Ack("q", "c", c.token, b"1", LONG),
        )
        await site.pass_time(SHORT * 1.5)
        found = {item.key: item for item in await everything(store)}
        assert {key: item.progress for key, item in found.items()} == {
            key: key.encode() for key in "abcd"
        }
        assert [attempt.how for attempt in found["d"].history] == ["expired"]
        again = await claim_one(store, of_key("a"))
        await settle(store, Release("q", "a", again.token, undo=True))
        again = await claim_one(store, of_key("a"))
        [[item]] = await store.look("q", ["a"])
        assert (item.progress, item.attempt) == (b"a", 2)
        await settle(store, Extend("q", "a", again.token, LONG, b"more"))
        [[item]] = await store.look("q", ["a"])
        assert (item.progress, len(item.history)) == (b"more", 1)
        await settle(store, Ack("q", "a", again.token), Requeue("q", found["b"].id))
        await store.put([one("a")])
        looked = [items[0].progress for items in await store.look("q", ["a", "b"])]
        assert looked == [None, None], "what begins anew has come nowhere yet"

    @check
    async def test_progress_of_a_lease_that_is_gone_is_refused(self, store: Store) -> None:
        """It changes nothing, and one that is too large is refused before that."""
        await store.put([one("a")])
        old = await claim_one(store)
        await settle(store, Extend("q", "a", old.token, LONG, b"old"), Release("q", "a", old.token))
        new = await claim_one(store)
        await refused(store, [Extend("q", "a", old.token, LONG, b"late")])
        large = b"x" * (store.limits.value_size + 1)
        [answer] = await store.settle([Extend("q", "a", new.token, LONG, large)])
        assert isinstance(answer, LimitExceededError)
        [[item]] = await store.look("q", ["a"])
        assert item.progress == b"old"

    @check
    async def test_release_front_back_and_later(self, store: Store) -> None:
        """Where a released item goes."""
        await store.put([one(name) for name in "abcd"])
        a, b, c = await claim(store, next_items(3))
        await settle(
            store,
            Release("q", "a", a.token),
            Release("q", "b", b.token, front=True),
            Release("q", "c", c.token, delay=LONG, error="busy"),
        )
        assert await order(store) == ["b", "d", "a"]
        [[later]] = await store.look("q", ["c"])
        assert later.state == "scheduled"
        assert [(attempt.how, attempt.error) for attempt in later.history] == [("released", "busy")]

    @check
    async def test_undo_is_as_if_nothing_had_been_claimed(self, store: Store) -> None:
        """The place and the number of attempts are as before."""
        await store.put([one(name) for name in "abcd"])
        a, b, c = await claim(store, next_items(3))
        await settle(store, *(Release("q", i.key, i.token, undo=True) for i in (b, a, c)))
        assert await order(store) == ["a", "b", "c", "d"]
        again = await claim_one(store)
        assert again.attempt == 1
        assert not (await store.look("q", ["a"]))[0][0].history

    @site_check()
    async def test_an_undone_claim_can_wait(self, site: Site) -> None:
        """It is scheduled, and no attempt; a later time of its own holds."""
        store = site.open_timed()
        await store.put([one(name) for name in "abc"])
        a, b, c = await claim(store, next_items(3))
        await store.put([one("b", b"2", delay=LONG), one("c", b"2", policy="buffer")])
        undone = [Release("q", i.key, i.token, undo=True, delay=SHORT) for i in (a, b, c)]
        await settle(store, *undone)
        items = await everything(store)
        assert [(i.key, i.state, i.value, i.attempt, i.history) for i in items] == [
            ("a", "scheduled", b"1", 0, ()),
            ("b", "scheduled", b"2", 0, ()),
            ("c", "scheduled", b"2", 0, ()),
        ]
        assert await claim(store, next_items(9)) == ()
        await site.pass_time(SHORT * 1.5)
        again = await claim(store, next_items(9))
        assert [(item.key, item.attempt) for item in again] == [("a", 1), ("c", 1)]

    @site_check(needs="extends_apart")
    async def test_leases_are_renewed_while_the_event_loop_is_blocked(self, site: Site) -> None:
        """By another thread, each by itself; the loop finds them renewed when it goes on."""
        store = site.open_timed()
        await store.put([one("a"), one("b")])
        a, b = await claim(store, next_items(2))
        await settle(store, Ack("q", "b", b.token))
        before = (await store.look("q", ["a"]))[0][0].due
        assert before is not None
        failures: list[BaseException] = []

        async def extend() -> None:
            names = (("a", a.token), ("b", b.token), ("a", "forged"))
            await store.extend_apart([Extend("q", *name, 10 * LONG) for name in names])

        def renew() -> None:
            try:
                asyncio.run(asyncio.wait_for(extend(), self.patience))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        thread.join(2 * self.patience)  # nothing runs in this event loop meanwhile
        assert not thread.is_alive(), "the store waits for an event loop that is blocked"
        assert not failures, f"extend_apart has failed: {failures[0]!r}"
        if site.clock is not None:
            site.clock.advance(2 * LONG)  # the leases of before would have expired
        assert await claim(store, next_items(2)) == ()
        [[item]] = await store.look("q", ["a"])
        assert item.state == "in_flight"
        assert item.due is not None
        assert item.due > before + LONG
        await settle(store, Ack("q", "a", a.token))
        assert await counts(store) == Counts()

    @check
    async def test_a_bad_lease_in_a_batch_spoils_nobody(self, store: Store) -> None:
        """Each gets its own answer."""
        await store.put([one("a"), one("b")])
        a, b = await claim(store, next_items(2))
        answers = await store.settle(
            [Ack("q", "a", a.token), Ack("q", "a", "forged"), Ack("q", "b", b.token)]
        )
        assert [isinstance(answer, Refusal) for answer in answers] == [False, True, False]
        assert await counts(store) == Counts()

    @check
    async def test_a_cancelled_claim_leaves_nothing_leased(self, store: Store) -> None:
        """Cancelled at any step, it has leased nothing that its caller does not know of."""
        keys = [f"k{number}" for number in range(4)]
        await store.put([one(key) for key in keys])
        for moment in range(20):
            claiming = asyncio.create_task(store.claim([next_items(4)]))
            for _ in range(moment % 10):
                # A store without threads is done in a few turns, others take some time.
                await asyncio.sleep(0 if moment < 10 else 0.0005)
            claiming.cancel()
            with suppress(asyncio.CancelledError):
                [claimed] = await claiming
                await settle(store, *(Release("q", i.key, i.token, undo=True) for i in claimed))
            await self.soon(_nothing_in_flight(store), "leases of nobody did not end")
            assert await order(store) == keys
        assert (await claim_one(store)).attempt == 1

    @check
    async def test_a_claim_that_fails_costs_no_lease_of_the_others(self, store: Store) -> None:
        """What was leased reaches its caller, or nothing is leased: nobody else can end a lease."""
        await store.put([one("a"), one("b"), one("c")])
        # As many items as a number of 64 bits can say: an engine may fail at it, or lease none.
        most = 2**63 - 1
        endless = Claim((("empty", most),), most, None, LONG)
        try:
            answers = await store.claim([next_items(), endless, next_items()])
        except Exception:
            answers = []
        leased = [item.key for answer in answers for item in answer]
        found = await counts(store)
        assert (found.available, found.in_flight) == (3 - len(leased), len(leased))
        assert leased in ([], ["a", "b"])


async def _nothing_in_flight(store: Store) -> None:
    while (await counts(store)).in_flight:
        await asyncio.sleep(0.01)
