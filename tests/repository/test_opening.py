"""Opening, closing, forking and forgetting a repository."""

import asyncio
import gc
import json
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.errors import QueueClosedError, StoreError
from leasedkeyq.repository import QueueItemStatus, QueueRepository, TransactionError
from leasedkeyq.repository.bridge import Bridge
from leasedkeyq.stores import Claim, MemoryStore, connect
from tests.repository.support import (
    SHARED_KINDS,
    World,
    finish,
    item,
    open_session,
    program,
    source_of,
    types,
)

WAIT = 60


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "leasedkeyq" in thread.name}


# Where it is


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_a_path_is_a_document(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a b%20é.{suffix}"
    with QueueRepository(path, max_size=4, default_max_retries=5) as repository:
        repository.enqueue(item())
        assert repository.name == "a b%20é"
        assert (repository.max_size, repository.default_max_retries) == (4, 5)
    text = path.read_text(encoding="utf-8")
    assert "work" in text
    if suffix == "json":
        document = json.loads(text)
        assert document["max_size"] == 4
        assert document["items"][0]["type"] == "work"
    # What the document says goes before what a later program says.
    with QueueRepository(str(path), max_size=9, default_max_retries=9) as repository:
        assert (repository.max_size, repository.default_max_retries) == (4, 5)
    with pytest.raises(StoreError, match="other"):
        QueueRepository(path, "other")


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with QueueRepository("queue.yaml", "jobs") as repository:
        assert repository.name == "jobs"
        repository.enqueue(item())
    assert (tmp_path / "queue.yaml").exists()


def test_a_url(tmp_path: Path) -> None:
    source = f"sqlite://{tmp_path}/jobs.db"
    with QueueRepository(source, "a") as a, QueueRepository(source, "b") as b:
        a.enqueue(item("in a"))
        b.enqueue(item("in b"))
        assert (types(a), types(b)) == (["in a"], ["in b"])
    with QueueRepository("memory://") as repository:
        repository.enqueue(item())


def test_a_file_url_has_many_queues(tmp_path: Path) -> None:
    source = f"file://{tmp_path}/queues.json"
    with QueueRepository(source, "a", max_size=1) as a, QueueRepository(source, "b") as b:
        a.enqueue(item("in a"))
        b.enqueue(item("in b"))
        assert (types(a), types(b)) == (["in a"], ["in b"])
        assert (a.max_size, b.max_size) == (1, None)


@pytest.mark.parametrize(
    "source, error, match",
    [
        ("jobs.db", ValueError, "sqlite://"),
        ("queue", ValueError, "document"),
        ("nothing:///x", ValueError, "no store for the scheme"),
        (Path("nowhere/at/all/queue.yaml"), StoreError, "nowhere"),
        (7, TypeError, "path, a URL or a Store"),
    ],
)
def test_what_cannot_be_opened(source: Any, error: type[Exception], match: str) -> None:
    before = threads()
    with pytest.raises(error, match=match):
        QueueRepository(source)
    assert threads() == before


@pytest.mark.parametrize(
    "options, match",
    [
        ({"max_size": -1}, "max_size"),
        ({"default_max_retries": -1}, "default_max_retries"),
        ({"lease_time": 0}, "lease_time"),
        ({"keep_finished": -1}, "keep_finished"),
        ({"name": ""}, "name"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], match: str) -> None:
    before = threads()
    with pytest.raises(ValueError, match=match):
        QueueRepository(MemoryStore(), **options)
    assert threads() == before


@pytest.mark.parametrize("name", ["link/queue.yaml", "real/../real/queue.yaml", "file://"])
def test_one_document_by_two_names(name: str, tmp_path: Path) -> None:
    """Who is inside a transaction would wait for himself, whatever he calls the document."""
    folder = tmp_path / "real"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    source = (folder / "queue.yaml").as_uri() if name == "file://" else tmp_path / name
    with (
        QueueRepository(folder / "queue.yaml") as repository,
        QueueRepository(source, "queue") as other,
        repository.transaction(),
    ):
        with pytest.raises(TransactionError, match="same store"):
            other.stats()
        with pytest.raises(TransactionError, match="same store"):
            QueueRepository(folder / "queue.yaml")


def test_stores_in_memory_are_different_places() -> None:
    with QueueRepository("memory://") as first, QueueRepository("memory://") as second:
        with first.transaction() as queue:
            second.enqueue(item("second"))
            queue.enqueue(item("first"))
        assert (types(first), types(second)) == (["first"], ["second"])


# The end


def test_closed(world: World) -> None:
    repository = world.open()
    with repository as entered:
        assert entered is repository
        assert not entered.closed
    assert repository.closed
    repository.close()
    for call in (repository.get_queue, repository.dequeue, repository.stats, repository.recover):
        with pytest.raises(QueueClosedError, match="closed"):
            call()
    with pytest.raises(QueueClosedError):
        repository.enqueue(item())
    with pytest.raises(QueueClosedError):
        _ = repository.max_size


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_closing_ends_the_threads(kind: str, tmp_path: Path) -> None:
    before = threads()
    with QueueRepository(source_of(kind, tmp_path)) as repository:
        assert repository.dequeue(0.001) is None
        assert threads() > before
    assert threads() == before


def test_a_store_that_was_passed_in_stays_open(world: World) -> None:
    first, second = world.open(), world.open()
    first.enqueue(item())
    first.close()
    assert types(second) == ["work"]
    second.close()
    third = world.open()
    assert types(third) == ["work"]


def test_many_repositories_of_a_store_share_one_thread() -> None:
    store = MemoryStore()
    before = threading.active_count()
    repositories = [QueueRepository(store) for _ in range(5)]
    assert threading.active_count() == before + 1
    for repository in repositories:
        repository.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_repository_that_nobody_closed(kind: str, tmp_path: Path) -> None:
    before = threads()
    repository = QueueRepository(source_of(kind, tmp_path))
    repository.enqueue(item())
    del repository
    gc.collect()
    assert threads() == before


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_garbage_is_collected_in_any_thread(kind: str, tmp_path: Path) -> None:
    """Also in that of the store itself, which must not wait for its own end."""
    before = threads()
    left = [QueueRepository(source_of(kind, tmp_path))]
    left[0].enqueue(item())
    session = open_session(left[0])

    def drop(items: Any) -> list[Any]:
        left.clear()
        gc.collect()
        assert session.bridge._closing
        return []

    session.call(session.edit(drop, None))
    session.bridge._thread.join(WAIT)
    assert threads() == before


@pytest.mark.parametrize("timeout", ["0.001", ""])
@pytest.mark.parametrize("kind", ["memory", *SHARED_KINDS])
def test_a_program_ends_though_somebody_waited(kind: str, timeout: str, tmp_path: Path) -> None:
    source = "memory://" if kind == "memory" else source_of(kind, tmp_path)
    assert finish(program("leave_waiting", source, timeout), WAIT) == ""


def test_nothing_is_taken_on_after_the_end() -> None:
    bridge = Bridge.to(MemoryStore())
    entered, go = threading.Event(), threading.Event()
    done: list[str] = []

    async def busy() -> None:
        entered.set()
        assert go.wait(WAIT)

    async def call() -> None:
        done.append("before")

    async def late() -> None:
        done.append("after")

    bridge.submit(busy())
    assert entered.wait(WAIT)
    before = bridge.submit(call())
    bridge.leave(close_store=False, wait=False)
    with pytest.raises(QueueClosedError):
        bridge.submit(late())
    with pytest.raises(QueueClosedError):
        bridge.start(late)
    go.set()
    before.result(WAIT)
    bridge._thread.join(WAIT)
    assert done == ["before"]


def test_calls_and_closing_race(tmp_path: Path) -> None:
    """A call either does its work or says that the repository is closed; none hangs."""
    for turn in range(20):
        repository = QueueRepository(MemoryStore())
        barrier = threading.Barrier(5)

        def call(number: int, repository: Any = repository, barrier: Any = barrier) -> str:
            barrier.wait(WAIT)
            try:
                if number % 2:
                    repository.enqueue(item())
                else:
                    repository.stats()
            except QueueClosedError:
                return "closed"
            return "done"

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call, number) for number in range(4)]
            barrier.wait(WAIT)
            repository.close()
            assert {future.result(WAIT) for future in calls} <= {"closed", "done"}, turn


