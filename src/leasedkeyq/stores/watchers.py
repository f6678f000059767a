"""Who wants to hear of changes in which queue."""

import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Iterable

LISTENER = "leasedkeyq listener"
"""The name of tasks that listen to a server until their store is closed: nobody waits for them."""


class Watchers:
    """Callbacks by queue, each called in its own event loop; for use by any thread.

    True while anybody watches. Those whose event loop was closed do not count.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_queue: dict[str, dict[object, Callable[[], None]]] = {}
        self._loops: dict[object, AbstractEventLoop] = {}

    def __bool__(self) -> bool:
        return any(not loop.is_closed() for loop in list(self._loops.values()))

    def add(
        self, queue: str, wake: Callable[[], None], loop: AbstractEventLoop
    ) -> Callable[[], None]:
        """Call `wake` in `loop` when `queue` changes, until the returned function is called."""
        token = object()

        def wake_who_is_still_there() -> None:
            if token in self._loops:
                wake()

        def notify() -> None:
            try:
                if _running_loop() is loop:
                    loop.call_soon(wake_who_is_still_there)  # nothing has to wake it
                else:
                    loop.call_soon_threadsafe(wake_who_is_still_there)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                remove()

        def remove() -> None:
            with self._lock:
                self._loops.pop(token, None)
                watchers = self._by_queue.get(queue, {})
                watchers.pop(token, None)
                if not watchers:
                    self._by_queue.pop(queue, None)

        with self._lock:
            self._loops[token] = loop
            self._by_queue.setdefault(queue, {})[token] = notify
        return remove

    def wake(self, queues: Iterable[str]) -> None:
        """Something happened in these queues."""
        if self._by_queue:
            for queue in set(queues):
                for notify in list(self._by_queue.get(queue, {}).values()):
                    notify()

    def wake_all(self) -> None:
        """Something may have happened anywhere."""
        self.wake(list(self._by_queue))


def _running_loop() -> AbstractEventLoop | None:
    try:
        return get_running_loop()
    except RuntimeError:
        return None
