"""A repository and forks."""

import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import QueueClosedError, connect
from leasedkeyq.repository import QueueItemStatus, QueueRepository, TransactionError
from leasedkeyq.repository.loop_thread import LoopThread
from leasedkeyq.stores import Claim
from tests.repository.support import (
    SHARED_KINDS,
    WAIT,
    World,
    item,
    open_session,
    source_of,
    threads,
    types,
)


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


@pytest.mark.parametrize("source", ["sqlite:///a%20b.db", "file:a%20b.json", "a b.json"])
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


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_an_item_that_is_handed_out_as_consumers_are_sent_away_goes_back(
    kind: str, tmp_path: Path
) -> None:
    source = source_of(kind, tmp_path)
    with QueueRepository(source) as repository, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(repository.dequeue, WAIT)
        wait_for_waiters(repository, 1)
        session = repository._connection._session
        assert session is not None
        hand_out = session._pump._hand_out

        def hand_out_and_close(*arguments: Any) -> Any:
            left = hand_out(*arguments)
            if session._pump._served:
                session._close_line()
            return left

        setattr(session._pump, "_hand_out", hand_out_and_close)  # noqa: B010  # it is a method
        with QueueRepository(source) as other:
            other.enqueue(item())
            with pytest.raises(QueueClosedError):
                waiting.result(WAIT)
            made = other.dequeue(WAIT)
            assert made is not None


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
            while not changes._awake:
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
                    while not repository._connection._gate._stopped:
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
                    while not inner._connection._gate._stopped:
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
    loop_thread = LoopThread.of(store)
    assert in_a_fork(lambda: loop_thread.leave(close_store=True)) is None
    assert loop_thread.call(store.claim([Claim((("queue", 1),))])) == [()]
    loop_thread.leave(close_store=True)
