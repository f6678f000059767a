"""Dead letters with the same error, but for the numbers and names in it."""

import re

from leasedkeyq.lanes.running.remote_errors import split
from leasedkeyq.model.requests import StoredItem
from leasedkeyq.operations.views import ErrorGroup

LONGEST = 300
"""Characters of an error by which letters are grouped."""
LEFT_OUT = "…"
"""Stands for what differs between the letters of a group."""
_DIFFERING = re.compile(
    r"""
      '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*"                            # names in quotes
    | [a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s'"<>()\[\]]+                   # addresses
    | \b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b          # UUIDs
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                                     # mail addresses
    | (?<![\w/])(?:[A-Za-z]:)?(?:[\\/][\w.@~+-]+){2,}[\\/]?            # paths
    | \b0x[0-9a-fA-F]+\b                                              # addresses of memory
    | \b(?=[0-9a-f]*[0-9])[0-9a-f]{8,}\b                              # digests and other ids
    | \b[a-zA-Z]+[-_]\d[\w-]*                                         # ids such as order-17
    | (?<![A-Za-z_])[+-]?\d+(?:[.,:_]\d+)*(?:[eE][+-]?\d+)?            # numbers, times, versions
    """,
    re.VERBOSE,
)
_REPEATED = re.compile(rf"{LEFT_OUT}(?:[\s,;:/x-]*{LEFT_OUT})+")
"""A list of what differs counts as one, however long it is."""
_RETRIED = re.compile(r"; tried again after \S+ s$")


def group_of(error: str) -> str:
    """What the error of a letter is grouped by: its first line, without what differs."""
    line = _RETRIED.sub("", split(error)[0])[: 4 * LONGEST]
    return _REPEATED.sub(LEFT_OUT, _DIFFERING.sub(LEFT_OUT, line))[:LONGEST]


class ErrorGrouping:
    """Collects groups, letter by letter."""

    def __init__(self) -> None:
        self._groups: dict[str, ErrorGroup] = {}

    def add(self, item: StoredItem) -> None:
        """Count a buried item."""
        name = group_of(item.error)
        failed_at = item.history[-1].ended_at if item.history else item.put_at
        group = self._groups.get(name)
        if group is None:
            line = split(item.error)[0]
            self._groups[name] = ErrorGroup(
                error=name,
                example=line,
                kinds={item.kind: 1},
                count=1,
                first=failed_at,
                last=failed_at,
                queues={item.queue: 1},
            )
            return
        group.kinds[item.kind] = group.kinds.get(item.kind, 0) + 1
        group.queues[item.queue] = group.queues.get(item.queue, 0) + 1
        self._groups[name] = ErrorGroup(
            error=name,
            example=group.example,
            kinds=group.kinds,
            count=group.count + 1,
            first=min(group.first, failed_at),
            last=max(group.last, failed_at),
            queues=group.queues,
        )

    def groups(self) -> tuple[ErrorGroup, ...]:
        """The groups, the largest first."""
        return tuple(sorted(self._groups.values(), key=lambda group: (-group.count, -group.last)))
