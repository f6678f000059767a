"""Faults of leases."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from tests.testing.broken.through import (
    OtherChanges,
    OtherClaims,
    OtherItems,
    PutAnswer,
    Through,
    caught_by,
    replace,
)


@caught_by("test_one_key_one_lease")
class GivesAKeyTwice(Through):
    """Hands out what is leased when there is nothing else."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        for number, request in enumerate(requests):
            if not answers[number] and request.key is None:
                answers[number] = await self.leased_again(request.queues[0][0], None)
        return answers


@caught_by("test_one_key_one_lease")
class GivesAWantedKeyTwice(Through):
    """Hands out a leased item to those who ask for its key."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        for number, request in enumerate(requests):
            if not answers[number] and request.key is not None:
                answers[number] = await self.leased_again(request.queues[0][0], request.key)
        return answers


@caught_by("test_leases_are_renewed_while_the_event_loop_is_blocked")
class ForgetsWhatIsExtendedApart(Through):
    """Says that leases are renewed, and does not renew them."""

    async def extend_apart(self, requests: Sequence[Extend]) -> list[Answer]:
        return [None for _ in requests]


@caught_by("test_leases_are_renewed_while_the_event_loop_is_blocked")
class ExtendsInItsOwnLoop(Through):
    """Renews leases in the event loop of its callers, and so not while that is blocked."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.loop = asyncio.get_running_loop()

    async def extend_apart(self, requests: Sequence[Extend]) -> list[Answer]:
        extending = asyncio.run_coroutine_threadsafe(self.inner.settle(requests), self.loop)
        return await asyncio.wrap_future(extending)


@caught_by("test_fences_grow_and_attempts_are_counted")
class DoesNotCountAttempts(OtherClaims):
    """Every attempt is the first."""

    def shown(self, item: Claimed) -> Claimed:
        return replace(item, attempt=1)


@caught_by("test_fences_grow_and_attempts_are_counted")
class FencesEachQueueAlone(OtherClaims):
    """Counts the leases of each queue by themselves."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.fences: dict[str, int] = {}

    def shown(self, item: Claimed) -> Claimed:
        self.fences[item.queue] = self.fences.get(item.queue, 0) + 1
        return replace(item, fence=self.fences[item.queue])


@caught_by("test_tokens_cannot_be_guessed")
class HasGuessableTokens(OtherClaims):
    """Makes the token of a lease from what everybody knows."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.real: dict[str, str] = {}

    def shown(self, item: Claimed) -> Claimed:
        token = f"{item.queue}/{item.key}/{item.fence:020}"
        self.real[token] = item.token
        return replace(item, token=token)

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        real: list[Change] = []
        for change in requests:
            if isinstance(change, Ack | Release | Extend | Bury):
                real.append(replace(change, token=self.real.get(change.token, "")))
            else:
                real.append(change)
        return await self.inner.settle(real)


@caught_by("test_claims_over_several_queues_keep_the_limits")
class IgnoresLimitsOfQueues(OtherClaims):
    """Knows the total only."""

    def other(self, request: Claim) -> Claim:
        return replace(request, queues=tuple((name, 10**6) for name, _ in request.queues))


@caught_by("test_claims_over_several_queues_keep_the_limits")
class ServesQueuesByName(OtherClaims):
    """Serves queues in an order of its own."""

    def other(self, request: Claim) -> Claim:
        return replace(request, queues=tuple(sorted(request.queues)))


@caught_by("test_claim_by_key")
class IgnoresTheKey(OtherClaims):
    """Hands out any item to those who ask for one key."""

    def other(self, request: Claim) -> Claim:
        return replace(request, key=None)


@caught_by("test_claims_of_some_kinds_pass_over_the_others")
class IgnoresKinds(OtherClaims):
    """Hands out items of any kind."""

    def other(self, request: Claim) -> Claim:
        return replace(request, kinds=None)


@caught_by("test_claims_of_some_kinds_pass_over_the_others")
class StopsAtOtherKinds(Through):
    """Looks at the first items only."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            [found] = await self.inner.claim([replace(request, kinds=None)])
            kinds = request.kinds
            wrong = [item for item in found if kinds is not None and item.kind not in kinds]
            await self.inner.settle([Release(i.queue, i.key, i.token, undo=True) for i in wrong])
            answers.append(tuple(item for item in found if item not in wrong))
        return answers


@caught_by("test_an_item_keeps_its_kind")
class ForgetsKindsOfUpdates(Through):
    """A live item keeps its first kind."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            live = (await self.inner.look(request.queue, [request.items[0][0]]))[0]
            kind = live[-1].kind if live else request.kind
            answers += await self.inner.put([replace(request, kind=kind)])
        return answers


