"""Changes of items: which thread may make them, and the requests that they take."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from leasedkeyq.model.requests import Answer, StoredItem
from leasedkeyq.repository.change_edits import ItemPlace, places
from leasedkeyq.repository.connection import Connection
from leasedkeyq.repository.errors import (
    InvalidItemError,
    InvalidTransitionError,
    ItemNotFoundError,
    QueueConflictError,
)
from leasedkeyq.repository.items import Origin, Queue, QueueItem, new_id, queue_full
from leasedkeyq.repository.leases import HeldLease, HeldLeases, KnownGroups
from leasedkeyq.repository.loop_thread import Handoff, inside
from leasedkeyq.repository.mapping import (
    PENDING,
    PROCESSING,
    STATUS,
    FoundItems,
    ItemRequest,
    ItemTerms,
    Step,
    id_of_stored,
    lease_lost,
    show,
)
from leasedkeyq.repository.session import QueueSettings, Session
from leasedkeyq.repository.status import QueueItemStatus


class ItemEdit(Handoff):
    """An edit whose work is done by the thread that called.

    Attributes:
        settings: The settings of the queue.
        new_settings: The settings that it gets; None if they stay.
        began: When the store began with it: delays count from then.
    """

    def __init__(self, session: Session, clock: Callable[[], float]) -> None:
        super().__init__(self._begin, self._finish)
        self._session = session
        self._clock = clock
        self.began = 0.0
        self.settings = session.settings
        self.new_settings: QueueSettings | None = None

    def _begin(self) -> None:
        self._session.check_name()
        self.began = self._clock()
        self.settings = self._session.settings

    def _finish(self) -> None:
        if self.new_settings is not None:
            self._session.change_settings(self.new_settings)


class Changes:
    """The changes that one repository makes.

    Attributes:
        held: The leases that it handed out.
        groups: The groups of items that it has seen.
    """

    def __init__(
        self, connection: Connection, terms: ItemTerms, clock: Callable[[], float]
    ) -> None:
        self.held = HeldLeases()
        self.groups = KnownGroups()
        self._connection = connection
        self._terms = terms
        self._clock = clock
        self._owner = new_id()

    # One item

    @contextmanager
    def edit(self, place: ItemPlace | None = None) -> Generator[ItemEdit]:
        """An edit of the queue, or of one place in it, by the body of the `with` statement."""
        with self._connection.using() as session:
            edit = ItemEdit(session, self._clock)
            with (
                inside(self._connection.place),
                edit.during(session.loop_thread, lambda work: session.edit(work, place)),
            ):
                yield edit

    def change_item(
        self,
        item_id: str,
        group: str | None,
        change: Callable[[QueueItem], object],
        *,
        anybody: bool = False,
    ) -> QueueItem:
        """Change an item by a function of the repository, which may be called again.

        With `anybody`, a thread that has lost its lease on the item may do so, too. `group` says
        where to look for the item first.
        """
        held = None if anybody else self.held.get(item_id)
        steps: list[Step] = []
        with self._connection.using() as session:

            def look(stored: StoredItem | None, found: FoundItems) -> Sequence[ItemRequest]:
                there = self._found(item_id, stored, held)
                steps[:] = [self._item_step(there, change, session.settings, held)]
                return self._terms.plan(steps, self._clock(), found)

            session.change(item_id, group, look)
            self.drop_leases(steps)
        new = steps[0].new
        assert new is not None
        return new

    def request(
        self,
        item_id: str,
        group: str | None,
        request: Callable[[StoredItem, QueueItem], ItemRequest],
    ) -> Answer:
        """Make one request about an item, unless this thread has lost its lease on it."""
        held = self.held.get(item_id)
        with self._connection.using() as session:

            def look(stored: StoredItem | None, _: FoundItems) -> Sequence[ItemRequest]:
                there = self._found(item_id, stored, held)
                item = show(there, session.settings.default_max_retries)
                if held is not None and held.token != there.token:
                    raise lease_lost(item_id, there, item.status, held.attempt)
                return [request(there, item)]

            [answer] = session.change(item_id, group, look)
        return answer

    def _found(self, item_id: str, stored: StoredItem | None, held: HeldLease | None) -> StoredItem:
        if stored is not None:
            return stored
        if held is not None:
            raise lease_lost(item_id, None, None, held.attempt)
        raise ItemNotFoundError(item_id, self._terms.queue)

    def update_item(
        self, item_id: str, group: str | None, change: Callable[[QueueItem], object] | None
    ) -> QueueItem | None:
        """Change an item by a function of the user, which is called once; None removes the item.

        Returns the changed item, or the removed one; None if there is none.
        """
        held = self.held.get(item_id)
        for place in places(item_id, group, self._find_group):
            if change is not None and place.group is not None and place.heads_only:
                continue  # The change may be one that takes the line.
            with self.edit(place) as edit:
                found = FoundItems(edit.items)
                stored = found.by_id.get(item_id)
                if stored is None:
                    continue
                if change is None:
                    step = Step(stored, show(stored, edit.settings.default_max_retries), None)
                else:
                    step = self._item_step(stored, change, edit.settings, held)
                edit.requests = self._terms.plan([step], edit.began, found)
            self.drop_leases([step])
            return step.new or step.old
        return None

    def _find_group(self, item_id: str) -> str | None:
        with self._connection.using() as session:
            return session.find_group(item_id)

    def _item_step(
        self,
        stored: StoredItem,
        change: Callable[[QueueItem], object],
        settings: QueueSettings,
        held: HeldLease | None,
    ) -> Step:
        """An item before and after a change, by a thread that was given the lease `held`."""
        old = show(stored, settings.default_max_retries)
        new = show(stored, settings.default_max_retries)
        lost = None
        if held is not None and held.token != stored.token:
            lost = lease_lost(old.id, stored, old.status, held.attempt)
            if old.status is PROCESSING:
                raise lost
        try:
            change(new)
        except InvalidTransitionError as error:
            # It is because the lease is lost that the item is not what the worker thinks.
            raise lost or error from None
        if new.id != old.id:
            message = f"item {old.id!r}: its id cannot be changed"
            raise InvalidItemError(message, item_id=old.id, field="id")
        if lost is not None and new.status is not old.status:
            raise lost
        return Step(stored, old, new)

    def drop_leases(self, steps: Sequence[Step]) -> None:
        """After a change: forget the leases that it ended."""
        for stored, _, new in steps:
            if stored is not None and (new is None or new.status is not PROCESSING):
                revoked = new is None or new.status is QueueItemStatus.CANCELLED
                self.held.drop(id_of_stored(stored), stored.token, revoked=revoked)

    # The whole queue

    def read_queue(self, stored_items: Sequence[StoredItem], settings: QueueSettings) -> Queue:
        """The stored queue, which remembers its items as they are now."""
        current = FoundItems(stored_items).by_id
        retries = settings.default_max_retries
        items = [show(stored, retries) for stored in current.values()]
        queue = Queue(self._terms.queue, items, settings.max_size, retries)
        # The items again, as the others will be changed.
        seen = {key: show(stored, retries) for key, stored in current.items()}
        queue._origin = Origin(self._owner, seen, settings.max_size, retries)
        return queue

    def queue_steps(self, edit: ItemEdit, queue: Queue) -> list[Step]:
        """Have `edit` store the items that were changed in `queue` since it was read."""
        found = FoundItems(edit.items)
        current = found.by_id
        origin = queue._origin
        if origin is None or origin.owner != self._owner:
            # It comes from elsewhere: all its items are new here, and its settings are not ours.
            origin = Origin(self._owner, {}, queue.max_size, queue.default_max_retries)
        wanted = _by_id(queue)
        known = origin.items
        changed = [key for key in known if key not in wanted]
        changed += [key for key, item in wanted.items() if known.get(key) != item]
        steps = [Step(current.get(key), known.get(key), wanted.get(key)) for key in changed]
        conflicts = [
            key
            for key, (stored, old, _) in zip(changed, steps, strict=True)
            if old != (stored and show(stored, edit.settings.default_max_retries))
        ]
        if conflicts:
            raise QueueConflictError(tuple(conflicts), self._terms.queue)
        settings = edit.settings
        if (queue.max_size, queue.default_max_retries) != origin[2:]:
            settings = edit.new_settings = QueueSettings(queue.max_size, queue.default_max_retries)
        self._check_room(current, steps, settings.max_size or 0)
        for step in steps:
            self._check_lease(step)
        edit.requests = self._terms.plan(steps, edit.began, found)
        return steps

    def _check_room(
        self, current: dict[str, StoredItem], steps: Sequence[Step], max_size: int
    ) -> None:
        """New items must find room beside the other pending items."""
        pending = {key for key, stored in current.items() if STATUS[stored.state] is PENDING}
        added = False
        for _, old, new in steps:
            if new is not None and new.status is PENDING:
                pending.add(new.id)
                added |= old is None
            elif old is not None:
                pending.discard(old.id)
        if added and max_size and len(pending) > max_size:
            raise queue_full(self._terms.queue, max_size)

    def _check_lease(self, step: Step) -> None:
        stored, old, new = step
        if stored is None or old is None or new is None:
            return
        held = self.held.get(old.id)
        lost = held is not None and held.token != stored.token
        if lost and (old.status is PROCESSING or old.status is not new.status):
            raise lease_lost(old.id, stored, old.status, held.attempt if held else 0)


def _by_id(queue: Queue) -> dict[str, QueueItem]:
    items: dict[str, QueueItem] = {}
    for item in queue.items:
        if item.id in items:
            message = f"the item {item.id!r} is in the queue twice"
            raise InvalidItemError(message, item_id=item.id, field="id")
        items[item.id] = item
    return items
