"""The document: what it says comes back, whatever it holds."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasedkeyq.engines.file.document.codec import DocumentCodec, add_checksum, split_checksum
from leasedkeyq.engines.file.document.document import Document, NotPlainYamlError
from leasedkeyq.engines.file.document.handwritten_yaml import parse_handwritten
from leasedkeyq.engines.file.document.json_fields import (
    NonsenseError,
    decode_progress,
    decode_time,
    encode_progress,
    encode_time,
)
from leasedkeyq.engines.file.document.model_mapping import load, sync
from leasedkeyq.engines.file.document.queues_form import QueuesForm
from leasedkeyq.model.requests import (
    OUTCOMES,
    Ack,
    Bury,
    Claim,
    Counts,
    Limits,
    Put,
    Release,
    ResultOutcome,
)
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.file.support import misspelled

NOW = 1_700_000_000.0
FORM = QueuesForm()

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


def document_of(model: StoreModel) -> Document:
    document = Document(FORM)
    sync(document, model)
    return document


def written(document: Document, suffix: str) -> bytes:
    return DocumentCodec([FORM], yaml=suffix == "yaml").render(document)


def read(body: bytes, suffix: str) -> Document:
    if suffix == "yaml":
        return FORM.parse_yaml(body.decode(), {})
    return DocumentCodec([FORM], yaml=False).parse_ours(body)


def everything(model: StoreModel) -> list[Any]:
    found: list[Any] = []
    for name in sorted(model.queues):
        state = model.queues[name].state
        found.append([(item.key, item.priority) for item in state.ready])
        found.append(
            sorted((i.key, i.lease.token, i.lease.fence) for i in state.in_flight.values())
        )
        found.append(
            [(i.not_before, i.key) for i in sorted(state.items.values(), key=lambda i: i.key)]
        )
        for item in model.browse(name, EVERY_STATE, "", NOW):
            value = item.value
            with suppress(ValueError):
                value = json.dumps(json.loads(value)).encode()
            found.append((item.id, item.key, item.state, value, item.priority, item.attempt))
            found.append((item.put_at, item.due, item.error, item.history, item.outcome))
            found.append((item.kind, item.deadline, item.ended_at, item.holds))
        for key in sorted(state.lines):
            line = list(state.lines[key].line or ())
            found.append((key, [(value.number, value.replaces) for value in line]))
        found.append(sorted(state.held))
        found.append(model.count(name, NOW))
    return [*found, model.last_id, model.last_fence]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@settings(max_examples=60, deadline=None)
@given(
    queue=text,
    keys=st.lists(text, min_size=6, max_size=6, unique=True),
    value=values,
    raw=st.binary(),
    outcome=st.sampled_from(OUTCOMES),
)
def test_whatever_it_holds_comes_back(
    suffix: str, queue: str, keys: list[str], value: object, raw: bytes, *, outcome: ResultOutcome
) -> None:
    model = StoreModel()
    if isinstance(value, float) and math.isinf(value):
        value = None
    data = json.dumps(value, ensure_ascii=False).encode()
    model.put(Put(queue, tuple((key, data) for key in keys)), NOW)
    model.put(Put(queue, ((keys[1], raw),), priority=3), NOW)
    model.put(Put(queue, ((keys[5], raw),), delay=5.25), NOW)
    one, two, three, four = model.claim(Claim(((queue, 9),), 4, lease_time=1.125), NOW)
    model.put(Put(queue, ((two.key, data),), "buffer", -2, 3.0), NOW)
    model.put(Put(queue, ((one.key, data),), "update", 9, 3.0), NOW)
    model.put(Put(queue, ((two.key, raw),), "append", 1, 60.0, kind="x", deadline=9.0), NOW)
    model.put(Put(queue, ((keys[4], data),), "append"), NOW)
    model.put(Put(queue, ((keys[5], data), (keys[5], raw)), "append"), NOW)
    model.put(Put(queue, ((three.key, data),), "append", deadline=9.0), NOW)
    model.settle(Bury(queue, three.key, three.token, keys[0], hold=True), NOW)
    model.settle(Ack(queue, four.key, four.token, data, 10.0, outcome), NOW)
    document = document_of(model)
    body = written(document, suffix)
    again = read(body, suffix)
    loaded = load(again, Limits(), NOW, ours=True)
    assert everything(loaded) == everything(model)
    assert not sync(again, loaded)
    assert written(again, suffix) == body
    if suffix == "yaml":
        pytest.importorskip("ruamel.yaml")
        free = parse_handwritten(body.decode(), [FORM])
        assert everything(load(free, Limits(), NOW, ours=False)) == everything(model)


@given(st.floats(0, 1e11) | st.floats(0, 2e9).map(lambda t: round(t, 6)) | st.floats())
def test_times_come_back(moment: float) -> None:
    if math.isfinite(moment):
        assert decode_time(encode_time(moment), "") == moment


@pytest.mark.parametrize(
    "written, moment",
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01 01:00:10.5+01:00", 10.5),
        ("1970-01-01t00:00:10.25z", 10.25),
        ("1969-12-31T23:00:00-0100", 0.0),
    ],
)
def test_times_of_people(written: str, moment: float) -> None:
    assert decode_time(f'"{written}"', "") == moment


@pytest.mark.parametrize(
    "written", ['"2026-01-31T12:00:00"', '"2026-02-31T12:00:00Z"', "true", "[]"]
)
def test_no_times(written: str) -> None:
    with pytest.raises(NonsenseError):
        decode_time(written, "somewhere")


@pytest.mark.parametrize("yaml", [True, False])
def test_the_checksum(yaml: bool) -> None:
    body = b"anything\n"
    summed = add_checksum(body, yaml=yaml)
    assert split_checksum(summed, yaml=yaml) == (body, True)
    assert split_checksum(summed.replace(b"any", b"eny"), yaml=yaml)[1] is False
    assert split_checksum(summed[:-1], yaml=yaml)[1] is None
    assert split_checksum(b"", yaml=yaml) == (b"", None)


def test_the_layout_of_a_document() -> None:
    model = StoreModel()
    model.put(Put("mail", (("a", b'{"to":["ann"]}'),)), NOW)
    model.put(Put("mail", (("b", b"true"),), priority=2), NOW)
    assert FORM.render_yaml(document_of(model)) == (
        "version: 2\nrevision: 1\nlast_id: 2\nlast_fence: 0\nqueues:\n  mail:\n    items:\n"
        "      - key: b\n        value: true\n        priority: 2\n"
        "        place: 2\n        id: 2\n        put_at: 2023-11-14T22:13:20Z\n"
        '      - key: a\n        value: {"to": ["ann"]}\n'
        "        place: 1\n        id: 1\n        put_at: 2023-11-14T22:13:20Z\n"
    )


def test_the_outcome_of_a_result_in_a_document() -> None:
    """One that is left out, as in documents of before, is that it completed."""
    start = "version: 1\nqueues:\n  q:\n    items:\n"
    result = "      - key: a\n        value: 1\n        id: {}\n        state: done\n{}".format
    outcome = "        outcome: {}\n".format
    body = start + result(1, "") + result(2, outcome("failed")) + result(3, outcome("cancelled"))
    model = load(read(body.encode(), "yaml"), Limits(), NOW, ours=False)
    found = model.browse("q", ["done"], "", NOW)
    assert [item.outcome for item in found] == ["completed", "failed", "cancelled"]
    assert model.count("q", NOW) == Counts(done=3, done_failed=1, done_cancelled=1)
    nonsense = read((start + result(1, outcome("lost"))).encode(), "yaml")
    with pytest.raises(NonsenseError, match="no such outcome: 'lost'"):
        load(nonsense, Limits(), NOW, ours=False)


def test_an_undone_claim_finds_its_place_after_a_reload() -> None:
    model = StoreModel()
    model.put(Put("q", tuple((key, b"1") for key in "abcd")), NOW)
    model.claim(Claim((("q", 1),)), NOW)
    (two,) = model.claim(Claim((("q", 1),)), NOW)
    loaded = load(read(written(document_of(model), "yaml"), "yaml"), Limits(), NOW, ours=True)
    loaded.settle(Release("q", "b", two.token, undo=True), NOW)
    assert [item.key for item in loaded.queues["q"].state.ready] == ["b", "c", "d"]


FREE = [
    "queues: {q: {items: []}}\n",
    "queues:\n  q:\n    items:\n      - key: a\n        value: 'x'\n",
    "queues:\n  q:\n    items:\n      - key: a\n        value: |\n          x\n",
    "queues:\n  q:\n    items:\n      - key: a\n        value: plain words\n",
    "queues:\n  q:\n    items:\n      - key: yes\n",
    "queues:\n  q:\n    items:\n      - key: 012\n",
    "queues:\n  q:\n    items:\n      - key: a",
    "queues:\r\n  q:\r\n    items: []\r\n",
    "queues:\n  q:\n    items: []\n      - key: a\n",
    "queues:\n  q:\n      - key: a\n",
    "--- {}\n",
]


@pytest.mark.parametrize("body", FREE)
def test_anything_else_is_left_to_the_library(body: str) -> None:
    with pytest.raises(NotPlainYamlError):
        FORM.parse_yaml(body, {})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_our_reader_and_the_library_agree(data: Any) -> None:
    """Our text with a few characters changed: read by both alike, or not by ours."""
    pytest.importorskip("ruamel.yaml")
    model = StoreModel()
    model.put(Put("mail", (("a", b'{"to":["ann"]}'), ("b", b"-1.5e3"), ("c", b'"x # y"'))), NOW)
    model.put(Put("mail", (("a", b"1"), ("a", b'"two"'), ("c", b"[3]")), "append"), NOW)
    changed = misspelled(FORM.render_yaml(document_of(model)), data)
    try:
        ours = FORM.parse_yaml(changed, {})
    except (NotPlainYamlError, NonsenseError):
        return
    theirs = parse_handwritten(changed, [FORM])

    def told(document: Document) -> Any:
        return {
            name: [
                (entry.in_line, {field: json.loads(text) for field, text in entry.fields.items()})
                for entry in section.entries
            ]
            for name, section in document.sections.items()
        }, {name: json.loads(value) for name, value in document.head.fields.items()}

    assert told(ours) == told(theirs)


@pytest.mark.parametrize(
    "progress, shown",
    [
        (b'{"value":0.4}', '"{\\"value\\":0.4}"'),
        ("ü".encode(), '"ü"'),
        (b"", '""'),
        (b"\xff", '{"raw": "/w=="}'),
        (b"a\nb", '{"raw": "YQpi"}'),
    ],
)
def test_progress_is_text_where_it_can_be(progress: bytes, shown: str) -> None:
    assert encode_progress(progress) == shown
    assert decode_progress({"progress": shown}, "here") == progress


@pytest.mark.parametrize("text", ["7", "{}", '{"raw": "%"}', '{"raw": "", "more": ""}'])
def test_progress_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(NonsenseError, match="here: progress"):
        decode_progress({"progress": text}, "here")
