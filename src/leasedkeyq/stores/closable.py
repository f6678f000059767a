"""What a process opens and closes: the one check whether it may still be used."""

import os

from leasedkeyq.errors import StoreError, store_closed, store_of_another_process


class Closable:
    """A store, or the batcher behind it: of the process that made it, until it is closed.

    An engine that finds its threads or connections ended in the middle of a call, as the store was
    closed meanwhile, raises `store_closed` itself: that is no check, but a failure.

    Args:
        name: What errors call it, such as ``"SQLite store /srv/jobs.db"``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._outdated = ""
        """Why nothing can be done with it but to look at its version; empty if all can."""
        self._process = os.getpid()

    def _check_usable(self) -> None:
        """Refuse a call of what is closed, outdated, or was carried over a fork."""
        self._check_open()
        if self._outdated:
            raise StoreError(self._outdated)

    def _check_open(self) -> None:
        """Refuse a call of what is closed, or was carried over a fork."""
        if self._closed:
            raise store_closed(self._name)
        if self._process != os.getpid():
            raise store_of_another_process(self._name)


def outdated(name: str, version: int, wanted: int) -> str:
    """Why a store that was opened with ``migrate=False`` refuses to work.

    Args:
        name: What errors call the store.
        version: What is there; 0 for nothing.
        wanted: What this leasedkeyq works with.
    """
    there = f"is of version {version}" if version else "has nothing in it yet"
    return (
        f"the {name} {there}, this leasedkeyq works with version {wanted}, and the store was "
        "opened with migrate=False; open it without that, or run leasedkeyq migrate"
    )
