"""The SQL of the store, put together from files and fragments."""

from importlib.resources import files

from leasedkeyq.engines.postgres.schema import INCLUDE, MIGRATIONS, VERSION, schema_sql


def test_fragments_are_in_the_place_of_the_lines_that_include_them() -> None:
    text = schema_sql("here")
    assert "include" not in text
    assert "lkq." not in text
    assert text.count('INSERT INTO "here".items') == 2
    assert text.count("turn = -c.fence") == 3


def test_each_file_and_each_fragment_is_used() -> None:
    for version in range(1, VERSION + 1):
        folder = files("leasedkeyq.engines.postgres").joinpath("sql", f"version_{version}")
        fragments = folder.joinpath("fragments")
        texts = {entry.name: entry.read_text() for entry in folder.iterdir() if entry.is_file()}
        assert sorted(texts) == sorted(f"{name}.sql" for name in MIGRATIONS[version - 1])
        parts = {entry.name: entry.read_text() for entry in fragments.iterdir()}
        included = [
            found[2]
            for text in (*texts.values(), *parts.values())
            for found in INCLUDE.finditer(text)
        ]
        assert sorted(parts) == sorted({f"{name}.sql" for name in included})
