"""Faults of claims by urgency, and of deadlines."""

from collections.abc import Sequence

from leasedkeyq.model.requests import Claim, Claimed, Put, Release, StoredItem
from leasedkeyq.model.urgency import Rank, rank
from tests.testing.broken.through import OtherClaims, OtherPuts, Through, caught_by, replace


@caught_by("test_the_most_urgent_of_several_queues_is_next")
class IgnoresUrgencies(OtherClaims):
    """Serves the queues in the order given."""

    def other(self, request: Claim) -> Claim:
        return replace(request, urgencies=())


class LooksFirst(Through):
    """Looks at what is next in each queue, and then claims."""

    async def ranks(self, request: Claim) -> list[tuple[Rank, int]]:
        """The rank of the next item of each queue, and the number of the queue; in order."""
        heads = await self.inner.heads([queue for queue, _ in request.queues])
        now = self.clock()
        return sorted(
            (rank(request.urgencies[n], head.put_at, head.deadline, head.id, now), n)
            for n, head in enumerate(heads)
            if head is not None
        )

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            if request.by_turns:
                answers.append(await self.claim_urgent(request))
            else:
                answers += await self.inner.claim([request])
        return answers

    async def claim_urgent(self, request: Claim) -> tuple[Claimed, ...]:
        raise NotImplementedError


@caught_by("test_the_most_urgent_of_several_queues_is_next")
class DecidesOnce(LooksFirst):
    """Takes all that it can get of the most urgent queue before it turns to the next."""

    async def claim_urgent(self, request: Claim) -> tuple[Claimed, ...]:
        order = [number for _, number in await self.ranks(request)]
        ordered = replace(
            request,
            queues=tuple(request.queues[number] for number in order),
            lease_times=tuple(request.lease_times[n] for n in order if request.lease_times),
            urgencies=(),
        )
        return (await self.inner.claim([ordered]))[0] if order else ()


@caught_by("test_urgency_is_that_of_what_may_be_leased")
class GoesByTheFirstItem(LooksFirst):
    """Goes by the next item of a queue, though the claim may not lease that."""

    async def claim_urgent(self, request: Claim) -> tuple[Claimed, ...]:
        claimed: tuple[Claimed, ...] = ()
        while len(claimed) < request.limit:
            before = len(claimed)
            for _, number in await self.ranks(request):
                queue, most = request.queues[number]
                if len(claimed) == before and sum(i.queue == queue for i in claimed) < most:
                    one = replace(request, queues=((queue, 1),), limit=1, urgencies=())
                    one = replace(one, lease_times=request.lease_times[number : number + 1])
                    claimed += (await self.inner.claim([one]))[0]
            if len(claimed) == before:
                break
        return claimed


class OtherUrgencies(OtherClaims):
    """Goes by other urgencies than it was told."""

    def other(self, request: Claim) -> Claim:
        urgencies = tuple(replace(urgency, **self.changed) for urgency in request.urgencies)
        return replace(request, urgencies=urgencies)

    changed: dict[str, object] = {}  # noqa: RUF012 - nobody changes it


@caught_by("test_a_deadline_lifts_a_queue_above_others")
class IgnoresSteps(OtherUrgencies):
    """Lifts only what is past its deadline."""

    changed = {"steps": ((1e-9, 0),)}  # noqa: RUF012 - nobody changes it


@caught_by("test_what_is_past_its_deadline_is_above_everything")
class IgnoresDeadlinesOfQueues(OtherUrgencies):
    """Goes by deadlines of items only."""

    changed = {"deadline": None}  # noqa: RUF012 - nobody changes it


