"""`BulkChange`: one action on all items that match a filter, in bounded steps.

A step finds some hundred items and changes them. Items are found without a lock and may change
before they are dealt with, so each is looked at again in the same step that changes it: one that
waits no more, or is another one by now, is left alone and told of. A bulk action that is stopped,
or whose process dies, has dealt with the items before; called again it goes on with the others.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeAlias, get_args

from leasedkeyq.errors import LeasedKeyQError, StoreError, UnstorableError
from leasedkeyq.model.requests import (
    Amend,
    Answer,
    Cancel,
    Change,
    Discard,
    Put,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.operations.items.item_search import SearchPart
from leasedkeyq.operations.views import ActionReport
from leasedkeyq.stores.store import LIVE_STATES, Store

BulkVerb: TypeAlias = Literal["requeue", "remove", "cancel", "priority", "run_now"]
"""What can be done to many items."""
BULK_VERBS: tuple[BulkVerb, ...] = get_args(BulkVerb)
WAITING: tuple[StoredState, ...] = ("available", "scheduled", "buffered", "in_line")
STATES_OF: dict[BulkVerb, tuple[StoredState, ...]] = {
    "requeue": ("buried",),
    "remove": (*LIVE_STATES, "buried", "done"),
    "cancel": LIVE_STATES,
    "priority": WAITING,
    "run_now": ("scheduled",),
}
"""The states of items to which each can be done."""
AT_A_STEP = 200
"""Items that are changed in one step."""
MOST_FAILURES = 100
"""Failures that a report tells one by one."""

BulkProgress: TypeAlias = Callable[[ActionReport], Awaitable[None] | None]
"""Told after each step what was done so far."""


class Cancelling(Protocol):
    """Cancels items so that their submitters hear of it; `LaneAccess` is one."""

    def cancel_request(self, item: StoredItem, *, whole_key: bool) -> Cancel:
        """What cancels an item."""
        ...

    async def tell_workflow(self, item: StoredItem) -> None:
        """Let the workflow of a command know."""
        ...


class ItemSource(Protocol):
    """Finds items; `ItemSearch` is one."""

    async def page(self, cursor: str | None = None, limit: int = 100, /) -> SearchPart:
        """The next items."""
        ...


class SeenItems:
    """Items that were found already, for `BulkChange`."""

    def __init__(self, items: Sequence[StoredItem]) -> None:
        self._items = items

    async def page(self, cursor: str | None = None, limit: int = 100, /) -> SearchPart:
        """The next items."""
        begin = int(cursor or 0)
        some = [*self._items[begin : begin + limit]]
        more = begin + limit < len(self._items)
        return SearchPart(some, str(begin + limit) if more else None, len(some))


class BulkChange:
    """An action on all items that a search finds.

    Args:
        store: Where the items are.
        verb: What is done.
        search: Finds the items.
        access: Cancels commands.
        priority: For ``"priority"``: the new one, as stores have it.
        dry_run: Whether items are only counted.
    """

    def __init__(
        self,
        store: Store,
        verb: BulkVerb,
        search: ItemSource,
        access: Cancelling,
        *,
        priority: int | None = None,
        dry_run: bool = False,
    ) -> None:
        self._store = store
        self._verb: BulkVerb = verb
        self._search = search
        self._access = access
        self._priority = priority
        self._dry_run = dry_run
        self._matched = 0
        self._done = 0
        self._failed: list[tuple[str, str, str]] = []
        self._failed_count = 0

    async def run(
        self, progress: BulkProgress | None = None, should_stop: Callable[[], bool] | None = None
    ) -> ActionReport:
        """Deal with all items; returns what became of it.

        Args:
            progress: Told after each step.
            should_stop: Asked before each step.

        Raises:
            StoreError: The store is out of reach. What was dealt with before stays so.
        """
        cursor: str | None = None
        while True:
            if should_stop is not None and should_stop():
                return self._report(complete=False)
            found = await self._search.page(cursor, AT_A_STEP)
            self._matched += len(found.items)
            if self._dry_run:
                self._done += len(found.items)
            else:
                await self._change(found.items)
            cursor = found.cursor
            if progress is not None:
                told = progress(self._report(complete=cursor is None))
                if inspect.isawaitable(told):
                    await told
            if cursor is None:
                return self._report()

    def _report(self, *, complete: bool = True) -> ActionReport:
        return ActionReport(
            action=self._verb,
            done=self._done,
            matched=self._matched,
            failed=tuple(self._failed),
            failed_count=self._failed_count,
            dry_run=self._dry_run,
            complete=complete,
        )

    async def _change(self, items: Sequence[StoredItem]) -> None:
        """Change the items of one step."""
        by_queue: dict[str, list[StoredItem]] = {}
        for item in items:
            by_queue.setdefault(item.queue, []).append(item)
        for queue, some in by_queue.items():
            # What is buried or done has an id of its own and changes no more, but may be gone.
            aside = [item for item in some if item.state in ("buried", "done")]
            live = [item for item in some if item.state not in ("buried", "done")]
            if aside:
                await self._settle(aside, [self._of_aside(item) for item in aside])
            if live and self._verb in ("priority", "run_now"):
                # These are refused by the store itself where the item does not wait any more.
                await self._settle(live, [self._amended(item) for item in live])
            elif live:
                await self._cancel(queue, live)

    def _of_aside(self, item: StoredItem) -> Change:
        if self._verb == "requeue":
            return Requeue(item.queue, item.id)
        return Discard(item.queue, item.id)

    def _amended(self, item: StoredItem) -> Amend:
        if self._verb == "run_now":
            return Amend(item.queue, item.key, item.id, delay=0.0)
        return Amend(item.queue, item.key, item.id, priority=self._priority)

    async def _settle(self, items: Sequence[StoredItem], changes: Sequence[Change]) -> None:
        answers: Sequence[Answer]
        try:
            answers = await self._store.settle(changes)
        except UnstorableError as error:
            answers = [error] * len(items)
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, LeasedKeyQError):
                self._fail(item, str(answer))
            elif answer:
                self._done += 1
            else:
                self._fail(item, "it has changed meanwhile, or is gone")

    async def _cancel(self, queue: str, items: Sequence[StoredItem]) -> None:
        """Remove or cancel values of keys, if they are still what they were."""
        chosen: list[StoredItem] = []
        changed: list[StoredItem] = []

        def work(heads: Sequence[StoredItem]) -> list[Put | Change]:
            now = {head.id: head.state for head in heads if head.state in LIVE_STATES}
            changes: list[Put | Change] = []
            for item in items:
                in_line = item.state in ("buffered", "in_line")
                # Of a line only the head is shown here: a value in it that is the head by now has
                # changed, all others are found by their id, or are gone.
                if (item.id in now) if in_line else now.get(item.id) != item.state:
                    changed.append(item)
                else:
                    chosen.append(item)
                    changes.append(self._cancelled(item))
            return changes

        keys = list(dict.fromkeys(item.key for item in items))
        answers = await self._store.edit(queue, work, keys=keys, heads_only=True)
        for item in changed:
            self._fail(item, "it has changed meanwhile, or is gone")
        for item, answer in zip(chosen, answers, strict=True):
            if not answer:
                self._fail(item, "it is gone")
                continue
            self._done += 1
            if self._verb == "cancel":
                await self._tell_workflow(item)

    def _cancelled(self, item: StoredItem) -> Cancel:
        if self._verb == "cancel":
            return self._access.cancel_request(item, whole_key=False)
        return Cancel(item.queue, item.key, id=item.id)

    async def _tell_workflow(self, item: StoredItem) -> None:
        try:
            await self._access.tell_workflow(item)
        except LeasedKeyQError as error:
            if isinstance(error, StoreError):
                raise
            self._fail(item, f"it was cancelled, but its workflow could not be told: {error}")

    def _fail(self, item: StoredItem, why: str) -> None:
        self._failed_count += 1
        if len(self._failed) < MOST_FAILURES:
            self._failed.append((item.queue, str(item.id), why))
