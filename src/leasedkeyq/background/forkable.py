"""Doors of this process that a fork has to wait for, and that are opened again afterwards."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from leasedkeyq.background.fork_gate import ForkGate
from leasedkeyq.stores.system.forks import forks


class Forkable(ABC):
    """Something that has a store open, for the threads of one process.

    A store that is open at a fork is in the hands of two processes, and that does harm: SQLite
    does not notice what the other one does. So stores are closed before a fork, when no thread uses
    them, and opened again afterwards, on both sides.

    Attributes:
        place: Says which store this is: two with the same place must not wait for each other.
    """

    _all: ClassVar["weakref.WeakSet[Forkable]"] = weakref.WeakSet()
    _gate: ClassVar = ForkGate()
    place: object

    @abstractmethod
    def is_open(self) -> bool:
        """Whether it has its store open."""

    @abstractmethod
    def closes_for_fork(self) -> bool:
        """Whether it is open, and can be closed before a fork and opened again by both sides."""

    @abstractmethod
    def send_away(self) -> None:
        """End the calls that only wait; they begin again when the fork is over."""

    @abstractmethod
    def close_for_fork(self) -> None:
        """Close it; no thread uses it."""

    @abstractmethod
    def forget(self) -> None:
        """In the new process: let go of what belongs to the old one, without closing it."""

    @classmethod
    def before_fork(cls) -> None:
        """Wait until no thread uses a store, and close all that can be opened again."""
        cls._gate.stop(cls._send_all_away, cls._staying)
        for door in list(cls._all):
            if door.closes_for_fork():
                door.close_for_fork()

    @classmethod
    def _staying(cls) -> set[object]:
        """The places of the stores that stay open, for the old process only."""
        return {
            door.place for door in list(cls._all) if door.is_open() and not door.closes_for_fork()
        }

    @classmethod
    def _send_all_away(cls) -> None:
        for door in list(cls._all):
            if door.closes_for_fork():
                door.send_away()

    @classmethod
    def after_fork_in_parent(cls) -> None:
        """Go on."""
        cls._gate.resume()

    @classmethod
    def after_fork_in_child(cls) -> None:
        """Go on without what belongs to the old process."""
        for renew in _renewed:
            renew()
        cls._gate.begin_anew()
        for door in list(cls._all):
            door.forget()


_renewed: list[Callable[[], None]] = []


def renew_after_fork(renew: Callable[[], None]) -> None:
    """Have a function called in every new process before its doors go on."""
    _renewed.append(renew)


forks.add_door(Forkable.before_fork, Forkable.after_fork_in_parent, Forkable.after_fork_in_child)
