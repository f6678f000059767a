"""Limits that hold over everybody: how many keys are in flight, and how many are claimed per time.

What a bucket holds to the last fraction, the random checks compare.
"""

import asyncio
from typing import Any, Final

from leasedkeyq.model.requests import Ack, Cancel, Cap, Claim, Claimed, Purge, Put, Release
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import processes
from leasedkeyq.testing.shorthand import (
    LONG,
    SHORT,
    claim,
    claim_one,
    next_items,
    one,
    order,
    settle,
)
from leasedkeyq.testing.site import Site
from leasedkeyq.testing.suite import Suite, check, site_check

SLOWLY: Final = 1 / LONG
"""Tokens per second: none comes back during a check."""
SOON: Final = 1 / SHORT
KEYS: Final = ("a", "ab", "A", "b", "a.b", "axb", "a\nb", "%_", "a?", "[a]", "*", "ö", "a\\b")
MATCHING: Final = {
    "*": KEYS,
    "a": ("a",),
    "a*": ("a", "ab", "a.b", "axb", "a\nb", "a?", "a\\b"),
    "*b": ("ab", "b", "a.b", "axb", "a\nb", "a\\b"),
    "a*b": ("ab", "a.b", "axb", "a\nb", "a\\b"),
    "*a*": ("a", "ab", "a.b", "axb", "a\nb", "a?", "[a]", "a\\b"),
    "a.b": ("a.b",),
    "%*": ("%_",),
    "_": (),
    "a?": ("a?",),
    "[a]": ("[a]",),
    "a\\*": ("a\\b",),
    "**": KEYS,
    "a*a": (),
    "ö": ("ö",),
}
"""Which of the keys match a pattern."""
MANY: Final = 700
"""Items to pass over: more than a store is likely to look at once."""
PROCESSES: Final = 2
ROUNDS: Final = 4


def capped(limit: int, *caps: Cap, **options: Any) -> Claim:
    """A claim of the next items under caps."""
    return next_items(limit, caps=caps, **options)


def keys_of(items: tuple[Claimed, ...]) -> list[str]:
    """The keys of what was leased, in order."""
    return [item.key for item in items]


