"""What can be done to many items, and to which of them."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from leasedkeyq.model.requests import Counts, StoredState
from leasedkeyq.operations.items.bulk import STATES_OF, BulkVerb
from leasedkeyq.operations.views import ItemFilter, ItemView
from leasedkeyq.web.item_query import ItemStamp

STATE_WORDS: Final[Mapping[str, str]] = {
    "available": "available",
    "scheduled": "scheduled",
    "in_flight": "in flight",
    "buffered": "in line",
    "in_line": "in line",
    "buried": "dead",
    "done": "done",
}


class BulkAction(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be done to many items.

    Attributes:
        name: Its name in addresses, and the verb of the report.
        label: What its button says.
        question: What is asked, before the number of items.
        states: The states of the items to which it can be done.
        warning: What people should know.
        danger: Whether something is lost by it.
    """

    name: BulkVerb
    label: str
    question: str
    states: tuple[StoredState, ...]
    warning: str = ""
    danger: bool = False


BULK_ACTIONS: Final[Mapping[str, BulkAction]] = {
    action.name: action
    for action in (
        BulkAction(
            name="requeue",
            label="Requeue",
            question="Requeue",
            states=STATES_OF["requeue"],
            warning="They start anew, with all their attempts.",
        ),
        BulkAction(
            name="cancel",
            label="Cancel",
            question="Cancel",
            states=STATES_OF["cancel"],
            warning="A command that runs is told to stop. Who waits for a result hears of it.",
            danger=True,
        ),
        BulkAction(
            name="remove",
            label="Remove",
            question="Remove",
            states=STATES_OF["remove"],
            warning="They are gone for good. The lease of an item that is in flight is revoked.",
            danger=True,
        ),
        BulkAction(
            name="run_now",
            label="Run now",
            question="Make available now",
            states=STATES_OF["run_now"],
            warning="They do not wait for their time any more.",
        ),
        BulkAction(
            name="priority",
            label="Set priority",
            question="Set the priority of",
            states=STATES_OF["priority"],
            warning="Higher goes first; 0 is what items have otherwise.",
        ),
    )
}


def problem_of(stamp: ItemStamp, item: ItemView | None, action: BulkAction) -> str:
    """Why an item is not what was chosen, or cannot be dealt with; "" if all is well."""
    if item is None:
        return "it is gone: it was done or removed meanwhile"
    was, now = STATE_WORDS[stamp.state], STATE_WORDS[item.state]
    if was != now:
        return f"it is {now} now, and was {was} when it was chosen"
    if item.attempt != stamp.attempt:
        return f"it is at attempt {item.attempt} now, and was at {stamp.attempt} when it was chosen"
    if item.state not in action.states:
        return f"it is {now}: {action.label.lower()} is for items that are {_states(action)}"
    return ""


def narrowed(wanted: ItemFilter, action: BulkAction) -> ItemFilter | None:
    """A filter that matches only items to which something can be done; None: there are none."""
    states = tuple(state for state in (wanted.states or action.states) if state in action.states)
    return msgspec.structs.replace(wanted, states=states) if states else None


def _states(action: BulkAction) -> str:
    return " or ".join(dict.fromkeys(STATE_WORDS[state] for state in action.states))


def counted_states(counts: Counts, states: Sequence[StoredState]) -> int | None:
    """How many items are in these states; None if counts do not tell them apart.

    A store counts values in lines with those that are available, so they are all meant or none.
    """
    wanted = set(states)
    in_keys = {"available", "in_line", "buffered"}
    if wanted & in_keys and not in_keys <= wanted:
        return None
    total = counts.available + counts.held if in_keys <= wanted else 0
    for state, number in (
        ("scheduled", counts.scheduled),
        ("in_flight", counts.in_flight),
        ("buried", counts.buried),
        ("done", counts.done),
    ):
        total += number if state in wanted else 0
    return total
