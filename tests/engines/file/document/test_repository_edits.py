"""The document of a repository: older ones, and what people do to it."""

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasedkeyq import errors
from leasedkeyq.engines.file.document.document import RepositorySettings
from leasedkeyq.engines.file.document.repository_fields import FIELDS
from leasedkeyq.engines.file.file_operations import FileOperations
from leasedkeyq.engines.file.store import FileStoreWarning
from leasedkeyq.model.requests import Ack, Bury, Cancel, Put
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.file.document.repository_documents import (
    CREATED,
    NOW,
    SeedItem,
    by_id,
    claim,
    finished,
    opened,
    put,
    read_plainly,
    ready,
    seen,
    value,
)
from tests.engines.file.support import SUFFIXES, edit, ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


# Older documents


OLD = """\
# tasks of the team
queue:
# urgent
- type: task
  payload: {task_id: T1}
  priority: 5
  owner: ann # who asked
- id: old-2
  type: task
  payload:
    task_id: T2
  status: processing
  created_at: 2026-02-06 10:00:00
  started_at: '2026-02-06T11:00:00'
- id: 17
  status: completed
  type: mail
  payload: {}
  created_at: 2026-02-06T10:00:00Z
  completed_at: 2026-02-06T12:00:00+01:00
- id: old-4
  type: task
  payload: {}
  status: failed
  created_at: 2026-02-06
  error_message: no luck
  retry_count: 3
- T5
- 6
- task: T7
  status: pending
# the end
"""


def test_an_older_document_is_taken_up_under_its_own_name(path: Path) -> None:
    path.write_text(OLD)
    clock = ManualClock(NOW)
    engine = opened(path, name=None, clock=clock)
    items = list(seen(engine, "queue").values())
    assert [item.state for item in items] == [
        "available",
        "in_flight",
        "done",
        "buried",
        "available",
        "available",
        "available",
    ]
    first, second, third, fourth, *bare = items
    assert first.priority == 5
    assert first.kind == "task"
    assert json.loads(first.value)["payload"] == {"task_id": "T1"}
    assert (second.key, second.due, second.leased_at) == ("old-2", NOW + 300.0, 1770375600.0)
    assert second.put_at == 1770372000.0
    assert (third.key, third.due, third.kind) == ("17", None, "mail")
    assert json.loads(third.value)["completed_at"] == "2026-02-06T12:00:00+01:00"
    assert (fourth.error, fourth.attempt) == ("no luck", 0)
    assert json.loads(fourth.value)["retry_count"] == 3
    tasks = [{"task_id": "T5"}, {"task_id": 6}, {"task": "T7"}]
    assert [json.loads(item.value)["payload"] for item in bare] == tasks
    assert ready(engine, "queue") == [first.key, *(item.key for item in bare)]
    # Whoever reads the list under its old name goes on, and nothing that was there is gone.
    document = yaml.safe_load(path.read_text())
    assert list(document) == ["name", "max_size", "default_max_retries", "queue", "leasedkeyq"]
    assert document["name"] == "queue"
    assert all(set(FIELDS) <= set(item) for item in document["queue"])
    assert [item["owner"] for item in document["queue"] if "owner" in item] == ["ann"]
    assert [item["task"] for item in document["queue"] if "task" in item] == ["T7"]
    text = path.read_text()
    for comment in ("# tasks of the team", "# urgent\n", "# who asked\n", "# the end\n"):
        assert comment in text
    assert len({item["id"] for item in document["queue"]}) == 7
    # It stays that way, and so do the ids.
    again = opened(path, form=None, name=None, clock=clock)
    assert seen(again, "queue") == seen(engine, "queue")
    again.apply([Put("queue", (("new", value()),))])
    assert "\nqueue:\n" in path.read_text()
    # Nobody knows whether the worker lives: its item comes back in the end, and that counts.
    clock.now += 301.0
    assert "old-2" in ready(engine, "queue")
    engine.apply([Put("queue", (("newer", value()),))])
    found = {item["id"]: item for item in yaml.safe_load(path.read_text())["queue"]}
    assert (found["old-2"]["status"], found["old-2"]["retry_count"]) == ("pending", 1)
    assert found["old-2"]["created_at"] == "2026-02-06T10:00:00+00:00"


