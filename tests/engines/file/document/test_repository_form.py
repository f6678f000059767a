"""The document of a repository: as the model, and as other programs see it."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from leasedkeyq import errors
from leasedkeyq.engines.file.document.codec import DocumentCodec
from leasedkeyq.engines.file.document.document import Document, NotPlainYamlError
from leasedkeyq.engines.file.document.handwritten_yaml import parse_handwritten
from leasedkeyq.engines.file.document.json_fields import NonsenseError
from leasedkeyq.engines.file.document.model_mapping import load, sync
from leasedkeyq.engines.file.document.repository_fields import FIELDS
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.model.requests import Ack, Bury, Cancel, Claim, Limits, Put, Release
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS
from tests.engines.file.disguise import Disguise
from tests.engines.file.document.repository_documents import (
    CREATED,
    FORM,
    NOW,
    SeedItem,
    by_id,
    claim,
    finished,
    opened,
    put,
    read_plainly,
    seen,
    value,
)
from tests.engines.file.document.test_document import everything, text
from tests.engines.file.support import SUFFIXES, ids, misspelled


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


# The model


class OneQueue(Differential):
    queues: Sequence[str] = ("mail",)


@SUFFIXES
@pytest.mark.parametrize("stores", [1, 2])
def test_it_answers_as_the_model_does(tmp_path: Path, suffix: str, stores: int) -> None:
    clock = ManualClock()

    async def main() -> None:
        path = tmp_path / f"q.{suffix}"
        opened = [
            Disguise(path, form="repository", name="mail", clock=clock, limits=SMALL_LIMITS)
            for _ in range(stores)
        ]
        await OneQueue(opened, clock, stores).run(150)
        for store in opened:
            await store.close()

    asyncio.run(main())


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=4,
)
payloads = st.dictionaries(text, values, max_size=3)


@SUFFIXES
@settings(max_examples=30, deadline=None)
@given(
    keys=st.lists(text, min_size=6, max_size=6, unique=True),
    payload=payloads,
    metadata=payloads,
    words=text,
)
def test_whatever_it_holds_comes_back(
    suffix: str, keys: list[str], payload: Any, metadata: Any, words: str
) -> None:
    model = StoreModel()
    data = value(type=words, payload=payload, metadata=metadata, error_message=words)
    model.put(Put("jobs", tuple((key, data) for key in keys), kind=words), NOW)
    model.put(Put("jobs", ((keys[1], data),), priority=3), NOW)
    model.put(Put("jobs", ((keys[5], data),), delay=5.25), NOW)
    one, two, three, four = model.claim(Claim((("jobs", 9),), 4, lease_time=1.125), NOW)
    model.put(Put("jobs", ((two.key, data),), "buffer", -2, 3.0), NOW)
    model.put(Put("jobs", ((one.key, data),), "update", 9, 3.0), NOW)
    model.put(Put("jobs", ((two.key, data),), "append", 1, 60.0, kind="x", deadline=9.0), NOW)
    model.put(Put("jobs", ((keys[4], data),), "append"), NOW)
    model.put(Put("jobs", ((three.key, data),), "append", deadline=9.0), NOW)
    model.settle(Bury("jobs", three.key, three.token, words, hold=True), NOW)
    result = finished(four.key, payload=payload, metadata=metadata, error_message=words)
    model.settle(Ack("jobs", four.key, four.token, result, 10.0), NOW)
    document = FORM.start()
    sync(document, model)
    texts = DocumentCodec([FORM], yaml=suffix == "yaml")
    body = texts.render(document)
    again = FORM.parse_yaml(body.decode(), {}) if suffix == "yaml" else texts.parse_ours(body)
    loaded = load(again, Limits(), NOW, ours=True)
    assert everything(loaded) == everything(model)
    assert not sync(again, loaded)
    assert texts.render(again) == body
    if suffix == "yaml":
        free = parse_handwritten(body.decode(), [FORM])
        assert everything(load(free, Limits(), NOW, ours=False)) == everything(model)
        plain = yaml.safe_load(body)["items"]
    else:
        plain = json.loads(body + b'"sum": 0}')["items"]
    for item in plain:
        assert tuple(item) == FIELDS
        assert item["payload"] == payload
        assert same_types(item["payload"], payload)
        assert item["metadata"] == metadata
        assert item["type"] == (words if item["status"] != "completed" else "task")
        assert item["error_message"] == words
    in_line = [two.key, two.key, keys[4], three.key]
    assert sorted(item["id"] for item in plain) == sorted(keys + in_line)


def same_types(mine: Any, yours: Any) -> bool:
    if isinstance(mine, dict):
        return all(same_types(mine[name], yours[name]) for name in mine)
    if isinstance(mine, list):
        return all(map(same_types, mine, yours))
    return type(mine) is type(yours)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_our_reader_and_the_library_agree(data: Any) -> None:
    """Our text with a few characters changed: read by both alike, or not by ours."""
    model = StoreModel()
    model.put(Put("jobs", (("a", value()), ("b", value(error_message="x # y")))), NOW)
    document = FORM.start()
    sync(document, model)
    changed = misspelled(FORM.render_yaml(document), data)
    try:
        ours = FORM.parse_yaml(changed, {})
    except (NotPlainYamlError, NonsenseError):
        return
    theirs = parse_handwritten(changed, [FORM])

    def told(document: Document) -> Any:
        def plain(fields: dict[str, str]) -> Any:
            return {name: json.loads(text) for name, text in fields.items()}

        return (
            document.settings,
            document.label,
            plain(document.head.fields),
            [
                (plain(section.head.fields), [plain(entry.fields) for entry in section.entries])
                for section in document.sections.values()
            ],
            [
                json.loads(entry.record or "null")
                for section in document.sections.values()
                for entry in section.entries
            ],
        )

    assert told(ours) == told(theirs)


# As other programs read it


def test_the_layout_of_a_document() -> None:
    model = StoreModel()
    model.put(Put("jobs", (("a", value("T1")),), priority=2, kind="task"), NOW)
    document = FORM.start()
    sync(document, model)
    head, _, body = FORM.render_yaml(document).rpartition("restored.\n")
    assert head.startswith("# A queue of leasedkeyq.")
    assert body == (
        "name: jobs\nmax_size: null\ndefault_max_retries: 3\nitems:\n"
        '- id: a\n  type: task\n  payload: {"task_id": "T1"}\n  status: pending\n'
        f'  created_at: "{CREATED}"\n  priority: 2\n  scheduled_at: null\n  started_at: null\n'
        "  completed_at: null\n  retry_count: 0\n  max_retries: 3\n  error_message: null\n"
        "  metadata: {}\n"
        "leasedkeyq: # the store's own notes about the items; leave them to the program\n"
        "  version: 2\n  revision: 1\n  last_id: 1\n  last_fence: 0\n  items:\n"
        '  - {"id": "a", "number": 1, "state": "available", "put_at": "2026-11-16T01:33:20Z"}\n'
    )


@SUFFIXES
def test_the_fields_in_every_state(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    clock = ManualClock(NOW)
    engine = opened(path, clock=clock)
    put(engine, *"abcdefg")
    one, two, three, four, five = claim(engine, 5, lease_time=60.0)
    clock.now += 1.5
    engine.apply(
        [
            Bury("jobs", "b", two.token, "boom"),
            Ack("jobs", "c", three.token, finished("c"), 100.0),
            Release("jobs", "d", four.token, delay=30.0),
            Release("jobs", "e", five.token, error="again"),
            Cancel("jobs", "f", finished("f", "cancelled"), 100.0),
        ]
    )
    found = by_id(path)
    assert list(found) == ["a", "g", "e", "d", "b", "c", "f"]
    assert {key: item.status for key, item in found.items()} == {
        "a": "processing",
        "b": "failed",
        "c": "completed",
        "d": "pending",
        "e": "pending",
        "f": "cancelled",
        "g": "pending",
    }
    assert found["a"].started_at == "2026-11-16T01:33:20+00:00"
    assert found["a"].retry_count == 0
    assert (found["b"].error_message, found["b"].retry_count) == ("boom", 1)
    assert found["d"].scheduled_at == "2026-11-16T01:33:51.500000+00:00"
    assert (found["e"].retry_count, found["e"].scheduled_at) == (1, None)
    assert found["g"] == SeedItem("g", "task", {"task_id": "g"}, "pending", CREATED)
    clock.now += 60.0
    (lost,) = claim(engine)
    assert (lost.key, lost.attempt) == ("a", 2)
    assert by_id(path)["a"].retry_count == 1
    assert engine.apply([Ack("jobs", "a", one.token)])[0] is not None


def test_numbers_and_words_that_older_readers_take_for_something_else(path: Path) -> None:
    engine = opened(path)
    payload = {"a": 1e16, "b": -2.5e-9, "c": 'in "text" 1e5', "d": [1e300, 12, 1.5], "e": "no"}
    items = tuple((key, value(payload=payload, type=key)) for key in ("1e5", "no", "012", "~"))
    engine.apply([Put("jobs", items)])
    for item in read_plainly(path):
        assert item.payload == payload
        assert item.type == item.id
    assert sorted(seen(opened(path))) == ["012", "1e5", "no", "~"]


@SUFFIXES
def test_the_error_of_the_value_and_that_of_the_burial(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    engine = opened(path)
    old = value(error_message="old")
    engine.apply([Put("jobs", tuple((key, old) for key in "abc"))])
    put(engine, "d")
    errors_of = {"a": "", "b": "old", "c": "new", "d": "new"}
    for item in claim(engine, 4):
        engine.apply([Bury("jobs", item.key, item.token, errors_of[item.key])])
    shown = {item.id: item.error_message for item in read_plainly(path)}
    assert shown == {"a": "old", "b": "old", "c": "new", "d": "new"}
    again = seen(opened(path))
    assert again == seen(engine)
    assert {key: item.error for key, item in again.items()} == errors_of


# Values that have no place here


@SUFFIXES
def test_what_has_no_place_is_refused_and_spoils_nobody_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    refused: list[tuple[bytes, str]] = [
        (b"7", "value"),
        (b"\xff", "value"),
        (b"{}", "type"),
        (value(payload=[1]), "payload"),
        (value(metadata=None), "metadata"),
        (value(type=1), "type"),
        (value(colour="red"), "colour"),
        (value(status="pending"), "status"),
        (value(created_at="yesterday"), "created_at"),
        (value(started_at=True), "started_at"),
        (value(max_retries=-1), "max_retries"),
        (value(retry_count=2**70), "retry_count"),
        (value(error_message=1), "error_message"),
        (value(payload={"x" * 1001: 1}), "1000 characters"),
    ]

    async def main() -> None:
        store = FileStore(path, form="repository", name="jobs")
        requests = [Put("jobs", ((f"k{n}", data),)) for n, (data, _) in enumerate(refused)]
        good = Put("jobs", (("good", value()),))
        answers = await store.put([*requests, Put("others", (("x", value()),)), good])
        for answer, (data, reason) in zip(answers, [*refused, (b"", "others")], strict=False):
            assert isinstance(answer, errors.StoreError), data
            assert isinstance(answer, ValueError)
            assert reason in str(answer)
        assert ids(answers[-1]) == (1,)
        (item,) = (await store.claim([Claim((("jobs", 1),))]))[0]
        for result in (None, b"7", value(), finished("else"), finished("good", "pending")):
            (refusal,) = await store.settle([Ack("jobs", "good", item.token, result, 60.0)])
            assert isinstance(refusal, errors.StoreError), result
        assert await store.settle([Ack("jobs", "good", item.token)]) == [None]
        await store.close()

    asyncio.run(main())
    assert read_plainly(path) == []
    assert "others" not in path.read_text()
