"""What a SQLite store finds wrong with itself, each provoked; and a look before a migration."""

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from leasedkeyq import connect
from leasedkeyq.engines.sqlite import diagnosis, schema
from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Finding, Put, SchemaState, Store


class Usage(NamedTuple):
    """As `shutil` has it."""

    total: int
    used: int
    free: int


def findings(path: Path, **options: Any) -> dict[str, Finding]:
    async def run() -> list[Finding]:
        async with connect(f"sqlite:///{path}", **options) as store:
            await store.put([Put("q", (("k", b"1"),))])
            return await store.diagnose()

    return {finding.code: finding for finding in asyncio.run(run())}


def test_a_sound_store_has_nothing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", schema.SOUND_SQLITE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 0, 2**40))
    assert findings(tmp_path / "q.db") == {}


def test_an_old_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))
    found = findings(tmp_path / "q.db")["sqlite-log-reset-bug"]
    assert found.severity == "note"
    assert "3.51.3" in found.advice


def test_weak_durability(tmp_path: Path) -> None:
    assert findings(tmp_path / "q.db", durability="normal")["durability-weak"].severity == "note"


@pytest.mark.parametrize(
    "free, code", [(2**29, "disk-full-soon"), (2**20, "disk-full"), (2**31, "")]
)
def test_a_disk_that_is_full_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, code: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 2**40 - free, free))
    assert [name for name in findings(tmp_path / "q.db") if name.startswith("disk")] == (
        [code] if code else []
    )


def test_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, _mode: place != tmp_path)
    found = findings(tmp_path / "q.db")["rights-missing"]
    assert found.severity == "error"
    assert str(tmp_path) in found.what


def test_a_log_that_a_reader_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "LARGE_LOG", 4096)
    assert findings(tmp_path / "q.db")["log-large"].severity == "warning"


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    assert "database-damaged" not in findings(path)
    with sqlite3.connect(path) as connection:
        # An index that lacks the entry of a row.
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_master WHERE name = 'buried_by_key'")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    found = findings(path)["database-damaged"]
    assert found.severity == "error"
    assert "never used" in found.what


def test_a_large_database_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "CHECKED_SIZE", 1)
    assert "quick_check" in findings(tmp_path / "q.db")["not-checked"].advice


# Looking before a migration


def old_database(folder: Path) -> Path:
    path = folder / "q.db"
    connection = sqlite3.connect(path)
    connection.executescript(Path(__file__).with_name("version_7.sql").read_text())
    connection.close()
    return path


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return schema.version_of(connection)
    finally:
        connection.close()


def test_every_version_is_told_in_words() -> None:
    assert len(schema.CHANGES) == schema.VERSION


def test_an_old_store_is_shown_and_refuses_to_work(tmp_path: Path) -> None:
    path = old_database(tmp_path)

    async def run() -> SchemaState | None:
        async with connect(f"sqlite:///{path}", migrate=False) as store:
            for call in (store.count(), store.put([Put("q", (("k", b"1"),))])):
                with pytest.raises(StoreError, match=r"version 7.*leasedkeyq migrate"):
                    await call
            with pytest.raises(StoreError, match="migrate=False"):
                store.watch("q", lambda: None)
            assert not [each for each in await store.diagnose() if each.severity == "error"]
            return await store.schema_state()

    state = asyncio.run(run())
    assert state is not None
    assert (state.version, state.wanted, state.outdated) == (7, schema.VERSION, True)
    assert [change.partition(":")[0] for change in state.changes] == [
        f"version {number}" for number in range(8, schema.VERSION + 1)
    ]
    assert version_of(path) == 7, "nothing was changed"
    # What is shown is what would be done.
    connection = sqlite3.connect(path)
    connection.executescript(state.sql)
    connection.close()
    assert version_of(path) == schema.VERSION

    async def use(store: Store) -> SchemaState | None:
        async with store:
            await store.put([Put("q", (("k", b"1"),))])
            return await store.schema_state()

    state = asyncio.run(use(connect(f"sqlite:///{path}", migrate=False)))
    assert state == SchemaState(version=schema.VERSION, wanted=schema.VERSION)


def test_no_file_is_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        connect(f"sqlite:///{tmp_path}/q.db", migrate=False)
    assert list(tmp_path.iterdir()) == []
