"""doctor and migrate, as commands."""

import sqlite3
from pathlib import Path

import pytest

from leasedkeyq.engines.sqlite import schema
from tests.cli.commands import Shell, sqlite_shell
from tests.servers.urls import empty_store

OLD = Path(__file__).parent.parent / "engines/sqlite/version_7.sql"


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return sqlite_shell(tmp_path, capsys)


@pytest.fixture
def old(tmp_path: Path) -> str:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript(OLD.read_text())
    connection.close()
    return f"sqlite:///{path}"


def test_doctor_of_a_sound_store(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", schema.SOUND_SQLITE)
    shell.put("mail", "a")
    done = shell("doctor", "--look-again", "0s")
    assert (done.code, done.out, done.err) == (0, "", "nothing was found\n")
    assert shell("doctor", "--look-again", "0s", "--json").json == []


def test_doctor_ends_with_the_worst_severity(shell: Shell, tmp_path: Path) -> None:
    shell.put("mail", "a")
    shell.claim("mail", "a", None)
    done = shell("doctor", "--look-again", "0s")
    assert done.code == 4
    assert "WARNING lease-without-expiry  queue mail\n" in done.out
    assert "        -> give leases a time" in done.out
    found = shell("doctor", "--look-again", "0s", "--json")
    assert found.code == 4
    assert {"code", "severity", "what", "where", "advice"} == set(found.json[0])
    path = tmp_path / "broken.db"
    path.write_bytes(b"no database at all, but long enough for one" * 30)
    broken = shell.bare("doctor", f"sqlite:///{path}", "--json")
    assert broken.code == 5
    assert [one["code"] for one in broken.json] == ["store-out-of-reach"]


def test_doctor_hides_passwords(shell: Shell) -> None:
    url = "redis://worker:s3cret@127.0.0.1:1/0"
    for more in ((), ("--json",)):
        done = shell.bare("doctor", url, "--store-option", "retry_for=0", *more)
        assert done.code == 5
        assert "s3cret" not in done.out + done.err
        assert "store-out-of-reach" in done.out
    assert shell.bare("doctor", "nonsense://x").code == 2


def test_doctor_of_an_old_store(shell: Shell, old: str) -> None:
    done = shell.bare("doctor", old)
    assert done.code == 4
    assert "schema-old" in done.out
    assert shell.bare("migrate", old, "--check").code == 4, "it was not migrated by that"


def test_migrate(shell: Shell, old: str) -> None:
    done = shell.bare("migrate", old)
    assert done.code == 0
    assert done.out.startswith("version 7, this leasedkeyq works with")
    assert "version 8: claims need not be synced" in done.out
    assert "nothing was changed" in done.err
    sql = shell.bare("migrate", old, "--sql")
    assert sql.out.startswith("BEGIN IMMEDIATE;\n")
    assert f"PRAGMA user_version = {schema.VERSION};" in sql.out
    assert shell.bare("migrate", old, "--sql", "--yes").code == 2
    assert shell.bare("migrate", old, "--json").json["version"] == 7
    done = shell.bare("migrate", old, "--yes")
    assert (done.code, done.out) == (0, f"version {schema.VERSION}: up to date\n")
    assert shell.bare("migrate", old, "--check").code == 0
    assert "nothing would change" in shell.bare("migrate", old, "--sql").err
    assert shell.bare("migrate", "sqlite:////nowhere/q.db").code == 3
    assert "no versions" in shell.bare("migrate", "memory://").err


@pytest.mark.parametrize("kind", ["postgresql", "redis", "file"])
def test_migrate_on_other_engines(shell: Shell, tmp_path: Path, kind: str) -> None:
    with empty_store(kind, tmp_path, new=True) as url:
        if kind != "file":
            assert shell.bare("migrate", url, "--check").code == 4
        assert ("CREATE TABLE" in shell.bare("migrate", url, "--sql").out) is (kind == "postgresql")
        assert shell.bare("migrate", url, "--yes").code == 0
        if kind != "file":
            assert shell.bare("migrate", url, "--check").out.endswith("up to date\n")
