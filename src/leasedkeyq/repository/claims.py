"""Handing out items, and taking back the items of dead workers."""

from collections.abc import Callable, Sequence

from leasedkeyq.checks import storable
from leasedkeyq.model.requests import Bury, Claimed, StoredItem
from leasedkeyq.repository.change_edits import ItemPlace
from leasedkeyq.repository.changes import Changes
from leasedkeyq.repository.errors import InvalidItemError
from leasedkeyq.repository.items import QueueItem
from leasedkeyq.repository.leases import HeldLease
from leasedkeyq.repository.mapping import (
    FAILED,
    FoundItems,
    ItemRequest,
    ItemTerms,
    LineNotShownError,
    Step,
    claimed_item,
    death_of,
    moment,
    read,
    says_error,
    show,
)
from leasedkeyq.repository.session import Session
from leasedkeyq.repository.status import QueueItemStatus
from leasedkeyq.stores.group_keys import group_key


class Claims:
    """The items that one repository hands out."""

    def __init__(self, changes: Changes, terms: ItemTerms, clock: Callable[[], float]) -> None:
        self._changes = changes
        self._terms = terms
        self._clock = clock

    def next(
        self, session: Session, timeout: float | None, key: str | None = None
    ) -> Claimed | None:
        """Lease the next item, or that of `key`; wait for it for so long, None for ever."""
        if timeout == 0:
            return session.claim(self._terms.claim(key))
        return session.claim_in_time(key, timeout, self._terms.lease_time)

    def accept(self, session: Session, claimed: Claimed) -> QueueItem | None:
        """The item that was leased, or None if it had to be given up."""
        leased_at = self._clock()
        if claimed.expires_at is not None and self._terms.lease_time is not None:
            leased_at = claimed.expires_at - self._terms.lease_time
        try:
            item = read(claimed_item(claimed, leased_at), session.settings.default_max_retries)
        except InvalidItemError as error:
            bury = Bury(self._terms.queue, claimed.key, claimed.token, storable(str(error)))
            session.call(session.store.settle([bury]))
            return None
        if claimed.attempt > 1 and item.retry_count >= item.max_retries:
            self._give_up(session, claimed, item)
            return None
        self._changes.held.add(item.id, HeldLease(claimed.token, claimed.attempt))
        self._changes.groups.add(item.id, item.group)
        return item

    def _give_up(self, session: Session, claimed: Claimed, item: QueueItem) -> None:
        """Fail an item that was leased once more than it may be."""

        def look(stored: StoredItem | None, found: FoundItems) -> Sequence[ItemRequest]:
            if stored is None or stored.token != claimed.token:
                return ()
            old = show(stored, session.settings.default_max_retries)
            new = show(stored, session.settings.default_max_retries)
            deaths = sum(past.how == "expired" for past in stored.history)
            times = "once" if deaths == 1 else f"{deaths} times"
            new.status = FAILED
            if deaths:
                new.error_message = f"the worker died {times}, and no attempts are left"
            else:
                new.error_message = new.error_message or "no attempts are left"
            return self._terms.plan([Step(stored, old, new)], self._clock(), found)

        session.change_at(ItemPlace(item.id, item.group), look)

    def recover(
        self, session: Session, item_id: str, group: str | None, since: float
    ) -> QueueItemStatus | None:
        """Deal with an item whose worker died, or got it before `since`.

        Returns its new status, or None if there was nothing to do.
        """
        steps: list[Step] = []
        used_up: list[str] = []

        def look(stored: StoredItem | None, found: FoundItems) -> Sequence[ItemRequest]:
            steps.clear()
            used_up.clear()
            if stored is None:
                return ()
            old = show(stored, session.settings.default_max_retries)
            new = show(stored, session.settings.default_max_retries)
            if is_older(stored, since):
                error = f"the worker died in attempt {stored.attempt}: it was given up"
                new.fail(error, backoff=lambda _: 0.0, now=moment(self._clock()))
            elif stored.state != "available" or not death_of(stored):
                return ()
            elif new.retry_count >= new.max_retries:
                used_up.append(item_id)
                return ()
            elif says_error(stored) == death_of(stored):
                return ()  # It was reported before.
            else:
                old.error_message = None  # What is shown has to be stored.
            steps.append(Step(stored, old, new))
            return self._terms.plan(steps, self._clock(), found)

        try:
            session.change_at(ItemPlace(item_id, group), look)
        except LineNotShownError:
            session.change_at(ItemPlace(item_id, group, heads_only=False), look)
        if used_up:
            return self._fail_dead(session, item_id, group)
        self._changes.drop_leases(steps)
        return steps[0].new.status if steps and steps[0].new else None

    def _fail_dead(
        self, session: Session, item_id: str, group: str | None
    ) -> QueueItemStatus | None:
        """Lease an item whose retries are used up, which fails it."""
        claimed = self.next(session, 0, item_id if group is None else group_key(group))
        if claimed is None:
            return None
        item = self.accept(session, claimed)
        if item is None:
            return FAILED
        # The item was given more retries meanwhile, or another one is the first of its group.
        session.take_back(claimed)
        self._changes.held.drop(item.id, claimed.token)
        return None


def is_older(stored: StoredItem, since: float) -> bool:
    """Whether a worker has had an item from before `since`."""
    return stored.state == "in_flight" and (stored.leased_at or 0.0) < since
