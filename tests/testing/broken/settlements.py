"""Faults with items that are done, given up or not wanted any more."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leasedkeyq.model.requests import (
    OUTCOMES,
    Ack,
    Answer,
    Bury,
    Cancel,
    Change,
    Counts,
    Discard,
    Purge,
    Requeue,
)
from leasedkeyq.stores.store import Store
from tests.testing.broken.through import OtherChanges, Through, caught_by, replace


@caught_by("test_buried_items_leave_their_key_and_can_come_back")
class LosesBuriedItems(OtherChanges):
    """What is buried is gone."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Bury):
            return Ack(request.queue, request.key, request.token)
        return request


@caught_by("test_buried_items_leave_their_key_and_can_come_back")
class ForgetsWhyItWasBuried(OtherChanges):
    """Does not note the error."""

    def other(self, request: Change) -> Change:
        return replace(request, error="") if isinstance(request, Bury) else request


@caught_by("test_buried_items_leave_their_key_and_can_come_back")
class RequeuesForEver(Through):
    """Says that it put back an item that is not there any more."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        return [
            True if isinstance(change, Requeue) else answer
            for change, answer in zip(requests, answers, strict=True)
        ]


@caught_by("test_a_refused_requeue_leaves_the_item_buried")
class RequeuesAnyway(OtherChanges):
    """Requeueing does not follow the rules of put."""

    def other(self, request: Change) -> Change:
        return replace(request, policy="update") if isinstance(request, Requeue) else request


@caught_by("test_the_oldest_buried_items_are_dropped_beyond_the_limit")
class BuriesWithoutEnd(Through):
    """Says that there is a limit and keeps none."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        limits = options.pop("limits")
        super().__init__(opener, **options)
        self.limits = limits


@caught_by("test_cancel_revokes")
class CancelsOnlyWhatWaits(Through):
    """Leaves leased items alone and says that it cancelled them."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            leased = isinstance(change, Cancel) and change.key in await self.tokens(change.queue)
            answers.append(True if leased else await self.settle_one(change))
        return answers


@caught_by("test_cancel_of_one_item")
class CancelsTheWholeKey(OtherChanges):
    """Does not look at the id."""

    def other(self, request: Change) -> Change:
        return replace(request, id=None) if isinstance(request, Cancel) else request


@caught_by("test_results_are_kept_for_their_time")
class ForgetsResultsEarly(OtherChanges):
    """Keeps no result."""

    def other(self, request: Change) -> Change:
        return replace(request, keep=0.0) if isinstance(request, Ack) else request


@caught_by("test_results_are_kept_for_their_time")
class KeepsResultsForEver(OtherChanges):
    """Forgets no result."""

    def other(self, request: Change) -> Change:
        return replace(request, keep=1e9) if isinstance(request, Ack) and request.keep else request


@caught_by("test_results_are_counted_by_their_outcome")
class ForgetsHowItEnded(OtherChanges):
    """Whatever is acknowledged counts as completed."""

    def other(self, request: Change) -> Change:
        return replace(request, outcome="completed") if isinstance(request, Ack) else request


@caught_by("test_results_are_counted_by_their_outcome")
class CountsResultsForEver(Through):
    """Does not take a result out of the counts by outcome that is discarded or forgotten."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.most: dict[str, Counts] = {}

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        found = dict(await self.inner.count(queues))
        for queue, counts in found.items():
            most = self.most.setdefault(queue, counts)
            self.most[queue] = found[queue] = replace(
                counts,
                done_failed=max(counts.done_failed, most.done_failed),
                done_cancelled=max(counts.done_cancelled, most.done_cancelled),
            )
        return found


class ChangesUnchecked(OtherChanges):
    """Does something to changes before they are checked, in place of the final verb."""

    async def settle(self, requests: Sequence[Change]) -> list[Answer]:  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]  # its fault
        return await super().settle([self.other(request) for request in requests])


@caught_by("test_an_outcome_that_is_none_is_refused")
class TakesAnyOutcome(ChangesUnchecked):
    """What it does not know counts as completed."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Ack | Cancel) and request.outcome not in OUTCOMES:
            return replace(request, outcome="completed")
        return request


@caught_by("test_cancel_can_leave_a_result")
class ForgetsResultsOfCancelledItems(OtherChanges):
    """Keeps results of acknowledged items only."""

    def other(self, request: Change) -> Change:
        return replace(request, keep=0.0) if isinstance(request, Cancel) else request


@caught_by("test_one_buried_item_can_be_discarded")
class DiscardsAllThatIsBuried(OtherChanges):
    """Does not look at the id."""

    def other(self, request: Change) -> Change:
        return Purge(request.queue, "buried") if isinstance(request, Discard) else request


@caught_by("test_one_buried_item_can_be_discarded")
class DiscardsWhateverHasTheId(Through):
    """Forgets an item that is not buried, too."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        for number, change in enumerate(requests):
            if isinstance(change, Discard) and not answers[number]:
                live = (await self.inner.browse(change.queue)).items
                keys = [item.key for item in live if item.id == change.id]
                answers[number] = bool(keys)
                await self.inner.settle([Cancel(change.queue, key) for key in keys])
        return answers


@caught_by("test_one_result_can_be_discarded")
class DiscardsBuriedItemsOnly(Through):
    """Forgets no result by its id."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for request in requests:
            if isinstance(request, Discard) and any(
                await self.inner.results(request.queue, [request.id])
            ):
                answers.append(False)
            else:
                answers += await self.inner.settle([request])
        return answers


@caught_by("test_one_buried_item_can_be_discarded")
class DiscardsForEver(Through):
    """Says that it forgot an item that is not there any more."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        return [
            True if isinstance(change, Discard) else answer
            for change, answer in zip(requests, answers, strict=True)
        ]


@caught_by("test_purge_forgets_what_it_is_told_to")
class PurgesAll(OtherChanges):
    """Does not look at what it is to purge."""

    def other(self, request: Change) -> Change:
        return replace(request, part="all") if isinstance(request, Purge) else request


@caught_by("test_a_result_beyond_the_limit_is_refused")
class CutsResults(ChangesUnchecked):
    """Keeps what fits of a large result."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Ack | Cancel) and request.result is not None:
            return replace(request, result=request.result[: self.limits.value_size])
        return request
