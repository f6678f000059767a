"""Faults of buried items that hold their keys."""

from collections.abc import Callable, Sequence
from typing import Any

from leasedkeyq.model.requests import (
    Answer,
    Bury,
    Cancel,
    Change,
    Discard,
    Put,
    Requeue,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from tests.testing.broken.through import OtherChanges, Through, caught_by, replace


@caught_by("test_a_buried_item_can_hold_its_key")
class LetsTheNextGo(OtherChanges):
    """A buried item holds nothing."""

    def other(self, request: Change) -> Change:
        return replace(request, hold=False) if isinstance(request, Bury) else request


class ChangesHeldKeys(Through):
    """Does something else with a change; `holder` finds the buried item of its id or key."""

    async def change(self, change: Change) -> Answer:
        raise NotImplementedError

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return [await self.change(request) for request in requests]

    async def holder(self, change: Change) -> StoredItem | None:
        page = await self.inner.browse(change.queue, states=("buried",), limit=1000)
        for item in page.items:
            named = getattr(change, "key", "") == item.key or getattr(change, "id", 0) == item.id
            if item.holds and named:
                return item
        return None


@caught_by("test_a_held_key_without_a_line_is_there")
class HoldsNoKeyWithoutALine(ChangesHeldKeys):
    """A buried item behind which nothing waits has left its key."""

    async def change(self, change: Change) -> Answer:
        if isinstance(change, Bury):
            [found] = await self.inner.look(change.queue, [change.key])
            change = replace(change, hold=change.hold and len(found) > 1)
        return await self.settle_one(change)


@caught_by("test_a_requeued_holder_is_the_head_again")
class RequeuesBehindTheLine(ChangesHeldKeys):
    """A buried item that comes back goes to the end of the line that it held."""

    async def change(self, change: Change) -> Answer:
        holder = await self.holder(change) if isinstance(change, Requeue) else None
        if holder is None:
            return await self.settle_one(change)
        await self.settle_one(Discard(holder.queue, holder.id))
        await self.inner.put(
            [Put(holder.queue, ((holder.key, holder.value),), "append", holder.priority)]
        )
        return True


@caught_by("test_a_held_key_goes_on_when_its_holder_is_forgotten")
class LosesTheLineOfAHolder(ChangesHeldKeys):
    """What waits behind a buried item is forgotten with it."""

    async def change(self, change: Change) -> Answer:
        holder = await self.holder(change) if isinstance(change, Discard) else None
        if holder is not None:
            await self.settle_one(Cancel(holder.queue, holder.key, only_line=True))
        return await self.settle_one(change)


@caught_by("test_a_held_key_goes_on_when_its_holder_makes_room")
class DropsALineForRoom(Through):
    """What waits behind the oldest buried item is dropped with it."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers: list[Answer] = []
        for change in requests:
            if isinstance(change, Bury):
                page = await self.inner.browse(change.queue, states=("buried",))
                if len(page.items) == self.limits.buried:
                    await self.settle_one(Cancel(change.queue, page.items[0].key))
            answers.append(await self.settle_one(change))
        return answers


@caught_by("test_a_cancel_ends_a_hold")
class HoldsWhatIsCancelled(ChangesHeldKeys):
    """A cancel takes the line, and the key stays held."""

    async def change(self, change: Change) -> Answer:
        if isinstance(change, Cancel) and change.id is None and await self.holder(change):
            change = replace(change, only_line=True)
        return await self.settle_one(change)


@caught_by("test_a_hold_of_an_empty_line_ends_with_a_cancel")
class CancelsNothingWithoutALine(ChangesHeldKeys):
    """A cancel of a held key without a line finds nothing to do."""

    async def change(self, change: Change) -> Answer:
        if isinstance(change, Cancel) and await self.holder(change):
            [found] = await self.inner.look(change.queue, [change.key])
            if not found:
                return 0
        return await self.settle_one(change)


@caught_by("test_a_buffered_value_behind_a_held_key_waits_as_others_do")
class ReplacesABuriedItem(ChangesHeldKeys):
    """A buffered value takes the place of a buried item that comes back."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.replaced: set[int] = set()

    async def change(self, change: Change) -> Answer:
        if isinstance(change, Bury) and change.hold:
            [found] = await self.inner.look(change.queue, [change.key])
            if found[-1].state == "buffered":
                self.replaced.add(found[0].id)
        if isinstance(change, Requeue) and change.id in self.replaced:
            return await self.settle_one(Discard(change.queue, change.id))
        return await self.settle_one(change)
