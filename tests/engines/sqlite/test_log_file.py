"""The write-ahead log is lengthened ahead of SQLite."""

import asyncio
import errno
import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from leasedkeyq.engines.sqlite.log_file import CHUNK, LEAST, LogFile
from leasedkeyq.engines.sqlite.schema import SqliteDurability
from leasedkeyq.engines.sqlite.store import SqliteStore

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pwrite"), reason="on this system SQLite lengthens the log alone"
)


async def sizes_of_the_log(store: SqliteStore, puts: int) -> list[int]:
    """Put items one after the other; return how long the log was after each of them."""
    queue = store.queue("q")
    sizes: list[int] = []
    for number in range(puts):
        await queue.put(f"k{number}", number)
        sizes.append(os.stat(f"{store.path}-wal").st_size)
    return sizes


def sizes(path: Path, durability: SqliteDurability = "full", puts: int = 60) -> list[int]:
    async def main() -> list[int]:
        async with SqliteStore(path, durability=durability) as store:
            return await sizes_of_the_log(store, puts)

    return asyncio.run(main())


def test_most_commits_do_not_make_the_log_longer(tmp_path: Path) -> None:
    found = sizes(tmp_path / "a.db")
    longer = sum(later > size for size, later in pairwise(found))
    assert found[-1] > 2 * CHUNK
    assert longer < len(found) / 2


def test_without_a_sync_of_each_commit_the_log_is_left_to_sqlite(tmp_path: Path) -> None:
    found = sizes(tmp_path / "a.db", "normal")
    assert found == sorted(set(found))  # longer with every commit


def test_a_program_that_puts_an_item_or_two_writes_no_more_than_that(tmp_path: Path) -> None:
    sizes(tmp_path / "a.db", puts=0)
    assert sizes(tmp_path / "a.db", puts=2)[-1] <= LEAST


def test_zeros_behind_the_last_commit_are_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(tmp_path / "a.db") as store:
            size = (await sizes_of_the_log(store, 30))[-1]
            assert (tmp_path / "a.db-wal").read_bytes()[size - 4096 :] == bytes(4096)
            for suffix in ("", "-wal"):  # as if the system had crashed here
                shutil.copy(f"{store.path}{suffix}", tmp_path / f"b.db{suffix}")
        async with SqliteStore(tmp_path / "b.db") as left:
            assert await left.queue("q").qsize() == 30
            await sizes_of_the_log(left, 60)
            assert await left.queue("q").qsize() == 60

    asyncio.run(main())


def test_a_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def fail(self: LogFile, handle: int, data: bytes, offset: int) -> None:
        tries.append(offset)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(LogFile, "_write", fail)
    found = sizes(tmp_path / "a.db")
    assert found == sorted(set(found))
    assert len(tries) == 1


def test_the_handle_is_closed_with_the_store(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    sizes(tmp_path / "a.db", puts=1)
    assert len(os.listdir("/dev/fd")) == before
