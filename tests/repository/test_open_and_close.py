"""Opening, closing, interrupting and forgetting a repository."""

import asyncio
import gc
import json
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import QueueClosedError, StoreError
from leasedkeyq.repository import QueueRepository, TransactionError
from leasedkeyq.repository.loop_thread import LoopThread
from tests.repository.support import (
    SHARED_KINDS,
    WAIT,
    World,
    finish,
    item,
    open_session,
    program,
    source_of,
    threads,
    types,
)
from tests.servers.urls import empty_store

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
    source = f"sqlite:///{tmp_path}/jobs.db"
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
        assert session.loop_thread._closing
        return []

    session.call(session.edit(drop, None))
    session.loop_thread._thread.join(WAIT)
    assert threads() == before


@pytest.mark.parametrize("timeout", ["0.001", ""])
@pytest.mark.parametrize("kind", ["memory", *SHARED_KINDS])
def test_a_program_ends_though_somebody_waited(kind: str, timeout: str, tmp_path: Path) -> None:
    source = "memory://" if kind == "memory" else source_of(kind, tmp_path)
    assert finish(program("leave_waiting", source, timeout), WAIT) == ""


def test_nothing_is_taken_on_after_the_end() -> None:
    loop_thread = LoopThread.of(MemoryStore())
    entered, go = threading.Event(), threading.Event()
    done: list[str] = []

    async def busy() -> None:
        entered.set()
        assert go.wait(WAIT)

    async def call() -> None:
        done.append("before")

    async def late() -> None:
        done.append("after")

    loop_thread.submit(busy())
    assert entered.wait(WAIT)
    before = loop_thread.submit(call())
    loop_thread.leave(close_store=False, wait=False)
    with pytest.raises(QueueClosedError):
        loop_thread.submit(late())
    with pytest.raises(QueueClosedError):
        loop_thread.start(late)
    go.set()
    before.result(WAIT)
    loop_thread._thread.join(WAIT)
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


def test_what_comes_while_a_thread_is_being_interrupted_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has leased an item already when the thread says that it does not wait any more."""
    repository = world.open()
    repository.enqueue(item())
    pump = open_session(repository)._pump
    claim = pump.claim
    leased, gone = threading.Event(), threading.Event()

    async def lease(*arguments: Any) -> Any:
        claimed = await claim(*arguments)
        leased.set()
        assert gone.wait(WAIT)
        return claimed

    def interrupted(answer: "Future[object]") -> object:
        assert leased.wait(WAIT)
        assert answer.cancel()
        gone.set()
        raise Interruption

    monkeypatch.setattr(pump, "claim", lease)
    monkeypatch.setattr("leasedkeyq.repository.session.wait_for", interrupted)
    with pytest.raises(Interruption):
        repository.dequeue(WAIT)
    monkeypatch.undo()
    got = repository.dequeue(5)
    assert got is not None
    assert got.retry_count == 0


def wait_for_call(repository: QueueRepository) -> None:
    """Until a thread waits for a claim."""
    claims = open_session(repository)._claims
    while not claims._awake:
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


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_closing_leaves_no_connection_behind(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            with QueueRepository(url) as repository:
                repository.enqueue(item("a"))
                assert repository.dequeue() is not None
            gc.collect()
        assert [str(one.message) for one in told if one.category is ResourceWarning] == []
