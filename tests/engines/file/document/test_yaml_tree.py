"""The quick reader of YAML against the complete one, and texts that no reader should build."""

import random
import resource
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasedkeyq.engines.file.document.handwritten_yaml import plain
from leasedkeyq.engines.file.document.json_fields import NonsenseError
from leasedkeyq.engines.file.document.yaml_events import ALIASED, read_rest, read_whole
from leasedkeyq.engines.file.document.yaml_tree import BlockReader, CutError, Tree, UnknownYamlError

yaml = pytest.importorskip("yaml")

words = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.sampled_from(["a", "b c", "x-1", "items", "no", "key: x", "", "1", "# x", "null", "é"])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
    st.sampled_from(["no", "12:30:45", "2026-01-31", "2026-01-31T12:00:00+01:00", "1e3", "0o7"]),
    st.sampled_from(["010", "- a", "~", "a #b", "a: b", "x" * 200, "two\nlines\n", "  spaces "]),
    st.sampled_from(["'", '"', "*a", "&a", "!t", "=", "<<"]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(names | words, inner, max_size=4)
    ),
    max_leaves=20,
)


def quick(text: str) -> Tree | None:
    """What the quick reader says, if it says anything."""
    try:
        return BlockReader(text, read_rest).read()
    except (UnknownYamlError, CutError):
        return None


def whole(text: str) -> Tree | None:
    """What the complete reader says, if it is YAML."""
    try:
        return read_whole(text)
    except NonsenseError:
        return None


def compare(text: str) -> None:
    try:
        mine = quick(text)
    except NonsenseError:
        assert whole(text) is None
        return
    if mine is None:
        return
    theirs = whole(text)
    assert theirs is not None, text
    assert repr(mine.top) == repr(theirs.top), text  # 1, 1.0 and True are not the same
    assert sorted(mine.behind) == sorted(theirs.behind), text
    looks_like_comment = {n for n, line in enumerate(mine.lines) if line.strip()[:1] in ("", "#")}
    assert mine.covered & looks_like_comment == theirs.covered & looks_like_comment, text


@given(st.dictionaries(names, values, min_size=1, max_size=5), st.sampled_from([None, True, False]))
def test_what_pyyaml_writes(document: dict[str, Any], flow: bool | None) -> None:
    text = yaml.dump(document, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    compare(text)


SAMPLE = """\
# top
name: night   # which
max_size: 10
items:
- id: a1
  type: task # kind
  payload: {task_id: T1, "n": [1, two, 3.5, null], 'x y': ~}
  # between
  created_at: 2026-02-06T12:00:00
  note: it's a "plain" text, with:colons
  text: |
    # not a comment

    last
  folded: >-
    one
    two # neither
  long: this goes
    on here
- id: 'it''s'
  payload:
    list:
    - 1
    - - nested
      - {}
    -   deep: "esc\\t\\u00e9"
        more: []
    empty:
  status: pending

# tail
leasedkeyq: # ours
  version: 1
  items: [{"id": "a1"}]
"""


def test_a_sample() -> None:
    compare(SAMPLE)
    tree = quick(SAMPLE)
    assert tree is not None
    assert tree.top["items"][0]["text"] == "# not a comment\n\nlast\n"
    assert tree.top["items"][1]["payload"]["list"][2] == {"deep": "esc\té", "more": []}
    assert [comment.text for comment in tree.behind] == ["# which", "# kind", "# ours"]


def test_samples_that_were_spoilt() -> None:
    """Whatever is done to it: both readers say the same, or the quick one says nothing."""
    dice = random.Random(7)
    known = 0
    for _ in range(400):
        lines = [str(line) for line in SAMPLE.split("\n")]
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(lines))
            kind = dice.randrange(5)
            if kind == 0:
                del lines[at]
            elif kind == 1:
                lines.insert(at, dice.choice(lines))
            elif kind == 2:
                lines[at] = " " * dice.randint(0, 4) + lines[at].lstrip(" ")
            elif kind == 3:
                column = dice.randint(0, len(lines[at]))
                sign = dice.choice([*"#:-{}[],'\"&*!|>?% \t", ": ", " #", "- "])
                lines[at] = lines[at][:column] + sign + lines[at][column:]
            else:
                column = dice.randint(0, len(lines[at]))
                lines[at] = lines[at][:column]
            if not lines:
                lines = [""]
        text = "\n".join(lines)
        known += quick_or_none(text)
        compare(text)
    assert known > 80