def test_from_inside_an_event_loop(tmp_path: Path) -> None:
    """It works; it blocks the loop, as the docs say."""

    async def main() -> list[str]:
        with QueueRepository(source_of("sqlite", tmp_path)) as repository:
            repository.enqueue(item())
            with repository.transaction() as queue:
                queue.enqueue(item("second"))
            return types(repository)

    assert asyncio.run(main()) == ["work", "second"]


# Interrupted


class Interruption(BaseException):
    """As `KeyboardInterrupt`, which pytest would take for its own."""


def interrupt(function: Callable[[], object], after: Callable[[], object]) -> None:
    """Call a function in this thread, and interrupt it when `after` has returned."""

    def handle(*_: object) -> None:
        raise Interruption

    def run() -> None:
        after()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, handle)
    try:
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(run)
            with pytest.raises(Interruption):
                function()
            told.result(WAIT)
    finally:
        signal.signal(signal.SIGUSR1, old)


def hold(repository: QueueRepository, entered: threading.Event, go: threading.Event) -> None:
    """Keep everybody else waiting."""
    with repository.transaction():
        entered.set()
        assert go.wait(WAIT)


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_an_interrupted_dequeue_takes_nothing(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    with QueueRepository(source) as repository, QueueRepository(source) as other:
        repository.enqueue(item())
        entered, go = threading.Event(), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            holder = pool.submit(hold, other, entered, go)
            assert entered.wait(WAIT)
            try:
                interrupt(repository.dequeue, lambda: wait_for_call(repository))
            finally:
                go.set()
            holder.result(WAIT)
        # Whatever came for the interrupted call goes back, and does not count as an attempt.
        got = repository.dequeue(WAIT)
        assert got is not None
        assert got.retry_count == 0


@pytest.mark.parametrize("timeout", [0, WAIT])
def test_what_came_just_before_the_interruption_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    def interrupted(answer: "Future[object]") -> object:
        answer.result(WAIT)
        raise Interruption

    repository = world.open()
    repository.enqueue(item())
    monkeypatch.setattr("leasedkeyq.repository.session.wait_for", interrupted)
    with pytest.raises(Interruption):
        repository.dequeue(timeout)
    monkeypatch.undo()
    got = repository.dequeue(WAIT)
    assert got is not None
    assert got.retry_count == 0


def wait_for_call(repository: QueueRepository) -> None:
    """Until a thread waits for a claim."""
    claims = open_session(repository)._claims
    while not claims._serving:
        threading.Event().wait(0.001)


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_an_interrupted_transaction_does_not_happen(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    with QueueRepository(source) as repository, QueueRepository(source) as other:
        repository.enqueue(item())
        entered, go = threading.Event(), threading.Event()

        def clear() -> None:
            with repository.transaction() as queue:
                queue.items.clear()

        with ThreadPoolExecutor(1) as pool:
            holder = pool.submit(hold, other, entered, go)
            assert entered.wait(WAIT)
            try:
                interrupt(clear, lambda: threading.Event().wait(0.05))
            finally:
                go.set()
            holder.result(WAIT)
        assert types(repository) == ["work"]


# Forks


def in_a_fork(function: Callable[[], object]) -> Any:
    """What a function returns, or raises, in a forked process."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # From Python 3.12 on a fork among threads is warned of; what it leads to is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(WAIT)  # one that hangs must not keep the test waiting
        try:
            answer: object = function()
        except BaseException as error:
            answer = (type(error).__name__, str(error))
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(said)


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_fork_opens_its_store_again(kind: str, tmp_path: Path) -> None:
    with QueueRepository(source_of(kind, tmp_path)) as repository:
        repository.enqueue(item("before"))
        got = repository.dequeue()
        assert got is not None

        def child() -> list[str]:
            repository.enqueue(item("in the child"))
            # The child goes on with what its parent took.
            repository.complete(got.id)
            repository.close()
            return sorted(threads())

        assert in_a_fork(child) == []
        assert sorted(types(repository)) == ["before", "in the child"]
        done = repository.get_item(got.id)
        assert done is not None
        assert done.status is QueueItemStatus.COMPLETED
        repository.enqueue(item("after"))
        assert repository.stats()["pending"] == 2


@pytest.mark.parametrize("source", ["sqlite:a%20b.db", "file:a%20b.json", "a b.json"])
def test_a_relative_path_is_that_of_the_first_time(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon forks and changes its folder."""
    here, elsewhere = tmp_path / "h e%re", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    with QueueRepository(source) as repository:
        repository.enqueue(item())

        def child() -> list[str]:
            os.chdir(elsewhere)
            return types(repository)

        assert in_a_fork(child) == ["work"]
        assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_fork_among_busy_threads(kind: str, tmp_path: Path) -> None:
    with QueueRepository(source_of(kind, tmp_path)) as repository:
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                repository.enqueue(item())
                repository.dequeue()

        with ThreadPoolExecutor(3) as pool:
            working = [pool.submit(work) for _ in range(3)]
            try:
                for number in range(5):
                    name = f"child {number}"
                    assert in_a_fork(partial(repository.enqueue, item(name))) is None
            finally:
                stop.set()
            for future in working:
                future.result(WAIT)
        assert {f"child {number}" for number in range(5)} <= set(types(repository))


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_fork_does_not_disturb_who_waits(kind: str, tmp_path: Path) -> None:
    with QueueRepository(source_of(kind, tmp_path)) as repository, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(repository.dequeue, WAIT) for _ in range(2)]
        for _ in range(2):
            wait_for_waiters(repository, 2)
            assert in_a_fork(lambda: 7) == 7
            assert not any(future.done() for future in waiting)
        for name in ("first", "second"):
            assert in_a_fork(partial(repository.enqueue, item(name))) is None
        got = [future.result(WAIT) for future in waiting]
        assert {made.type for made in got if made is not None} == {"first", "second"}


def test_a_fork_leaves_those_alone_who_wait_on_what_stays_open(world: World) -> None:
    with world.open() as given, QueueRepository("memory://") as memory:
        for repository in (given, memory):
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(repository.dequeue, WAIT)
                wait_for_waiters(repository, 1)
                assert in_a_fork(lambda: 7) == 7
                assert not waiting.done()
                repository.enqueue(item())
                assert waiting.result(WAIT) is not None


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_fork_in_a_transaction_does_not_wait_for_those_who_wait_for_it(
    kind: str, tmp_path: Path
) -> None:
    with QueueRepository(source_of(kind, tmp_path)) as repository, ThreadPoolExecutor(1) as pool:
        changes = open_session(repository)._changes
        with repository.transaction() as queue:
            calling = pool.submit(repository.enqueue, item("after"))
            while not changes._serving:
                threading.Event().wait(0.001)
            assert in_a_fork(lambda: 7) == 7
            queue.enqueue(item("inside"))
        calling.result(WAIT)
        assert types(repository) == ["inside", "after"]


def test_a_fork_waits_for_those_inside_what_stays_open(tmp_path: Path) -> None:
    """They may be using what does not, and begin to use that again when the fork is over."""
    with (
        QueueRepository("memory://") as memory,
        QueueRepository(source_of("sqlite", tmp_path)) as repository,
        ThreadPoolExecutor(1) as pool,
    ):
        entered = threading.Event()

        def change() -> None:
            with memory.transaction():
                with repository.transaction() as queue:
                    entered.set()
                    while not repository._connection._traffic._stopped:
                        threading.Event().wait(0.001)
                    queue.enqueue(item("before"))
                repository.enqueue(item("after"))

        changing = pool.submit(change)
        assert entered.wait(WAIT)
        assert in_a_fork(lambda: types(repository))[0] == "before"
        changing.result(WAIT)
        assert types(repository) == ["before", "after"]


def wait_for_waiters(repository: QueueRepository, count: int) -> None:
    while True:
        session = repository._connection._session
        if session is not None and len(session._pump._line) == count:
            return
        threading.Event().wait(0.001)


def test_a_fork_waits_for_transactions(tmp_path: Path) -> None:
    """Those of other threads, also where they use other repositories meanwhile."""
    sources = [source_of(kind, tmp_path) for kind in SHARED_KINDS]
    with QueueRepository(sources[0]) as first, QueueRepository(sources[1]) as second:
        for outer, inner in ((first, second), (second, first)):
            entered = threading.Event()

            def change(outer: Any = outer, inner: Any = inner, entered: Any = entered) -> None:
                with outer.transaction() as queue:
                    entered.set()
                    while not inner._connection._traffic._stopped:
                        threading.Event().wait(0.001)
                    inner.enqueue(item("inner"))
                    queue.enqueue(item("outer"))

            with ThreadPoolExecutor(1) as pool:
                changing = pool.submit(change)
                assert entered.wait(WAIT)
                times = 1 if outer is first else 2
                seen = in_a_fork(lambda: sorted(types(first) + types(second)))
                assert seen == ["inner"] * times + ["outer"] * times
                changing.result(WAIT)


def test_a_store_in_memory_stays_in_its_process() -> None:
    with QueueRepository("memory://") as repository:
        repository.enqueue(item())
        assert in_a_fork(repository.stats)[0] == "StoreError"
        assert types(repository) == ["work"]


def test_a_store_cannot_be_carried_over_a_fork(world: World) -> None:
    repository = world.open()
    repository.enqueue(item())
    name, message = in_a_fork(repository.stats)
    assert name == "StoreError"
    assert "give it a path or a URL" in message
    assert repository.stats()["pending"] == 1


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_transaction_cannot_be_carried_over_a_fork(kind: str, tmp_path: Path) -> None:
    with QueueRepository(source_of(kind, tmp_path)) as repository:
        transaction = repository.transaction()
        queue = transaction.__enter__()

        def child() -> None:
            queue.enqueue(item("in the child"))
            transaction.__exit__(None, None, None)

        name, message = in_a_fork(child)
        assert name == TransactionError.__name__
        assert "fork" in message
        queue.enqueue(item("in the parent"))
        transaction.__exit__(None, None, None)
        assert types(repository) == ["in the parent"]


def test_a_fork_leaves_a_closed_repository_closed(tmp_path: Path) -> None:
    repository = QueueRepository(source_of("sqlite", tmp_path))
    repository.close()
    assert in_a_fork(repository.stats)[0] == "QueueClosedError"


def test_the_bridge_stays_with_its_process(tmp_path: Path) -> None:
    store = connect(source_of("sqlite", tmp_path))
    bridge = Bridge.to(store)
    assert in_a_fork(lambda: bridge.leave(close_store=True)) is None
    assert bridge.call(store.claim([Claim((("queue", 1),))])) == [()]
    bridge.leave(close_store=True)
