"""The groups of items in a document that is one queue.

The items of a group are the values of one key. In the document each is an item like the others: a
person may add one, take one out, move one to another place or give it another group. Then the order
of the document is the order of the group. What is the first item stays so.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from leasedkeyq.engines.file.document.document import IN_LINE, ItemFacts, ReadValue
from leasedkeyq.engines.file.document.json_fields import NonsenseError
from leasedkeyq.stores.group_keys import group_of


def arrange_groups(found: Sequence[ReadValue]) -> list[ReadValue]:
    """Let one item of each group be the head of its key, and the others wait in its line.

    Raises:
        NonsenseError: Two items of a group are being processed, or one that is not the first; or a
            person has added an item whose id is there.
    """
    groups: defaultdict[str, list[ReadValue]] = defaultdict(list)
    for one in found:
        if _is_in_group(one.facts):
            groups[one.facts.key].append(one)
    if not groups:
        return list(found)
    _check_ids(found)
    held = {one.facts.key for one in found if one.facts.holds}
    heads = {id(_head(key, groups[key]).entry) for key in groups.keys() - held}
    arranged: list[ReadValue] = []
    for one in found:
        facts = one.facts
        if _is_in_group(facts):
            facts = _placed(facts, head=id(one.entry) in heads)
            one.entry.in_line = facts.state in IN_LINE
        arranged.append(one._replace(facts=facts))
    return arranged


def _is_in_group(facts: ItemFacts) -> bool:
    """Whether it is an item of a group that is pending or processing."""
    return facts.name != facts.key and facts.state not in {"buried", "done"}


def _check_ids(found: Sequence[ReadValue]) -> None:
    live: dict[str, ItemFacts] = {}
    for facts, entry, where in found:
        if facts.state in {"buried", "done"}:
            continue
        other = live.setdefault(entry.key, facts)
        if other is not facts and not all(_is_known(one) for one in (facts, other)):
            raise NonsenseError(f"{where}: the id {entry.key!r} is there twice")


def _is_known(facts: ItemFacts) -> bool:
    return bool(facts.payload.id) and not facts.joins


def _head(key: str, values: Sequence[ReadValue]) -> ReadValue:
    """The item of a group that the others wait for."""
    leased = [one for one in values if one.facts.lease is not None]
    heads = [one for one in values if one.facts.state not in IN_LINE and not one.facts.joins]
    if len({id(one.entry) for one in (*leased, *heads)}) > 1:
        raise NonsenseError(
            f"{(leased or heads)[-1].where}: only the first item of a group can be processing, and "
            f"one at a time; the group is {group_of(key)!r}"
        )
    return (*leased, *heads, *values)[0]


def _placed(facts: ItemFacts, *, head: bool) -> ItemFacts:
    """An item as the head of its key, or in its line."""
    if facts.lease is not None or (facts.state in IN_LINE) is not head:
        return facts
    if not head:
        return msgspec.structs.replace(facts, state="in_line", place=None)
    return msgspec.structs.replace(facts, state="available" if facts.due is None else "scheduled")
