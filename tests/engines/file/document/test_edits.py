"""What people do to the document of a file store."""

import json
import os
import sys
import warnings
from pathlib import Path

import pytest

from leasedkeyq import errors
from leasedkeyq.engines.file.store import FileStoreWarning
from leasedkeyq.model.requests import Ack, Release
from leasedkeyq.testing import ManualClock
from tests.engines.file.support import claim, edit, keys, opened, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


def test_a_new_item_a_changed_priority_and_comments(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b", "c")
    edit(
        path,
        ("queues:", "# the queues\nqueues:"),
        ("      - key: b\n", "      # b is urgent\n      - key: b # really\n        priority: 7\n"),
        (
            "# sum",
            "      - key: by-hand\n        value: {n: 1} # one\n        owner: ann\n# end\n# sum",
        ),
    )
    assert keys(engine) == ["b", "a", "c", "by-hand"]
    assert "1 items added, 0 removed, 1 changed" in engine.file.notices[-1]
    item = claim(engine, 4)[3]
    assert (item.key, item.value, item.id) == ("by-hand", b'{"n":1}', 4)
    text = path.read_text()
    for comment in (
        "# the queues\nqueues:",
        "# b is urgent\n",
        "b # really\n",
        "# one\n",
        "# end\n",
    ):
        assert comment in text
    assert 'owner: "ann"' in text
    engine.apply([Ack("jobs", "by-hand", item.token)])
    assert keys(opened(path)) == []


def test_the_style_of_a_person(path: Path) -> None:
    pytest.importorskip("ruamel.yaml")
    path.write_text(
        """
# my tasks
queues:
    mail:   # outgoing
        max_size: 10
        items:

        # the first
        - {key: one, value: [1, two, no], priority: 3}
        - key: 2
          value:
            # inside
            text: |
                # not a comment
                line two
            when: 2026-01-31
          note: |
            remember
        # the last
    short:
        - key: "three\\tx"
"""
    )
    engine = opened(path)
    assert keys(engine, "mail") == ["one", "2"]
    first, second = claim(engine, 2, "mail")
    assert first.value == b'[1,"two","no"]'
    assert json.loads(second.value) == {
        "text": "# not a comment\nline two\n",
        "when": "2026-01-31",
    }
    assert keys(engine, "short") == ["three\tx"]
    text = path.read_text()
    for comment in ("# my tasks", "# outgoing", "# the first", "# inside", "# the last"):
        assert text.count(comment) == 1
    assert "max_size: 10" in text
    assert "# not a comment\n" not in text
    assert keys(opened(path), "short") == ["three\tx"]
    assert first.token in path.read_text()


PAYLOAD = """\
        # before the value
        value: # behind its name
          # about the customer
          customer: ann # who pays

          text: |  # as she wrote it
            # not a comment

            line two # neither
          words: [one,   # the first
                  two]   # the second
          # at the end
        # after the value
"""


@pytest.mark.parametrize("indent", [0, 4])
def test_comments_inside_a_block_payload_stay(path: Path, indent: int) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    if indent:
        # Not our indent: then the whole document is read, not one item.
        text = path.read_text()
        head, items = text[: text.index("      -")], text[text.index("      -") :]
        path.write_text(head + "".join(f"    {line}\n" for line in items.splitlines()[:-1]))
    pad = " " * indent
    block = "".join(f"{pad}{line}\n" if line else "\n" for line in PAYLOAD.splitlines())
    edit(path, (f'{pad}        value: "a"\n', block))
    assert keys(engine) == ["a", "b"]
    (item, _) = claim(engine, 2)
    assert json.loads(item.value) == {
        "customer": "ann",
        "text": "# not a comment\n\nline two # neither\n",
        "words": ["one", "two"],
    }
    text = path.read_text()
    for comment in (
        "before the value",
        "behind its name",
        "about the customer",
        "who pays",
        "as she wrote it",
        "the first",
        "the second",
        "at the end",
        "after the value",
    ):
        assert text.count(f"# {comment}\n") == 1, comment
    assert text.index("# the second") < text.index("- key: b")
    engine.apply([Ack("jobs", "a", item.token)])
    assert "# who pays" not in path.read_text()


@pytest.mark.parametrize("style", ["plain", "free"])
def test_control_characters_in_comments_are_not_refused(path: Path, style: str) -> None:
    yaml = pytest.importorskip("yaml")
    engine = opened(path)
    put(engine, "a", "b")
    key = "b" if style == "plain" else "'b'"
    edit(
        path,
        ("queues:", "# a bell\x07 and\x1b[31m colours\x7f\x85\nqueues:"),
        ("- key: b\n", f"- key: {key} # form feed\x0c\n"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keys(engine) == ["a", "b"]
    text = path.read_text()
    assert "# a bell\u2407 and\u241b[31m colours\u2421\ufffd\n" in text
    assert "# form feed\u240c\n" in text
    # Everybody can read it.
    assert list(yaml.safe_load(text)["queues"]) == ["jobs"]
    assert not list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize("value", ["'a #\x07'", "a\x07", "|\n          # bell\x07\n"])
def test_control_characters_in_values_are_refused(path: Path, value: str) -> None:
    engine = opened(path)
    put(engine, "a")
    edit(path, ('value: "a"', f"value: {value}"))
    with pytest.warns(FileStoreWarning, match="last good version"):
        assert keys(engine) == ["a"]


def test_removed_and_moved_by_hand(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b", "c")
    (lease,) = claim(engine)
    blocks = path.read_text().split("      - ")
    third, end = blocks[3].split("# sum")
    blocks[2:] = [third, f"{blocks[2]}# sum{end}"]
    path.write_text("      - ".join(blocks))
    assert keys(engine) == ["c", "b"]
    blocks = path.read_text().split("      - ")
    path.write_text("      - ".join([blocks[0], *blocks[2:]]))
    assert keys(engine) == ["c", "b"]
    refusal = engine.apply([Ack("jobs", "a", lease.token)])[0]
    assert isinstance(refusal, errors.LeasedKeyQError)


def test_comments_of_an_item_leave_with_it_and_others_stay(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    edit(path, ("      - key: a", "      # chapter one\n\n      # about a\n      - key: a"))
    (lease,) = claim(engine)
    assert "# about a" in path.read_text()
    engine.apply([Ack("jobs", "a", lease.token)])
    assert "# about a" not in path.read_text()
    assert "# chapter one" in path.read_text()


def test_fields_that_go_leave_their_comments(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    (lease,) = claim(engine)
    edit(path, ("        lease:", "        # taken\n        lease:"))
    engine.apply([Release("jobs", "a", lease.token)])
    assert "lease:" not in path.read_text()
    assert "# taken" in path.read_text()


def test_what_is_appended_to_the_file_comes_after_its_checksum(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    with path.open("a") as file:
        file.write("      - key: appended\n# the end")
    assert keys(engine) == ["a", "appended"]
    text = path.read_text()
    assert text.count("# sum: ") == 1
    assert text.splitlines()[-2:][0] == "# the end"
    assert keys(opened(path)) == ["a", "appended"]


def test_a_schedule_by_hand(path: Path) -> None:
    clock = ManualClock()
    engine = opened(path, clock=clock)
    put(engine, "a")
    edit(path, ("      - key: a\n", "      - key: a\n        due: 2023-11-14T23:13:21+01:00\n"))
    assert keys(engine) == []
    clock.now += 1.0
    assert [item.key for item in claim(engine)] == ["a"]


def test_an_edit_of_an_old_version_adds_only(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    text = path.read_text()
    (lease,) = claim(engine)
    put(engine, "c")
    path.write_text(
        text.replace("# sum", "      - key: mine\n# sum").replace("- key: b", "- key: B")
    )
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert keys(engine) == ["b", "c", "mine"]
    assert engine.apply([Ack("jobs", "a", lease.token)]) == [None]
    assert len(list(path.parent.glob("*.damaged-*"))) == 2


@pytest.mark.parametrize("later", [0, 2])
def test_an_old_version_within_a_moment_of_a_write_takes_nothing_back(
    path: Path, later: int
) -> None:
    engine = opened(path)
    put(engine, "a")
    text = path.read_bytes()
    (lease,) = claim(engine)
    for number in range(later):
        put(engine, f"b{number}")
    path.write_bytes(text)
    with pytest.warns(FileStoreWarning, match="older version"):
        assert len(claim(engine, 9)) == later
    assert text in [file.read_bytes() for file in path.parent.glob("*.damaged-*")]
    assert engine.apply([Ack("jobs", "a", lease.token)]) == [None]


@pytest.mark.parametrize("later", [0, 2])
def test_an_old_version_that_is_put_back_by_hand_is_an_edit(path: Path, later: int) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    text = path.read_bytes()
    (lease,) = claim(engine)
    for number in range(later):
        put(engine, f"c{number}")
    replaced = path.read_bytes()
    # Nobody has written for a while.
    copy = path.with_name("queue.yaml.bak")
    earlier = copy.stat().st_mtime - 5.0
    os.utime(copy, (earlier, earlier))
    path.write_bytes(text)
    with pytest.warns(FileStoreWarning, match="put back and counts now"):
        assert keys(engine) == ["a", "b"]
    # The lease is over, as it is when a person removes it.
    refusal = engine.apply([Ack("jobs", "a", lease.token)])[0]
    assert isinstance(refusal, errors.LeasedKeyQError)
    assert replaced in [file.read_bytes() for file in path.parent.glob("*.damaged-*")]
    # Numbers and fences go on: nothing is given out a second time.
    assert put(engine, "d") == (3 + later,)
    assert claim(engine)[0].fence > lease.fence
    assert not opened(path).file.notices


NONSENSE = [
    ("key: b", "key: a", "twice"),
    ("    id: 2", "    id: 1", "twice"),
    ("    id: 2", "    id: two", "id"),
    ("priority: 3", "priority: high", "priority"),
    ("priority: 3", "priority: 1.5", "priority"),
    ("priority: 3", "priority: 3\n        priority: 33", "priority"),
    ("version: 2", "version: 27", "version"),
    ("put_at: 2", "put_at: tomorrow 2", "time"),
    ("      - key: b\n", "      - nokey: 1\n", "key"),
    ("      - key: b\n", "      - key: [b]\n", "text"),
    ("      - key: b\n", "      - key: b\n        state: lost\n", "state"),
    ("      - key: b\n", "      - key: b\n        lease: {fence: 9}\n", "token"),
    ("      - key: b\n", "      - key: b\n        next: {value: 9}\n", "line"),
    ("      - key: b\n", "      - key: b\n     oops\n", "YAML"),
    ("    items:\n", "    items: none\n    more:\n", "list"),
    ("queues:\n", "queues: 7\nothers:\n", "mapping"),
    ("# sum", "\x00\x01 # sum", "YAML"),
]


@pytest.mark.parametrize("old, new, reason", NONSENSE)
def test_nonsense_is_set_aside_and_the_last_version_restored(
    path: Path, old: str, new: str, reason: str
) -> None:
    engine = opened(path)
    put(engine, "a")
    put(engine, "b", priority=3)
    good = path.read_bytes()
    edit(path, (old, new))
    bad = path.read_bytes()
    with pytest.warns(FileStoreWarning, match="last good version"):
        assert keys(engine) == ["b", "a"]
    assert path.read_bytes() == good
    aside, note = sorted(path.parent.glob("*.damaged-*"))
    assert aside.read_bytes() == bad
    assert note.name == f"{aside.name}.reason"
    assert reason in note.read_text()
    assert reason in engine.file.notices[-1]
    assert put(engine, "c") == (3,)


def test_two_leases(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    first, second = claim(engine, 2)
    edit(path, (second.token, first.token))
    with pytest.warns(FileStoreWarning, match="another item"):
        assert keys(engine) == []


def test_twice_in_json(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    engine = opened(path)
    put(engine, "a")
    edit(path, ('"key": "a"', '"key": "x", "key": "a"'))
    with pytest.warns(FileStoreWarning, match="twice"):
        assert keys(engine) == ["a"]


def test_a_missing_file_is_not_an_empty_queue(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    put(engine, "b")
    path.unlink()
    with pytest.warns(FileStoreWarning, match="missing"):
        assert keys(engine) == ["a", "b"]
    path.unlink()
    path.with_name("queue.yaml.bak").unlink()
    assert keys(engine) == []


def test_damage_without_a_copy_is_an_error_and_nothing_is_touched(path: Path) -> None:
    path.write_text("queues: [")
    engine = opened(path)
    for _ in range(2):
        with pytest.raises(errors.StoreError, match="mend it by hand"):
            put(engine, "a")
    assert path.read_text() == "queues: ["
    path.write_text("queues: {}\n")
    assert put(engine, "a") == (1,)


def test_a_newer_version_is_not_touched(path: Path) -> None:
    from leasedkeyq.engines.file.document.codec import add_checksum

    text = add_checksum(b"version: 3\nrevision: 1\nqueues: {}\n", yaml=True)
    path.write_bytes(text)
    path.with_name("queue.yaml.bak").write_bytes(text)
    with pytest.raises(errors.StoreError, match="upgrade"):
        put(opened(path), "a")
    assert path.read_bytes() == text


def test_warnings_that_are_errors_do_not_lose_the_answer(path: Path) -> None:
    engine = opened(path)
    put(engine, "b")
    put(engine, "a", priority=1)
    path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [item.key for item in claim(engine)] == ["a"]
    assert "missing" in engine.file.notices[-1]


def test_yaml_without_ruamel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    engine = opened(path)
    put(engine, "a")
    edit(path, ("# sum", "      - key: plain\n# sum"))
    assert keys(engine) == ["a", "plain"]
    edit(path, ("key: plain", "key: 'quoted' # by hand"))
    assert keys(engine) == ["a", "quoted"]
    edit(path, ("key: quoted", "key: &name quoted"))
    text = path.read_text()
    with pytest.raises(errors.StoreError, match=r"leasedkeyq\[yaml\]"):
        put(engine, "b")
    assert path.read_text() == text
