"""Stores with one bug each, around a good one, for the search to find in their histories.

A bug shows itself in some of the calls that could have it, as bugs of real stores do.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Placed,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from tests.testing.broken.through import PutAnswer, Through, replace

SHARE: Final = 0.3
"""Of the calls that could have a bug, those that have it."""


class Planted(Through):
    """A store whose answers to single requests can be changed. No bug."""

    def __init__(self, store: Store, dice: Random) -> None:
        super().__init__(lambda: store)
        self._dice = dice

    def strikes(self) -> bool:
        """Whether this call has the bug."""
        return self._dice.random() < SHARE

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        return [await self.put_one(request) for request in requests]

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        return [await self.claim_one(request) for request in requests]

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return [await self.change(request) for request in requests]

    async def put_one(self, request: Put) -> PutAnswer:
        return (await self.inner.put([request]))[0]

    async def claim_one(self, request: Claim) -> tuple[Claimed, ...]:
        return (await self.inner.claim([request]))[0]

    async def change(self, request: Change) -> Answer:
        return await self.settle_one(request)

    async def values(self, request: Put | Change) -> Sequence[StoredItem]:
        """The head of the key of a request, and its line."""
        assert isinstance(request, (Put, Ack, Extend, Release, Cancel))
        key = request.items[0][0] if isinstance(request, Put) else request.key
        return (await self.inner.line(request.queue, key)).items


B = TypeVar("B", bound=Planted)
BUGS: dict[str, type[Planted]] = {}
"""By their names."""


def bug(name: str) -> Callable[[type[B]], type[B]]:
    def note(planted: type[B]) -> type[B]:
        BUGS[name] = planted
        return planted

    return note


@bug("a put is acknowledged and dropped")
class DropsPuts(Planted):
    async def put_one(self, request: Put) -> PutAnswer:
        if not await self.values(request) and self.strikes():
            return (Placed(10**6, "added"),)
        return await super().put_one(request)


@bug("an update is lost")
class LosesUpdates(Planted):
    async def put_one(self, request: Put) -> PutAnswer:
        there = await self.values(request)
        waits = bool(there) and there[-1].state != "in_flight"
        if waits and request.policy in ("update", "buffer") and self.strikes():
            return (Placed(there[-1].id, "updated"),)
        return await super().put_one(request)


@bug("a value is appended twice")
class AppendsTwice(Planted):
    async def put_one(self, request: Put) -> PutAnswer:
        if request.policy == "append" and self.strikes():
            await super().put_one(request)
        return await super().put_one(request)


@bug("a line is out of order")
class ReordersLines(Planted):
    async def put_one(self, request: Put) -> PutAnswer:
        last = (await self.values(request))[1:][-1:]
        if not last or request.policy != "append" or not self.strikes():
            return await super().put_one(request)
        await self.settle_one(Cancel(request.queue, last[0].key, id=last[0].id))
        answer = await super().put_one(request)
        await super().put_one(replace(request, items=((last[0].key, last[0].value),)))
        return answer


@bug("a key has two leases")
class LeasesTwice(Planted):
    """Takes an item from its holder, who does not know."""

    async def claim_one(self, request: Claim) -> tuple[Claimed, ...]:
        claimed = await super().claim_one(request)
        if claimed or not self.strikes():
            return claimed
        queue = request.queues[0][0]
        for key, token in (await self.tokens(queue)).items():
            if request.key in (None, key):
                await self.settle_one(Release(queue, key, token))
                return await super().claim_one(request)
        return ()


@bug("a claim returns what another has")
class SharesLeases(Planted):
    """Gives one lease to two."""

    def __init__(self, store: Store, dice: Random) -> None:
        super().__init__(store, dice)
        self._last: dict[str, Claimed] = {}

    async def claim_one(self, request: Claim) -> tuple[Claimed, ...]:
        claimed = await super().claim_one(request)
        if claimed:
            self._last[claimed[0].key] = claimed[0]
        elif self.strikes():
            queue = request.queues[0][0]
            for key, token in (await self.tokens(queue)).items():
                last = self._last.get(key)
                if request.key in (None, key) and last is not None and last.token == token:
                    return (last,)
        return claimed


@bug("an available item is not found")
class MissesItems(Planted):
    async def claim_one(self, request: Claim) -> tuple[Claimed, ...]:
        return () if self.strikes() else await super().claim_one(request)


@bug("a fence goes back")
class TurnsFencesBack(Planted):
    async def claim_one(self, request: Claim) -> tuple[Claimed, ...]:
        claimed = await super().claim_one(request)
        if claimed and self.strikes():
            return (replace(claimed[0], fence=1),)
        return claimed


@bug("a lease outlives its expiry")
class LeasesTooLong(Planted):
    async def claim_one(self, request: Claim) -> tuple[Claimed, ...]:
        if request.lease_time is None or not self.strikes():
            return await super().claim_one(request)
        claimed = await super().claim_one(replace(request, lease_time=2 * request.lease_time))
        return tuple(
            replace(item, expires_at=item.expires_at - request.lease_time)
            for item in claimed
            if item.expires_at is not None
        )


@bug("a late ack is accepted")
class AcceptsLateAcks(Planted):
    async def change(self, request: Change) -> Answer:
        answer = await super().change(request)
        if isinstance(request, Ack) and isinstance(answer, Refusal) and self.strikes():
            claim = Claim(((request.queue, 1),), key=request.key)
            for item in await super().claim_one(claim):
                return await super().change(replace(request, token=item.token))
        return answer


@bug("an ack removes the new value, too")
class RemovesTheNext(Planted):
    async def change(self, request: Change) -> Answer:
        answer = await super().change(request)
        if isinstance(request, Ack) and not isinstance(answer, Refusal) and self.strikes():
            await super().change(Cancel(request.queue, request.key))
        return answer


@bug("a release loses the value")
class LosesReleased(Planted):
    async def change(self, request: Change) -> Answer:
        if isinstance(request, Release) and not request.undo and self.strikes():
            return await super().change(Ack(request.queue, request.key, request.token))
        return await super().change(request)


@bug("a release loses the attempt")
class LosesAttempts(Planted):
    async def change(self, request: Change) -> Answer:
        if isinstance(request, Release) and self.strikes():
            request = replace(request, undo=True)
        return await super().change(request)


@bug("an extension revives an expired lease")
class RevivesLeases(Planted):
    def __init__(self, store: Store, dice: Random) -> None:
        super().__init__(store, dice)
        self._revived: dict[str, str] = {}
        """The token that a lease has now."""

    async def change(self, request: Change) -> Answer:
        if not isinstance(request, (Ack, Release, Extend)):
            return await super().change(request)
        request = replace(request, token=self._revived.get(request.token, request.token))
        answer = await super().change(request)
        if isinstance(request, Extend) and isinstance(answer, Refusal) and self.strikes():
            claim = Claim(((request.queue, 1),), key=request.key, lease_time=request.lease_time)
            for item in await super().claim_one(claim):
                self._revived[request.token] = item.token
                return item.expires_at
        return answer


@bug("a look is out of date")
class ShowsThePast(Planted):
    def __init__(self, store: Store, dice: Random) -> None:
        super().__init__(store, dice)
        self._seen: dict[tuple[str, str], Sequence[StoredItem]] = {}

    async def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Sequence[StoredItem]:
        if (queue, key) in self._seen and self.strikes():
            return self._seen[queue, key]
        self._seen[queue, key] = found = await super().do_line(queue, key, after, limit)
        return found

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        """The head and the first of its line, of what may be out of date."""
        return [tuple((await self.do_line(queue, key, 0, 100))[:2]) for key in keys]
