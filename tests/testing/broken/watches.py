"""Faults of those who should wake others."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from leasedkeyq.errors import StoreError, StoreUnavailableError
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import Answer, Change, Claim, Claimed, Put, Release
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.watchers import Watchers
from tests.testing.broken.through import (
    OtherClaims,
    OtherPuts,
    PutAnswer,
    Through,
    caught_by,
    replace,
)


class WakesItself(Through):
    """Wakes its own watchers, and says of which changes it does not tell them."""

    silent: str = ""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.watchers = Watchers()

    def tell(self, *requests: Any) -> None:
        for request in requests:
            if type(request).__name__ != self.silent:
                self.watchers.wake([request.queue])

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        return self.watchers.add(queue, wake, asyncio.get_running_loop())

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        answers = await self.inner.put(requests)
        self.tell(*requests)
        return answers

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        if self.silent != "Claim":
            self.watchers.wake(item.queue for answer in answers for item in answer)
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        self.tell(*requests)
        return answers

    async def do_edit(self, edit: Edit) -> list[Answer]:
        answers = await self.edit_inner(edit.queue, edit.work, keys=edit.keys)
        if self.silent != "edit":
            self.watchers.wake([edit.queue])
        return answers

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        due: set[str] = set()
        stops = [self.inner.watch(queue, partial(due.add, queue)) for queue in queues]
        seconds = await self.inner.sweep(queues)
        await asyncio.sleep(0)
        for stop in stops:
            stop()
        if self.silent != "sweep":
            self.watchers.wake(due)
        return seconds


@caught_by("test_watch_tells_of_every_kind_of_change")
class DropsTheWakeUpOfAPut(WakesItself):
    """Nobody hears of a put."""

    silent = "Put"


@caught_by("test_watch_tells_of_every_kind_of_change")
class DropsTheWakeUpOfAClaim(WakesItself):
    """Nobody hears that there is room."""

    silent = "Claim"


@caught_by("test_watch_tells_of_every_kind_of_change")
class DropsTheWakeUpOfARelease(WakesItself):
    """Nobody hears that an item came back."""

    silent = "Release"


@caught_by("test_watch_tells_of_every_kind_of_change")
class DropsTheWakeUpOfAnAck(WakesItself):
    """Nobody hears that an item is done."""

    silent = "Ack"


@caught_by("test_watch_tells_of_every_kind_of_change")
class DropsTheWakeUpOfACancel(WakesItself):
    """Nobody hears that an item has gone."""

    silent = "Cancel"


@caught_by("test_watch_tells_of_every_kind_of_change")
class DropsTheWakeUpOfARequeue(WakesItself):
    """Nobody hears that a buried item came back."""

    silent = "Requeue"


@caught_by("test_watch_tells_of_every_kind_of_change")
class DropsTheWakeUpOfAnEdit(WakesItself):
    """Nobody hears of an edit."""

    silent = "edit"


@caught_by("test_sweep_wakes_those_who_watch_if_something_has_come_due")
class DropsTheWakeUpOfTime(WakesItself):
    """Nobody hears that something has come due."""

    silent = "sweep"


@caught_by("test_watch_tells_each_of_those_who_watch_until_they_stop")
class WakesTheLastWatcherOnly(WakesItself):
    """Forgets who watched before."""

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        self.watchers = Watchers()
        return super().do_watch(queue, wake)


@caught_by("test_watch_tells_each_of_those_who_watch_until_they_stop")
class WakesThoseWhoStopped(WakesItself):
    """A watch does not end."""

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        super().do_watch(queue, wake)
        return lambda: None


@caught_by("test_a_waiting_get_is_woken")
class SleepsThroughExpiries(Through):
    """Says that nothing comes due, so that those who wait sleep on."""

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        return [None for _ in await self.inner.sweep(queues)]


@caught_by("test_waiting_is_no_busy_loop")
class WakesAtNothing(WakesItself):
    """Wakes those who wait whenever they have asked in vain."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        for request in requests:
            self.watchers.wake(queue for queue, _ in request.queues)
        return await self.inner.claim(requests)


@caught_by("test_waiters_are_served_in_turn_and_cancelled_ones_lose_nothing")
class ServesWaitersInReverse(Through):
    """Hands out what it claimed from the last to the first."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        return [answer[::-1] for answer in await self.inner.claim(requests)]


@caught_by("test_what_a_cancelled_get_was_given_goes_back")
class DoesNotTakeBack(Through):
    """Takes back nothing of what was claimed for somebody who has gone."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        if all(isinstance(change, Release) and change.undo for change in requests):
            return [None] * len(requests)
        return await self.inner.settle(requests)


@caught_by("test_time_outs")
class WaitsInClaim(Through):
    """A claim that finds nothing does not come back."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self.inner.claim(requests)
        if not any(answers):
            await asyncio.Event().wait()
        return answers


@caught_by("test_the_errors_of_leases")
class LeasesForEver(OtherClaims):
    """No lease expires."""

    def other(self, request: Claim) -> Claim:
        return replace(request, lease_time=None)


@caught_by("test_values_are_checked_both_ways")
class LosesWhatCannotBeRead(OtherPuts):
    """Stores no value that is not JSON."""

    def other(self, request: Put) -> Put:
        items = tuple((key, v) for key, v in request.items if not v.startswith(b"\xff"))
        return replace(request, items=items or (("good", b"7"),))


@caught_by("test_an_empty_queue_is_no_outage")
class SaysThatItIsAway(Through):
    """Says that it cannot answer, and answers."""

    @property
    def outage(self) -> StoreError | None:
        return StoreUnavailableError("gone")


@caught_by("test_producers_wait_for_room")
class LosesProducers(WakesItself):
    """Producers do not hear that there is room."""

    def do_watch(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


@caught_by("test_join_waits_until_nothing_is_left")
class LosesThoseWhoJoin(WakesItself):
    """Nobody hears that the last item is done."""

    silent = "Ack"


@caught_by("test_close_gives_back_its_own_leases")
class GivesBackInTheWrongOrder(Through):
    """Settles a batch from its end."""

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return (await self.inner.settle(requests[::-1]))[::-1]


@caught_by("test_closing_the_store_ends_the_waiting")
class LosesThoseWhoWaitAtItsEnd(WakesItself):
    """Wakes nobody when it is closed."""


@caught_by("test_room_that_is_made_at_once_is_not_missed")
class LosesProducersAtOnce(LosesProducers):
    """Nor do those hear of it who asked a moment before."""
