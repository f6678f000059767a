"""Functions for other processes: ``python -m tests.repository.processes.programs NAME ...``."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from leasedkeyq.errors import StoreError
from leasedkeyq.repository import QueueItem, QueueRepository, QueueService


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


def work_in_order(source: str, journal: str, items: str, threads: str) -> None:
    """Work on so many items of groups, of which some fail first; write down begins and ends."""
    with (
        QueueRepository(source, backoff=lambda _: 0.0) as repository,
        open(journal, "ab", buffering=0) as notes,
    ):

        def run() -> None:
            while repository.stats()["completed"] < int(items):
                item = repository.dequeue()
                if item is None:
                    time.sleep(0.01)
                    continue
                fails = item.retry_count == 0 and item.payload["number"] % 3 == 1
                name = f"{item.group} {item.payload['number']}"
                notes.write(f"begin {name}\n".encode())
                notes.write(f"{'fail' if fails else 'end'} {name}\n".encode())
                if fails:
                    repository.fail(item, "not yet")
                else:
                    repository.complete(item)

        workers = [threading.Thread(target=run) for _ in range(int(threads))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


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


def wait_long(source: str, *timeouts: str) -> None:
    """Wait for items in several threads, say so, and print what each of them got."""
    got: list[str] = []

    def wait(timeout: str) -> None:
        try:
            item = repository.dequeue(float(timeout) if timeout else None)
            got.append("nothing" if item is None else item.type)
        except Exception as error:
            got.append(type(error).__name__)

    with QueueRepository(source) as repository:
        assert repository.dequeue() is None
        waiting = [threading.Thread(target=wait, args=(timeout,)) for timeout in timeouts]
        for thread in waiting:
            thread.start()
        time.sleep(0.5)  # they have asked, and found nothing
        print("waiting", flush=True)
        for thread in waiting:
            thread.join()
    print(json.dumps(sorted(got)))


def go_on(source: str) -> None:
    """Use the server before it goes away and afterwards; print what is there in the end."""
    with QueueService(QueueRepository(source)) as service:
        for number in range(3):
            service.submit_task(f"T{number}")
        task = service.get_next_task()
        assert task is not None
        print("busy", flush=True)
        sys.stdin.readline()
        service.complete_task(task)
        with service.task(timeout=60) as other:
            assert other is not None
        with service.repository.transaction() as queue:
            assert len(queue.items) == 3
        print(json.dumps(service.stats()))


def look_for_tasks(source: str) -> None:
    """Ask for tasks while the server is away; print what that raises, each time."""
    with QueueService(QueueRepository(source)) as service:
        print("ready", flush=True)
        sys.stdin.readline()
        raised: list[str] = []
        for _ in range(2):
            try:
                raised.append(f"{len(list(service.tasks(timeout=1)))} tasks")
            except StoreError as error:
                raised.append(type(error).__name__)
        print(json.dumps(raised))


def fork_alone(source: str) -> None:
    """Fork while the server is away and somebody waits; print that both processes went on."""
    repository = QueueRepository(source)
    threading.Thread(target=repository.dequeue, args=(None,), daemon=True).start()
    time.sleep(0.5)
    print("ready", flush=True)
    sys.stdin.readline()
    time.sleep(2)  # by now the store has noticed
    child = os.fork()
    if not child:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    program: Callable[..., None] = globals()[sys.argv[1]]
    program(*sys.argv[2:])
