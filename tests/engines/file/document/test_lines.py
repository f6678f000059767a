"""The line of a key in the documents of the file store: to be read, and edited by hand."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasedkeyq.engines.file.document.codec import add_checksum, split_checksum
from leasedkeyq.engines.file.store import FileEngine, FileStoreWarning
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Counts,
    Put,
    Release,
    Requeue,
    StoredItem,
)
from leasedkeyq.testing import ManualClock
from tests.engines.file.document import repository_documents
from tests.engines.file.support import SUFFIXES, claim, edit, ids, keys, opened
from tests.engines.file.test_races import RacingOps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


def append(engine: FileEngine, key: str, *values: Any, **options: Any) -> Any:
    pairs = tuple((key, json.dumps(value).encode()) for value in values)
    return ids(engine.apply([Put("jobs", pairs, "append", **options)])[0])


def values_of(engine: FileEngine, key: str = "k") -> list[StoredItem]:
    return list(engine.read(lambda model, now: model.line("jobs", key, now)))


def line(engine: FileEngine, key: str = "k") -> list[Any]:
    """The values of a key, in order."""
    return [json.loads(item.value) for item in values_of(engine, key)]


def numbers(engine: FileEngine, key: str = "k") -> list[int]:
    return [item.id for item in values_of(engine, key)]


def counts(engine: FileEngine) -> Counts:
    return engine.read(lambda model, now: model.count("jobs", now))


def worked_on(engine: FileEngine) -> list[Any]:
    """Everything that can be handed out, one after the other; each is acknowledged."""
    found: list[Any] = []
    while leases := claim(engine):
        found += [json.loads(lease.value) for lease in leases]
        engine.apply([Ack("jobs", lease.key, lease.token) for lease in leases])
    return found


# How it looks


def test_the_layout_of_a_line(path: Path) -> None:
    engine = opened(path, clock=ManualClock())
    append(engine, "k", {"n": 1}, {"n": 2})
    append(engine, "k", {"n": 3}, priority=-2, delay=60.0, kind="mail", deadline=90.0)
    append(engine, "other", 4)
    (lease,) = claim(engine)
    engine.apply([Put("jobs", (("other", b"5"),), "append")])
    text = path.read_text()
    assert text[text.index("queues:") : text.index("# sum")] == (
        "queues:\n  jobs:\n    items:\n"
        '      - key: k\n        value: {"n": 1}\n'
        f'        lease: {{"token": "{lease.token}", "fence": 1, '
        '"leased_at": "2023-11-14T22:13:20Z"}\n'
        "        attempt: 1\n        id: 1\n        put_at: 2023-11-14T22:13:20Z\n"
        "        line:\n"
        '          - value: {"n": 2}\n            id: 2\n            put_at: 2023-11-14T22:13:20Z\n'
        '          - kind: mail\n            value: {"n": 3}\n            priority: -2\n'
        "            due: 2023-11-14T22:14:20Z\n            deadline: 2023-11-14T22:14:50Z\n"
        "            id: 3\n            put_at: 2023-11-14T22:13:20Z\n"
        "      - key: other\n        value: 4\n        id: 4\n"
        "        put_at: 2023-11-14T22:13:20Z\n"
        "        line:\n"
        "          - value: 5\n            id: 5\n            put_at: 2023-11-14T22:13:20Z\n"
    )
    assert text.startswith("# The queues of leasedkeyq.")
    assert "\nversion: 2\n" in text


def test_the_layout_of_a_line_in_json(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    engine = opened(path, clock=ManualClock())
    append(engine, "k", 1, 2, 3)
    append(engine, "other", 4)
    text = path.read_text()
    put_at = '"put_at": "2023-11-14T22:13:20Z"'
    assert (
        f'  {{"key": "k", "value": 1, "id": 1, {put_at}, "line": [\n'
        f'    {{"value": 2, "id": 2, {put_at}}},\n'
        f'    {{"value": 3, "id": 3, {put_at}}}\n'
        f"  ]}},\n"
        f'  {{"key": "other", "value": 4, "id": 4, {put_at}}}\n'
    ) in text
    assert len(json.loads(text)["queues"]["jobs"]["items"][0]["line"]) == 2


@SUFFIXES
def test_another_process_reads_a_line_and_works_on_it(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    one, two = opened(path), opened(path)
    append(one, "k", *range(6))
    (lease,) = claim(two)
    append(one, "k", 6)
    assert line(two) == [*range(7)]
    assert one.apply([Ack("jobs", "k", lease.token)]) == [None]
    (lease,) = claim(two)
    one.apply([Release("jobs", "k", lease.token, delay=3600.0)])
    assert claim(two) == []
    two.apply([Cancel("jobs", "k", id=lease.id)])
    assert worked_on(one) == [*range(2, 7)]
    assert counts(two) == Counts()
    assert not one.file.notices
    assert not two.file.notices


def test_a_value_that_did_not_change_is_written_as_it_was(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", *range(4))
    edit(path, ("            id: 3\n", "            id: 3 # mine\n            owner: 1e2\n"))
    (lease,) = claim(engine)
    engine.apply([Ack("jobs", "k", lease.token)])
    text = path.read_text()
    assert "            id: 3 # mine\n            owner: 1e2\n            put_at: " in text


# By hand


def test_values_are_added_removed_and_changed_by_hand(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2, 3)
    edit(path, ("# sum", "          - value: {by: hand}\n            priority: 4\n# sum"))
    assert line(engine) == [1, 2, 3, {"by": "hand"}]
    assert numbers(engine) == [1, 2, 3, 4]
    assert "1 items added, 0 removed, 0 changed" in engine.file.notices[-1]
    assert values_of(engine)[3].priority == 4
    text = path.read_text()
    begin = text.index("          - value: 2\n")
    path.write_text(text[:begin] + text[text.index("          - value: 3\n") :])
    assert line(engine) == [1, 3, {"by": "hand"}]
    assert "0 items added, 1 removed" in engine.file.notices[-1]
    edit(path, ("- value: 3\n", "- value: three\n"))
    assert line(engine) == [1, "three", {"by": "hand"}]
    assert numbers(engine) == [1, 3, 4]
    assert worked_on(engine) == [1, "three", {"by": "hand"}]


def test_a_line_is_begun_by_hand(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1)
    (lease,) = claim(engine)
    edit(path, ("# sum", "        line:\n          - value: 2\n          - value: 3\n# sum"))
    assert line(engine) == [1, 2, 3]
    assert engine.apply([Ack("jobs", "k", lease.token)]) == [None]
    assert worked_on(engine) == [2, 3]


def blocks_of(path: Path) -> tuple[str, list[str], str]:
    """A document: what comes before the values of its one line, these, and what comes behind."""
    text = path.read_text()
    begin, end = text.index("          - "), text.index("# sum")
    values = [f"          - {block}" for block in text[begin:end].split("          - ")[1:]]
    return text[:begin], values, text[end:]


def test_an_order_that_a_person_has_changed_counts_and_ids_rise_again(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", *range(1, 6))
    append(engine, "other", 9)
    (lease,) = claim(engine)
    engine.apply([Ack("jobs", "k", lease.token)])
    append(engine, "k", 6)
    engine.apply([Cancel("jobs", "other")])
    before, values, behind = blocks_of(path)
    three, four, five, six = values
    path.write_text(f"{before}{three}{five}{four}{six}{behind}")
    # Those before the change keep their ids, and with them their handles.
    assert line(engine) == [2, 3, 5, 4, 6]
    assert numbers(engine) == [2, 3, 5, 8, 9]
    # They are in the document, too.
    assert numbers(opened(path)) == [2, 3, 5, 8, 9]
    assert append(engine, "k", 7) == (10,)
    assert worked_on(engine) == [2, 3, 5, 4, 6, 7]


def test_a_new_value_between_others(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2, 3)
    edit(path, ("          - value: 3\n", "          - value: new\n          - value: 3\n"))
    assert line(engine) == [1, 2, "new", 3]
    assert numbers(engine) == [1, 2, 4, 5]


def test_head_and_line_change_places_by_hand(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", "one", "two", "three")
    edit(
        path,
        ('value: "one"\n        id: 1\n', 'value: "two"\n        id: 2\n'),
        ('- value: "two"\n            id: 2\n', '- value: "one"\n            id: 1\n'),
    )
    assert line(engine) == ["two", "one", "three"]
    assert numbers(engine) == [2, 4, 5]


def test_the_head_is_removed_by_hand_and_the_next_made_the_item(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2, 3)
    before, (_, three), behind = blocks_of(path)
    before = before[: before.index("      - key: k")]
    item = "      - key: k\n        value: 2\n        id: 2\n        line:\n"
    path.write_text(before + item + three + behind)
    assert numbers(engine) == [2, 3]
    assert worked_on(engine) == [2, 3]


def test_a_value_is_moved_to_a_key_of_its_own(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2)
    before, (two,), behind = blocks_of(path)
    before = before.replace("        line:\n", "")
    item = two.replace("          - ", "      - key: free\n        ").replace("    id", "id")
    path.write_text(before + item.replace("    put_at", "put_at") + behind)
    assert line(engine) == [1]
    assert line(engine, "free") == [2]
    assert numbers(engine, "free") == [2]
    assert keys(engine) == ["k", "free"]


FREE_STYLES = [
    "      - {key: k, value: 1, line: [{value: 2}, {value: 3, priority: 1}]}\n",
    "      - line: [{value: 2}, {value: 3, priority: 1}]\n        key: k\n        value: 1\n",
    """\
      - key: k
        value: 1
        line:
        - value: 2
        - value: 3
          priority: 1
