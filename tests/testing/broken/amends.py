"""Faults of values that are amended."""

from collections.abc import Sequence

from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Amend,
    Answer,
    Cancel,
    Change,
    Put,
    StoredItem,
)
from tests.testing.broken.settlements import ChangesUnchecked
from tests.testing.broken.through import OtherChanges, Through, caught_by, replace


class OtherAmends(Through):
    """Does something else with an `Amend`."""

    async def amend(self, request: Amend) -> Answer:
        raise NotImplementedError

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return [
            await (self.amend(change) if isinstance(change, Amend) else self.settle_one(change))
            for change in requests
        ]

    async def values_of(self, request: Amend) -> Sequence[StoredItem]:
        return (await self.inner.line(request.queue, request.key)).items


@caught_by("test_an_amended_value_keeps_its_place")
class AmendsByPuttingAnew(OtherAmends):
    """Takes the value out, and puts the new one."""

    async def amend(self, request: Amend) -> Answer:
        if request.value is None or not await self.settle_one(
            Cancel(request.queue, request.key, id=request.id)
        ):
            return await self.settle_one(request)
        await self.inner.put([Put(request.queue, ((request.key, request.value),))])
        return True


@caught_by("test_an_amended_value_keeps_its_place")
class TakesAnEmptyValueForNone(OtherChanges):
    """Leaves the value where the new one is empty."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Amend):
            return replace(request, value=request.value or None)
        return request


@caught_by("test_an_amended_priority_moves_an_item")
class LeavesAmendedPriorities(OtherChanges):
    """Does not move what has another priority."""

    def other(self, request: Change) -> Change:
        return replace(request, priority=None) if isinstance(request, Amend) else request


@caught_by("test_an_amended_delay_schedules_anew")
class LeavesAmendedSchedules(OtherChanges):
    """Takes a delay of 0 for none."""

    def other(self, request: Change) -> Change:
        return (
            replace(request, delay=request.delay or None) if isinstance(request, Amend) else request
        )


@caught_by("test_values_in_lines_are_amended_for_their_turn")
class AmendsHeadsOnly(OtherAmends):
    """Finds no value that is in a line."""

    async def amend(self, request: Amend) -> Answer:
        found = [i for i in await self.values_of(request) if i.state not in ("in_line", "buffered")]
        if any(item.id == request.id for item in found):
            return await self.settle_one(request)
        return False


@caught_by("test_a_buffered_value_is_amended")
class DoesNotFindBufferedValues(OtherAmends):
    """Finds no value that is to replace a leased one."""

    async def amend(self, request: Amend) -> Answer:
        found = [item for item in await self.values_of(request) if item.state == "buffered"]
        if any(item.id == request.id for item in found):
            return False
        return await self.settle_one(request)


@caught_by("test_what_does_not_wait_is_not_amended")
class AmendsWhatIsLeased(OtherAmends):
    """Changes the value of an item that somebody works on."""

    async def amend(self, request: Amend) -> Answer:
        found = [item for item in await self.values_of(request) if item.state == "in_flight"]
        if any(item.id == request.id for item in found) and request.value is not None:
            await self.inner.put([Put(request.queue, ((request.key, request.value),))])
            return True
        return await self.settle_one(request)


@caught_by("test_what_does_not_wait_is_not_amended")
class AmendsTheHeadForAnyId(OtherAmends):
    """Goes by the key alone."""

    async def amend(self, request: Amend) -> Answer:
        found = await self.values_of(request)
        return await self.settle_one(replace(request, id=found[0].id) if found else request)


@caught_by("test_an_edit_amends")
class LeavesOutAmendsOfEdits(Through):
    """An edit does all but that."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        work = edit.work

        def other(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [
                Amend(change.queue, change.key, change.id) if isinstance(change, Amend) else change
                for change in work(items)
            ]

        edit.work = other
        return await super().do_edit(edit)


@caught_by("test_an_amend_beyond_the_limits_is_refused")
class CutsAmendedValues(ChangesUnchecked):
    """Keeps what fits of a large value."""

    def other(self, request: Change) -> Change:
        if isinstance(request, Amend) and request.value is not None:
            return replace(request, value=request.value[: self.limits.value_size])
        return request
