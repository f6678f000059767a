"""Stores with one fault each, around a good one, for the conformance kit to find.

Each fault names the check that is meant to catch it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import (
    Answer,
    Change,
    Claim,
    Claimed,
    Counts,
    EditWork,
    Extend,
    Placed,
    Put,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.store import Store

replace = msgspec.structs.replace
PutAnswer = tuple[Placed, ...] | LeasedKeyQError
LOST = (Placed(10**6, "added"),)
"""The answer to a put that did not happen."""


class Through(Store):
    """A good store behind one that passes everything on. No fault."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        self.inner = opener(**options)
        super().__init__("store with a fault", self.inner.limits)
        self.capabilities = self.inner.capabilities
        self.clock: Callable[[], float] = options.get("clock", time.time)

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        return await self.inner.put(requests)

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        return await self.inner.claim(requests)

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return await self.inner.settle(requests)

    async def extend_apart(self, requests: Sequence[Extend]) -> list[Answer]:
        return await self.inner.extend_apart(requests)

    async def do_edit(self, edit: Edit) -> list[Answer]:
        return await self.edit_inner(
            edit.queue,
            edit.work,
            keys=edit.keys,
            heads_only=edit.heads_only,
            others=edit.others,
        )

    async def edit_inner(
        self,
        queue: str,
        work: EditWork,
        *,
        keys: Sequence[str] | None = None,
        heads_only: bool = False,
        others: Sequence[str] = (),
    ) -> list[Answer]:
        """Edit the good store; what its work raises, or a refusal, stops the edit around it."""
        try:
            return await self.inner.edit(
                queue, work, keys=keys, heads_only=heads_only, others=others
            )
        except Exception as error:
            raise EditStoppedError(error) from error

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        return await self.inner.sweep(queues)

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        return self.inner.watch(queue, wake)

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        return await self.inner.count(queues)

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        return await self.inner.heads(queues)

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        return await self.inner.look(queue, keys)

    async def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Sequence[StoredItem]:
        return (await self.inner.line(queue, key, cursor=str(after), limit=limit)).items

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
        page = await self.inner.browse(
            queue,
            states=states,
            prefix=prefix,
            cursor=str(after),
            limit=limit,
            newest_first=newest_first,
        )
        return page.items

    async def do_results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        return await self.inner.results(queue, ids)

    async def do_close(self) -> None:
        await self.inner.close()

    # For the faults below

    async def settle_one(self, change: Change) -> Answer:
        return (await self.inner.settle([change]))[0]

    async def tokens(self, queue: str) -> dict[str, str]:
        """The leases of all keys in flight."""
        found: dict[str, str] = {}

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            found.update({item.key: item.token for item in items if item.token})
            return []

        await self.inner.edit(queue, work)
        return found

    async def leased_again(self, queue: str, key: str | None) -> tuple[Claimed, ...]:
        """An item that is leased, as if it had just been claimed."""
        for name, token in (await self.tokens(queue)).items():
            if key in (None, name):
                item = (await self.inner.look(queue, [name]))[0][0]
                return (
                    Claimed(queue, name, item.value, item.id, token, 10**9, 1, 0, item.due, 0.0),
                )
        return ()


F = TypeVar("F", bound=Through)
FAULTS: dict[type[Through], str] = {}


def caught_by(check: str) -> Callable[[type[F]], type[F]]:
    """Note which check is meant to catch a fault."""

    def note(fault: type[F]) -> type[F]:
        FAULTS[fault] = check
        return fault

    return note


class OtherPuts(Through):
    """Puts something else than it was told to."""

    def other(self, request: Put) -> Put:
        raise NotImplementedError

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        return await self.inner.put([self.other(request) for request in requests])


class OtherClaims(Through):
    """Claims something else, or shows something else than it claimed."""

    def other(self, request: Claim) -> Claim:
        return request

    def shown(self, item: Claimed) -> Claimed:
        return item

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim([self.other(request) for request in requests])
        return [tuple(map(self.shown, answer)) for answer in answers]


class OtherChanges(Through):
    """Settles something else than it was told to."""

    def other(self, request: Change) -> Change:
        raise NotImplementedError

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return await self.inner.settle([self.other(request) for request in requests])


class OtherItems(Through):
    """Shows items otherwise than they are."""

    def shown(self, item: StoredItem) -> StoredItem:
        raise NotImplementedError

    async def do_browse(self, *listing: Any, **order: Any) -> list[StoredItem]:
        return [self.shown(item) for item in await super().do_browse(*listing, **order)]

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        found = await self.inner.look(queue, keys)
        return [tuple(map(self.shown, items)) for items in found]
