"""Faults of lines: order, turns, single values, and what is shown of them."""

from collections.abc import Sequence

from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Cancel,
    Change,
    Claim,
    Claimed,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from tests.testing.broken.through import OtherChanges, OtherPuts, Through, caught_by, replace
from tests.testing.broken.watches import WakesItself


def leased(item: StoredItem) -> Claimed:
    """A value in line, as if it had been claimed."""
    names = (item.queue, item.key, item.value, item.id)
    return Claimed(*names, "nobody's", 10**9, 1, item.priority, None, item.put_at, item.kind)


@caught_by("test_the_values_of_a_key_come_one_at_a_time_and_in_order")
class ReleasesToTheEnd(Through):
    """What is released goes behind its line."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            if not isinstance(change, Release):
                answers.append(await self.settle_one(change))
                continue
            [items] = await self.inner.look(change.queue, [change.key])
            answers.append(await self.settle_one(Ack(change.queue, change.key, change.token)))
            await self.inner.put(
                [Put(change.queue, ((change.key, i.value),), "append") for i in items[:1]]
            )
        return answers


@caught_by("test_keys_take_turns")
class FinishesOneKeyFirst(Through):
    """The next of a line goes to the front."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            answers.append(await self.settle_one(change))
            if isinstance(change, Ack):
                [items] = await self.inner.claim([Claim(((change.queue, 1),), 1, change.key)])
                for item in items:
                    await self.settle_one(Release(item.queue, item.key, item.token, front=True))
        return answers


@caught_by("test_a_batch_leases_one_value_of_a_line")
class LeasesSeveralOfAKey(Through):
    """Hands out the next of a line along with its head."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        for number, answer in enumerate(answers):
            for item in answer:
                [found] = await self.inner.look(item.queue, [item.key])
                answers[number] = (*answers[number], *map(leased, found[1:]))
        return answers


@caught_by("test_the_next_of_a_line_begins_anew")
class TakesTheTermsOfTheHead(OtherPuts):
    """A value that is appended has no terms of its own."""

    def other(self, request: Put) -> Put:
        if request.policy != "append":
            return request
        return replace(request, kind="", priority=None, deadline=None)


@caught_by("test_a_delay_in_a_line_counts_from_the_put")
class IgnoresDelaysInLines(OtherPuts):
    """A value in line is handed out as soon as it is its turn."""

    def other(self, request: Put) -> Put:
        return replace(request, delay=None) if request.policy == "append" else request


class ReachesIntoLines(Through):
    """Hands out values in lines where nothing else is available."""

    def wants(self, request: Claim, item: StoredItem) -> bool:
        raise NotImplementedError

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        for number, request in enumerate(requests):
            if not answers[number]:
                page = await self.inner.browse(request.queues[0][0], states=("in_line",))
                found = [leased(item) for item in page.items if self.wants(request, item)]
                answers[number] = tuple(found[:1])
        return answers


@caught_by("test_a_line_waits_behind_a_scheduled_head")
class GoesRoundAScheduledHead(ReachesIntoLines):
    """A value in line does not wait for a head that waits for its time."""

    def wants(self, request: Claim, item: StoredItem) -> bool:
        return request.kinds is None


@caught_by("test_a_claim_of_some_kinds_does_not_reach_into_a_line")
class LooksForKindsInLines(ReachesIntoLines):
    """Finds a kind in a line where no head has it."""

    def wants(self, request: Claim, item: StoredItem) -> bool:
        return request.kinds is not None and item.kind in request.kinds


@caught_by("test_a_buffered_value_goes_before_the_rest_of_its_line")
class BuffersByAppending(OtherPuts):
    """A buffered value waits as any other."""

    def other(self, request: Put) -> Put:
        return replace(request, policy="append") if request.policy == "buffer" else request


@caught_by("test_a_requeued_item_goes_to_the_end_of_the_line")
class RequeuesOverNewerValues(OtherChanges):
    """A buried item that comes back replaces the newest value of its key."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Requeue) and request.policy == "append":
            return replace(request, policy="update")
        return request


@caught_by("test_one_value_can_be_cancelled")
class CancelsTheWholeKey(OtherChanges):
    """Does not look at the id."""

    def other(self, request: Change) -> Change:
        return replace(request, id=None) if isinstance(request, Cancel) else request


@caught_by("test_a_line_can_be_cancelled_with_its_head_or_without")
class CancelsTheHeadToo(OtherChanges):
    """A cancel of a line ends the lease on its head."""

    def other(self, request: Change) -> Change:
        return replace(request, only_line=False) if isinstance(request, Cancel) else request


@caught_by("test_a_line_can_be_cancelled_with_its_head_or_without")
class CountsKeys(Through):
    """Answers how many keys a cancel was for."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        return [
            min(1, int(str(answer))) if isinstance(change, Cancel) else answer
            for change, answer in zip(requests, answers, strict=True)
        ]


@caught_by("test_purge_takes_lines_along")
class PurgesHeads(Through):
    """What is in lines stays, and follows."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            lines: Sequence[StoredItem] = ()
            if isinstance(change, Purge):
                page = await self.inner.browse(change.queue, states=("in_line",))
                lines = page.items
            answers.append(await self.settle_one(change))
            await self.inner.put([Put(i.queue, ((i.key, i.value),), "append") for i in lines])
        return answers


@caught_by("test_look_shows_two_values_and_line_all_in_pages")
class LooksAtTheWholeLine(Through):
    """`look` shows all values of a key, however many there are."""

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        return [(await self.inner.line(queue, key)).items for key in keys]


@caught_by("test_look_shows_two_values_and_line_all_in_pages")
class LosesAValueBetweenPages(Through):
    """A page of a line does not begin where the one before it ended."""

    async def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Sequence[StoredItem]:
        return await super().do_line(queue, key, after + 1 if after else 0, limit)


@caught_by("test_browse_shows_the_values_in_lines")
class HidesLines(Through):
    """Only the head of a key is listed."""

    async def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> Sequence[StoredItem]:
        heads: list[StoredState] = [state for state in states if state != "in_line"]
        if not heads:
            return ()
        return await super().do_browse(
            queue, heads, prefix, after, limit, newest_first=newest_first
        )


@caught_by("test_browse_shows_the_values_in_lines")
class ListsLinesBehindTheirHeads(Through):
    """A listing goes from key to key, not by id."""

    async def do_browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        after: int,
        limit: int,
        /,
        *,
        newest_first: bool,
    ) -> Sequence[StoredItem]:
        found = await super().do_browse(
            queue, states, prefix, after, limit, newest_first=newest_first
        )
        keys = list(dict.fromkeys(item.key for item in found))
        return sorted(found, key=lambda item: keys.index(item.key))


@caught_by("test_an_edit_sees_and_changes_lines")
class ShowsHeadsToEdits(Through):
    """An edit does not see what is in lines."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        def work(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            return edit.work([item for item in items if item.state != "in_line"])

        return await self.inner.edit(edit.queue, work, keys=edit.keys)


@caught_by("test_watch_tells_when_the_next_of_a_line_is_available")
class IsSilentWhenAKeyIsLetGo(WakesItself):
    """Nobody hears that a buried item has let its key go."""

    silent = "Discard"