@caught_by("test_urgency_takes_tokens_for_what_it_leases")
class TakesTokensForCandidates(Through):
    """Takes the tokens of what it has a look at."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        for request in requests:
            if request.urgencies and request.caps:
                looked_at = [
                    replace(request, queues=(each,), urgencies=(), lease_times=())
                    for each in request.queues
                ]
                for answer in await self.inner.claim(looked_at):
                    for item in answer:
                        undo = Release(item.queue, item.key, item.token, undo=True)
                        await self.settle_one(undo)
        return await self.inner.claim(requests)


@caught_by("test_each_queue_can_have_its_own_lease_time")
class IgnoresLeaseTimes(OtherClaims):
    """Leases all for the same time."""

    def other(self, request: Claim) -> Claim:
        return replace(request, lease_times=())


@caught_by("test_a_deadline_stays_with_its_item")
class IgnoresDeadlines(OtherPuts):
    """Puts without deadlines."""

    def other(self, request: Put) -> Put:
        return replace(request, deadline=None)


@caught_by("test_an_expired_lease_leaves_the_deadline")
class ForgetsDeadlinesOfRetries(OtherClaims):
    """What comes back has no deadline any more."""

    def shown(self, item: Claimed) -> Claimed:
        return replace(item, deadline=None) if item.attempt > 1 else item


class BringsForward(Through):
    """Decides itself which item of a queue a deadline brings forward."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            if len(request.queues) == 1 and request.lifts(0):
                answers.append(await self.claim_lifted(request))
            else:
                answers += await self.inner.claim([request])
        return answers

    async def claim_lifted(self, request: Claim) -> tuple[Claimed, ...]:
        """One item after the other, by their keys."""
        claimed: tuple[Claimed, ...] = ()
        for _ in range(min(request.limit, request.queues[0][1])):
            key = await self.lifted(request)
            only = replace(request, limit=1, key=key, urgencies=(), in_order=False)
            if key is not None:
                only = replace(only, kinds=None, caps=())
            claimed += (await self.inner.claim([only]))[0]
        return claimed

    async def available(self, request: Claim) -> list[tuple[Rank, StoredItem]]:
        """What is available, by rank."""
        queue, urgency = request.queues[0][0], request.urgencies[0]
        page = await self.inner.browse(queue, states=("available",), limit=1000)
        now = self.clock()
        return sorted(
            ((rank(urgency, i.put_at, i.deadline, i.id, now), i) for i in page.items),
            key=lambda found: found[0],
        )

    async def lifted(self, request: Claim) -> str | None:
        """The key that goes before the first one."""
        raise NotImplementedError


@caught_by("test_a_deadline_brings_an_item_forward_in_its_queue")
class LeavesThemInLine(BringsForward):
    """Deadlines lift a queue above others, and nothing in it."""

    async def lifted(self, request: Claim) -> str | None:
        return None


@caught_by("test_a_deadline_brings_an_item_forward_in_its_queue")
class GoesByLevels(BringsForward):
    """Takes the item that is up most levels, not the one with the nearest deadline."""

    async def lifted(self, request: Claim) -> str | None:
        found = await self.available(request)
        lifted = [item for ranked, item in found if ranked[:2] < (True, 0)]
        return lifted[0].key if lifted else None


@caught_by("test_what_is_brought_forward_may_be_leased")
class BringsForwardWhateverItIs(BringsForward):
    """Passes nothing over, of whatever kind and under whatever cap it is."""

    async def lifted(self, request: Claim) -> str | None:
        found = [item for _, item in await self.available(request) if item.deadline is not None]
        return min(found, key=lambda item: item.deadline or 0.0).key if found else None


@caught_by("test_who_comes_back_has_its_deadline")
class BringsNewItemsForward(BringsForward):
    """What was leased before stays in line."""

    async def lifted(self, request: Claim) -> str | None:
        found = [
            item
            for ranked, item in await self.available(request)
            if item.deadline is not None and not item.attempt and ranked[:2] < (True, 0)
        ]
        return min(found, key=lambda item: item.deadline or 0.0).key if found else None


@caught_by("test_in_order_the_queues_come_one_after_the_other")
class TakesTurnsInAnyCase(OtherClaims):
    """Does not know of claims in order."""

    def other(self, request: Claim) -> Claim:
        return replace(request, in_order=False)
