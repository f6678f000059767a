"""Faults of stores that claim to be durable."""

from collections.abc import Callable, Sequence
from typing import Any

from leasedkeyq.engines.memory import MemoryStore
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Cancel,
    Capabilities,
    Change,
    Claimed,
    Put,
    Release,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from tests.testing.broken.caps import LosesTokens
from tests.testing.broken.leases import KeepsTimeItself
from tests.testing.broken.through import LOST, OtherClaims, PutAnswer, Through, caught_by, replace


@caught_by("test_all_is_there_when_the_store_is_opened_again")
class KeepsNothing(Through):
    """Claims to be durable and lives in memory."""

    def __init__(self, _: Callable[..., Store], **options: Any) -> None:
        super().__init__(MemoryStore, **options)
        self.capabilities = Capabilities(durability="process", cross_process=False)


@caught_by("test_all_is_there_when_the_store_is_opened_again")
class StartsFencesAnew(OtherClaims):
    """Counts leases from 1 whenever it is opened."""

    fences = 0

    def shown(self, item: Claimed) -> Claimed:
        self.fences += 1
        return replace(item, fence=self.fences)


@caught_by("test_all_is_there_when_the_store_is_opened_again")
class ReleasesWhenClosed(Through):
    """Ends all leases when it is closed."""

    async def do_close(self) -> None:
        for key, token in (await self.tokens("q")).items():
            await self.settle_one(Release("q", key, token))
        await self.inner.close()


@caught_by("test_what_is_due_while_nobody_has_it_open_comes")
class KeepsTimeWhileOpen(KeepsTimeItself):
    """Forgets when leases expire as soon as it is closed."""


@caught_by("test_what_a_killed_process_has_put_is_there")
class StoresLater(Through):
    """Acknowledges puts at once and stores them when it is asked for something else."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.waiting: list[Put] = []

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        self.waiting += requests
        return [LOST for _ in requests]

    async def do_browse(self, *listing: Any, **order: Any) -> Sequence[StoredItem]:
        await self.store()
        return await super().do_browse(*listing, **order)

    async def do_close(self) -> None:
        await self.store()
        await self.inner.close()

    async def store(self) -> None:
        waiting, self.waiting = self.waiting, []
        await self.inner.put(waiting)


@caught_by("test_what_a_killed_process_has_acknowledged_does_not_come_back")
class FinishesLater(Through):
    """Takes acknowledgements at once and stores them when it is closed."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.waiting: list[Change] = []

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        self.waiting += [change for change in requests if isinstance(change, Ack)]
        return [None for _ in requests]

    async def do_close(self) -> None:
        await self.inner.settle(self.waiting)
        await self.inner.close()


@caught_by("test_tokens_that_were_taken_are_not_there_when_it_is_opened_again")
class ForgetsBucketsWhenClosed(LosesTokens):
    """Each time that it is opened, all buckets are full."""

    opened = 0

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        ForgetsBucketsWhenClosed.opened += 1
        self.generation = ForgetsBucketsWhenClosed.opened


@caught_by("test_deadlines_are_there_when_it_is_opened_again")
class LosesDeadlinesWhenClosed(Through):
    """Keeps deadlines in memory only."""

    async def do_close(self) -> None:
        items = (await self.inner.browse("q", limit=1000)).items
        await self.inner.put([Put("q", ((item.key, item.value),)) for item in items])
        await self.inner.close()


@caught_by("test_lines_are_there_when_the_store_is_opened_again")
class ForgetsLinesWhenClosed(Through):
    """Only the heads of keys are kept."""

    async def do_close(self) -> None:
        for key in await self.tokens("q"):
            await self.settle_one(Cancel("q", key, only_line=True))
        await self.inner.close()


@caught_by("test_lines_are_there_when_the_store_is_opened_again")
class ForgetsHoldsWhenClosed(Through):
    """A buried item holds its key only until the store is closed."""

    async def do_close(self) -> None:
        page = await self.inner.browse("q", states=("buried",))
        for item in page.items:
            line = (await self.inner.line("q", item.key)).items
            await self.settle_one(Cancel("q", item.key))
            await self.inner.put([Put("q", ((item.key, i.value),), "append") for i in line])
        await self.inner.close()
