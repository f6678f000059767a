"""The errors of a repository. Every error carries its data and says what to do."""

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.repository.status import ARROWS, QueueItemStatus


class InvalidTransitionError(LeasedKeyQError):
    """The status of an item cannot change like this. Nothing was changed.

    Attributes:
        item_id: Which item.
        from_status: The status that it has.
        to_status: The status that it was to get.
    """

    def __init__(
        self, item_id: str, from_status: QueueItemStatus, to_status: QueueItemStatus
    ) -> None:
        ways = sorted(status.value for status in ARROWS[from_status])
        possible = f"it can become {' or '.join(ways)}" if ways else "that is its end"
        super().__init__(
            f"item {item_id!r} is {from_status.value} and cannot become {to_status.value}; "
            f"{possible}"
        )
        self.item_id = item_id
        self.from_status = from_status
        self.to_status = to_status


class InvalidItemError(LeasedKeyQError, ValueError):
    """A field of an item is missing or is not what it should be.

    Attributes:
        item_id: Which item, as far as it says so.
        field: Which field.
    """

    def __init__(self, message: str, *, item_id: str = "", field: str = "") -> None:
        super().__init__(message)
        self.item_id = item_id
        self.field = field


class DuplicateItemError(LeasedKeyQError, ValueError):
    """There is an item with this id. Nothing was added.

    Attributes:
        item_id: The id.
    """

    def __init__(self, item_id: str, queue: str) -> None:
        super().__init__(
            f"the queue {queue!r} has an item {item_id!r}; change that one with update_item, or "
            "let QueueItem.create make an id"
        )
        self.item_id = item_id


class ItemNotFoundError(LeasedKeyQError, LookupError):
    """There is no item with this id, or it is finished and no longer kept.

    Attributes:
        item_id: The id.
    """

    def __init__(self, item_id: str, queue: str) -> None:
        super().__init__(
            f"the queue {queue!r} has no item {item_id!r}; finished items are forgotten "
            "after keep_finished"
        )
        self.item_id = item_id


class QueueConflictError(LeasedKeyQError):
    """Items were changed by others since `get_queue`, and here, too. Nothing was saved.

    Read the queue again and make the change on that, or make it in a `transaction`.

    Attributes:
        item_ids: The ids of these items.
    """

    def __init__(self, item_ids: tuple[str, ...], queue: str) -> None:
        named = ", ".join(map(repr, item_ids[:5]))
        more = f" and {len(item_ids) - 5} more" if len(item_ids) > 5 else ""  # noqa: PLR2004 - as above
        super().__init__(
            f"others changed items of the queue {queue!r} that this save changes, too: "
            f"{named}{more}; read the queue again, or use transaction()"
        )
        self.item_ids = item_ids


class TransactionError(StoreError):
    """A repository was used in a way that would wait for itself, or in the wrong process."""
