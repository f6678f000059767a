"""Faults of edits."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import ClassVar
from weakref import WeakKeyDictionary

from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import Answer, Change, Put, Release, StoredItem
from tests.testing.broken.through import Through, caught_by, replace


def _only(change: Put | Change, _: Sequence[StoredItem]) -> list[Put | Change]:
    return [change]


@caught_by("test_an_edit_that_is_refused_or_fails_changes_nothing")
class EditsStepByStep(Through):
    """Applies each change of an edit by itself."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        seen: list[StoredItem] = []

        def look(items: Sequence[StoredItem]) -> list[Put | Change]:
            seen.extend(items)
            return []

        await self.edit_inner(edit.queue, look, keys=edit.keys)
        answers: list[Answer] = []
        for change in edit.work(seen):
            answers += await self.edit_inner(edit.queue, partial(_only, change))
        return answers


@caught_by("test_edits_do_not_run_into_each_other")
class EditsWhatItSawBefore(Through):
    """Looks, and changes in a second step."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        seen: list[StoredItem] = []

        def look(items: Sequence[StoredItem]) -> list[Put | Change]:
            seen.extend(items)
            return []

        await self.edit_inner(edit.queue, look, keys=edit.keys)
        await asyncio.sleep(0)
        return await self.edit_inner(edit.queue, lambda _: edit.work(seen), keys=edit.keys)


@caught_by("test_edits_do_not_run_into_each_other")
class EditsTwice(Through):
    """Calls the work once to see what it wants, and once to do it."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        def twice(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            edit.work(items)
            return edit.work(items)

        return await self.edit_inner(edit.queue, twice, keys=edit.keys)


@caught_by("test_an_edit_sees_the_items_in_every_state")
class HidesLeasesFromEdits(Through):
    """Does not give tokens to the work of an edit."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        def blind(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            return edit.work([replace(item, token="") for item in items])

        return await self.edit_inner(edit.queue, blind, keys=edit.keys)


@caught_by("test_an_edit_sees_the_items_in_every_state")
class IgnoresTheKeysOfEdits(Through):
    """Shows all items to the work of an edit."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        return await self.edit_inner(edit.queue, edit.work)


@caught_by("test_an_edit_applies_its_changes_in_order")
class EditsInReverse(Through):
    """Applies the changes of an edit from the last to the first."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        return (
            await self.edit_inner(
                edit.queue, lambda items: [*edit.work(items)][::-1], keys=edit.keys
            )
        )[::-1]


@caught_by("test_a_cancelled_edit_happens_or_does_not")
class EditsInHalves(Through):
    """Applies an edit in two steps, and may be cancelled between them."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        changes: list[Put | Change] = []

        def first(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            changes.extend(edit.work(items))
            return changes[:1]

        answers = await self.edit_inner(edit.queue, first, keys=edit.keys)
        await asyncio.sleep(0.005)
        return answers + await self.edit_inner(edit.queue, lambda _: changes[1:], keys=edit.keys)


@caught_by("test_a_put_in_an_edit_may_change_what_is_leased")
class EditsDropLeases(Through):
    """A put in an edit ends the lease on its key."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        changes: list[Put | Change] = []

        def note(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            changes.extend(edit.work(items))
            return changes

        answers = await self.edit_inner(edit.queue, note, keys=edit.keys)
        for change in changes:
            if isinstance(change, Put):
                tokens = await self.tokens(edit.queue)
                for key, _ in change.items:
                    if key in tokens:
                        await self.settle_one(Release(edit.queue, key, tokens[key]))
        return answers


@caught_by("test_a_refusal_undoes_whatever_came_before_it")
class KeepsPrioritiesOfRefusedEdits(Through):
    """Does not take back the priority that a refused edit gave to an item."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        changes: list[Put | Change] = []

        def note(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            changes.extend(edit.work(items))
            return changes

        try:
            return await self.edit_inner(edit.queue, note, keys=edit.keys)
        except EditStoppedError:
            for change in changes:
                if isinstance(change, Put) and change.priority is not None:
                    [live] = await self.inner.look(edit.queue, [change.items[0][0]])
                    items = tuple((item.key, item.value) for item in live)
                    await self.inner.put([Put(edit.queue, items, priority=change.priority)])
            raise


@caught_by("test_an_edit_of_heads_shows_no_lines")
class ShowsLinesBehindHeads(Through):
    """Shows all values of keys, also to an edit that wants none in lines."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        return await self.edit_inner(edit.queue, edit.work, keys=edit.keys)


@caught_by("test_an_edit_changes_other_queues_in_the_same_step")
class KeepsOtherQueuesOfEditsQuiet(Through):
    """Does not wake those who watch another queue that an edit has changed."""

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        return super().do_watch(queue if queue == "q" else "nobody", wake)


@caught_by("test_a_refusal_undoes_the_changes_of_other_queues")
class KeepsOtherQueuesOfRefusedEdits(Through):
    """Leaves what an edit has put into other queues, though it was refused."""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        changes: list[Put | Change] = []

        def note(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            changes.extend(edit.work(items))
            return changes

        try:
            return await self.edit_inner(edit.queue, note, keys=edit.keys, others=edit.others)
        except EditStoppedError:
            puts = [change for change in changes if isinstance(change, Put)]
            await self.inner.put([put for put in puts if put.queue in edit.others])
            raise


@caught_by("test_edits_of_each_others_queues_do_not_wait_for_ever")
class LocksQueuesOneByOne(Through):
    """An edit holds its own queue while it waits for the others, whichever comes first."""

    locks: ClassVar[WeakKeyDictionary[object, dict[str, asyncio.Lock]]] = WeakKeyDictionary()

    async def do_edit(self, edit: Edit) -> list[Answer]:
        locks = self.locks.setdefault(asyncio.get_running_loop(), {})
        async with AsyncExitStack() as held:
            for queue in edit.queues:
                await held.enter_async_context(locks.setdefault(queue, asyncio.Lock()))
                await asyncio.sleep(0)
            return await super().do_edit(edit)