""",
    """\
      - key: k
        line:
            - value: 2
            - priority: 1
              value: 3
        value: 1
""",
    """\
      - key: k
        value: 1
        line: # in order
          # the second
          - key: k
            value: '2'
          - value: |
              3
            priority: 1
""",
    """\
      - key: k
        'line':
          - value: 2
          - {value: 3, priority: 1}
        value: 1
""",
]


@pytest.mark.parametrize("style", FREE_STYLES)
def test_a_line_in_the_style_of_a_person(path: Path, style: str) -> None:
    path.write_text(f"queues:\n  jobs:\n    items:\n      - key: a\n{style}      - key: z\n")
    engine = opened(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [int(value) for value in line(engine)] == [1, 2, 3]
    assert [item.priority for item in values_of(engine)] == [0, 0, 1]
    assert keys(engine) == ["a", "k", "z"]
    # From here on it is in ours, which is read without a YAML library.
    text = path.read_text()
    assert text.count("        line:") == 1
    assert text.count("          - ") == 2
    for comment in ("# in order", "# the second"):
        assert text.count(comment) == style.count(comment)
    assert [int(value) for value in line(opened(path))] == [1, 2, 3]
    found = yaml.safe_load(text)["queues"]["jobs"]["items"][1]
    assert [int(value["value"]) for value in (found, *found["line"])] == [1, 2, 3]


@pytest.mark.parametrize("nothing", ["line:", "line: []", "line: null"])
def test_an_empty_line_is_none(path: Path, nothing: str) -> None:
    path.write_text(f"queues:\n  jobs:\n    items:\n      - key: k\n        {nothing}\n")
    engine = opened(path)
    assert line(engine) == [None]
    assert "line:" not in path.read_text().partition("queues:")[2]


# Comments


def test_comments_stay_with_their_values(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2, 3, 4)
    edit(
        path,
        ("        line:\n", "        # the events\n        line: # all of them\n"),
        ("          - value: 2\n", "          # about two\n          - value: 2 # really\n"),
        ("          - value: 4\n", "          # about four\n          - value: 4\n"),
        ("            id: 4\n", "            # its number\n            id: 4\n"),
    )
    assert line(engine) == [1, 2, 3, 4]
    (lease,) = claim(engine)
    text = path.read_text()
    for comment in ("# the events", "# all of them", "# about two", "# really", "# about four"):
        assert text.count(comment) == 1
    engine.apply([Ack("jobs", "k", lease.token)])
    # What was in line is the item now, with its comment; the line still has its own.
    text = path.read_text()
    assert "      # about two\n      - key: k\n        value: 2 # really\n" in text
    assert "        # the events\n        line: # all of them\n          - value: 3\n" in text
    for _ in range(2):
        (lease,) = claim(engine)
        engine.apply([Ack("jobs", "k", lease.token)])
    text = path.read_text()
    assert "# about two" not in text
    assert "      # about four\n" in text
    assert "        # its number\n        id: 4\n" in text
    # The line is gone, and its comments are the item's.
    for comment in ("# the events", "# all of them"):
        assert text.count(comment) == 1
    assert worked_on(engine) == [4]
    assert "# about four" not in path.read_text()


def test_comments_of_a_value_leave_with_it_and_others_stay(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2, 3)
    edit(
        path,
        (
            "          - value: 2\n",
            "          # chapter\n\n          # on two\n          - value: 2\n",
        ),
    )
    two = numbers(engine)[1]
    engine.apply([Cancel("jobs", "k", id=two)])
    text = path.read_text()
    assert "# on two" not in text
    assert "# chapter" in text
    assert line(opened(path)) == [1, 3]


# What is no line

NONSENSE = [
    ("- value: 2\n", "- text: 2\n", "value 1 in the line of 'k' in queue 'jobs': it has no value"),
    ("- value: 2\n", "- 2\n          - value: 3\n", "value 1 in the line of 'k' in queue 'jobs'"),
    ("- value: 2\n", "- key: x\n            value: 2\n", "its key is 'x'; a line has one key"),
    ("- value: 2\n", "- value: 2\n            attempt: 2\n", "has no 'attempt'"),
    ("- value: 2\n", "- value: 2\n            lease: {token: x, fence: 1}\n", "has no 'lease'"),
    (
        "- value: 2\n",
        "- value: 2\n            state: buried\n",
        "no such state in a line: 'buried'",
    ),
    ("- value: 2\n", "- value: 2\n            state: buffered\n", "newer value of a key that is"),
    ("- value: 2\n", "- value: 2\n            line: [{value: 3}]\n", "no line of its own"),
    ("- value: 2\n", "- value: 2\n            raw: aGk=\n", "both a value and a raw value"),
    ("- value: 2\n", "- value: 2\n            due: soon\n", "a time looks like"),
    ("            id: 2\n", "            id: 1\n", "the id 1 is there twice"),
    ("            id: 2\n", "            id: -2\n", "id is out of range"),
    ("        line:\n", "        line: 7\n        lines:\n", "are not a list"),
    ("        line:\n", "        state: done\n        line:\n", "a result has no line"),
    ("        line:\n", "        next: {value: 9}\n        line:\n", "'line'"),
    ("      - key: z\n", "      - key: k\n", "the key 'k' is there twice"),
]


@pytest.mark.parametrize("old, new, reason", NONSENSE)
def test_nonsense_in_a_line_is_told_and_the_last_version_restored(
    path: Path, old: str, new: str, reason: str
) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2)
    append(engine, "z", 3)
    good = path.read_bytes()
    edit(path, (old, new))
    with pytest.warns(FileStoreWarning, match="last good version"):
        assert line(engine) == [1, 2]
    assert path.read_bytes() == good
    assert reason in engine.file.notices[-1]
    assert append(engine, "k", 4) == (4,)


@pytest.mark.parametrize(
    "new, reason",
    [
        ('"line": 7', "the values in the line of \"k\" in queue 'jobs' are not a list"),
        ('"line": [7]', "value 1 in the line of \"k\" in queue 'jobs'"),
        ('"line": [{"id": 9}]', "it has no value"),
    ],
)
def test_nonsense_in_a_line_in_json(tmp_path: Path, new: str, reason: str) -> None:
    path = tmp_path / "queue.json"
    engine = opened(path)
    append(engine, "k", 1)
    edit(path, ('"value": 1', f'"value": 1, {new}'))
    with pytest.warns(FileStoreWarning, match="last good version"):
        assert line(engine) == [1]
    assert reason in engine.file.notices[-1]


def test_a_line_is_edited_in_json(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    engine = opened(path)
    append(engine, "k", 1, 2, 3)
    found = json.loads(path.read_text())
    found["queues"]["jobs"]["items"][0]["line"].insert(1, {"value": "new"})
    path.write_text(json.dumps(found, indent=4))
    assert line(engine) == [1, 2, "new", 3]
    assert numbers(engine) == [1, 2, 4, 5]
    assert line(opened(path)) == [1, 2, "new", 3]


# Buffered values, held keys and results


def test_a_buffered_value_says_so(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1)
    (lease,) = claim(engine)
    engine.apply([Put("jobs", (("k", b"2"),), "buffer"), Put("jobs", (("k", b"3"),), "append")])
    assert "          - value: 2\n            state: buffered\n" in path.read_text()
    other = opened(path)
    assert [item.state for item in values_of(other)] == ["in_flight", "buffered", "in_line"]
    # The person lets it wait its turn.
    edit(path, ("            state: buffered\n", ""))
    engine.apply([Release("jobs", "k", lease.token)])
    assert worked_on(engine) == [1, 2, 3]


def test_a_lease_that_is_taken_away_by_hand_leaves_no_buffered_value(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1)
    (lease,) = claim(engine)
    engine.apply([Put("jobs", (("k", b"2"),), "buffer")])
    text = path.read_text()
    begin = text.index("        lease:")
    without = text[:begin] + text[text.index("        attempt:") :]
    path.write_text(without)
    with pytest.warns(FileStoreWarning, match="take away its state"):
        assert line(engine) == [1, 2]
    path.write_text(without.replace("            state: buffered\n", ""))
    assert [item.state for item in values_of(engine)] == ["available", "in_line"]
    assert isinstance(engine.apply([Ack("jobs", "k", lease.token)])[0], Exception)


def held(path: Path, **options: Any) -> tuple[FileEngine, int]:
    """A key that a buried item holds, with two values behind it."""
    engine = opened(path, **options)
    append(engine, "k", 1, 2, 3)
    (lease,) = claim(engine)
    engine.apply([Bury("jobs", "k", lease.token, "broken", hold=True)])
    return engine, lease.id


@SUFFIXES
def test_a_buried_item_that_holds_its_key_shows_it_and_its_line(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"queue.{suffix}"
    engine, number = held(path)
    found = yaml.safe_load(path.read_text())["queues"]["jobs"]["items"]
    assert [(item["state"], item["hold"]) for item in found] == [("buried", True)]
    assert [value["value"] for value in found[0]["line"]] == [2, 3]
    other = opened(path)
    assert claim(other) == []
    assert counts(other) == Counts(buried=1, held=2)
    append(other, "k", 4)
    assert engine.apply([Requeue("jobs", number)]) == [True]
    assert "hold" not in path.read_text().partition("queues:")[2]
    assert worked_on(other) == [1, 2, 3, 4]


def test_a_key_is_let_go_by_hand(path: Path) -> None:
    engine, number = held(path)
    edit(path, ("        hold: true\n", ""))
    assert line(engine) == [2, 3]
    assert counts(engine) == Counts(available=2, buried=1)
    assert worked_on(engine) == [2, 3]
    assert engine.apply([Requeue("jobs", number)]) == [True]


def test_a_buried_item_is_requeued_by_hand_to_the_head_of_its_line(path: Path) -> None:
    engine, _ = held(path)
    edit(path, ("        state: buried\n", ""))
    assert line(engine) == [1, 2, 3]
    assert worked_on(engine) == [1, 2, 3]


def test_a_live_item_beside_a_buried_one_that_holds_the_key_is_refused(path: Path) -> None:
    engine, _ = held(path)
    edit(path, ("    items:\n", "    items:\n      - key: k\n        value: 5\n"))
    with pytest.warns(FileStoreWarning, match="more of its values go to its line"):
        assert counts(engine) == Counts(buried=1, held=2)


def test_a_hold_that_is_lifted_stays_lifted(path: Path) -> None:
    engine, number = held(path)
    assert engine.apply([Cancel("jobs", "k")]) == [2]
    append(engine, "k", 9)
    other = opened(path)
    assert [
        item.holds for item in other.read(lambda m, n: m.browse("jobs", ["buried"], "", n))
    ] == [False]
    assert other.apply([Requeue("jobs", number)]) == [True]
    assert worked_on(other) == [9, 1]


@SUFFIXES
def test_a_result_says_when_it_ended(tmp_path: Path, suffix: str) -> None:
    clock = ManualClock()
    path = tmp_path / f"queue.{suffix}"
    engine = opened(path, clock=clock)
    append(engine, "k", 1)
    (lease,) = claim(engine)
    engine.apply([Ack("jobs", "k", lease.token, b"7", 3600.0)])
    assert "2023-11-14T22:13:20Z" in path.read_text().partition("ended_at")[2]
    clock.now += 10.0
    unique = Put("jobs", (("k", b"2"),), "skip", unique_for=10.0)
    other = opened(path, clock=clock)
    assert other.apply([unique]) == [((lease.id, "skipped"),)]
    clock.now += 0.5
    assert other.apply([unique]) == [((2, "added"),)]


# While the store writes


def test_a_value_is_added_while_the_store_goes_on_with_the_line(path: Path) -> None:
    ops = RacingOps()
    engine = opened(path, ops=ops)
    append(engine, "k", 1, 2, 3)
    (lease,) = claim(engine)

    def by_hand() -> None:
        edit(path, ("# sum", "          # mine\n          - value: new\n# sum"))

    ops.race = by_hand
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.apply([Ack("jobs", "k", lease.token)])
    assert line(engine) == [2, 3, "new"]
    assert '          # mine\n          - value: "new"\n' in path.read_text()
    assert line(opened(path)) == [2, 3, "new"]


def test_a_value_is_added_to_the_line_of_an_item_that_is_done_meanwhile(path: Path) -> None:
    ops = RacingOps()
    engine = opened(path, ops=ops)
    append(engine, "k", 1)
    (lease,) = claim(engine)
    ops.race = lambda: edit(path, ("# sum", "        line:\n          - value: new\n# sum"))
    engine.apply([Ack("jobs", "k", lease.token)])
    assert line(engine) == ["new"]
    assert keys(engine) == ["k"]


def test_a_line_is_reordered_while_the_store_appends_and_goes_on(path: Path) -> None:
    ops = RacingOps()
    engine = opened(path, ops=ops)
    append(engine, "k", 1, 2, 3, 4)
    (lease,) = claim(engine)

    def by_hand() -> None:
        before, (two, three, four), behind = blocks_of(path)
        path.write_text(before + four + three + two + behind)

    ops.race = by_hand
    append(engine, "k", 5)
    assert line(engine) == [1, 4, 3, 2, 5]
    assert numbers(engine) == sorted(numbers(engine))
    engine.apply([Ack("jobs", "k", lease.token)])
    assert worked_on(engine) == [4, 3, 2, 5]


def test_a_value_is_removed_and_another_changed_while_the_store_goes_on(path: Path) -> None:
    ops = RacingOps()
    engine = opened(path, ops=ops)
    append(engine, "k", 1, 2, 3, 4)
    (lease,) = claim(engine)

    def by_hand() -> None:
        before, (two, _, four), behind = blocks_of(path)
        two = two.replace("value: 2\n", "value: 2\n            priority: 7\n")
        path.write_text(before + two + four + behind)

    ops.race = by_hand
    engine.apply([Ack("jobs", "k", lease.token)])
    assert line(engine) == [2, 4]
    assert values_of(engine)[0].priority == 7


def test_an_edit_of_an_old_version_adds_to_a_line_once(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1, 2)
    old = path.read_text().replace("# sum", "          - value: mine\n# sum")
    append(engine, "k", 3)
    path.write_text(old)
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert line(engine) == [1, 2, 3, "mine"]
    # The editor is still open, and saves once more.
    path.write_text(old)
    with pytest.warns(FileStoreWarning, match="0 new items"):
        assert line(engine) == [1, 2, 3, "mine"]


def test_an_edit_of_an_old_version_adds_to_the_line_of_a_key_that_is_gone(path: Path) -> None:
    engine = opened(path)
    append(engine, "k", 1)
    old = path.read_text().replace("# sum", "        line:\n          - value: mine\n# sum")
    assert worked_on(engine) == [1]
    path.write_text(old)
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert line(engine) == ["mine"]


# Documents of version 1

VERSION_1 = """\
version: 1
revision: 4
last_id: 3
last_fence: 1
queues:
  jobs:
    items:
      # about k
      - key: k
        value: 1
        lease: {"token": "t", "fence": 1, "leased_at": "2023-11-14T22:13:20Z"}
        attempt: 1
        next: {"value": 2, "kind": "mail", "priority": 4, "id": 3, "put_at": "2023-11-14T22:13:20Z"}
        id: 1
        put_at: 2023-11-14T22:13:20Z
      - key: r
        value: 7
        state: done
        id: 2
        put_at: 2023-11-14T22:13:20Z
        until: 2099-11-14T22:13:20Z
