"""Programs for other processes: ``python -m tests.repository.programs NAME ARGUMENTS``."""

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from leasedkeyq.repository import QueueItem, QueueRepository


def work(source: str, threads: str) -> None:
    """Complete items in several threads until there are none; print their numbers."""
    done: list[int] = []
    errors: list[str] = []
    with QueueRepository(source) as repository:

        def run() -> None:
            try:
                while (item := repository.dequeue()) is not None:
                    repository.complete(item.id)
                    done.append(item.payload["number"])
            except BaseException as error:
                errors.append(repr(error))

        workers = [threading.Thread(target=run) for _ in range(int(threads))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    print(json.dumps({"done": done, "errors": errors}))


def count(source: str, item_id: str, turns: str) -> None:
    """Count up in an item, by `update_item` and by transactions, of which every third fails."""
    with QueueRepository(source) as repository:

        def add(item: QueueItem) -> None:
            item.payload["count"] += 1

        for turn in range(int(turns)):
            repository.update_item(item_id, add)
            with suppress(ZeroDivisionError), repository.transaction() as queue:
                add(queue.items[0])
                assert 1 // (turn % 3) >= 0


def die(source: str, lease_time: str) -> None:
    """Take an item, say so, and hang until somebody kills this process."""
    with QueueRepository(source, lease_time=float(lease_time)) as repository:
        item = repository.dequeue()
        assert item is not None
        print(item.id, flush=True)
        sys.stdin.read()


def die_in_a_transaction(source: str) -> None:
    """Begin a transaction, say so, and hang until somebody kills this process."""
    with QueueRepository(source) as repository, repository.transaction() as queue:
        queue.items.clear()
        print("inside", flush=True)
        sys.stdin.read()


def leave_open(source: str) -> None:
    """End without closing anything."""
    repository = QueueRepository(source)
    repository.enqueue(QueueItem.create("left open", {}))
    print(repository.stats()["pending"])


def leave_waiting(source: str, timeout: str) -> None:
    """End without closing anything, after waiting, or while a daemon thread waits for ever."""
    repository = QueueRepository(source)
    if timeout:
        assert repository.dequeue(float(timeout)) is None
        return
    threading.Thread(target=repository.dequeue, args=(None,), daemon=True).start()
    session = repository._connection._session
    assert session is not None
    while not session._pump._line:
        threading.Event().wait(0.001)


if __name__ == "__main__":
    program: Callable[..., None] = globals()[sys.argv[1]]
    program(*sys.argv[2:])
