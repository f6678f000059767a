"""Faults of putting."""

import asyncio
import unicodedata
from collections.abc import Sequence

from leasedkeyq.errors import LeasedKeyQError, LimitExceededError
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Cancel,
    Change,
    Claim,
    Claimed,
    Put,
    Release,
    StoredItem,
)
from tests.testing.broken.through import LOST, OtherPuts, PutAnswer, Through, caught_by, replace


@caught_by("test_everything_that_was_put_can_be_claimed")
class LosesAnItem(Through):
    """Now and then a put is acknowledged and not stored."""

    number = 0

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            self.number += 1
            lost = self.number % 17 == 0
            answers += [LOST] if lost else await self.inner.put([request])
        return answers


@caught_by("test_everything_that_was_put_can_be_claimed")
class LosesTheLastOfMany(OtherPuts):
    """Stores all of a request but its last item."""

    def other(self, request: Put) -> Put:
        return replace(request, items=request.items[:10])


@caught_by("test_everything_that_was_put_can_be_claimed")
class LosesAnItemWhenManyPut(Through):
    """Loses what is put while something else is being put."""

    busy = False

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        if self.busy:
            return [LOST for _ in requests]
        self.busy = True
        try:
            await asyncio.sleep(0)
            return await self.inner.put(requests)
        finally:
            self.busy = False


@caught_by("test_calls_of_one_event_loop_act_in_their_order")
class LetsOthersGoFirst(Through):
    """Calls that were made after a put may overtake it."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        await asyncio.sleep(0.01)
        return await self.inner.put(requests)


@caught_by("test_put_answers_ids_that_grow")
class GivesAnUpdateANewId(Through):
    """Answers another id for each put."""

    number = 0

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for answer in await self.inner.put(requests):
            placed = answer if isinstance(answer, tuple) else ()
            first = self.number
            self.number += len(placed)
            answers.append(
                tuple(each._replace(id=number) for number, each in enumerate(placed, first))
            )
        return answers


@caught_by("test_values_come_back_byte_by_byte")
class TidiesValues(OtherPuts):
    """Strips the space around a value."""

    def other(self, request: Put) -> Put:
        return replace(request, items=tuple((key, v.strip()) for key, v in request.items))


@caught_by("test_first_in_first_out")
class ForgetsFirstInFirstOut(OtherPuts):
    """The last comes first."""

    number = 0

    def other(self, request: Put) -> Put:
        self.number += 1
        return replace(request, priority=self.number)


@caught_by("test_first_in_first_out")
class MovesWhatIsUpdated(Through):
    """An update goes to the back."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            await self.inner.settle([Cancel(request.queue, key) for key, _ in request.items])
            answers += await self.inner.put([request])
        return answers


@caught_by("test_priority_goes_before_arrival")
class ForgetsPriority(OtherPuts):
    """All items are equal."""

    def other(self, request: Put) -> Put:
        return replace(request, priority=None)


@caught_by("test_queues_do_not_mix")
class TakesFromOtherQueues(Through):
    """Hands out an item of another queue where there is none."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers: list[tuple[Claimed, ...]] = []
        for request in requests:
            [answer] = await self.inner.claim([request])
            if not answer:
                queues = tuple((name, 1) for name in await self.inner.count())
                [answer] = await self.inner.claim([replace(request, queues=queues)])
            answers.append(answer)
        return answers


@caught_by("test_names_are_told_apart_by_every_character")
class FoldsKeys(OtherPuts):
    """Takes two spellings of an accent for the same key."""

    def other(self, request: Put) -> Put:
        items = tuple((unicodedata.normalize("NFC", key), v) for key, v in request.items)
        return replace(request, items=items)


@caught_by("test_names_are_told_apart_by_every_character")
class FoldsQueues(OtherPuts):
    """Takes capitals for small letters in the names of queues."""

    def other(self, request: Put) -> Put:
        return replace(request, queue=request.queue.lower())


@caught_by("test_a_delayed_item_comes_in_its_time")
class IgnoresDelays(OtherPuts):
    """Everything is available at once."""

    def other(self, request: Put) -> Put:
        return replace(request, delay=None)


@caught_by("test_a_delayed_item_comes_in_its_time")
class CutsDelaysShort(OtherPuts):
    """A put ends the schedule of its item."""

    def other(self, request: Put) -> Put:
        return replace(request, delay=request.delay or 0)


@caught_by("test_a_refused_put_does_nothing_and_spoils_nobody")
class PoisonsPuts(Through):
    """After one refusal nothing of the batch is stored any more."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            bad = [answer for answer in answers if isinstance(answer, Exception)]
            answers += bad[:1] or await self.inner.put([request])
        return answers