"""


def test_a_document_of_version_1_is_read_and_written_as_version_2(path: Path) -> None:
    text = add_checksum(VERSION_1.encode(), yaml=True)
    path.write_bytes(text)
    path.with_name("queue.yaml.bak").write_bytes(text)
    engine = opened(path, clock=ManualClock())
    head, buffered = values_of(engine)
    assert (head.state, head.id, head.attempt) == ("in_flight", 1, 1)
    assert (buffered.state, buffered.id, buffered.kind) == ("buffered", 3, "mail")
    assert (buffered.value, buffered.priority) == (b"2", 4)
    assert path.read_bytes() == text, "reading writes nothing"
    assert append(engine, "k", 3) == (4,)
    body, fits = split_checksum(path.read_bytes(), yaml=True)
    assert fits
    assert body.startswith(b"version: 2\n")
    assert b"next" not in body
    assert b"      # about k\n" in body
    other = opened(path, clock=ManualClock())
    assert [item.state for item in values_of(other)] == ["in_flight", "buffered", "in_line"]
    assert engine.apply([Release("jobs", "k", "t")]) == [None]
    assert worked_on(other) == [2, 3]
    [result] = other.read(lambda model, now: model.browse("jobs", ["done"], "", now))
    assert (result.id, result.ended_at) == (2, None)
    assert not other.file.notices


def test_a_buffered_value_of_version_1_is_for_the_time_after_a_lease(path: Path) -> None:
    lines = [line for line in VERSION_1.splitlines() if "lease:" not in line]
    path.write_text("\n".join(lines) + "\n")
    engine = opened(path)
    with pytest.raises(Exception, match="newer value of a key that is leased"):
        line(engine)


REPOSITORY_1 = """\
name: jobs
max_size: null
default_max_retries: 3
items:
- id: a
  type: task
  payload: {"task_id": "a"}
  status: processing
  created_at: "2026-11-16T00:31:33.123456+00:00"
  priority: 0
  scheduled_at: null
  started_at: "2026-11-16T01:33:20+00:00"
  completed_at: null
  retry_count: 0
  max_retries: 3
  error_message: null
  metadata: {}