class Remembers(Through):
    """Remembers the tokens that it gave, and accepts some of them when they are void."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.given: set[str] = set()
        self.ended: set[str] = set()

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        self.given |= {item.token for answer in answers for item in answer}
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        for number, change in enumerate(requests):
            if isinstance(answers[number], Refusal):
                if isinstance(change, Ack | Release | Extend | Bury) and self.accepts(change):
                    await self.settle_one(Cancel(change.queue, change.key))
                    answers[number] = None
            elif isinstance(change, Ack | Release | Bury):
                self.ended.add(change.token)
        return answers

    def accepts(self, change: Ack | Release | Extend | Bury) -> bool:
        raise NotImplementedError


@caught_by("test_an_expired_item_goes_to_the_front_and_its_lease_is_void")
class AcceptsExpiredLeases(Remembers):
    """Whoever held a lease may acknowledge, however late."""

    def accepts(self, change: Ack | Release | Extend | Bury) -> bool:
        late = change.token in self.given - self.ended
        return late and isinstance(change, Ack)


@caught_by("test_a_settled_lease_settles_nothing_any_more")
class AcceptsSettledLeases(Remembers):
    """Whoever has released an item may still acknowledge it."""

    def accepts(self, change: Ack | Release | Extend | Bury) -> bool:
        return change.token in self.ended and isinstance(change, Ack)


@caught_by("test_a_token_that_was_never_given_settles_nothing")
class ExtendsForAnybody(Remembers):
    """Does not check the token when a lease is extended."""

    def accepts(self, change: Ack | Release | Extend | Bury) -> bool:
        return isinstance(change, Extend) and change.token not in self.given


@caught_by("test_a_token_that_was_never_given_settles_nothing")
class TakesAnyTokenForAnyKey(Remembers):
    """Checks that a token is a valid one, and not of which key."""

    def accepts(self, change: Ack | Release | Extend | Bury) -> bool:
        return change.token in self.given - self.ended


class KeepsTimeItself(Through):
    """Ends leases by its own book, which is in memory."""

    front = True

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.book: list[tuple[float, Claimed]] = []

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        await self.expire()
        bare = [replace(request, lease_time=None) for request in requests]
        answers = await self.inner.claim(bare)
        for request, answer in zip(requests, answers, strict=True):
            if request.lease_time is not None:
                self.book += [(self.clock() + request.lease_time, item) for item in answer]
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        await self.expire()
        return await self.inner.settle(requests)

    async def do_browse(self, *listing: Any, **order: Any) -> Sequence[StoredItem]:
        await self.expire()
        return await super().do_browse(*listing, **order)

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        await self.expire()
        return [min((when - self.clock() for when, _ in self.book), default=None) for _ in queues]

    async def expire(self) -> None:
        late = [item for when, item in self.book if when <= self.clock()]
        self.book = [(when, item) for when, item in self.book if when > self.clock()]
        # The last first, so that the first is in front at the end.
        for item in reversed(late):
            await self.settle_one(Release(item.queue, item.key, item.token, front=self.front))


@caught_by("test_an_expired_item_goes_to_the_front_and_its_lease_is_void")
class SendsExpiredItemsToTheBack(KeepsTimeItself):
    """An item whose lease has expired queues up anew."""

    front = False


@caught_by("test_the_holder_of_a_lease_is_shown")
class ForgetsHolders(OtherClaims):
    """Leases items, and does not keep to whom."""

    def other(self, request: Claim) -> Claim:
        return replace(request, holder="")


@caught_by("test_the_holder_of_a_lease_is_shown")
class TakesOneHolderForAll(Through):
    """Keeps the holder of the first claim of a batch for all of them."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        holder = requests[0].holder
        return await self.inner.claim([replace(request, holder=holder) for request in requests])


