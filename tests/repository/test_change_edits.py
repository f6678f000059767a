"""Calls of many threads that wait at a time: served together, and each by itself."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from leasedkeyq import QueueClosedError, QueueFullError
from leasedkeyq.engines.memory import MemoryStore
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError, StoreUnavailableError
from leasedkeyq.model.requests import Claim, Claimed
from leasedkeyq.repository import (
    DuplicateItemError,
    InvalidItemError,
    InvalidTransitionError,
    ItemNotFoundError,
    QueueItemStatus,
    QueueRepository,
)
from tests.repository.support import World, item, open_session, types

WAIT = 60


@contextmanager
def held_back(repository: QueueRepository, calls: int) -> Generator[Callable[[], None]]:
    """Keep calls waiting, until so many wait and the function is called."""
    entered, go, all_wait = threading.Event(), threading.Event(), threading.Semaphore(0)
    gatherer = open_session(repository)._changes
    submit = gatherer.submit

    def counted(request: Any) -> Any:
        answer = submit(request)
        all_wait.release()
        return answer

    def hold() -> None:
        with repository.transaction():
            entered.set()
            assert go.wait(WAIT)

    def let_go() -> None:
        for _ in range(calls):
            assert all_wait.acquire(timeout=WAIT)
        go.set()

    with ThreadPoolExecutor(1) as pool, patch.object(gatherer, "submit", counted):
        holder = pool.submit(hold)
        assert entered.wait(WAIT)
        try:
            yield let_go
        finally:
            go.set()
        holder.result(WAIT)


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:
        return error


def outcomes(repository: QueueRepository, calls: list[Callable[[], object]]) -> list[object]:
    """What calls return or raise that are made while the store is busy with something else."""
    with ThreadPoolExecutor(len(calls)) as pool, held_back(repository, len(calls)) as let_go:
        futures = [pool.submit(outcome, call) for call in calls]
        let_go()
        return [future.result(WAIT) for future in futures]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World("sqlite", tmp_path)
    yield world
    world.close()


def test_they_share_a_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = world.open()
    edits: list[int] = []
    edit = SqliteStore.edit

    async def counted(
        self: SqliteStore, queue: str, work: Any, *, keys: Any = None, **rest: Any
    ) -> Any:
        edits.append(-1 if keys is None else len(keys))
        return await edit(self, queue, work, keys=keys, **rest)

    monkeypatch.setattr(SqliteStore, "edit", counted)
    made = [item(str(number)) for number in range(12)]
    said = outcomes(repository, [partial(repository.enqueue, one) for one in made])
    assert said == [None] * 12
    assert sorted(types(repository)) == sorted(str(number) for number in range(12))
    assert edits[0] == -1, "that of the one who holds the others back"
    # The first edit has whoever came first, the next one all others.
    assert sum(edits[1:-1]) == 12
    assert len(edits[1:-1]) <= 2


def test_a_refusal_is_for_its_own_caller(world: World) -> None:
    repository = world.open(max_size=3)
    there = item("there")
    repository.enqueue(there)
    calls: list[Callable[[], object]] = [
        lambda: repository.enqueue(there),
        lambda: repository.complete("nobody"),
        lambda: repository.complete(there.id),
        lambda: repository.enqueue(item("too high", 2**63)),
        *(partial(repository.enqueue, item(str(number))) for number in range(6)),
    ]
    said = outcomes(repository, calls)
    assert [type(one) for one in said[:4]] == [
        DuplicateItemError,
        ItemNotFoundError,
        InvalidTransitionError,
        InvalidItemError,
    ]
    kinds = [type(one) for one in said[4:]]
    assert (kinds.count(type(None)), kinds.count(QueueFullError)) == (2, 4)
    assert repository.stats()["pending"] == 3


@pytest.mark.parametrize(
    "spoil",
    [
        {"payload": {"a name that YAML does not take" * 100: 1}},
        {"scheduled_at": datetime(2000, 1, 1, tzinfo=timezone(timedelta(seconds=30)))},
    ],
)
def test_what_a_document_cannot_hold_is_for_its_own_caller(
    tmp_path: Path, spoil: dict[str, Any]
) -> None:
    world = World("yaml", tmp_path)
    repository = world.open()
    bad = item("bad")
    for name, value in spoil.items():
        setattr(bad, name, value)
    made = [item("a"), item("b"), bad, item("c"), item("d")]
    said = outcomes(repository, [partial(repository.enqueue, one) for one in made])
    assert said[:2] + said[3:] == [None] * 4
    assert isinstance(said[2], StoreError)
    assert sorted(types(repository)) == ["a", "b", "c", "d"]
    world.close()


def test_changes_of_one_item_follow_each_other(world: World) -> None:
    worker, repository = world.open(), world.open()
    worker.enqueue(item())
    got = worker.dequeue()
    assert got is not None
    said = outcomes(repository, [lambda: repository.complete(got.id)] * 8)
    errors = [one for one in said if isinstance(one, InvalidTransitionError)]
    assert len(errors) == 7
    assert {error.from_status for error in errors} == {QueueItemStatus.COMPLETED}
    new = item("new")
    said = outcomes(repository, [partial(repository.enqueue, new)] * 8)
    assert said.count(None) == 1
    assert sum(isinstance(one, DuplicateItemError) for one in said) == 7


def test_a_failure_of_the_store_is_for_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = world.open()
    calls: list[Callable[[], object]] = [
        partial(repository.enqueue, item(str(number))) for number in range(4)
    ]
    edit = SqliteStore.edit

    async def broken(
        self: SqliteStore, queue: str, work: Any, *, keys: Any = None, **rest: Any
    ) -> Any:
        if keys is not None:
            raise StoreError("the disk is gone")
        return await edit(self, queue, work, keys=keys, **rest)

    monkeypatch.setattr(SqliteStore, "edit", broken)
    with ThreadPoolExecutor(len(calls)) as pool:
        said = list(pool.map(outcome, calls))
    assert [str(one) for one in said] == ["the disk is gone"] * 4
    monkeypatch.undo()
    assert types(repository) == []
    repository.enqueue(item("after"))
    assert types(repository) == ["after"]


class AwayStore(MemoryStore):
    """Its claims are not answered, as if its server were away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    @property
    def outage(self) -> StoreError | None:
        return StoreUnavailableError("the server is away") if self.asked.is_set() else None

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        self.asked.set()
        await asyncio.Event().wait()
        return []


def test_closing_during_an_outage_sends_the_threads_away_that_wait() -> None:
    store = AwayStore()
    repository = QueueRepository(store, name="q")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(repository.dequeue)
        assert store.asked.wait(WAIT)
        others = [pool.submit(repository.dequeue) for _ in range(2)]
        claims = open_session(repository)._claims
        while len(claims._line) < len(others):
            threading.Event().wait(0.001)
        repository.close()
        for waiting in (first, *others):
            with pytest.raises(QueueClosedError):
                waiting.result(5)
