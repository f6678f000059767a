"""Faults in what is shown."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from leasedkeyq.model.findings import Finding
from leasedkeyq.model.requests import (
    Answer,
    Claim,
    Claimed,
    Counts,
    EditWork,
    Purge,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.store import Store
from tests.testing.broken.through import OtherItems, Through, caught_by, replace


@caught_by("test_it_tells_of_itself_and_changes_nothing")
class ComplainsWithoutAdvice(Through):
    """Finds something wrong, and does not say what to do."""

    async def do_diagnose(self) -> list[Finding]:
        return [Finding(code="odd", severity="warning", what="something is odd")]


@caught_by("test_it_tells_of_itself_and_changes_nothing")
class TidiesUpWhileItLooks(Through):
    """Throws away what it finds when it is asked how it is."""

    async def do_diagnose(self) -> list[Finding]:
        await self.inner.settle([Purge("q")])
        return []


@caught_by("test_counts_and_items_tell_every_state")
class DoesNotCountBufferedItems(Through):
    """Counts what could be claimed, and not what waits."""

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        found = dict(await self.inner.count(queues))
        for queue, counts in found.items():
            beside = (await self.inner.browse(queue, states=("buffered",))).items
            found[queue] = replace(counts, available=counts.available - len(beside))
        return found


@caught_by("test_counts_and_items_tell_every_state")
class GivesLeasesAway(Through):
    """Shows the token of a lease to everybody who looks."""

    async def do_browse(self, queue: str, *listing: Any, **order: Any) -> list[StoredItem]:
        tokens = await self.tokens(queue)
        return [
            replace(item, token=tokens.get(item.key, "") if item.state == "in_flight" else "")
            for item in await super().do_browse(queue, *listing, **order)
        ]


@caught_by("test_counts_and_items_tell_every_state")
class ForgetsWhenALeaseBegan(OtherItems):
    """Does not show since when an item is leased."""

    def shown(self, item: StoredItem) -> StoredItem:
        return replace(item, leased_at=None)


@caught_by("test_counts_and_items_tell_every_state")
class ForgetsHistories(OtherItems):
    """Shows no past attempts."""

    def shown(self, item: StoredItem) -> StoredItem:
        return replace(item, history=())


@caught_by("test_look_shows_the_live_items_of_a_key")
class LooksInItsOwnOrder(Through):
    """Answers for the keys in the order of the alphabet."""

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        return await self.inner.look(queue, sorted(keys))


@caught_by("test_heads_are_what_a_claim_would_lease")
class ShowsTheOldestHead(Through):
    """Does not look at the priority."""

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        pages = [await self.inner.browse(queue, states=("available",)) for queue in queues]
        return [page.items[0] if page.items else None for page in pages]


@caught_by("test_heads_are_what_a_claim_would_lease")
class LeavesEmptyQueuesOut(Through):
    """Shows heads only of those queues that have one."""

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        return [item for item in await self.inner.heads(queues) if item is not None]


@caught_by("test_heads_are_what_a_claim_would_lease")
class LeasesWhatItShows(Through):
    """Claims the heads in order to see them."""

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        found = await self.inner.heads(queues)
        await self.inner.claim([Claim(((queue, 1),)) for queue in queues])
        return found


@caught_by("test_heads_are_what_a_claim_would_lease")
class ShowsHeadsAsOfTheLastChange(Through):
    """Does not see what time does."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.known: dict[str, StoredItem | None] = {}

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        self.known.clear()
        return await self.inner.claim(requests)

    async def do_heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        new = [queue for queue in queues if queue not in self.known]
        self.known.update(zip(new, await self.inner.heads(new), strict=True))
        return [self.known[queue] for queue in queues]


@caught_by("test_listing_goes_page_by_page")
class TellsTheLastOfAPageTwice(Through):
    """The next page begins with the last item of the one before."""

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
        return await super().do_browse(
            queue, states, prefix, max(after - 1, 0), limit, newest_first=newest_first
        )


@caught_by("test_listing_goes_page_by_page")
class HasOnePageOnly(Through):
    """Ends every listing after its first page."""

    async def do_browse(self, *listing: Any, **order: Any) -> Sequence[StoredItem]:
        return (await super().do_browse(*listing, **order))[: listing[4] - 1]


@caught_by("test_a_page_begins_behind_any_id")
class KnowsOnlyItsOwnCursors(Through):
    """A listing that does not begin with a cursor of its own begins anew."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.given: set[int] = set()

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
        known = after if newest_first or after in self.given else 0
        found = await super().do_browse(
            queue, states, prefix, known, limit, newest_first=newest_first
        )
        self.given.update(item.id for item in found[limit - 2 : limit - 1])
        return found


@caught_by("test_the_newest_items_can_come_first")
class TurnsItsPagesAround(Through):
    """The newest first is the first page, read from its end."""

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
        if not newest_first:
            return await super().do_browse(queue, states, prefix, after, limit, newest_first=False)
        found = await super().do_browse(queue, states, prefix, 0, limit, newest_first=False)
        return [item for item in reversed(found) if item.id < after]


@caught_by("test_the_newest_items_can_come_first")
class SortsEachPartForItself(Through):
    """The newest first, but those that left their keys after all others."""

    async def do_browse(self, *listing: Any, **order: Any) -> Sequence[StoredItem]:
        found = await super().do_browse(*listing, **order)
        return sorted(found, key=lambda item: item.state in ("buried", "done"))


@caught_by("test_a_prefix_is_taken_literally")
class TakesPrefixesForPatterns(Through):
    """Reads a star in a prefix as any text."""

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
    ) -> list[StoredItem]:
        found = await super().do_browse(queue, states, "", after, limit, newest_first=newest_first)
        return [item for item in found if fnmatchcase(item.key, f"{prefix}*")]


@caught_by("test_sweep_tells_when_to_come_back")
class DoesNotSayWhenToComeBack(Through):
    """Answers that nothing is going to happen."""

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        return [None for _ in await self.inner.sweep(queues)]


@caught_by("test_sweep_tells_when_to_come_back")
class SweepsTheFirstQueue(Through):
    """Answers for the first of several queues, and says of the others that nothing happens."""

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        first = await self.inner.sweep(queues[:1])
        return first + [None] * (len(queues) - len(first))


@caught_by("test_what_is_due_is_seen_without_a_sweep")
class NeedsASweep(Through):
    """Counts as of the last change."""

    def __init__(self, opener: Callable[..., Store], **options: Any) -> None:
        super().__init__(opener, **options)
        self.known: dict[str, Counts] = {}

    async def do_settle(self, requests: Sequence[Any]) -> list[Answer]:
        answers = await self.inner.settle(requests)
        self.known.update(await self.inner.count([change.queue for change in requests]))
        return answers

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        return {**await self.inner.count(queues), **self.known}


@caught_by("test_a_closed_store_says_so")
class GoesOnWhenClosed(Through):
    """Closing does nothing."""

    times = 0

    async def close(self) -> None:  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]  # its fault
        self.times += 1
        if self.times > 1:
            await super().close()


@caught_by("test_a_closed_store_does_not_call_the_work")
class WorksWhenClosed(Through):
    """Calls the work of an edit before it finds out that it is closed."""

    async def edit(  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride]  # its fault
        self,
        queue: str,
        work: EditWork,
        *,
        keys: Sequence[str] | None = None,
        heads_only: bool = False,
        others: Sequence[str] = (),
    ) -> list[Answer]:
        changes = work(())
        return await super().edit(
            queue, lambda _: changes, keys=keys, heads_only=heads_only, others=others
        )
