"""Faults of stores that claim to be shared by processes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from leasedkeyq.model.urgency import Rank, most_urgent_first, rank
from leasedkeyq.stores.store import Store
from tests.testing.broken.edits import EditsWhatItSawBefore
from tests.testing.broken.leases import AcceptsExpiredLeases, GivesAKeyTwice, KeepsTimeItself
from tests.testing.broken.lines import ReleasesToTheEnd
from tests.testing.broken.through import PutAnswer, Through, caught_by, replace
from tests.testing.broken.urgency import LooksFirst
from tests.testing.broken.watches import WakesItself


@caught_by("test_processes_hold_each_key_once_and_finish_each_item_once")
class GivesAKeyToTwoProcesses(GivesAKeyTwice):
    """Hands out what is leased elsewhere when there is nothing else."""


@caught_by("test_processes_hold_each_key_once_and_finish_each_item_once")
class FinishesTooMuch(Through):
    """Takes a newer value along when the older one is done."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        await self.inner.settle([Cancel(c.queue, c.key) for c in requests if isinstance(c, Ack)])
        return answers


@caught_by("test_changes_in_one_process_wake_those_who_wait_in_another")
class WakesOwnProcessOnly(WakesItself):
    """Those who wait in another process hear nothing."""

    silent = "sweep"


@caught_by("test_a_waiting_get_is_woken_by_another_process")
class LeavesOthersWaiting(WakesItself):
    """Consumers in another process hear nothing."""

    silent = "sweep"


@caught_by("test_the_lease_of_a_killed_process_expires")
class ForgetsLeasesOfTheDead(KeepsTimeItself):
    """Only the process that claimed an item can end its lease."""


@caught_by("test_a_lease_is_checked_wherever_it_is_used")
class TrustsItsOwnMemory(AcceptsExpiredLeases):
    """Does not see that its lease was given to another process."""


@caught_by("test_a_lease_is_checked_wherever_it_is_used")
class RefusesLeasesOfOthers(Through):
    """Knows only the leases that it gave itself."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.given: set[str] = set()

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        self.given |= {item.token for answer in answers for item in answer}
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            if isinstance(change, Ack | Release | Extend | Bury) and change.token not in self.given:
                answers.append(Refusal(change.key))
            else:
                answers.append(await self.settle_one(change))
        return answers


@caught_by("test_store_objects_on_one_place_are_one_store")
class HandsOutOnlyItsOwn(Through):
    """Does not see what others put."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.mine: set[str] = set()

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        self.mine |= {key for request in requests for key, _ in request.items}
        return await self.inner.put(requests)

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for answer in await self.inner.claim(requests):
            foreign = [item for item in answer if item.key not in self.mine]
            await self.inner.settle([Release(i.queue, i.key, i.token, undo=True) for i in foreign])
            answers.append(tuple(item for item in answer if item not in foreign))
        return answers


@caught_by("test_edits_of_several_stores_do_not_run_into_each_other")
class EditsWithoutTheOthers(EditsWhatItSawBefore):
    """Does not keep others out while it edits."""


@caught_by("test_a_cap_holds_over_processes")
class CountsByItself(Through):
    """Counts what it has leased itself, and takes from a bucket of its own."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.leased = 0

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            left = 3 - self.leased if request.caps else request.limit
            bare = replace(request, caps=(), limit=min(request.limit, left))
            answers += await self.inner.claim([bare])
            self.leased += len(answers[-1])
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        if any(isinstance(request, Purge) for request in requests):
            self.leased = 0
        return await self.inner.settle(requests)


@caught_by("test_the_most_urgent_go_first_over_processes")
class ClaimsAfterALook(LooksFirst):
    """Decides how many to take from which queue, and then takes them, whatever they are by then."""

    async def claim_urgent(self, request: Claim) -> tuple[Claimed, ...]:
        now = self.clock()
        lines: list[list[tuple[Rank, int]]] = []
        for number, (queue, _) in enumerate(request.queues):
            page = await self.inner.browse(queue, states=("available",), limit=1000)
            items = sorted(page.items, key=lambda item: (-item.priority, item.place))
            lines.append([(self.rank(request, number, item, now), number) for item in items])
        chosen = [*most_urgent_first([iter(line) for line in lines], request.limit)]
        await asyncio.sleep(0.1)
        claimed: tuple[Claimed, ...] = ()
        for number, (queue, most) in enumerate(request.queues):
            many = min(chosen.count(number), most)
            part = replace(request, queues=((queue, many),), limit=many, urgencies=())
            claimed += (await self.inner.claim([part]))[0]
        return claimed

    def rank(self, request: Claim, number: int, item: StoredItem, now: float) -> Rank:
        return rank(request.urgencies[number], item.put_at, item.deadline, item.id, now)


@caught_by("test_processes_keep_the_order_of_a_line")
class LetsTheNextOvertake(ReleasesToTheEnd):
    """Another process gets the next of a line while the head waits to be tried again."""
