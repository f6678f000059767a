"""Faults of caps."""

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Any

from leasedkeyq.model.requests import Answer, Cap, Change, Claim, Claimed, Counts, Release
from leasedkeyq.stores.store import Store
from tests.testing.broken.through import OtherClaims, Through, caught_by, replace


class OtherCaps(OtherClaims):
    """Goes by other caps than it was told."""

    def cap(self, cap: Cap) -> Cap | None:
        raise NotImplementedError

    def other(self, request: Claim) -> Claim:
        caps = [other for cap in request.caps if (other := self.cap(cap)) is not None]
        return replace(request, caps=tuple(caps))


@caught_by("test_a_cap_limits_how_many_are_in_flight")
class IgnoresCapsInFlight(OtherCaps):
    """Any number may be in flight."""

    def cap(self, cap: Cap) -> Cap | None:
        return None if cap.in_flight is not None else cap


@caught_by("test_a_cap_limits_how_many_are_in_flight")
class CountsWhatWasLeasedWithCaps(Through):
    """Leases that were claimed without a cap do not count."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.without = 0

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            caps = tuple(
                cap
                if cap.in_flight is None
                else replace(cap, in_flight=cap.in_flight + self.without)
                for cap in request.caps
            )
            answers += await self.inner.claim([replace(request, caps=caps)])
            if not request.caps:
                self.without += len(answers[-1])
        return answers


@caught_by("test_a_cap_limits_how_many_are_in_flight")
class StopsAtWhatHasNoRoom(Through):
    """Does not look behind an item that has no room."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            before = [item for queue, _ in request.queues for item in await self.waiting(queue)]
            [found] = await self.inner.claim([request])
            kept = 0
            if request.caps:
                while kept < len(found) and before[kept] == found[kept].key:
                    kept += 1
                for item in reversed(found[kept:]):
                    await self.settle_one(Release(item.queue, item.key, item.token, undo=True))
                found = found[:kept]
            answers.append(found)
        return answers

    async def waiting(self, queue: str) -> list[str]:
        """The available keys in order."""
        page = await self.inner.browse(queue, states=("available",), limit=10**6)
        return [i.key for i in sorted(page.items, key=lambda i: (-i.priority, i.place))]


@caught_by("test_many_items_without_room_are_passed_over")
class LooksAtTheFirstHundred(StopsAtWhatHasNoRoom):
    """Does not look behind a hundred items."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            seen = [key for queue, _ in request.queues for key in await self.waiting(queue)][:100]
            [found] = await self.inner.claim([request])
            for item in found:
                if item.key not in seen:
                    await self.settle_one(Release(item.queue, item.key, item.token, undo=True))
            answers.append(tuple(item for item in found if item.key in seen))
        return answers


@caught_by("test_a_cap_holds_within_a_batch_and_over_claims_at_a_time")
class CapsTheFirstOfABatch(Through):
    """The other claims of a batch do not count what the first has leased."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        return await self.inner.claim([*requests[:1], *(replace(r, caps=()) for r in requests[1:])])


