"""An edit on its way through a store: its work is called once, and may stop it."""

from collections.abc import Callable, Sequence

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.admission import refusal_of
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Answer,
    Bury,
    Cancel,
    Change,
    Discard,
    EditWork,
    Extend,
    Limits,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
)

EDITING = (Put, Ack, Release, Extend, Bury, Cancel, Amend, Requeue, Purge, Discard)


class EditStoppedError(Exception):
    """The edit must not happen. `error` is for its caller, and says nothing about the store."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Edit:
    """What `Store.edit` was asked for."""

    __slots__ = ("_limits", "called", "heads_only", "keys", "others", "queue", "work")

    def __init__(
        self,
        queue: str,
        work: EditWork,
        keys: Sequence[str] | None = None,
        limits: Limits | None = None,
        *,
        heads_only: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        self._limits = limits or Limits()
        self.queue: str = queue
        self.work: EditWork = work
        self.keys: tuple[str, ...] | None = None if keys is None else tuple(dict.fromkeys(keys))
        self.heads_only: bool = heads_only
        """Whether the values in lines are not shown."""
        self.others: tuple[str, ...] = tuple(
            name for name in dict.fromkeys(others) if name != queue
        )
        """The other queues that it may change, without a look at them."""
        self.called: bool = False
        """Whether the work was called; it must not be called again."""

    @property
    def queues(self) -> tuple[str, ...]:
        """All queues that it may change, its own first."""
        return self.queue, *self.others

    def changes(self, items: Sequence[StoredItem]) -> list[Put | Change]:
        """Call the work, and check what it returns.

        Raises:
            EditStoppedError: It raised something, or wants what an edit cannot do.
        """
        self.called = True
        try:
            changes = list(self.work(items))
            for change in changes:
                _check(change, self.queues, self._limits)
        except BaseException as error:
            raise EditStoppedError(error) from error
        return changes


def apply_changes(
    changes: Sequence[Put | Change], apply: Callable[[Put | Change], Answer]
) -> list[Answer]:
    """Apply what the work of an edit wants, in order.

    Raises:
        EditStoppedError: Something was refused. What was applied before has to be undone.
    """
    answers: list[Answer] = []
    for change in changes:
        answer = apply(change)
        if isinstance(answer, LeasedKeyQError):
            raise EditStoppedError(answer)
        answers.append(answer)
    return answers


def _check(change: object, queues: Sequence[str], limits: Limits) -> None:
    if not isinstance(change, EDITING):
        raise ValueError(f"an edit cannot apply a {type(change).__name__}")  # noqa: TRY004 - as the contract says
    if change.queue not in queues:
        raise ValueError(
            f"an edit of queue {queues[0]!r} cannot change queue {change.queue!r}: it is not one "
            "of its others"
        )
    refusal = refusal_of(change, limits)
    if refusal is not None:
        raise refusal
