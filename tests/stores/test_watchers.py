"""Who watches is woken in its own event loop, as long as that runs."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from leasedkeyq.stores.watchers import Watchers


async def test_only_those_who_watch_a_queue_are_woken() -> None:
    watchers = Watchers()
    woken: list[str] = []
    loop = asyncio.get_running_loop()
    remove = watchers.add("a", lambda: woken.append("a"), loop)
    watchers.add("a", lambda: woken.append("also a"), loop)
    watchers.add("b", lambda: woken.append("b"), loop)
    watchers.wake(["a", "a", "absent"])
    await asyncio.sleep(0)
    assert woken == ["a", "also a"]
    remove()
    remove()
    watchers.wake_all()
    await asyncio.sleep(0)
    assert sorted(woken[2:]) == ["also a", "b"]


def test_a_watcher_whose_event_loop_was_closed_does_not_count() -> None:
    watchers = Watchers()
    open_loop, closed_loop = asyncio.new_event_loop(), asyncio.new_event_loop()
    woken: list[str] = []
    watchers.add("q", lambda: woken.append("closed"), closed_loop)
    assert watchers
    closed_loop.close()
    assert not watchers
    remove = watchers.add("q", lambda: woken.append("open"), open_loop)
    assert watchers
    watchers.wake(["q"])
    open_loop.run_until_complete(asyncio.sleep(0))
    assert woken == ["open"]
    assert len(watchers._loops) == 1
    remove()
    assert not watchers
    assert not watchers._by_queue
    open_loop.close()


class Interrupted(dict[str, Any]):
    """While somebody comes, somebody else goes, in another thread."""

    def __init__(self, content: dict[str, Any], go: Callable[[], None]) -> None:
        super().__init__(content)
        self.other = threading.Thread(target=go)

    def setdefault(self, key: str, default: Any = None) -> Any:
        found = super().setdefault(key, default)
        self.other.start()
        self.other.join(0.2)  # for as long as it takes if it is not kept waiting
        return found


async def test_a_watcher_that_comes_while_the_last_one_goes_is_woken() -> None:
    watchers = Watchers()
    loop = asyncio.get_running_loop()
    remove = watchers.add("q", lambda: None, loop)
    interrupted = Interrupted(watchers._by_queue, remove)
    watchers._by_queue = interrupted
    woken: list[str] = []
    watchers.add("q", lambda: woken.append("q"), loop)
    interrupted.other.join()
    watchers.wake(["q"])
    await asyncio.sleep(0)
    assert woken == ["q"]