@caught_by("test_leases_that_have_come_due_leave_room")
class CountsLeasesThatAreDue(Through):
    """What has expired stays in flight for caps."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.leased = 0

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            caps = tuple(cap for cap in request.caps if cap.in_flight is not None)
            if any(self.leased >= (cap.in_flight or 0) for cap in caps):
                answers.append(())
                continue
            answers += await self.inner.claim([request])
            self.leased += len(answers[-1])
        return answers


class MatchesOtherwise(Through):
    """Takes other keys for those that a cap is about."""

    def matches(self, key: str, pattern: str) -> bool:
        raise NotImplementedError

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            full = [cap for cap in request.caps if cap.in_flight == 0]
            [found] = await self.inner.claim([replace(request, caps=())])
            has_room = [not any(self.matches(i.key, cap.pattern) for cap in full) for i in found]
            for item, fits in zip(found, has_room, strict=True):
                if not fits:
                    await self.settle_one(Release(item.queue, item.key, item.token, undo=True))
            answers.append(tuple(i for i, fits in zip(found, has_room, strict=True) if fits))
        return answers


@caught_by("test_a_cap_is_for_the_keys_that_match_its_pattern")
class MatchesLikeAShell(MatchesOtherwise):
    """Question marks and brackets mean something."""

    def matches(self, key: str, pattern: str) -> bool:
        return fnmatch.fnmatchcase(key, pattern)


@caught_by("test_a_cap_is_for_the_keys_that_match_its_pattern")
class MatchesLikeADatabase(MatchesOtherwise):
    """Per cent signs and underscores mean something."""

    def matches(self, key: str, pattern: str) -> bool:
        special = {"*": ".*", "%": ".*", "_": "."}
        parts = [special.get(letter) or re.escape(letter) for letter in pattern]
        return re.fullmatch("".join(parts), key, re.DOTALL) is not None


@caught_by("test_a_cap_is_for_the_keys_that_match_its_pattern")
class MatchesWithoutCase(MatchesOtherwise):
    """Takes capital letters for small ones."""

    def matches(self, key: str, pattern: str) -> bool:
        expression = re.escape(pattern).replace(r"\*", ".*")
        return re.fullmatch(expression, key, re.DOTALL | re.IGNORECASE) is not None


@caught_by("test_a_cap_is_for_the_keys_that_match_its_pattern")
class MatchesOneLine(MatchesOtherwise):
    """A star does not reach over the end of a line."""

    def matches(self, key: str, pattern: str) -> bool:
        return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), key) is not None


@caught_by("test_a_cap_is_for_the_keys_that_match_its_pattern")
class MatchesTheBeginning(MatchesOtherwise):
    """What follows the match does not count."""

    def matches(self, key: str, pattern: str) -> bool:
        return re.match(re.escape(pattern).replace(r"\*", ".*"), key, re.DOTALL) is not None


# Tokens


@caught_by("test_each_lease_takes_a_token")
class IgnoresRates(OtherCaps):
    """Takes no token."""

    def cap(self, cap: Cap) -> Cap | None:
        return replace(cap, rate=None) if cap.in_flight is not None else None


@caught_by("test_each_lease_takes_a_token")
class TakesOneTokenForAClaim(Through):
    """A claim takes a token, whatever it leases."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            [first] = await self.inner.claim([replace(request, limit=min(request.limit, 1))])
            more: tuple[Claimed, ...] = ()
            if first and request.limit > 1:
                rest = replace(request, limit=request.limit - 1, caps=())
                [more] = await self.inner.claim([rest])
            answers.append((*first, *more))
        return answers


@caught_by("test_each_lease_takes_a_token")
class CountsWholeTokens(OtherCaps):
    """A bucket is as large as the next whole number."""

    def cap(self, cap: Cap) -> Cap | None:
        return replace(cap, burst=float(round(cap.burst + 0.4)))


@caught_by("test_tokens_come_with_time_up_to_the_burst")
class BringsNoTokens(OtherCaps):
    """A token that was taken never comes back."""

    def cap(self, cap: Cap) -> Cap | None:
        return cap if cap.rate is None else replace(cap, rate=cap.burst / 1e8)


@caught_by("test_tokens_come_with_time_up_to_the_burst")
class SavesTokensWithoutEnd(OtherCaps):
    """After a pause there are as many tokens as time has brought."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.seen: set[Cap] = set()

    def cap(self, cap: Cap) -> Cap | None:
        if cap.rate is None or cap not in self.seen:
            self.seen.add(cap)
            return cap
        return replace(cap, burst=cap.burst + 9)


@caught_by("test_each_key_has_tokens_of_its_own")
class IgnoresEach(OtherCaps):
    """All keys share the tokens."""

    def cap(self, cap: Cap) -> Cap | None:
        return replace(cap, each=False)


@caught_by("test_each_key_has_tokens_of_its_own")
class MixesBuckets(OtherCaps):
    """What keys share is a bucket of its own for each, too."""

    def cap(self, cap: Cap) -> Cap | None:
        return replace(cap, each=cap.rate is not None and cap.in_flight is None)


class LosesTokens(OtherCaps):
    """Begins with full buckets from time to time. A pattern with more stars has other buckets."""

    generation = 0

    def cap(self, cap: Cap) -> Cap | None:
        return replace(cap, pattern=cap.pattern.replace("*", "*" * (self.generation + 1)))


@caught_by("test_tokens_come_back_with_nothing_but_time")
class GivesTokensBackWhenUndone(LosesTokens):
    """A claim that is undone gives its token back."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        self.generation += any(isinstance(r, Release) and r.undo for r in requests)
        return await self.inner.settle(requests)


