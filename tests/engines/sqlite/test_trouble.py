"""The SQLite store when its file, its disk or a lock is in the way."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Counts, Placed, Put
from tests.engines.sqlite.support import claim, put, python, run


def delete(path: Path) -> None:
    """Remove a database with its log."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()


def test_a_deleted_file_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lose(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        path.rename(tmp_path / "elsewhere.db")
        for _ in range(2):
            with pytest.raises(StoreError, match=r"q\.db: the database file was deleted"):
                await store.put([put("q", "b")])
        (tmp_path / "elsewhere.db").rename(path)
        await store.put([put("q", "c")])
        assert [item.key for item in await claim(store, limit=5)] == ["a", "c"]
        # Another file takes its place: it is the store from now on.
        delete(path)
        other = SqliteStore(path)
        await other.put([put("q", "d")])
        assert [item.key for item in await claim(store, limit=5)] == ["d"]
        await other.close()

    run(path, lose)


def test_a_locked_database_is_an_error_that_passes(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lock(store: SqliteStore) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"q\.db: another process keeps the database locked"):
            await store.put([put("q", "a")])
        other.execute("ROLLBACK")
        other.close()
        assert await store.put([put("q", "a")]) == [(Placed(1, "added"),)]

    run(path, lock, busy_timeout=0.05)


def test_short_locks_of_others_are_waited_out(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lock(store: SqliteStore) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.put([put("q", "a")]))
        await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        other.close()
        assert await waiting == [(Placed(1, "added"),)]

    run(path, lock)


def test_looking_needs_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lock(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert (await store.count())["q"] == Counts(available=1)
        assert len(await store.look("q", ["a"])) == 1
        assert len((await store.browse("q")).items) == 1
        assert await store.sweep(["q"]) == [None]
        assert await claim(store, "empty") == []
        assert await claim(store, kinds=("mail",)) == []
        assert await claim(store, key="absent") == []
        ways: list[dict[str, Any]] = [{}, {"kinds": ("",)}, {"key": "a"}]
        for wanted in ways:
            with pytest.raises(StoreError, match="locked"):
                await claim(store, **wanted)
        other.close()
        assert len(await claim(store)) == 1

    run(path, lock, busy_timeout=0.05)


def test_a_full_disk_is_an_error_that_passes_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        connection = store._connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        large = Put("q", tuple((f"k{number}", b"x" * 1000) for number in range(100)))
        with pytest.raises(StoreError, match="the disk is full"):
            await store.put([put("q", "b"), large])
        assert (await store.count())["q"] == Counts(available=1)
        connection.execute("PRAGMA max_page_count = 1000000")
        await store.put([put("q", "b"), large])
        assert (await store.count())["q"] == Counts(available=102)

    run(tmp_path / "q.db", fill)


def test_writes_that_fail_in_the_system_are_errors_that_pass(tmp_path: Path) -> None:
    code = """
import asyncio, resource, signal, sys
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Put
from leasedkeyq.engines.sqlite.store import SqliteStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    store = SqliteStore(sys.argv[1])
    put = Put("q", tuple((f"k{n}", b"x" * 1000) for n in range(200)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    for _ in range(2):
        try:
            await store.put([put])
        except StoreError as error:
            assert sys.argv[1] in str(error), error
        else:
            raise AssertionError("the write did not fail")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not await store.count(), await store.count()
    await store.put([put])
    assert (await store.count())["q"].available == 200
    await store.close()

asyncio.run(main())
"""
    assert python(code, tmp_path / "q.db").wait(60) == 0


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """A folder that everybody can reach, unlike those of pytest: root may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def test_a_file_without_the_right_to_write_is_an_error_that_passes(folder_of_nobody: Path) -> None:
    code = """
import asyncio, os, sys
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Put
from leasedkeyq.engines.sqlite.store import SqliteStore

folder = sys.argv[1]
path = folder + "/q.db"

async def main():
    store = SqliteStore(path)
    await store.put([Put("q", (("a", b"1"),))])
    await store.close()
    os.chmod(path, 0o444)
    os.chmod(folder, 0o555)
    if os.getuid() == 0:  # root may write anything
        os.chown(path, 65534, 65534)
        os.chown(folder, 65534, 65534)
        os.setuid(65534)
    for name in (path, folder + "/new.db"):
        try:
            SqliteStore(name)
        except StoreError as error:
            assert name in str(error) and "writ" in str(error), error
        else:
            raise AssertionError("opened")
    os.chmod(path, 0o644)
    os.chmod(folder, 0o755)
    store = SqliteStore(path)
    assert (await store.count())["q"].available == 1
    await store.close()

asyncio.run(main())
"""
    assert python(code, folder_of_nobody).wait(60) == 0


def test_a_file_that_becomes_read_only_is_an_error_that_passes(folder_of_nobody: Path) -> None:
    code = """
import asyncio, os, sys
from pathlib import Path
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Claim, Counts, Put
from leasedkeyq.engines.sqlite.store import SqliteStore

folder = Path(sys.argv[1])
if os.getuid() == 0:
    os.chown(folder, 65534, 65534)
    os.setuid(65534)

def allow(file_mode, folder_mode):
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(file_mode)
    folder.chmod(folder_mode)

async def main():
    store = SqliteStore(folder / "q.db")
    await store.put([Put("q", (("a", b"1"), ("b", b"1")))])
    ((leased,),) = await store.claim([Claim((("q", 1),))])
    allow(0o444, 0o555)
    # A file that is open stays as it was opened: let the store open it anew.
    store._connection.execute("PRAGMA query_only = ON")
    for call in (
        lambda: store.put([Put("q", (("c", b"1"),))]),
        lambda: store.claim([Claim((("q", 1),))]),
        lambda: store.settle([Ack("q", "a", leased.token)]),
    ):
        try:
            await call()
        except StoreError as error:
            assert "q.db: the file or its folder cannot be written" in str(error), error
        else:
            raise AssertionError("written")
        assert (await store.count())["q"] == Counts(available=1, in_flight=1)
    allow(0o644, 0o755)
    assert await store.settle([Ack("q", "a", leased.token)]) == [None]
    assert await store.put([Put("q", (("c", b"1"),))]) == [((3, "added"),)]
    assert (await store.count())["q"] == Counts(available=2)
    await store.close()

asyncio.run(main())
"""
    assert python(code, folder_of_nobody).wait(60) == 0


def test_a_store_from_before_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    code = """
import asyncio, os, sys
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Put
from leasedkeyq.engines.sqlite.store import SqliteStore

store = SqliteStore(sys.argv[1])
asyncio.run(store.put([Put("q", (("a", b"1"),))]))
child = os.fork()
try:
    asyncio.run(store.put([Put("q", (("b", b"1"),))]))
except StoreError as error:
    assert not child and "fork" in str(error)
    os._exit(0)
assert child
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(store.count())["q"].available == 2
asyncio.run(store.close())
"""
    assert python(code, tmp_path / "q.db").wait(60) == 0
