"""Frozen copies of what is stored, and the other release."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from leasedkeyq.engines.sqlite import schema as sqlite_schema
from tests.torture.releases import other_release
from tests.torture.releases.copies import FORMATS, make_sqlite, shape_of_postgres, shape_of_redis
from tests.torture.releases.older_stores import missing


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_stored_is_what_the_frozen_copy_has(name: str, tmp_path: Path) -> None:
    """A change of what is stored is a new version, and has a copy of its own."""
    today = FORMATS[name]
    kept = today.kept()
    assert kept is not None, (
        f"{name}: there is no frozen copy of version {today.version}; make it by"
        " python -m tests.torture.releases freeze"
    )
    made = today.make(tmp_path)
    assert today.shape(made.data) == today.shape(kept.data), (
        f"{name}: version {today.version} is stored in another way than its frozen copy has it; a"
        " released version must not change: add a version, and freeze that"
    )
    # Ids and places are numbers of a server.
    numbers = ("id", "place")
    assert [{k: v for k, v in one.items() if k not in numbers} for one in made.items] == [
        {k: v for k, v in one.items() if k not in numbers} for one in kept.items
    ]


def test_a_changed_migration_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *older, last = sqlite_schema.MIGRATIONS
    changed = (*older, (*last, "ALTER TABLE items ADD COLUMN something INTEGER"))
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", changed)
    kept = FORMATS["sqlite"].kept()
    assert kept is not None
    assert make_sqlite(tmp_path).data != kept.data


def test_a_changed_function_is_noticed() -> None:
    kept = FORMATS["postgres"].kept()
    assert kept is not None
    plain = json.loads(kept.data)
    functions = [name for name in plain["shape"] if name.startswith("function ")]
    assert functions
    plain["shape"][functions[0]] = "another text"
    assert shape_of_postgres(json.dumps(plain)) != shape_of_postgres(kept.data)


def test_a_longer_record_is_noticed() -> None:
    kept = FORMATS["redis"].kept()
    assert kept is not None
    plain = json.loads(kept.data)
    # Ids and scores are of the server's clock, and say nothing.
    plain["frozen:m"] = plain["frozen:m"][::-1]
    assert shape_of_redis(json.dumps(plain)) == shape_of_redis(kept.data)
    records = plain["frozen:{mail}:b"]["hash"]
    records[next(iter(records))] += "\0"
    assert shape_of_redis(json.dumps(plain)) != shape_of_redis(kept.data)


def test_what_is_lost_or_changed_is_found() -> None:
    kept = FORMATS["sqlite"].kept()
    assert kept is not None
    assert missing(kept.items, kept.items) == []
    [gone] = missing(kept.items, kept.items[1:])
    assert gone.endswith("is gone")
    other = [{**kept.items[0], "value": "another"}, *kept.items[1:]]
    [changed] = missing(kept.items, other)
    assert changed.endswith("['value']")
    # A later version may know more of an item.
    more = [{**item, "news": 1} for item in kept.items]
    assert missing(kept.items, more) == []


def test_every_state_is_in_the_frozen_copies() -> None:
    states = {"available", "scheduled", "in_flight", "buffered", "buried", "done", "in_line"}
    for name, one in FORMATS.items():
        kept = one.kept()
        assert kept is not None
        assert {item["state"] for item in kept.items} == states, name


def test_the_other_release_is_the_newest_sdist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_release, "RELEASES", tmp_path)
    monkeypatch.delenv(other_release.SDIST, raising=False)
    assert other_release.last_sdist() is None
    for version in ("0.9.0", "0.10.0"):
        with tarfile.open(tmp_path / f"leasedkeyq-{version}.tar.gz", "w:gz") as archive:
            text = b"__version__ = 'of the package'\n"
            info = tarfile.TarInfo(f"leasedkeyq-{version}/src/leasedkeyq/__init__.py")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    newest = other_release.last_sdist()
    assert newest is not None
    assert newest.name == "leasedkeyq-0.10.0.tar.gz"
    folder = tmp_path / "unpacked"
    folder.mkdir()
    release = other_release.other_release(folder)
    assert release.version == "0.10.0"
    assert release.root == folder / "leasedkeyq-0.10.0"
    named = tmp_path / "leasedkeyq-0.9.0.tar.gz"
    monkeypatch.setenv(other_release.SDIST, str(named))
    assert other_release.last_sdist() == named