def quick_or_none(text: str) -> bool:
    try:
        return quick(text) is not None
    except NonsenseError:
        return False


# What no reader should build


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(levels)]
    return "\n".join([*lines, f"payload: *a{levels}", ""])


@pytest.mark.parametrize("levels", [5, 8, 40])
def test_an_alias_bomb_is_refused_before_it_is_built(levels: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with pytest.raises(NonsenseError, match=f"aliases stand for more than {ALIASED} values"):
        read_whole(bomb(levels))
    assert time.process_time() - began < 5.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_aliases_of_long_texts_are_counted_by_their_length() -> None:
    lines = [f'a: &a "{"z" * 10_000}"', f"b: &b [{', '.join(['*a'] * 100)}]"]
    lines += [f"c: &c [{', '.join(['*b'] * 100)}]", f"d: [{', '.join(['*c'] * 8)}]", ""]
    with pytest.raises(NonsenseError, match="aliases stand for"):
        read_any("\n".join(lines))


def test_aliases_are_counted_over_all_parts_of_a_document() -> None:
    part = bomb(3).replace("\n", "\n  ")
    read_any(f"p0:\n  {part}\n")
    with pytest.raises(NonsenseError, match="aliases stand for"):
        read_any("\n".join(f"p{n}:\n  {part}" for n in range(20)))


@pytest.mark.parametrize("sign", ["|", "|-", "|+", ">", ">-", ">+"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n\n\n", "\n  # x\n", "\n# x\n", "\nb: 1\n"])
@pytest.mark.parametrize("line", ["", "\n  text", "\n  # text", "\n  one\n\n  two"])
def test_how_a_text_of_several_lines_ends(sign: str, end: str, line: str) -> None:
    text = f"a: {sign}{line}{end}"
    compare(text)
    assert read_any(text).top["a"] == yaml.safe_load(text)["a"]


def test_aliases_in_their_measure_are_read() -> None:
    tree = read_whole("base: &b {x: 1, y: [2]}\none: *b\ntwo:\n  <<: *b\n  y: 3\n")
    assert plain(tree.top["one"]) == {"x": 1, "y": [2]}
    assert plain(tree.top["two"]) == {"y": 3, "x": 1}


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a: " + "{a: " * 100_000,
        "\n".join(" " * n + "a:" for n in range(3000)),
        "a:\n " + "- " * 100_000 + "x",
        "a: &a [*a]",
        "a: &a {b: *a}",
    ],
)
def test_nesting_without_end_is_refused(text: str) -> None:
    began = time.process_time()
    with pytest.raises(NonsenseError, match=r"nested|itself"):
        read_any(text)
    assert time.process_time() - began < 5.0


def read_any(text: str) -> Tree:
    try:
        return BlockReader(text, read_rest).read()
    except (UnknownYamlError, CutError):
        return read_whole(text)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a: 1\na: 2\n", "'a' is there twice"),
        ("a: !!set {x}\n", "cannot be a"),
        ("a: !!binary aGk=\n", "cannot be a"),
        ("a: !mine x\n", "cannot be a"),
        ("a: !mine {x: 1}\n", "cannot be a"),
        ("a: !mine [x]\n", "cannot be a"),
        ("a: !mine\n  x: 1\n", "cannot be a"),
        ('a: {"x": 1, "x": 2}\n', "'x' is there twice"),
        ('a: [{"b": {":x": "", ":x": 2}}]\n', "':x' is there twice"),
        ('a: {"x": 1, "\\u0078": 2}\n', "'x' is there twice"),
        ("? {x: 1}\n: 2\n", "a name must be text"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("a: *b\n", "is not there"),
        ("a: [1\n", "not YAML"),
    ],
)
def test_what_is_refused_says_why(text: str, reason: str) -> None:
    with pytest.raises(NonsenseError, match=reason):
        read_any(text)