class CapChecks(Suite):
    """Caps are kept in the claim itself, whoever claims."""

    @check
    async def test_a_cap_limits_how_many_are_in_flight(self, store: Store) -> None:
        """Whoever leased them; what has no room is passed over and stays where it is."""
        await store.put([one(key) for key in ("a1", "a2", "a3", "b1", "a4", "b2")])
        first = await claim_one(store)
        cap = Cap("q", "a*", in_flight=2)
        assert keys_of(await claim(store, capped(2, cap))) == ["a2", "b1"]
        assert keys_of(await claim(store, capped(9, cap))) == ["b2"]
        assert await claim(store, capped(9, cap)) == ()
        assert await order(store) == ["a3", "a4"]
        await settle(store, Ack("q", first.key, first.token))
        assert keys_of(await claim(store, capped(9, cap))) == ["a3"]
        assert await claim(store, capped(9, Cap("q", in_flight=0))) == ()
        assert keys_of(await claim(store, next_items(9))) == ["a4"]

    @check
    async def test_a_cap_holds_within_a_batch_and_over_claims_at_a_time(self, store: Store) -> None:
        """Every claim counts what those before it have leased."""
        await store.put([one(f"k{number}") for number in range(30)])
        busy = capped(1, Cap("q", in_flight=3))
        assert sum(map(len, await store.claim([busy] * 5))) == 3
        await settle(store, Purge("q"))
        await store.put([one(f"k{number}") for number in range(30)])
        batches = await asyncio.gather(*(store.claim([busy, busy]) for _ in range(6)))
        assert sum(len(answer) for batch in batches for answer in batch) == 3
        fast = capped(1, Cap("q", "k*", rate=SLOWLY, burst=4))
        batches = await asyncio.gather(*(store.claim([fast, fast]) for _ in range(6)))
        assert sum(len(answer) for batch in batches for answer in batch) == 4

    @site_check()
    async def test_leases_that_have_come_due_leave_room(self, site: Site) -> None:
        """The item of such a lease is the first that has it."""
        store = site.open_timed()
        await store.put([one("a"), one("b")])
        cap = Cap("q", in_flight=1)
        assert keys_of(await claim(store, capped(2, cap, lease_time=SHORT))) == ["a"]
        await site.pass_time(SHORT * 1.5)
        assert keys_of(await claim(store, capped(2, cap))) == ["a"]

    @check
    async def test_a_cap_is_for_the_keys_that_match_its_pattern(self, store: Store) -> None:
        """As a whole; a star is any characters, everything else is itself."""
        await store.put([one(key) for key in KEYS])
        for pattern, matching in MATCHING.items():
            claimed = await claim(store, capped(99, Cap("q", pattern, in_flight=0)))
            got = keys_of(claimed)
            assert got == [key for key in KEYS if key not in matching], f"pattern {pattern!r}"
            await settle(store, *(Release("q", i.key, i.token, undo=True) for i in claimed))

    @check
    async def test_many_items_without_room_are_passed_over(self, store: Store) -> None:
        """However many there are, those behind them have their turn, in order."""
        many = tuple((f"a{number}", b"1") for number in range(MANY))
        await store.put([Put("q", many, priority=1), one("b1"), one("c", kind="x"), one("b2")])
        cap = Cap("q", "a*", in_flight=0)
        assert keys_of(await claim(store, capped(1, cap))) == ["b1"]
        assert keys_of(await claim(store, capped(9, cap, kinds=("",)))) == ["b2"]
        assert keys_of(await claim(store, capped(9, cap))) == ["c"]
        assert keys_of(await claim(store, next_items(1))) == ["a0"]

    @check
    async def test_each_lease_takes_a_token(self, store: Store) -> None:
        """A full bucket has as many as its burst; leases without the cap take none."""
        await store.put([one(f"a{number}") for number in range(9)] + [one("b")])
        cap = Cap("q", "a*", rate=SLOWLY, burst=3.5)
        assert keys_of(await claim(store, next_items(2))) == ["a0", "a1"]
        assert keys_of(await claim(store, capped(2, cap))) == ["a2", "a3"]
        assert keys_of(await claim(store, capped(9, cap))) == ["a4", "b"]
        assert await claim(store, capped(9, cap)) == ()
        assert keys_of(await claim(store, next_items(1))) == ["a5"]

    @site_check()
    async def test_tokens_come_with_time_up_to_the_burst(self, site: Site) -> None:
        """As fast as the rate says."""
        store = site.open_timed()
        await store.put([one(f"{letter}{number}") for letter in "ab" for number in range(9)])
        slow = Cap("q", "a*", rate=SOON, burst=1)
        fast = Cap("q", "b*", rate=SOON * 4, burst=2)
        none = Cap("q", "a*", in_flight=0)
        assert keys_of(await claim(store, capped(1, slow))) == ["a0"]
        assert keys_of(await claim(store, capped(9, fast, none))) == ["b0", "b1"]
        await site.pass_time(SHORT * 1.5)
        assert keys_of(await claim(store, capped(1, slow))) == ["a1"]
        assert keys_of(await claim(store, capped(9, fast, none))) == ["b2", "b3"]

    @check
    async def test_each_key_has_tokens_of_its_own(self, store: Store) -> None:
        """With `each`; they have nothing to do with those that keys share."""
        await store.put([one("a"), one("b")])
        each = Cap("q", rate=SLOWLY, each=True)
        a, b = await claim(store, capped(9, each))
        await settle(store, Release("q", a.key, a.token), Release("q", b.key, b.token))
        await store.put([one("c")])
        assert keys_of(await claim(store, capped(9, each))) == ["c"]
        together = Cap("q", rate=SLOWLY)
        assert keys_of(await claim(store, capped(9, together))) == ["a"]

    @check
    async def test_tokens_come_back_with_nothing_but_time(self, store: Store) -> None:
        """Not when a claim is undone, nor when the queue is emptied."""
        cap = Cap("q", rate=SLOWLY, burst=2)
        for back in range(2):
            await store.put([one("a")])
            held = await claim_one(store, capped(1, cap))
            undo = Release("q", "a", held.token, undo=True)
            await settle(store, undo if back else Ack("q", "a", held.token))
        assert await claim(store, capped(9, cap)) == ()
        for emptied in (Purge("q"), Cancel("q", "a")):
            await settle(store, emptied)
            await store.put([one("a")])
            assert await claim(store, capped(9, cap)) == ()

    @check
    async def test_another_rate_goes_on_from_what_is_left(self, store: Store) -> None:
        """A bucket belongs to the queue, the pattern and `each`, and not to the numbers."""
        await store.put([one(f"k{number}") for number in range(9)])
        await claim_one(store, capped(1, Cap("q", rate=SLOWLY, burst=3)))
        other = Cap("q", rate=SLOWLY / 2, burst=9)
        assert len(await claim(store, capped(9, other))) == 2
        assert await claim(store, capped(9, Cap("q", rate=SLOWLY, burst=3))) == ()
        # Another queue or another pattern is another bucket.
        await store.put([Put("other", (("k0", b"1"), ("k1", b"1")))])
        elsewhere = Claim((("other", 9),), 9, None, LONG, None, (Cap("other", rate=SLOWLY),))
        assert len(await claim(store, elsewhere)) == 1
        assert len(await claim(store, capped(9, Cap("q", "k*", rate=SLOWLY)))) == 1

    @check
    async def test_every_cap_that_matches_must_have_room(self, store: Store) -> None:
        """What is passed over takes no token of any; caps of other queues mean nothing."""
        await store.put([one("a"), one("b"), one("c")])
        rate, full = Cap("q", "a", rate=SLOWLY), Cap("q", "a*", in_flight=0)
        b = await claim_one(store, capped(1, rate, full))
        assert b.key == "b"
        elsewhere = Cap("other", in_flight=0)
        a = await claim_one(store, capped(1, elsewhere, rate))
        assert a.key == "a"
        await settle(store, Release("q", "a", a.token, undo=True))
        both = (Cap("q", "*", in_flight=2), Cap("q", "*", rate=SLOWLY, burst=9))
        assert keys_of(await claim(store, capped(9, rate, *both))) == ["c"]
        assert await claim(store, capped(9, *both)) == ()
        await settle(store, Ack("q", "b", b.token))
        assert keys_of(await claim(store, capped(9, *both))) == ["a"]

    @check
    async def test_the_claim_of_a_key_obeys_caps(self, store: Store) -> None:
        """It takes a token if it leases the item, and only then."""
        await store.put([one("a"), one("later", delay=LONG)])
        cap = Cap("q", rate=SLOWLY)
        full = Cap("q", "a", in_flight=0)

        def of_key(key: str, *caps: Cap) -> Claim:
            return Claim((("q", 1),), 1, key, LONG, None, caps)

        assert await claim(store, of_key("a", full)) == ()
        assert await claim(store, of_key("later", cap)) == ()
        assert await claim(store, of_key("absent", cap)) == ()
        assert keys_of(await claim(store, of_key("a", cap))) == ["a"]
        await store.put([one("b")])
        assert await claim(store, of_key("b", cap)) == ()
        assert keys_of(await claim(store, of_key("b"))) == ["b"]

    @site_check()
    async def test_a_sweep_tells_when_the_next_token_comes(self, site: Site) -> None:
        """Also of an empty queue; a bucket that has a token is not waited for."""
        store = site.open_timed()
        await store.put([one(key) for key in "abc"])
        cap = Cap("q", rate=SLOWLY, burst=2)
        first = await claim_one(store, capped(1, cap, lease_time=None))
        assert await store.sweep(["q"]) == [None]
        second = await claim_one(store, capped(1, cap, lease_time=None))
        await settle(store, *(Ack("q", i.key, i.token) for i in (first, second)), Purge("q"))
        [wait] = await store.sweep(["q"])
        assert wait is not None, "nobody would ask again when there is a token"
        assert LONG / 2 < wait <= LONG * 1.001
        assert await store.count() == {}, "a queue without items was counted"
        await store.put([one("soon", delay=LONG / 4)])
        [sooner] = await store.sweep(["q"])
        assert sooner is not None
        assert sooner < LONG / 2

    @site_check()
    async def test_a_claim_finds_the_token_that_a_sweep_told_of(self, site: Site) -> None:
        """At that moment, and after it the sweep has nothing more to tell."""
        store = site.open_timed()
        await store.put([one("a"), one("b")])
        cap = Cap("q", rate=3 / SHORT)
        for key in ("a", "b"):
            assert (await claim_one(store, capped(1, cap, lease_time=None))).key == key
            [wait] = await store.sweep(["q"])
            while wait:
                await site.pass_time(wait)
                [wait] = await store.sweep(["q"])
            assert wait is None

    @site_check(needs="durability")
    async def test_tokens_that_were_taken_are_not_there_when_it_is_opened_again(
        self, site: Site
    ) -> None:
        """Neither shared ones nor those of a key."""
        store = site.open_timed()
        await store.put([one("a"), one("b")])
        caps = Cap("q", rate=SLOWLY), Cap("q", "b", rate=SLOWLY, each=True)
        held = [
            *await claim(store, capped(1, caps[0])),
            *await claim(store, capped(1, caps[1])),
        ]
        assert [item.key for item in held] == ["a", "b"]
        await settle(store, *(Ack("q", item.key, item.token) for item in held))
        await site.close_stores()

        store = site.open_timed()
        await store.put([one("a"), one("b")])
        assert await claim(store, capped(9, *caps)) == ()
        assert keys_of(await claim(store, capped(9, caps[1]))) == ["a"]

    @site_check(needs="cross_process")
    async def test_a_cap_holds_over_processes(self, site: Site) -> None:
        """All that are in flight count, and all take from the same bucket."""
        store = site.open()
        workers = [site.start_process() for _ in range(PROCESSES)]
        for number in range(ROUNDS):
            # The same keys, and another bucket in each round.
            rate = Cap("q", "k" + "*" * (number + 1), rate=SLOWLY, burst=3)
            for cap in (Cap("q", "k*", in_flight=3), rate):
                await store.put([one(f"k{number}") for number in range(20)])
                request = capped(5, cap)
                answers = await asyncio.gather(
                    claim(store, request),
                    *(worker.ask(processes.claim, request) for worker in workers),
                )
                got = sum(map(len, answers))
                assert 1 <= got <= 3, f"{got} were leased at a time under {cap}"
                got += len(await claim(store, request))
                assert got == 3, f"{got} were leased under {cap}"
                await settle(store, Purge("q"))
