"""The keys of the groups of a repository.

The items of a group wait in the line of one key, one behind the other. `leasedkeyq.repository` puts
them there, and the document of a repository shows each as an item with its group.
"""

from typing import Final

GROUP_MARK: Final = "\x1f"
"""What the key of a group begins with, and the id of no item."""


def group_key(group: str) -> str:
    """The key of a group."""
    return GROUP_MARK + group


def is_group_key(key: str) -> bool:
    """Whether a key is that of a group."""
    return key.startswith(GROUP_MARK)


def group_of(key: str) -> str | None:
    """The group whose key it is, or None."""
    return key[len(GROUP_MARK) :] if is_group_key(key) else None
