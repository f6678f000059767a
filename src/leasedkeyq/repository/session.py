"""A store that is open, with all that a repository needs to use it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from leasedkeyq.errors import QueueClosedError, StoreError
from leasedkeyq.model.admission import check_name
from leasedkeyq.model.requests import (
    Answer,
    Claim,
    Claimed,
    Counts,
    StoredItem,
    StoredState,
)
from leasedkeyq.repository.change_edits import (
    ChangeEdits,
    ItemChange,
    ItemPlace,
    LookAtItem,
    places,
)
from leasedkeyq.repository.loop_thread import LoopThread, wait_for
from leasedkeyq.repository.mapping import (
    FoundItems,
    ItemRequest,
    LineNotShownError,
    id_of_stored,
    is_storable_id,
)
from leasedkeyq.stores.batching import CallerBatcher
from leasedkeyq.stores.group_keys import GROUP_MARK, group_of
from leasedkeyq.stores.queue.pump import ClaimPump
from leasedkeyq.stores.store import LIVE_STATES, Store

T = TypeVar("T")
LeasedT = TypeVar("LeasedT", bound=Sequence[Claimed])

PAGE: Final = 1000
"""How many items are read at a time."""
GROUPED_STATES: Final[tuple[StoredState, ...]] = (*LIVE_STATES, "buried")
"""The states of the items that are found by their group."""
NAME: Final = "queue"
"""The name of a queue that was not given any."""


class QueueSettings(NamedTuple):
    """What a queue is told, beyond its items."""

    max_size: int | None
    default_max_retries: int


class KeptSettings(Protocol):
    """Settings as a document has them."""

    name: str
    max_size: int | None
    default_max_retries: int


class Keeper(Protocol):
    """A store that keeps the settings of its one queue itself."""

    @property
    def settings(self) -> KeptSettings | None:
        """As of the last transaction, or the one whose work is running."""
        ...

    async def read_settings(self) -> KeptSettings | None:
        """As of now."""
        ...

    def change_settings(self, *, max_size: int | None, default_max_retries: int) -> None:
        """Change them together with the edit whose work is running."""
        ...


class Session:
    """An open store, from its opening to its closing.

    Attributes:
        name: The name of the queue.
        ended_by_fork: Whether it has to end for a fork, and not because it is closed.
    """

    def __init__(
        self, store: Store, name: str | None, given: QueueSettings, *, owned: bool
    ) -> None:
        self.store = store
        self.loop_thread = LoopThread.of(store)
        self.ended_by_fork = False
        self._owned = owned
        self._given = given
        keeps = hasattr(store, "read_settings")
        self._keeper: Keeper | None = cast("Keeper", store) if keeps else None
        try:
            kept = None if self._keeper is None else self.call(self._keeper.read_settings())
            if kept is None:
                self._keeper = None
            if name is None:
                name = NAME if kept is None else kept.name
            self.name = check_name("name", name, store.limits)
        except BaseException:
            self.loop_thread.leave(close_store=owned)
            raise
        claiming = store if self._keeper is None else cast("Store", _Claiming(self))
        self._pump = ClaimPump(claiming, self.name)
        self._waiting: set[int] = set()
        self._away = False
        edits = ChangeEdits(store, self.name, self.check_name)
        start = self.loop_thread.start
        self._changes = CallerBatcher(start, edits.apply)
        self._claims = CallerBatcher(start, store.claim, lost=self._pump.unwanted.take_back)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something of the store and wait for it."""
        return self.loop_thread.call(coroutine)

    def change(self, item_id: str, group: str | None, look: LookAtItem) -> list[Answer]:
        """Have what `look` wants done with an item, while no other call can change it.

        What it raises is raised, and so is what the store refuses; then nothing has changed. The
        item is looked for everywhere, first where `group` says.
        """

        def look_there(stored: StoredItem | None, found: FoundItems) -> Sequence[ItemRequest]:
            if stored is None:
                raise _NotThereError
            return look(stored, found)

        for place in places(item_id, group, self.find_group):
            with suppress(_NotThereError, LineNotShownError):
                return self.change_at(place, look_there)
        look(None, FoundItems(()))
        return []

    def change_at(self, place: ItemPlace, look: LookAtItem) -> list[Answer]:
        """The same with an item that can be only there."""
        if not is_storable_id(place.item_id):
            look(None, FoundItems(()))
            return []
        answers = wait_for(self._changes.submit(ItemChange(place, look)))
        if isinstance(answers, Exception):
            raise answers
        return answers

    def find_group(self, item_id: str) -> str | None:
        """The group in which an item is pending or processing, or None."""
        cursor: str | None = None
        while True:
            browse = self.store.browse(
                self.name, states=GROUPED_STATES, prefix=GROUP_MARK, cursor=cursor, limit=PAGE
            )
            page = self.call(browse)
            for stored in page.items:
                if id_of_stored(stored) == item_id:
                    return group_of(stored.key)
            cursor = page.cursor
            if cursor is None:
                return None

    def claim(self, claim: Claim) -> Claimed | None:
        """Lease one item, if there is one."""
        claimed = self._receive(self._claims.submit(claim))
        if not claimed:
            self.check_name()
            return None
        return claimed[0]

    def claim_in_time(
        self, key: str | None, timeout: float | None, lease_time: float | None
    ) -> Claimed | None:
        """Lease one item as soon as there is one, within `timeout` seconds."""
        thread = threading.get_ident()
        self._waiting.add(thread)
        try:
            answer: Future[Sequence[Claimed]] = Future()
            waiting = self._claim_in_time(answer, key, timeout, lease_time)
            return self._receive(answer, self.loop_thread.submit(waiting))[0]
        except TimeoutError:
            return None
        finally:
            self._waiting.discard(thread)

    async def _claim_in_time(
        self,
        answer: "Future[Sequence[Claimed]]",
        key: str | None,
        timeout: float | None,
        lease_time: float | None,
    ) -> None:
        try:
            self._check_away()
            claimed = await self._pump.claim(key, timeout, lease_time)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except BaseException as error:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
        else:
            if answer.set_running_or_notify_cancel():
                answer.set_result(claimed)
            else:
                await self._take_back(claimed)

    def _check_away(self) -> None:
        if self._away:
            raise QueueClosedError("the repository is closed; make a new one")

    @property
    def is_waited_on(self) -> bool:
        """Whether a thread waits for an item to come."""
        return bool(self._waiting)

    def _receive(self, answer: "Future[LeasedT]", waiting: "Future[None] | None" = None) -> LeasedT:
        """Wait in this thread for what is claimed in the loop."""
        try:
            return wait_for(answer)
        except BaseException:
            # This thread was interrupted, or there is nothing. What comes from now on is taken
            # back by the loop, and here what came together with the interruption.
            if waiting is not None:
                waiting.cancel()
            if not answer.cancel() and not answer.exception():
                with suppress(QueueClosedError):
                    self.loop_thread.submit(self._take_back(answer.result()))
            raise

    def take_back(self, claimed: Claimed) -> None:
        """Put an item back where it was; if the store cannot now, it does so later."""
        self.call(self._take_back([claimed]))

    async def _take_back(self, claimed: Sequence[Claimed]) -> None:
        await asyncio.shield(self._pump.unwanted.take_back(claimed))

    def edit(
        self,
        work: Callable[[Sequence[StoredItem]], Sequence[ItemRequest]],
        place: ItemPlace | None,
    ) -> Coroutine[Any, Any, list[Answer]]:
        """An edit of the queue, or of one place in it."""
        if place is None:
            return self.store.edit(self.name, work)
        heads_only = place.heads_only and place.group is not None
        return self.store.edit(self.name, work, keys=place.keys, heads_only=heads_only)

    def read(self) -> tuple[Sequence[StoredItem], QueueSettings]:
        """All items and the settings, as they are at one moment."""
        seen = _Seen(self)
        self.call(self.edit(seen, None))
        assert seen.settings is not None
        return seen.items, seen.settings

    @property
    def settings(self) -> QueueSettings:
        """As of the last transaction, or the one whose work is running."""
        kept = None if self._keeper is None else self._keeper.settings
        return (
            self._given if kept is None else QueueSettings(kept.max_size, kept.default_max_retries)
        )

    def check_name(self) -> None:
        """See that the queue has the name that it had, as of the last transaction.

        Nothing is found under the old name, which must not be taken for an empty queue.

        Raises:
            StoreError: The document has got another name.
        """
        kept = None if self._keeper is None else self._keeper.settings
        if kept is not None and kept.name != self.name:
            raise StoreError(
                f"the document is the queue {kept.name!r} now, and was {self.name!r} when this "
                "repository opened it; make a new QueueRepository"
            )

    def count(self) -> Counts:
        """How many items there are in each state."""
        counts = self.call(self.store.count([self.name]))[self.name]
        self.check_name()
        return counts

    def browse(self, states: Sequence[StoredState]) -> list[StoredItem]:
        """All items in these states."""
        found = self.call(self._browse(states))
        self.check_name()
        return found

    async def _browse(self, states: Sequence[StoredState]) -> list[StoredItem]:
        found: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await self.store.browse(self.name, states=states, cursor=cursor, limit=PAGE)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    def read_settings(self) -> QueueSettings:
        """As of now."""
        if self._keeper is not None:
            self.call(self._keeper.read_settings())
        return self.settings

    def change_settings(self, settings: QueueSettings) -> None:
        """Change them, in the work of an edit.

        Raises:
            ValueError: The store keeps no settings.
        """
        if settings == self.settings:
            return
        if self._keeper is None:
            raise ValueError(
                "max_size and default_max_retries are arguments of QueueRepository on this store; "
                "they cannot be changed in a queue"
            )
        self._keeper.change_settings(**settings._asdict())

    def send_away(self) -> None:
        """Every thread that waits for an item gets a `QueueClosedError`, now and later."""
        self.call(self._send_away())

    async def _send_away(self) -> None:
        self._close_line()

    def _close_line(self) -> None:
        self._away = True
        self._pump.close()
        # An item that was claimed for a waiting thread in this very moment has not reached it.
        _ = self._pump.unwanted.take_back(())

    def end(self, *, wait: bool = True) -> None:
        """Send away threads that wait for items, let other calls finish, and let go of the store.

        The store is closed if it was opened here.
        """
        self.loop_thread.leave(close_store=self._owned, wait=wait, before=self._close_line)


class _NotThereError(Exception):
    """There is no item at a place."""


class _Seen:
    """The work of an edit that only looks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.items: Sequence[StoredItem] = ()
        self.settings: QueueSettings | None = None

    def __call__(self, items: Sequence[StoredItem]) -> Sequence[ItemRequest]:
        self._session.check_name()
        self.items, self.settings = items, self._session.settings
        return ()


class _Claiming:
    """The store of a document, for waiting claims: they hear if it gets another name."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.store, name)

    async def claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        answers = await self._session.store.claim(requests)
        if not any(answers):
            self._session.check_name()
        return answers
