"""Threads and processes that share the document of a file store."""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from leasedkeyq import errors
from leasedkeyq.engines.file.document.codec import split_checksum
from leasedkeyq.engines.file.file_lock import FileLock, PolledLock
from leasedkeyq.engines.file.store import FileEngine, FileStore
from leasedkeyq.model.requests import Ack, Put
from leasedkeyq.stores.system.inotify import Bell
from tests.engines.file.support import SUFFIXES, claim, keys, opened, put, run
from tests.forks import fork_server

processes = fork_server()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


def _work(path: Path, count: int, log: Path, threads: int) -> None:
    engine = FileEngine(path)

    def consume() -> None:
        while True:
            taken = claim(engine, 4, lease_time=60.0)
            if not taken and not engine.read(lambda model, now: model.count("jobs", now)).available:
                return
            done = engine.apply([Ack("jobs", item.key, item.token) for item in taken])
            assert all(answer is None for answer in done)
            with log.open("a") as file:
                file.writelines(f"{item.key} {item.fence}\n" for item in taken)

    workers = [threading.Thread(target=consume) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@SUFFIXES
def test_eight_processes_of_four_threads_do_each_item_once(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    log = tmp_path / "log"
    log.touch()
    count = 100
    put(FileEngine(path), *(f"k{number}" for number in range(count)))
    started = [processes.Process(target=_work, args=(path, count, log, 4)) for _ in range(8)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(key for key, _ in lines) == sorted(f"k{number}" for number in range(count))
    assert len({fence for _, fence in lines}) == count
    assert not list(tmp_path.glob("*.damaged*"))
    assert split_checksum(path.read_bytes(), yaml=suffix == "yaml")[1]


def test_a_forked_child_has_a_lock_of_its_own(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    engine._lock.acquire(shared=False)
    pid = os.fork()
    if pid == 0:
        put(engine, "b")
        os._exit(0)
    time.sleep(0.1)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    engine._lock.release()
    assert os.waitpid(pid, 0)[1] == 0
    assert keys(engine) == ["a", "b"]


def test_without_flock_there_is_another_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.engines.file.file_operations.fcntl", None)
    monkeypatch.setattr("leasedkeyq.engines.file.file_lock.fcntl", None)
    engines = [FileEngine(path) for _ in range(4)]
    assert isinstance(engines[0]._lock, PolledLock)

    def work(engine: FileEngine) -> None:
        for number in range(10):
            put(engine, f"{id(engine)} {number}")
            assert claim(engine, lease_time=60.0)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = engines[0].read(lambda model, now: model.count("jobs", now))
    assert (counts.in_flight, counts.available) == (40, 0)
    assert not engines[0].file.notices
    engines[0]._lock.acquire(shared=False)
    waiting = threading.Thread(target=put, args=(engines[1], "late"))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    engines[0].close()
    waiting.join(20)
    assert not waiting.is_alive()


def test_without_flock_and_filelock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.engines.file.file_operations.fcntl", None)
    monkeypatch.setattr("leasedkeyq.engines.file.file_lock.fcntl", None)
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(errors.StoreError, match=r"leasedkeyq\[filelock\]"):
        FileEngine(path)


def test_a_removed_lock_file_is_made_again(path: Path) -> None:
    first, second = opened(path), opened(path)
    assert isinstance(first._lock, FileLock)
    put(first, "a")
    path.with_name("queue.yaml.lock").unlink()
    put(second, "b")
    put(first, "c")
    assert keys(first) == ["a", "b", "c"]
    assert first._lock.path.stat().st_ino == os.fstat(first._lock._file or 0).st_ino


def _put_later(path: Path) -> None:
    time.sleep(0.2)
    put(FileEngine(path), "a")


@pytest.mark.parametrize("kernel", [True, False])
def test_a_put_by_another_process_wakes(
    path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
) -> None:
    if not kernel:
        monkeypatch.setattr(Bell, "of", lambda path, events: None)

    async def work(store: FileStore) -> None:
        woken = asyncio.Event()
        end = store.watch("jobs", woken.set)
        process = processes.Process(target=_put_later, args=(path,))
        process.start()
        await asyncio.wait_for(woken.wait(), 20)
        await asyncio.to_thread(process.join)
        woken.clear()
        await store.put([Put("jobs", (("b", b"1"),))])
        await asyncio.wait_for(woken.wait(), 1)
        end()

    run(work, path)
    assert not [t for t in threading.enumerate() if "leasedkeyq watch" in t.name]


def test_callers_share_a_write(path: Path) -> None:
    async def work(store: FileStore) -> int:
        puts = [store.put([Put("jobs", ((f"k{n}", b"1"),))]) for n in range(200)]
        await asyncio.gather(*puts)
        return store.engine.file.document.revision

    assert run(work, path) < 20