@caught_by("test_tokens_come_back_with_nothing_but_time")
class FillsBucketsOfAnEmptyQueue(LosesTokens):
    """A queue that is empty forgets its buckets."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        self.generation += (await self.inner.count(["q"])).get("q", Counts()) == Counts()
        return answers


@caught_by("test_another_rate_goes_on_from_what_is_left")
class HasABucketForEachRate(LosesTokens):
    """A bucket belongs to the numbers of the cap."""

    def cap(self, cap: Cap) -> Cap | None:
        self.generation = int(cap.burst)
        return super().cap(cap)


@caught_by("test_every_cap_that_matches_must_have_room")
class GoesByTheFirstCap(OtherClaims):
    """Looks at one cap only."""

    def other(self, request: Claim) -> Claim:
        return replace(request, caps=request.caps[:1])


@caught_by("test_every_cap_that_matches_must_have_room")
class GoesByCapsOfOtherQueues(OtherCaps):
    """A cap is for every queue."""

    def cap(self, cap: Cap) -> Cap | None:
        return replace(cap, queue="q")


@caught_by("test_every_cap_that_matches_must_have_room")
class TakesTokensOfWhatIsPassedOver(Through):
    """Takes the token of one cap before it finds that another has no room."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        for request in requests:
            rates = tuple(cap for cap in request.caps if cap.rate is not None)
            if rates and len(rates) < len(request.caps):
                [taken] = await self.inner.claim([replace(request, caps=rates)])
                for item in reversed(taken):
                    await self.settle_one(Release(item.queue, item.key, item.token, undo=True))
        return await self.inner.claim(requests)


@caught_by("test_the_claim_of_a_key_obeys_caps")
class ClaimsKeysWithoutCaps(OtherClaims):
    """Who asks for a key gets it."""

    def other(self, request: Claim) -> Claim:
        return request if request.key is None else replace(request, caps=())


@caught_by("test_the_claim_of_a_key_obeys_caps")
class TakesTokensForNothing(Through):
    """The claim of a key takes its token before it finds that there is nothing."""

    empty = False

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            rated = request.key is not None and any(cap.rate for cap in request.caps)
            answers += [()] if rated and self.empty else await self.inner.claim([request])
            self.empty = self.empty or rated
        return answers


@caught_by("test_a_sweep_tells_when_the_next_token_comes")
class DoesNotSweepTokens(Through):
    """Tells of items only."""

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        await self.inner.sweep(queues)
        found = [await self.inner.browse(q, states=("scheduled", "in_flight")) for q in queues]
        dues = [[i.due - self.clock() for i in page.items if i.due is not None] for page in found]
        return [min(seconds, default=None) for seconds in dues]


@caught_by("test_a_sweep_tells_when_the_next_token_comes")
class WaitsForFullBuckets(Through):
    """Tells when a bucket is full, though it has a token."""

    used = False

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        self.used = self.used or any(request.caps for request in requests)
        return await self.inner.claim(requests)

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        found = await self.inner.sweep(queues)
        return [1.0 if seconds is None and self.used else seconds for seconds in found]


@caught_by("test_a_claim_finds_the_token_that_a_sweep_told_of")
class TellsTooEarly(Through):
    """Tells of a token a little before it is there, and then no more."""

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        found = await self.inner.sweep(queues)
        return [None if one is None or one < 0.1 else one - 0.05 for one in found]


@caught_by("test_a_claim_finds_the_token_that_a_sweep_told_of")
class TellsOfTokensThatAreThere(Through):
    """Goes on telling of a token that has come."""

    used = False

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        found = await self.inner.sweep(queues)
        self.used = self.used or any(seconds is not None for seconds in found)
        return [0.0 if self.used and seconds is None else seconds for seconds in found]
