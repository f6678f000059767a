"""`manager.sync`: commands from threads without an event loop."""

import asyncio
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import WrongEventLoopError, connect
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.lanes import (
    CommandCancelledError,
    LaneConfig,
    LaneError,
    QueueManager,
    QueueManagerBuilder,
    QueueStats,
    SyncHandle,
    UnknownCommandError,
    UnknownLaneError,
    current_command,
)
from leasedkeyq.lanes.sync.session import ProcessLoop
from leasedkeyq.telemetry import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    LaneMetrics,
    SubmittedCommand,
)
from tests.servers.urls import KINDS, empty_store

PATIENCE = 60.0


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with empty_store(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def made(storage: Any = None) -> tuple[QueueManager, Any]:
    builder = QueueManagerBuilder().with_lane("work", LaneConfig(0, 8, lease_time=30), 0)
    if storage is not None:
        builder = builder.with_storage(storage)
    manager = builder.with_drain_timeout(1).build()

    @manager.command("double", lane="work")
    async def double(number: int) -> int:
        if number < 0:
            raise LookupError("nothing below zero")
        if not number:
            current_command().progress(0.5, "half")
            await asyncio.sleep(3600)
        return 2 * number

    return manager, double


@contextmanager
def closing(manager: QueueManager) -> Generator[None]:
    try:
        yield
    finally:
        manager.sync.close()
        asyncio.run(manager.close())
        names = {thread.name for thread in threading.enumerate()}
        assert "leasedkeyq sync" not in names


@contextmanager
def running(manager: QueueManager) -> Generator[asyncio.AbstractEventLoop]:
    """The manager runs commands in the event loop of another thread."""
    started: list[asyncio.AbstractEventLoop] = []
    begun, stop = threading.Event(), asyncio.Event()

    async def work() -> None:
        async with manager:
            started.append(asyncio.get_running_loop())
            begun.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield started[0]
    finally:
        started[0].call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)


def test_it_submits_and_waits_on_every_store(url: str) -> None:
    manager, double = made(url)
    worker, _ = made(url)
    with closing(manager):
        first = manager.sync.submit("work", double(1))
        assert (first.lane, first.command_type, first.status) == ("work", "double", "pending")
        assert not first.done()
        with pytest.raises(TimeoutError, match=r"command 'double'.*is not done"):
            first.result(0.01)
        many = manager.sync.submit_many("work", [double(number) for number in range(2, 5)])
        keyed = manager.sync.submit(double(7), key="seven")
        assert keyed.key == "seven"
        assert manager.sync.stats().lanes["work"].pending == 5
        assert manager.sync.cancel("work", "seven")
        with pytest.raises(CommandCancelledError):
            keyed.result(PATIENCE)
        failing = manager.sync.submit("work", double(-1))
        endless = manager.sync.submit("work", double(0))
        with running(worker):
            assert [handle.result(PATIENCE) for handle in (first, *many)] == [2, 4, 6, 8]
            assert first.status == "completed"
            # Another process has only its id.
            found = manager.sync.handle(many[0].id)
            assert (found.lane, found.result(0), found.command_type) == ("work", 4, "double")
            with pytest.raises(LookupError, match="nothing below zero"):
                failing.result(PATIENCE)
            until = time.monotonic() + PATIENCE
            while (told := endless.progress()) is None and time.monotonic() < until:
                time.sleep(0.05)
            assert told is not None
            assert (told.fraction, told.text) == (0.5, "half")
            assert endless.cancel()
            with pytest.raises(CommandCancelledError):
                endless.result(PATIENCE)


def test_it_submits_chains_and_gathers(file_url: str) -> None:
    manager, double = made(file_url)
    worker, _ = made(file_url)
    with closing(manager):
        chain = manager.sync.chain(double(1), double, double)
        gather = manager.sync.gather([double(number) for number in (1, -1)])
        with running(worker):
            assert chain.result(PATIENCE) == 8
            assert [outcome.result for outcome in gather.result(PATIENCE)] == [2, None]
            assert manager.sync.handle(chain.id).result(PATIENCE) == 8


def test_the_manager_stays_free_for_an_event_loop(file_url: str) -> None:
    manager, double = made(file_url)
    with closing(manager):
        handle = manager.sync.submit("work", double(4))

        async def main() -> None:
            async with manager:
                assert await (await manager.submit("work", double(5))) == 10
                # A thread of the same program, beside the loop in which the manager runs.
                assert await asyncio.to_thread(handle.result, PATIENCE) == 8

        asyncio.run(main())


def test_an_event_loop_is_told_what_to_write(file_url: str) -> None:
    manager, double = made(file_url)

    async def main() -> None:
        handle = await asyncio.to_thread(manager.sync.submit, double(1))
        for what, call in (
            ("await manager.submit", lambda: manager.sync.submit(double(1))),
            ("await manager.submit_many", lambda: manager.sync.submit_many([double(1)])),
            ("await manager.stats", manager.sync.stats),
            ("await handle.result", handle.result),
            ("await handle.refresh", lambda: handle.status),
            ("await handle.cancel", handle.cancel),
        ):
            with pytest.raises(WrongEventLoopError, match=what):
                call()

    with closing(manager):
        asyncio.run(main())


