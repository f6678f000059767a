"""The threads that use the stores of this process, so that a fork can wait for them."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import Final

STEP: Final = 0.05
"""Seconds after which waiting calls are sent away again."""


class _OwnPlaces(threading.local):
    def __init__(self) -> None:
        self.places: list[object] = []


class ForkGate:
    """Counts the threads that use each place, and holds them back while the process forks.

    A thread that is waited for may begin to use other places at any time.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._users: Counter[object] = Counter()
        self._stopped = False
        self._staying: Collection[object] = ()
        self._own = _OwnPlaces()

    @contextmanager
    def at(self, place: object) -> Generator[None]:
        """Use a place."""
        own = self._own.places
        with self._free:
            while self._stopped and all(mine in self._staying for mine in own):
                self._free.wait()
            self._users[place] += 1
        own.append(place)
        try:
            yield
        finally:
            own.remove(place)
            with self._free:
                left = self._users[place] - 1
                if left:
                    self._users[place] = left
                else:
                    del self._users[place]
                if self._stopped:
                    self._free.notify_all()

    def stop(
        self, send_away: Callable[[], None], staying: Callable[[], Collection[object]]
    ) -> None:
        """Let no thread begin any more, and wait until all others have finished.

        `send_away` is called to end the calls that only wait for an item. The threads at places
        that are `staying` are not waited for.
        """
        with self._free:
            while self._stopped:
                self._free.wait()
            self._stopped = True
        while True:
            send_away()
            with self._free:
                self._staying = staying()
                # A call that had begun before may begin to wait after that.
                if self._free.wait_for(self._is_alone, timeout=STEP):
                    return

    def _is_alone(self) -> bool:
        own = self._own.places
        return all(
            count <= own.count(place) or place in self._staying
            for place, count in self._users.items()
        )

    def resume(self) -> None:
        """Let all threads begin again."""
        with self._free:
            self._stopped = False
            self._free.notify_all()

    def begin_anew(self) -> None:
        """In a new process there is no other thread."""
        self._free = threading.Condition()
        self._users = Counter(self._own.places)
        self._stopped = False