def test_an_older_document_in_json(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    items = [{"type": "task", "payload": {"n": 1}, "owner": "ann"}, "T2", 3]
    path.write_text(json.dumps({"queue": items, "team": "x"}, indent=4))
    engine = opened(path, form=None, name=None)
    assert [json.loads(item.value)["payload"] for item in seen(engine, "tasks").values()] == [
        {"n": 1},
        {"task_id": "T2"},
        {"task_id": 3},
    ]
    found = json.loads(path.read_text())
    assert (found["team"], found["name"], found["queue"][0]["owner"]) == ("x", "tasks", "ann")
    assert seen(opened(path, form=None, name=None), "tasks") == seen(engine, "tasks")


def test_a_document_that_the_program_before_wrote(path: Path) -> None:
    items = [vars(SeedItem(f"k{n}", "task", {"n": n}, "pending", CREATED)) for n in range(3)]
    items[1]["scheduled_at"] = "2099-01-01T00:00:00"
    whole = {"name": "jobs", "items": items, "max_size": 10, "default_max_retries": 5}
    path.write_text(yaml.dump(whole))
    engine = opened(path)
    assert engine.read(lambda model, now: engine.settings) == RepositorySettings(
        name="jobs", max_size=10, default_max_retries=5
    )
    assert ready(engine) == ["k0", "k2"]
    assert seen(engine)["k1"].state == "scheduled"
    # It rewrites the whole document as it knows it, with all that it does not know.
    (lease,) = claim(engine)
    document = yaml.safe_load(path.read_text())
    document["items"].append({"type": "task", "payload": {"n": 4}})
    document["items"][2]["priority"] = 7
    path.write_text(yaml.dump(document))
    assert [json.loads(seen(engine)[key].value)["payload"]["n"] for key in ready(engine)] == [2, 4]
    assert engine.apply([Ack("jobs", "k0", lease.token)]) == [None]
    (new,) = [item for item in read_plainly(path) if item.payload == {"n": 4}]
    assert new.max_retries == 5


# Edits


def test_a_new_item_a_changed_priority_and_comments(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b", "c")
    edit(
        path,
        ("items:\n", "# the items\nitems:\n"),
        ("- id: b\n", "# b is urgent\n- id: b # really\n  owner: ann\n"),
        ('"task_id": "c"}\n  status: pending\n', '"task_id": "c"}\n  status: pending # so far\n'),
        ("leasedkeyq:", "# new ones\n- type: mail\n  payload: {to: ann}\n# last\nleasedkeyq:"),
    )
    before, _, after = path.read_text().partition("- id: c")
    path.write_text(before.replace("priority: 0", "priority: 9") + "- id: c" + after)
    found = seen(engine)
    assert ready(engine)[:3] == ["a", "b", "c"]
    assert [found[key].priority for key in "abc"] == [9, 9, 0]
    assert "1 items added, 0 removed, 2 changed ('a', 'b')" in engine.file.notices[-1]
    new = found[ready(engine)[3]]
    assert (new.id, new.kind, new.attempt) == (4, "mail", 0)
    assert json.loads(new.value)["payload"] == {"to": "ann"}
    claim(engine, 4)
    text = path.read_text()
    for comment in (
        "# the items\nitems:\n",
        "# b is urgent\n- id: b # really\n",
        "# so far\n",
        "# new ones\n- id: ",
        "# last\nleasedkeyq:",
    ):
        assert comment in text
    assert "  owner: ann\n" in text or '  owner: "ann"\n' in text
    assert len(read_plainly_with_others(path)) == 4
    assert seen(opened(path)) == seen(engine)


def read_plainly_with_others(path: Path) -> list[Any]:
    found: list[Any] = yaml.safe_load(path.read_text())["items"]
    return found


ARROWS = [
    # before, after, what the store makes of it
    ("pending", "processing", "in_flight"),
    ("pending", "failed", "buried"),
    ("pending", "completed", "done"),
    ("pending", "cancelled", "done"),
    ("processing", "pending", "available"),
    ("processing", "failed", "buried"),
    ("processing", "completed", "done"),
    ("failed", "pending", "available"),
    ("failed", "processing", "in_flight"),
    ("failed", "completed", "done"),
    ("completed", "pending", "available"),
    ("completed", "failed", "done"),
    ("completed", "processing", "in_flight"),
]


@SUFFIXES
@pytest.mark.parametrize("before, after, state", ARROWS)
def test_a_status_changed_by_hand(
    tmp_path: Path, suffix: str, before: str, after: str, state: str
) -> None:
    path = tmp_path / f"queue.{suffix}"
    clock = ManualClock(NOW)
    engine = opened(path, clock=clock)
    put(engine, "a")
    (lease,) = claim(engine) if before != "pending" else [None]
    if lease and before == "failed":
        engine.apply([Bury("jobs", "a", lease.token, "boom")])
    elif lease and before == "completed":
        engine.apply([Ack("jobs", "a", lease.token, finished("a"), 60.0)])
    written = ("status: {}\n" if suffix == "yaml" else '"status": "{}",').format
    edit(path, (written(before), written(after)))
    (item,) = seen(engine).values()
    assert (item.state, item.id) == (state, 1)
    assert item.outcome == (after if state == "done" else None)
    assert not list(tmp_path.glob("*.damaged*"))
    (plain,) = read_plainly(path)
    assert plain.status == after
    assert plain.retry_count == (before == "failed")
    assert plain.error_message == ("boom" if before == "failed" else None)
    if lease:
        # Whoever held it does not any more.
        assert isinstance(engine.apply([Ack("jobs", "a", lease.token)])[0], errors.LeasedKeyQError)
    assert seen(opened(path, clock=clock)) == seen(engine)
    if state == "available":
        (again,) = claim(engine, lease_time=60.0)
        assert again.fence == (2 if lease else 1)
    elif state == "in_flight":
        assert item.due == NOW + 300.0
        clock.now += 301.0
        assert [again.key for again in claim(engine)] == ["a"]
    elif state == "buried":
        assert item.error == ("boom" if before == "failed" else "")
    elif after == "completed" and before != "completed":
        assert plain.completed_at == "2026-11-16T01:33:20+00:00"


def test_a_lease_goes_on_through_an_edit_elsewhere(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    (lease,) = claim(engine, lease_time=60.0)
    edit(path, ("- id: b\n", "# soon\n- id: b\n"))
    assert seen(engine)["a"].state == "in_flight"
    assert "edited by hand" in engine.file.notices[-1]
    assert engine.apply([Ack("jobs", "a", lease.token)]) == [None]


def test_schedules_by_hand(path: Path) -> None:
    clock = ManualClock(NOW)
    engine = opened(path, clock=clock)
    put(engine, "a", "b")
    put(engine, "c", delay=50.0)
    nothing = "scheduled_at: null"
    edit(
        path,
        (nothing, "scheduled_at: 2026-11-16 01:33:30"),
        (nothing, 'scheduled_at: "2020-01-01T00:00:00Z"'),
        ('scheduled_at: "2026-11-16T01:34:10+00:00"', nothing),
    )
    assert ready(engine) == ["b", "c"]
    assert seen(engine)["a"].due == NOW + 10.0
    found = by_id(path)
    assert found["a"].scheduled_at == "2026-11-16T01:33:30+00:00"
    assert found["b"].scheduled_at == "2020-01-01T00:00:00+00:00"
    assert found["c"].scheduled_at is None
    clock.now += 10.0
    assert [item.key for item in claim(engine, 3)] == ["b", "c", "a"]
    # What has come due is not waited for again, whatever the clock of the next reader says.
    assert seen(opened(path, clock=ManualClock(NOW - 100.0))).keys() == {"a", "b", "c"}
    assert by_id(path)["a"].scheduled_at == "2026-11-16T01:33:30+00:00"


def test_the_time_that_somebody_gave_is_the_one_that_is_shown(path: Path) -> None:
    clock = ManualClock(NOW)
    engine = opened(path, clock=clock)
    given = "2026-11-16T02:33:30+01:00"
    data = value(scheduled_at=given)
    engine.apply([Put("jobs", (("a", data), ("b", data)), delay=10.000_4)])
    engine.apply([Put("jobs", (("b", data),), delay=20.0)])
    found = by_id(path)
    assert found["a"].scheduled_at == given
    assert found["b"].scheduled_at == "2026-11-16T01:33:40+00:00"
    again = opened(path, clock=clock)
    assert seen(again) == seen(engine)
    clock.now += 10.000_3
    assert ready(again) == []
    clock.now += 0.000_2
    assert ready(again) == ["a"]
    clock.now += 20.0
    put(again, "c")
    assert {item.scheduled_at for item in read_plainly(path)} == {given, None}


@pytest.mark.parametrize("sign", ["|", "|+", ">+", "|-"])
@pytest.mark.parametrize("end", ["# no comment\n", "#!/bin/sh\n", "\n", "\n\n# x\n\n"])
def test_a_text_of_several_lines_at_the_end_of_an_item(path: Path, sign: str, end: str) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    text = "".join(f"      {line}".rstrip(" ") for line in f"one\n{end}".splitlines(keepends=True))
    item = f"- id: new\n  type: task\n  payload:\n    script: {sign} # of mine\n{text}"
    edit(path, ("- id: b", f"{item}# about b\n- id: b"))
    expected = {item["id"]: item["payload"] for item in yaml.safe_load(path.read_text())["items"]}
    assert ready(engine) == ["a", "new", "b"]
    assert {key: item.payload for key, item in by_id(path).items()} == expected
    assert path.read_text().count("# about b") == path.read_text().count("# of mine") == 1


def test_a_character_in_two_halves(path: Path) -> None:
    """As JSON has it, in a mapping that is not JSON."""
    engine = opened(path)
    put(engine, "a")
    edit(
        path,
        ('payload: {"task_id": "a"}', r'payload: {task_id: "\ud83d\ude00", "\ud83d\ude01": 1}'),
    )
    assert ready(engine) == ["a"]
    assert by_id(path)["a"].payload == {"task_id": "\U0001f600", "\U0001f601": 1}


EDITORS = {
    "a mark before the text": lambda text: codecs.BOM_UTF8 + text,
    "line ends of Windows": lambda text: text.replace(b"\n", b"\r\n"),
    "both": lambda text: codecs.BOM_UTF8 + text.replace(b"\n", b"\r\n"),
    "no line end at the end": lambda text: text.rstrip(b"\n"),
}


@SUFFIXES
@pytest.mark.parametrize("editor", EDITORS)
def test_what_editors_do_to_the_whole_text_is_undone(
    tmp_path: Path, suffix: str, editor: str
) -> None:
    path = tmp_path / f"queue.{suffix}"
    engine = opened(path)
    put(engine, "a")
    for before in (3, 4):
        text = path.read_text()
        edited = text.replace(f'"max_retries": {before}', f'"max_retries": {before + 1}')
        edited = edited.replace(f" max_retries: {before}", f" max_retries: {before + 1}")
        path.write_bytes(EDITORS[editor](edited.encode()))
        assert ready(engine) == ["a"]
        assert not list(tmp_path.glob("*.damaged-*"))
        assert by_id(path)["a"].max_retries == before + 1
        after = path.read_text()
        assert after.splitlines()[:3] == text.splitlines()[:3]
        assert after.count("#") == text.count("#")


def test_removed_and_moved_by_hand(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b", "c")
    (lease,) = claim(engine)
    head, first, second, rest = path.read_text().split("- id: ", 3)
    third, _, books = rest.partition("leasedkeyq:")
    path.write_text("- id: ".join([head, third, f"{second}leasedkeyq:{books}"]))
    assert first.startswith("a\n")
    assert ready(engine) == ["c", "b"]
    assert isinstance(engine.apply([Ack("jobs", "a", lease.token)])[0], errors.LeasedKeyQError)
    assert put(engine, "d") == (4,)


def test_an_item_copied_by_hand_with_another_id_is_a_new_one(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    text = path.read_text()
    block = text[text.index("- id: a") : text.index("leasedkeyq:")]
    path.write_text(text.replace("leasedkeyq:", f"{block.replace('id: a', 'id: b')}leasedkeyq:"))
    assert {key: item.id for key, item in seen(engine).items()} == {"a": 1, "b": 2}


def test_an_id_that_was_done_is_put_again_by_hand(path: Path) -> None:
    clock = ManualClock(NOW)
    engine = opened(path, clock=clock)
    put(engine, "a")
    (lease,) = claim(engine)
    engine.apply([Ack("jobs", "a", lease.token, finished("a"), 60.0)])
    edit(path, ("items:\n- id: a", "items:\n- id: a\n  type: task\n  payload: {n: 2}\n- id: a"))
    found = engine.read(lambda model, now: model.browse("jobs", EVERY_STATE, "", now))
    assert [(item.id, item.state, item.attempt) for item in found] == [
        (1, "done", 1),
        (2, "available", 0),
    ]
    clock.now += 61.0
    assert [item.key for item in claim(engine)] == ["a"]
    assert len(read_plainly(path)) == 1


def test_two_new_items_may_be_equal(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    new = "- type: task\n  payload: {}\n"
    edit(path, ("leasedkeyq:", f"{new}{new}leasedkeyq:"))
    assert len(ready(engine)) == len(seen(engine)) == 3


def test_an_edit_of_an_old_version_adds_only_and_only_once(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    added = "- type: task\n  payload: {}\nleasedkeyq:"
    text = path.read_text().replace("leasedkeyq:", added)
    path.write_text(text)
    assert len(seen(engine)) == 3
    (lease,) = claim(engine)
    put(engine, "c")
    # The editor is still open, and saves what it has once more, and then with one more item.
    path.write_text(text)
    with pytest.warns(FileStoreWarning, match="0 new items"):
        assert len(seen(engine)) == 4
    path.write_text(text.replace("leasedkeyq:", added.replace("task", "mail")))
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert len(seen(engine)) == 5
    assert engine.apply([Ack("jobs", "a", lease.token)]) == [None]


def test_notes_that_somebody_dropped_bring_no_item_back(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    fields = [vars(item) for item in read_plainly(path)]
    (lease,) = claim(engine)
    engine.apply([Ack("jobs", "a", lease.token, finished("a"), 600.0)])
    # A program that knows nothing but its own fields, and has read them a while ago.
    fields.append(vars(SeedItem("mine", "task", {}, "pending", CREATED)))
    path.write_text(yaml.dump({"name": "jobs", "items": fields}))
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert ready(engine) == ["b", "mine"]
    assert seen(engine)["a"].state == "done"
    assert "max_size" in yaml.safe_load(path.read_text())


NONSENSE = [
    ("- id: b\n", "- id: a\n", "twice"),
    ("- id: b\n", "- id: [b]\n", "text"),
    ("- id: b\n", "- id: b\n oops: [\n", "YAML"),
    ("- id: b\n", "- id: b\n  id: c\n", "twice"),
    ("- id: b\n", "- [1]\n- id: b\n", "mapping"),
    ("priority: 3", "priority: high", "priority"),
    ("priority: 3", "priority: 1.5", "priority"),
    ("status: pending", "status: lost", "status"),
    ('payload: {"task_id": "b"}', "payload: b", "payload"),
    ('payload: {"task_id": "b"}', 'payload: {"task_id": "b", "task_id": "c"}', "twice"),
    ('payload: {"task_id": "b"}', 'payload: !mine {"task_id": "b"}', "cannot be a !mine"),
    ('payload: {"task_id": "b"}', "payload: {1: b, '1': c}", "twice"),
    ('payload: {"task_id": "b"}', 'payload: {"task_id": "\\ud83d"}', "half a character"),
    ('payload: {"task_id": "b"}', 'payload: {"\\ude00": "b"}', "half a character"),
    ("retry_count: 0", "retry_count: -1", "retry_count"),
    ("created_at: ", "created_at: x", "created_at"),
    ("scheduled_at: null", "scheduled_at: tomorrow", "scheduled_at"),
    ("metadata: {}", "metadata: 5", "metadata"),
    ("max_size: null", "max_size: -5", "max_size"),
    ("max_size: null", "max_size: many", "max_size"),
    ("name: jobs", "name: ''", "name"),
    ("items:\n- id", "itemz:\n- id", "no list of items"),
    ("items:\n- id", "queues:\n- id", "queues"),
    ("items:\n- id", "queues: {}\nother:\n- id", "it was a document of one queue"),
    ("leasedkeyq: ", "leasedkeyq: 7\nx: ", "mapping"),
    ("version: 2", "version: 27", "version"),
    ('"number": 2', '"number": 1', "twice"),
    ('"state": "available"', '"state": "lost"', "state"),
    ("  items:\n", "  items: 7\n  more:\n", "list"),
    ("# sum", "\x00\x01 # sum", "YAML"),
]


@pytest.mark.parametrize("old, new, reason", NONSENSE)
def test_nonsense_is_set_aside_and_the_last_version_restored(
    path: Path, old: str, new: str, reason: str
) -> None:
    engine = opened(path, name=None)
    engine.apply([Put("queue", (("a", value("a")),))])
    engine.apply([Put("queue", (("b", value("b")),), priority=3)])
    good = path.read_bytes()
    if old.startswith("name"):
        old = "name: queue"
    edit(path, (old, new))
    bad = path.read_bytes()
    with pytest.warns(FileStoreWarning, match="last good version"):
        assert ready(engine, "queue") == ["b", "a"]
    assert path.read_bytes() == good
    aside, note = sorted(path.parent.glob("*.damaged-*"))
    assert aside.read_bytes() == bad
    assert reason in note.read_text()
    assert ids(engine.apply([Put("queue", (("c", value("c")),))])[0]) == (3,)


def test_a_value_beside_a_lease_is_not_lost_by_an_edit(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    (lease,) = claim(engine)
    engine.apply([Put("jobs", (("a", value("newer")),), "buffer")])
    edit(path, ("status: processing", "status: pending"))
    with pytest.warns(FileStoreWarning, match="newer value"):
        assert ready(engine) == []
    assert engine.apply([Ack("jobs", "a", lease.token)]) == [None]
    assert [json.loads(item.value)["payload"] for item in claim(engine)] == [{"task_id": "newer"}]


def test_an_emptied_document_stays_one(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    (lease,) = claim(engine)
    engine.apply([Ack("jobs", "a", lease.token)])
    assert yaml.safe_load(path.read_text())["items"] == []
    again = opened(path, form=None)
    assert put(again, "b") == (2,)
    assert claim(again)[0].fence == 2


def test_reading_writes_nothing(path: Path) -> None:
    engine = opened(path)
    assert claim(engine) == []
    assert not path.exists()
    put(engine, "a")
    before = FileOperations().stamp(path)
    assert ready(opened(path)) == ["a"]
    assert engine.apply([Cancel("jobs", "nobody"), Cancel("other", "a")]) == [0, 0]
    assert FileOperations().stamp(path) == before
