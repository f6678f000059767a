"""docs/reliability.md and the README say what the kept figures say."""

from dataclasses import replace

from tests.torture import figures, page
from tests.torture.figures import Figures, Times
from tests.torture.part import ENGINES
from tests.torture.parts import PARTS

PART = next(iter(PARTS.values()))
FOUND = Figures(
    part=PART.name,
    engine=next(iter(PART.amounts)),
    first_seed=7,
    rounds=1000,
    tried=12_345,
    counted={"acknowledged puts": 4321},
    wrong={PART.wrong[0]: 0, "surprises": 0},
    violations=[],
    seconds={"to new hands": Times(10, 0.0052, 1.25, 2)},
    took=600,
    date="2026-11-18",
    version="1.2.3",
    machine="two cores",
)


def test_the_page_says_what_the_figures_say() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(figures.load())


def test_the_readme_says_what_the_figures_say() -> None:
    readme = page.README.read_text(encoding="utf-8")
    assert readme == page.with_readme_lines(readme, figures.load())
    assert page.readme_lines(figures.load()) in readme


def test_what_was_tried_and_found_is_in_the_table() -> None:
    text = page.page([FOUND])
    assert "12,345" in text
    assert f"0 {PART.wrong[0]}" in text
    assert "1.25 s" in text
    assert "5.2 ms" in text
    assert "4,321 acknowledged puts" in text
    assert "from seed 7, 10 min" in text


def test_what_is_wrong_stands_out() -> None:
    assert "**3 surprises**" in page.page([replace(FOUND, wrong={"surprises": 3})])


def test_what_was_not_run_is_said() -> None:
    rows = [line for line in page.page([]).splitlines() if line.endswith("` |")]
    cells = sum(row.count(page.NOT_RUN) for row in rows)
    assert cells == sum(len(part.amounts) for part in PARTS.values())


def test_kept_figures_are_of_parts_and_engines_that_there_are() -> None:
    for one in figures.load():
        assert one.engine in PARTS[one.part].amounts, f"{one.part} on {one.engine}"
        assert one.engine in ENGINES
