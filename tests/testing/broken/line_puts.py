"""Faults of puts that append, update, are skipped or are refused."""

from collections.abc import Sequence
from typing import Any, get_args

from leasedkeyq.model.requests import Put
from leasedkeyq.types import PutPolicy
from tests.testing.broken.puts import PutsUnchecked
from tests.testing.broken.through import OtherPuts, PutAnswer, Through, caught_by, replace

REPLACING = ("update", "buffer", "reject")


@caught_by("test_put_says_what_it_did")
class SaysAdded(Through):
    """Says of every put that it has added its value."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        return [
            tuple(placed._replace(outcome="added") for placed in answer)
            if isinstance(answer, tuple)
            else answer
            for answer in await self.inner.put(requests)
        ]


@caught_by("test_an_appended_value_replaces_nothing")
class KeepsTheNewestOnly(OtherPuts):
    """Has a line of one value."""

    def other(self, request: Put) -> Put:
        return replace(request, policy="buffer") if request.policy == "append" else request


@caught_by("test_one_request_puts_a_key_several_times")
class PutsAKeyOnce(OtherPuts):
    """Of the values of a key in one request only the last is put."""

    def other(self, request: Put) -> Put:
        return replace(request, items=tuple(dict(request.items).items()))


class OtherPutsOnALine(Through):
    """Does something else with a put on a key that has a line."""

    def other(self, request: Put) -> Put:
        raise NotImplementedError

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            lined = [(await self.inner.look(request.queue, [key]))[0] for key, _ in request.items]
            has_line = any(len(items) > 1 for items in lined)
            answers += await self.inner.put([self.other(request) if has_line else request])
        return answers


@caught_by("test_an_update_replaces_the_last_of_a_line")
class UpdatesByAppending(OtherPutsOnALine):
    """Behind a line there is nothing that an update replaces."""

    def other(self, request: Put) -> Put:
        return replace(request, policy="append") if request.policy in REPLACING else request


@caught_by("test_a_value_in_line_keeps_the_terms_that_it_was_put_with")
class ForgetsTheTermsOfALine(OtherPutsOnALine):
    """An update of a value in line sets its priority and its schedule anew."""

    def other(self, request: Put) -> Put:
        return replace(request, priority=request.priority or 0, delay=request.delay or 0)


@caught_by("test_a_present_key_can_be_skipped_or_refused")
class SkipsByUpdating(OtherPuts):
    """A put that is skipped replaces what is there."""

    def other(self, request: Put) -> Put:
        return replace(request, policy="update") if request.policy == "skip" else request


@caught_by("test_a_present_key_can_be_skipped_or_refused")
class AnswersTheHead(Through):
    """The answer to a put that is skipped is the head of the key, not its newest value."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers = await self.inner.put(requests)
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if request.policy == "skip" and isinstance(answer, tuple):
                found = await self.inner.look(request.queue, [key for key, _ in request.items])
                answers[number] = tuple(
                    placed._replace(id=items[0].id) if items else placed
                    for placed, items in zip(answer, found, strict=True)
                )
        return answers


@caught_by("test_a_key_stays_unique_for_some_time_after_its_end")
class ForgetsWhatIsDone(OtherPuts):
    """A key that is absent is new, whatever was done lately."""

    def other(self, request: Put) -> Put:
        return replace(request, unique_for=0.0)


@caught_by("test_a_key_stays_unique_for_some_time_after_its_end")
class IsUniqueWhileAResultIsKept(OtherPuts):
    """A key is not put again as long as it has a result."""

    def other(self, request: Put) -> Put:
        return replace(request, unique_for=1e9) if request.unique_for else request


@caught_by("test_the_last_end_of_a_key_decides_whether_it_is_unique")
class GoesByTheHighestId(Through):
    """Takes the result with the highest id for the one that ended last."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers = await self.inner.put(requests)
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            [(key, _)] = request.items if len(request.items) == 1 else [("", b"")]
            if request.unique_for and key and isinstance(answer, tuple):
                page = await self.inner.browse(request.queue, states=("done",), prefix=key)
                newest = max((item.id for item in page.items), default=0)
                answers[number] = (answer[0]._replace(id=newest or answer[0].id),)
        return answers


@caught_by("test_values_in_lines_count_for_the_size_of_a_queue")
class AppendsToAFullQueue(OtherPuts):
    """A value that is appended always finds room."""

    def other(self, request: Put) -> Put:
        return replace(request, max_items=0) if request.policy == "append" else request


@caught_by("test_values_in_lines_count_for_the_size_of_a_queue")
class DoesNotCountHeldValues(Through):
    """Values behind held keys take no room."""

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers: list[PutAnswer] = []
        for request in requests:
            held = (await self.inner.count([request.queue]))[request.queue].held
            most = request.max_items + held if request.max_items else 0
            answers += await self.inner.put([replace(request, max_items=most)])
        return answers


@caught_by("test_a_policy_that_is_none_is_refused")
class TakesAnyPolicyForAnUpdate(PutsUnchecked):
    """What it does not know is an update."""

    def other(self, request: Put) -> Put:
        known: tuple[Any, ...] = get_args(PutPolicy)
        return request if request.policy in known else replace(request, policy="update")
