"""Charts and words: right, bounded, and without anything that a policy forbids."""

import xml.etree.ElementTree as ET

import pytest

from leasedkeyq.web import words
from leasedkeyq.web.charts import Track, _scale, chart, sparkline


def paths(svg: str, kind: str) -> list[str]:
    root = ET.fromstring(f"<all>{svg}</all>")
    return [one.attrib["d"] for one in root.iter("path") if kind in one.attrib["class"].split()]


def test_a_sparkline_goes_from_its_first_to_its_last_value() -> None:
    (line,) = paths(sparkline([0, 5, 10], "Done"), "line")
    assert line == "M0 23L60 12.5L120 2"
    assert paths(sparkline([0, 0], "Done"), "rest"), "nothing happened: a flat line"
    assert "nothing known" in sparkline([], "Done")
    both = sparkline([0, 10], "Done", over=[0, 5])
    assert paths(both, "line") == ["M0 23L120 2", "M0 23L120 12.5"], "both on one scale"
    assert len(paths(sparkline([0, 10], "Done", over=[0, 0]), "line")) == 1
    two = paths(sparkline([1, None, 1, 2], "Done"), "line")
    assert len(two) == 2, "what is not known is a gap"


def test_bars_stand_on_each_other() -> None:
    svg = chart("All", [Track("a", [2], "flight"), Track("b", [2], "dead")], 0, 60, kind="bars")
    first, second = paths(svg, "bar")[2:]  # behind those of the legend
    assert first.split("V")[1].partition("h")[0] == second.split(" ")[1].partition("V")[0]


@pytest.mark.parametrize(
    "highest, marks",
    [
        (0.5, ["0 s", "200 ms", "400 ms", "600 ms"]),
        (58, ["0 s", "20 s", "40 s", "1 min"]),
        (100, ["0 s", "1 min", "2 min"]),
        (3500, ["0 s", "20 min", "40 min", "1 h"]),
        (5000, ["0 s", "1 h", "2 h"]),
        (100_000, ["0 s", "1 d", "2 d"]),
    ],
)
def test_marks_of_spans_fit_beside_the_chart(highest: float, marks: list[str]) -> None:
    svg = chart("Waiting", [Track("p50", [highest], "flight")], 0, 60, unit="span")
    found = ET.fromstring(f"<all>{svg}</all>").iter("text")
    assert [one.text for one in found if one.get("text-anchor") == "end"] == marks


def test_texts_are_escaped_and_there_is_no_code() -> None:
    evil = '"><script>alert(1)</script>'
    svg = str(chart(evil, [Track(evil, [1, None], "flight"), Track("b", [1], "dead")], 0, 60))
    svg += str(sparkline([1], evil))
    assert "<script" not in svg
    assert " style=" not in svg
    ET.fromstring(f"<all>{svg}</all>")


@pytest.mark.parametrize(
    "highest, top", [(0, 1), (1, 1), (3, 3), (7, 8), (100, 100), (101, 150), (0.3, 0.3), (1e9, 1e9)]
)
def test_axes_end_at_round_numbers(highest: float, top: float) -> None:
    assert _scale(highest, whole=highest >= 1)[0] == pytest.approx(top)


def test_a_chart_of_nothing_is_a_chart() -> None:
    assert "Nothing is known yet" in chart("All", [], 0, 60)
    assert "Nothing is known yet" in chart("All", [Track("a", [None], "flight")], 1e9, 60)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (None, "\u2013"),
        (0, "0 s"),
        (0.0001, "< 1 ms"),
        (0.25, "250 ms"),
        (3.14, "3.1 s"),
        (59, "59 s"),
        (192, "3 min 12 s"),
        (3600, "1 h"),
        (90000, "1 d 1 h"),
        (-5, "\u22125 s"),
    ],
)
def test_spans(seconds: float | None, text: str) -> None:
    assert words.span(seconds) == text


def test_numbers_sizes_and_moments() -> None:
    assert words.count(1234567) == "1\u202f234\u202f567"
    assert [words.short_count(n) for n in (0, 999, 9999, 12345, 1_500_000)] == [
        "0",
        "999",
        "9999",
        "12.3k",
        "1.5M",
    ]
    assert [words.size(n) for n in (5, 2048, 3 * 1024**3)] == ["5 B", "2.0 KiB", "3.0 GiB"]
    assert [words.share(1, 0), words.share(1, 300), words.share(1, 2)] == [
        "\u2013",
        "0.3 %",
        "50 %",
    ]
    assert words.rate(12.5) == "12.5/min"
    shown = words.moment(0)
    assert 'datetime="1970-01-01T00:00:00.000+00:00"' in shown
    assert ">1970-01-01 00:00:00 UTC<" in shown
    assert "another time" in words.moment(1e300)
