"""The SQL of the store, put together from files and fragments."""

from importlib.resources import files
from pathlib import Path

from leasedkeyq.engines.postgres.schema import (
    FIRST_VERSION,
    INCLUDE,
    MIGRATIONS,
    VERSION,
    schema_sql,
)


def test_fragments_are_in_the_place_of_the_lines_that_include_them() -> None:
    text = schema_sql("here")
    assert "-->" not in text
    assert "lkq." not in text
    assert text.count('INSERT INTO "here".items') == 2
    assert text.count('INSERT INTO "here".done') == 4
    assert text.count("turn = -c.fence") == 3
    assert text.count("(place->>2)::float8\n") == 1, "the argument of a fragment"


def test_each_file_and_each_fragment_is_used() -> None:
    for version in range(FIRST_VERSION, VERSION + 1):
        folder = files("leasedkeyq.engines.postgres").joinpath("sql", f"version_{version}")
        fragments = Path(str(folder.joinpath("fragments")))
        texts = {entry.name: entry.read_text() for entry in folder.iterdir() if entry.is_file()}
        assert sorted(texts) == sorted(
            f"{name}.sql" for name in MIGRATIONS[version - FIRST_VERSION]
        )
        parts = {
            str(path.relative_to(fragments))[:-4]: path.read_text()
            for path in fragments.rglob("*.sql")
        }
        included = [
            found[2]
            for text in (*texts.values(), *parts.values())
            for found in INCLUDE.finditer(text)
        ]
        assert sorted(parts) == sorted(set(included))
