"""The SQL of the store, put together from files and fragments."""

from importlib.resources import files
from pathlib import Path

from leasedkeyq.engines.postgres.schema import (
    FIRST_VERSION,
    INCLUDE,
    MIGRATIONS,
    VERSION,
    migration,
    schema_sql,
    text_of,
)


def test_fragments_are_in_the_place_of_the_lines_that_include_them() -> None:
    text = schema_sql("here")
    assert "-->" not in text
    assert "lkq." not in text
    text = migration(FIRST_VERSION, "here")
    assert text.count('INSERT INTO "here".items') == 2
    assert text.count('INSERT INTO "here".done') == 4
    assert text.count("turn = -c.fence") == 3
    assert text.count("(place->>2)::float8\n") == 1, "the argument of a fragment"


def test_each_file_and_each_fragment_is_used() -> None:
    """A version has only the files that it adds or changes, and uses all of them."""
    root = Path(str(files("leasedkeyq.engines.postgres").joinpath("sql")))
    for version in range(FIRST_VERSION, VERSION + 1):
        folder = root / f"version_{version}"
        wanted, used = list(MIGRATIONS[version - FIRST_VERSION]), set[str]()
        while wanted:
            name = wanted.pop()
            used.add(name)
            wanted += [f"fragments/{one[2]}" for one in INCLUDE.finditer(text_of(version, name))]
        there = {str(path.relative_to(folder))[:-4] for path in folder.rglob("*.sql")}
        assert there <= used, f"not used: {there - used}"
        if version == FIRST_VERSION:
            assert there == used


def test_a_later_version_replaces_functions() -> None:
    text = migration(FIRST_VERSION + 1, "here")
    assert "CREATE FUNCTION" not in text
    assert text.count("CREATE OR REPLACE FUNCTION") == 2
    assert "run ? 'progress'" in text
    assert "run ? 'progress'" not in migration(FIRST_VERSION, "here")
    text = migration(FIRST_VERSION + 2, "here")
    assert text.count("md5(p_secret || c.fence) || c.tail") == 3, "every lease tells its holder"
