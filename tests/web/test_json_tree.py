"""A value as a tree of rows: exact, in order, and never more rows than a page can take."""

import json

from leasedkeyq.web.json_tree import (
    ALL_ROWS,
    LONGEST_TEXT,
    MOST_MEMBERS,
    MOST_ROWS,
    TreeRow,
    json_tree,
)


def kinds(text: str) -> list[str]:
    return [row.kind for row in json_tree(text).rows]


def test_rows_of_a_value() -> None:
    rows = json_tree('{"b":12345678901234567890123,"a":[0.10,"x\\ny",null,true],"e":{}}').rows
    assert rows == (
        TreeRow(kind="open", type="object", count=3, unfolded=True),
        TreeRow(kind="leaf", name="b", type="number", text="12345678901234567890123"),
        TreeRow(kind="open", name="a", type="list", count=4, unfolded=True),
        TreeRow(kind="leaf", place=0, type="number", text="0.10"),
        TreeRow(kind="leaf", place=1, type="text", text="x\ny"),
        TreeRow(kind="leaf", place=2, type="null", text="null"),
        TreeRow(kind="leaf", place=3, type="boolean", text="true"),
        TreeRow(kind="close"),
        TreeRow(kind="leaf", name="e", type="object", text="{}"),
        TreeRow(kind="close"),
    )


def test_one_value_alone() -> None:
    assert json_tree("7").rows == (TreeRow(kind="leaf", type="number", text="7"),)
    assert kinds("[]") == ["leaf"]


def test_what_is_deep_or_long_is_folded() -> None:
    deep = json_tree("[[[[1]]]]").rows
    assert [row.unfolded for row in deep if row.kind == "open"] == [True, True, False, False]
    long = json_tree(json.dumps(list(range(50)))).rows
    assert not long[0].unfolded


def test_a_long_list_is_bounded_until_all_is_asked_for() -> None:
    text = json.dumps(list(range(5000)))
    some = json_tree(text)
    assert some.bounded
    assert [row.count for row in some.rows if row.kind == "more"] == [5000 - MOST_MEMBERS]
    everything = json_tree(text, show_all=True)
    assert len(everything.rows) == 5002
    assert not everything.bounded
    assert not everything.truncated


def test_rows_are_bounded_whatever_the_shape() -> None:
    for text in ("[" * 900 + "]" * 900, json.dumps([[{"a": 1}] * 20] * 1000)):
        some = json_tree(text)
        # An opened list needs its end, too, and a note of what is left out.
        assert len(some.rows) <= 3 * MOST_ROWS
        assert some.bounded
        opened = sum(row.kind == "open" for row in some.rows)
        assert opened == sum(row.kind == "close" for row in some.rows)
    everything = json_tree(text, show_all=True)
    assert len(everything.rows) <= 3 * ALL_ROWS
    assert everything.truncated


def test_a_long_text_is_cut_and_says_so() -> None:
    text = json.dumps("x" * (LONGEST_TEXT + 5))
    [row] = json_tree(text).rows
    assert (len(row.text), row.count, row.whole) == (LONGEST_TEXT, 5, False)
    [row] = json_tree(text, show_all=True).rows
    assert (len(row.text), row.count, row.whole) == (LONGEST_TEXT + 5, 0, True)


def test_what_no_page_can_show_is_written_as_an_escape() -> None:
    [_, row, _] = json_tree('{"\\udc00":"\\ud800"}').rows
    assert (row.name, row.text) == ("\\udc00", "\\ud800")


def test_what_is_no_json_has_no_rows_and_says_why() -> None:
    tree = json_tree("{'a': 1}")
    assert tree.rows == ()
    assert "line 1, column 2" in tree.problem
    assert "too deep" in json_tree("[" * 200_000).problem