def test_a_command_is_found_by_its_id(file_url: str) -> None:
    manager, double = made(file_url)
    with closing(manager):
        submitted = manager.sync.submit(double(4)).id
        manager.sync.close()
        found = manager.sync.handle(submitted)
        assert (found.lane, found.command_type) == ("work", "")
        assert (found.status, found.command_type) == ("pending", "double")
        assert found.cancel()
        assert found.done()


def test_mistakes_are_those_of_the_manager(file_url: str) -> None:
    manager, double = made(file_url)
    with closing(manager):
        with pytest.raises(UnknownLaneError, match="'nowhere'"):
            manager.sync.submit("nowhere", double(1))
        with pytest.raises(UnknownCommandError):
            manager.sync.handle("nonsense")
        with pytest.raises(ValueError, match="timeout"):
            manager.sync.submit(double(1)).result(-1)
        with pytest.raises(TypeError, match="colour"):
            submit: Any = manager.sync.submit
            submit(double(1), colour="red")


# In memory


@pytest.mark.parametrize("storage", [None, "memory://"])
def test_commands_in_memory_go_through_the_loop_of_the_manager(storage: str | None) -> None:
    manager, double = made(storage)
    with running(manager):
        handles = manager.sync.submit_many([double(1), double(2)])
        assert [handle.result(PATIENCE) for handle in handles] == [2, 4]
        assert manager.sync.submit("work", double(0)).cancel()
        assert manager.sync.stats().lanes["work"].completed == 2
    with pytest.raises(LaneError, match=r"does not run in this process. Give .*with_storage"):
        manager.sync.submit(double(1))


def test_a_store_that_was_given_belongs_to_its_loop(file_url: str) -> None:
    store = connect(file_url)
    manager, double = made(store)
    with pytest.raises(LaneError, match="does not run in this process"):
        manager.sync.submit(double(1))
    with running(manager):
        assert manager.sync.submit(double(1)).result(PATIENCE) == 2
    asyncio.run(store.close())


# Threads


def test_what_threads_submit_together_is_one_batch(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, double = made(file_url)
    batches: list[int] = []
    transact: Any = SqliteStore._transact

    def counted(self: SqliteStore, requests: list[Any], **options: Any) -> Any:
        batches.append(len(requests))
        return transact(self, requests, **options)

    with closing(manager), ThreadPoolExecutor(32) as pool:
        manager.sync.submit(double(1))
        session = manager.sync._session
        assert session is not None
        hold = threading.Event()
        session._loop.start(lambda: hold.wait(PATIENCE))
        monkeypatch.setattr(SqliteStore, "_transact", counted)
        submitting = [pool.submit(manager.sync.submit, double(number)) for number in range(32)]
        while len(session.calls._line) < 32:
            threading.Event().wait(0.001)
        hold.set()
        handles: list[SyncHandle[int]] = [future.result(PATIENCE) for future in submitting]
        assert len({handle.id for handle in handles}) == 32
        assert batches == [32]
        assert manager.sync.stats().lanes["work"].pending == 33


def test_one_loop_serves_all_managers_of_a_process(tmp_path: Path) -> None:
    first, double = made(f"sqlite:///{tmp_path}/a.db")
    second, other = made(tmp_path / "b")
    with closing(first):
        with closing_beside(second):
            first.sync.submit(double(1))
            second.sync.submit(other(1))
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("leasedkeyq sync") == 1
        first.sync.submit(double(1))
        # What was closed is opened again by the next call.
        first.sync.close()
        assert ProcessLoop._here is None
        assert first.sync.stats().total_pending == 2


@contextmanager
def closing_beside(manager: QueueManager) -> Generator[None]:
    try:
        yield
    finally:
        manager.sync.close()
        asyncio.run(manager.close())


def test_a_relative_path_is_that_of_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    manager, double = made("sqlite:///jobs.db")
    monkeypatch.chdir(elsewhere)
    with closing(manager):
        manager.sync.submit(double(1))
        assert list(elsewhere.iterdir()) == []


class Counting:
    """Counts what is submitted."""

    def __init__(self) -> None:
        self.count = 0

    def submitted(self, command: SubmittedCommand) -> None:
        self.count += 1

    def started(self, start: AttemptStart) -> None: ...

    def ended(self, end: AttemptEnd) -> None: ...

    def dead_lettered(self, command: DeadLetteredCommand) -> None: ...

    def gauges(self, stats: QueueStats) -> None: ...


def test_instruments_count_what_is_submitted(file_url: str) -> None:
    counting, metrics = Counting(), LaneMetrics()
    builder = QueueManagerBuilder().with_lane("work", LaneConfig(0, 1), 0).with_storage(file_url)
    manager = builder.with_metrics(counting, metrics).build()

    @manager.command("nothing", lane="work")
    async def nothing() -> None: ...

    with closing(manager):
        manager.sync.submit(nothing())
        assert counting.count == 1
        assert metrics.snapshot().series == ()


def test_a_thread_that_is_interrupted_leaves_the_way_open_for_others(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, double = made(file_url)
    with closing(manager), ThreadPoolExecutor(1) as threads:
        manager.sync.submit(double(1))
        session = manager.sync._session
        assert session is not None

        def interrupted(_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(session.calls, "_start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.sync.submit(double(2))
        # Another thread does not know that the event loop was not woken.
        assert threads.submit(manager.sync.submit, double(3)).result(PATIENCE).status == "pending"