leasedkeyq: # the store's own notes about the items; leave them to the program
  version: 1
  revision: 3
  last_id: 2
  last_fence: 1
  items:
  - {"id": "a", "number": 1, "state": "in_flight", "put_at": "2026-11-16T01:33:20Z", "attempt": 1, \
"lease": {"token": "t", "fence": 1, "leased_at": "2026-11-16T01:33:20Z"}, "next": {"value": \
{"type": "mail", "payload": {"n": 2}, "created_at": "2026-11-16T00:31:33.123456+00:00", \
"max_retries": 3, "metadata": {}}, "number": 2, "put_at": "2026-11-16T01:33:20Z"}}
"""


def test_a_repository_of_version_1_is_read_and_written_as_version_2(path: Path) -> None:
    text = add_checksum(REPOSITORY_1.encode(), yaml=True)
    path.write_bytes(text)
    path.with_name("queue.yaml.bak").write_bytes(text)
    engine = repository_documents.opened(path, clock=lambda: repository_documents.NOW)
    found = values_of(engine, "a")
    assert [(item.state, item.id) for item in found] == [("in_flight", 1), ("buffered", 2)]
    assert found[1].kind == "mail"
    assert engine.apply([Ack("jobs", "a", "t")]) == [None]
    assert "  version: 2\n" in path.read_text()
    [item] = repository_documents.read_plainly(path)
    assert (item.payload, item.status) == ({"n": 2}, "pending")
    assert not engine.file.notices


# Documents of one queue


@SUFFIXES
def test_values_in_line_are_items_of_the_same_id_in_a_repository(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"queue.{suffix}"
    engine = repository_documents.opened(path)
    values = [(key, repository_documents.value(task)) for key, task in ("a1", "a2", "b1", "a3")]
    engine.apply([Put("jobs", tuple(values), "append", kind="task")])
    found = repository_documents.read_plainly(path)
    tasks = [(item.id, item.payload["task_id"], item.status) for item in found]
    assert tasks == [
        ("a", "1", "pending"),
        ("a", "2", "pending"),
        ("a", "3", "pending"),
        ("b", "1", "pending"),
    ]
    other = repository_documents.opened(path)
    (lease,) = repository_documents.claim(other)
    other.apply([Bury("jobs", "a", lease.token, "broken", hold=True)])
    statuses = [(item.id, item.status) for item in repository_documents.read_plainly(path)]
    assert statuses == [("b", "pending"), ("a", "failed"), ("a", "pending"), ("a", "pending")]
    assert engine.read(lambda m, n: m.count("jobs", n)) == Counts(available=1, buried=1, held=2)
    assert engine.apply([Requeue("jobs", lease.id)]) == [True]
    got: list[str] = []
    while leases := repository_documents.claim(engine):
        got += [lease.key + json.loads(lease.value)["payload"]["task_id"] for lease in leases]
        engine.apply([Ack("jobs", lease.key, lease.token) for lease in leases])
    assert got == ["b1", "a1", "a2", "a3"]


def repository_line(path: Path) -> FileEngine:
    engine = repository_documents.opened(path)
    pairs = tuple(("a", repository_documents.value(task)) for task in "1234")
    engine.apply([Put("jobs", pairs, "append", kind="task")])
    return engine


def tasks(engine: FileEngine) -> list[str]:
    return [value["payload"]["task_id"] for value in line(engine, "a")]


def test_a_line_of_a_repository_is_edited_by_hand(path: Path) -> None:
    engine = repository_line(path)
    text = path.read_text()
    head, *items = text[: text.index("leasedkeyq:")].split("- id: a\n")
    rest = text[text.index("leasedkeyq:") :]
    one, two, three, four = (f"- id: a\n{item}" for item in items)
    path.write_text(f"{head}{one}{four}{two}{rest}")
    assert tasks(engine) == ["1", "4", "2"]
    assert numbers(engine, "a") == sorted(numbers(engine, "a"))
    edit(path, ('{"task_id": "4"}', '{"task_id": "four"}'))
    edit(path, ('"2"}\n  status: pending', '"2"}\n  status: completed'))
    assert tasks(engine) == ["1", "four"]
    assert three not in path.read_text()


def test_the_head_of_a_line_of_a_repository_is_removed_by_hand(path: Path) -> None:
    engine = repository_line(path)
    (lease,) = repository_documents.claim(engine)
    text = path.read_text()
    begin, end = text.index("- id: a\n"), text.index("- id: a\n", text.index("- id: a\n") + 1)
    path.write_text(text[:begin] + text[end:])
    assert tasks(engine) == ["2", "3", "4"]
    assert [item.state for item in values_of(engine, "a")] == ["available", "in_line", "in_line"]
    assert isinstance(engine.apply([Ack("jobs", "a", lease.token)])[0], Exception)


def test_a_value_in_line_of_a_repository_is_scheduled_by_hand(path: Path) -> None:
    engine = repository_line(path)
    before, _, behind = path.read_text().partition('payload: {"task_id": "2"}')
    behind = behind.replace("scheduled_at: null", 'scheduled_at: "2099-01-01T00:00:00+00:00"', 1)
    path.write_text(f'{before}payload: {{"task_id": "2"}}{behind}')
    assert tasks(engine) == ["1", "2", "3", "4"]
    assert values_of(engine, "a")[1].due == 4070908800.0
    (lease,) = repository_documents.claim(engine)
    engine.apply([Ack("jobs", "a", lease.token)])
    assert repository_documents.claim(engine) == []
    assert values_of(engine, "a")[0].state == "scheduled"
