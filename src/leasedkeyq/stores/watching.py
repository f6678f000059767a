"""Who wants to hear of changes in which queue."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from contextlib import suppress


class Watchers:
    """Callbacks by queue, each called in its own event loop; safe to wake from any thread."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[object, Callable[[], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_queue)

    def add(
        self, queue: str, wake: Callable[[], None], loop: AbstractEventLoop
    ) -> Callable[[], None]:
        """Call `wake` in `loop` when `queue` changes, until the returned function is called."""
        token = object()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(wake)

        def remove() -> None:
            watchers = self._by_queue.get(queue)
            if watchers is not None:
                watchers.pop(token, None)
                if not watchers:
                    self._by_queue.pop(queue, None)

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