@caught_by("test_a_refused_put_does_nothing_and_spoils_nobody")
class StoresHalfAPut(Through):
    """Stores the items before the one that is refused."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            alone = [replace(request, items=(item,)) for item in request.items]
            found = await self.inner.put(alone)
            bad = [answer for answer in found if isinstance(answer, LeasedKeyQError)]
            ids = tuple(a[0] for a in found if isinstance(a, tuple))
            answers.append(bad[0] if bad else ids)
        return answers


@caught_by("test_a_full_queue_refuses")
class IsNeverFull(OtherPuts):
    """Does not know its limit."""

    def other(self, request: Put) -> Put:
        return replace(request, max_items=0)


@caught_by("test_a_buffered_value_waits_for_the_end_of_the_lease")
class LosesBufferedValues(Through):
    """Acknowledges a value for a leased key and forgets it."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            leased = request.items[0][0] in await self.tokens(request.queue)
            lost = leased and request.policy == "buffer"
            answers += [LOST] if lost else await self.inner.put([request])
        return answers


@caught_by("test_a_buffered_value_waits_for_the_end_of_the_lease")
class HandsOutBufferedValues(Through):
    """Does not wait for the end of the lease."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        for number, request in enumerate(requests):
            if request.key and not answers[number]:
                queue = request.queues[0][0]
                if len((await self.inner.look(queue, [request.key]))[0]) > 1:
                    answers[number] = await self.leased_again(queue, request.key)
        return answers


class OtherEndsBesideAValue(Through):
    """Settles something else than it was told to where a value is buffered."""

    def other(self, request: Change) -> Change:
        raise NotImplementedError

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for request in requests:
            key = getattr(request, "key", "")
            beside = len((await self.inner.look(request.queue, [key]))[0]) > 1
            answers.append(await self.settle_one(self.other(request) if beside else request))
        return answers


@caught_by("test_a_buffered_value_takes_over_attempts_and_history")
class ForgetsAttemptsForABufferedValue(OtherEndsBesideAValue):
    """A buffered value that replaces a released one begins anew."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Release):
            return Ack(request.queue, request.key, request.token)
        return request


@caught_by("test_a_buffered_value_waits_for_the_delay_of_a_release")
class CutsABackoffShort(OtherEndsBesideAValue):
    """A buffered value does not wait for the delay of the release."""

    def other(self, request: Change) -> Change:
        return replace(request, delay=0.0) if isinstance(request, Release) else request


@caught_by("test_a_buffered_value_begins_anew_behind_one_that_is_over")
class CountsAttemptsOfWhatIsDone(OtherEndsBesideAValue):
    """A buffered value takes over the attempts of an item that was acknowledged."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Ack):
            return Release(request.queue, request.key, request.token)
        return request


class PutsUnchecked(Through):
    """Does something to puts before they are checked, in place of the final verb."""

    async def put(self, requests: Sequence[Put]) -> list[PutAnswer]:  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]  # its fault
        return await super().put([self.other(request) for request in requests])

    def other(self, request: Put) -> Put:
        return request


@caught_by("test_what_is_beyond_the_limits_is_refused")
class CutsWhatIsTooLong(PutsUnchecked):
    """Stores what fits of a long key."""

    def other(self, request: Put) -> Put:
        most = self.limits.key_length
        return replace(request, items=tuple((key[:most], v) for key, v in request.items))


@caught_by("test_what_is_beyond_the_limits_is_refused")
class FailsWithTheWholeBatch(PutsUnchecked):
    """Raises what is wrong with one request."""

    async def put(self, requests: Sequence[Put]) -> list[PutAnswer]:  # type: ignore[misc]  # the fault
        answers = await super().put(requests)
        for answer in answers:
            if isinstance(answer, LimitExceededError):
                raise answer
        return answers


@caught_by("test_what_is_beyond_the_limits_is_refused")
class MendsNames(PutsUnchecked):
    """Leaves out the characters that it cannot store."""

    def other(self, request: Put) -> Put:
        items = tuple((key.replace("\x00", "") or "_", value) for key, value in request.items)
        return replace(request, items=items)


@caught_by("test_an_edit_keeps_to_the_limits")
class EditsBeyondTheLimits(Through):
    """Does not look at what an edit wants, and stores what fits."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        def fitting(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [
                change
                for change in edit.work(items)
                if not isinstance(change, Put) or len(change.items[0][1]) < 1000
            ]

        return await self.edit_inner(edit.queue, fitting, keys=edit.keys)


@caught_by("test_calls_act_in_the_order_in_which_they_were_made")
class PutsAfterOthers(Through):
    """A put takes longer to get to the store than the call that follows it."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        await asyncio.sleep(0)
        return await self.inner.put(requests)


@caught_by("test_calls_act_in_the_order_in_which_they_were_made")
class ClaimsAfterOthers(Through):
    """A claim takes longer to get to the store than the call that follows it."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        await asyncio.sleep(0)
        return await self.inner.claim(requests)


@caught_by("test_a_put_of_nothing_does_nothing")
class AnswersOnlyItems(Through):
    """A put of no items has no answer of its own."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        return await self.inner.put([request for request in requests if request.items])