@caught_by("test_the_holder_goes_with_its_lease")
class RemembersDeadHolders(OtherItems):
    """Shows who held an item last, when nobody holds it any more."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.last: dict[str, str] = {}

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await super().do_claim(requests)
        for request, claimed in zip(requests, answers, strict=True):
            self.last.update((item.key, request.holder) for item in claimed)
        return answers

    def shown(self, item: StoredItem) -> StoredItem:
        return replace(item, holder=self.last.get(item.key, ""))


@caught_by("test_progress_is_kept_with_the_item")
class ForgetsProgress(OtherChanges):
    """Prolongs leases, and keeps nothing of how far the work has come."""

    def other(self, request: Change) -> Change:
        return replace(request, progress=None) if isinstance(request, Extend) else request


@caught_by("test_progress_stays_until_the_next_attempt_tells")
class DropsProgressWithTheLease(OtherItems):
    """Shows how far the work has come only while it is done."""

    def shown(self, item: StoredItem) -> StoredItem:
        return item if item.state == "in_flight" else replace(item, progress=None)


@caught_by("test_progress_of_a_lease_that_is_gone_is_refused")
class TakesProgressOfAnybody(Through):
    """Keeps the progress that a worker tells whose lease is gone."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(request, Extend) and request.progress and isinstance(answer, Refusal):
                token = (await self.tokens(request.queue)).get(request.key, "")
                await self.settle_one(replace(request, token=token))
        return answers


@caught_by("test_extend_prolongs_and_limits")
class DoesNotExtend(Through):
    """Answers a new expiry and leaves the old one."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            if isinstance(change, Extend):
                time_left = change.lease_time
                answers.append(None if time_left is None else self.clock() + time_left)
            else:
                answers.append(await self.settle_one(change))
        return answers


@caught_by("test_release_front_back_and_later")
class ForgetsTheFront(OtherChanges):
    """Every released item goes to the back."""

    def other(self, request: Change) -> Change:
        return replace(request, front=False) if isinstance(request, Release) else request


@caught_by("test_release_front_back_and_later")
class IgnoresDelaysOfReleases(OtherChanges):
    """A released item is available at once."""

    def other(self, request: Change) -> Change:
        return replace(request, delay=0.0) if isinstance(request, Release) else request


@caught_by("test_release_front_back_and_later")
class ForgetsErrors(OtherChanges):
    """Does not note why an item was released."""

    def other(self, request: Change) -> Change:
        return replace(request, error="") if isinstance(request, Release) else request


@caught_by("test_undo_is_as_if_nothing_had_been_claimed")
class CountsWhatWasUndone(OtherChanges):
    """Takes an undone claim for an attempt."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Release) and request.undo:
            return replace(request, undo=False, front=True)
        return request


@caught_by("test_an_undone_claim_can_wait")
class UndoesAtOnce(OtherChanges):
    """What never reached its consumer is available at once."""

    def other(self, request: Change) -> Change:
        undo = isinstance(request, Release) and request.undo
        return replace(request, delay=0.0) if undo else request


@caught_by("test_an_undone_claim_can_wait")
class CountsWhatIsToWait(OtherChanges):
    """Takes an undone claim for an attempt if it is to wait."""

    def other(self, request: Change) -> Change:
        waits = isinstance(request, Release) and request.delay
        return replace(request, undo=False) if waits else request


@caught_by("test_an_undone_claim_can_wait")
class UndoesSchedulesOfUpdates(Through):
    """Forgets that a put has set another time meanwhile."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        for change in requests:
            if isinstance(change, Release) and change.undo and change.delay:
                [[item, *_]] = await self.inner.look(change.queue, [change.key])
                items = ((change.key, item.value),)
                await self.inner.put([Put(change.queue, items, delay=0)])
        return await self.inner.settle(requests)


@caught_by("test_a_bad_lease_in_a_batch_spoils_nobody")
class PoisonsBatches(Through):
    """After one refusal it refuses the rest of the batch."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            bad = [answer for answer in answers if isinstance(answer, Refusal)]
            answers.append(bad[0] if bad else await self.settle_one(change))
        return answers


@caught_by("test_a_cancelled_claim_leaves_nothing_leased")
class LeasesToThoseWhoHaveGone(Through):
    """A cancelled claim goes on, and nobody knows of its leases."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.claims: set[asyncio.Task[list[tuple[Claimed, ...]]]] = set()

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        claiming = asyncio.create_task(self.inner.claim(requests))
        self.claims.add(claiming)
        return await asyncio.shield(claiming)


@caught_by("test_a_claim_that_fails_costs_no_lease_of_the_others")
class LosesLeasesWhereAClaimFails(Through):
    """Raises what went wrong with one claim, when others have leased."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        fits = [request.limit < 2**62 for request in requests]
        answers = await self.inner.claim(
            [request for request, good in zip(requests, fits, strict=True) if good]
        )
        if not all(fits):
            raise StoreError("the request cannot be stored")
        return answers
