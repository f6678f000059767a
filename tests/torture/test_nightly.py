"""The nightly run: its plan, and the issues that it opens."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.torture import figures, nightly
from tests.torture.figures import Figures
from tests.torture.part import ENGINES
from tests.torture.parts import PARTS

CLEAN = [
    Figures(
        part=place["part"],
        engine=place["engine"],
        first_seed=170_000_001,
        rounds=1000,
        tried=1000,
        counted={},
        wrong={"items lost": 0, "keys held twice": 0},
        violations=[],
        seconds={},
        took=600,
        date="2026-11-18",
        version="1.2.3",
        machine="two cores",
    )
    for place in nightly.plan()
]
WRONG = replace(
    CLEAN[0],
    wrong={"items lost": 3, "keys held twice": 0},
    violations=[
        "seed 170000017: items lost: a, after ```a row```",
        "seed 170000017: items lost: b",
        "seed 170000029: items lost: c",
    ],
)
URL = "https://github.com/someone/leasedkeyq/actions/runs/5"


class Gh:
    """Remembers what it was told, and which issues are open."""

    def __init__(self, *titles: str) -> None:
        self.open = [{"number": 40 + n, "title": title} for n, title in enumerate(titles)]
        self.told: list[tuple[list[str], str]] = []

    def __call__(self, arguments: Sequence[str], text: str) -> str:
        if arguments[1] == "list":
            return json.dumps(self.open)
        self.told.append((list(arguments), text))
        return ""


def found(*kept: Figures) -> list[nightly.Issue]:
    return nightly.issues(kept, seed=nightly.first_seed(17), run_url=URL)


def test_the_plan_has_every_part_on_every_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["plan", "--run", "17"]) == 0
    seed, matrix = capsys.readouterr().out.splitlines()
    assert seed == "seed=170000001"
    places = json.loads(matrix.removeprefix("matrix="))["include"]
    assert len(places) == sum(len(part.amounts) for part in PARTS.values())
    assert {place["part"] for place in places} == PARTS.keys()
    assert {place["engine"] for place in places} <= {*ENGINES}


def test_two_nights_share_no_seed() -> None:
    most = max(rounds for part in PARTS.values() for rounds in part.amounts.values())
    assert nightly.first_seed(17) + most <= nightly.first_seed(18)


def test_a_clean_night_opens_nothing() -> None:
    assert found(*CLEAN) == []


def test_what_is_wrong_is_an_issue_with_the_seeds_to_repeat_it() -> None:
    [issue] = found(WRONG, *CLEAN[1:])
    place = f"{WRONG.part} {WRONG.engine}"
    assert issue.title == f"Torture: {WRONG.part} on {WRONG.engine}: items lost"
    assert "- 3 items lost" in issue.body
    assert "keys held twice" not in issue.body
    assert URL in issue.body
    repeated = [line for line in issue.body.splitlines() if line.startswith("make torture")]
    assert repeated == [
        f'make torture TORTURE_ARGS="{place} --seed 170000017 --amount 1"',
        f'make torture TORTURE_ARGS="{place} --seed 170000029 --amount 1"',
        f'make torture TORTURE_ARGS="{place} --seed 170000001 --amount 1000"',
    ]
    # The text of a violation does not end the block that it is in.
    assert "````text\nseed 170000017" in issue.body
    assert issue.body.endswith("seed 170000029: items lost: c\n````\n")


def test_a_part_without_figures_is_an_issue() -> None:
    [issue] = found(*CLEAN[:-1])
    part, engine = CLEAN[-1].part, CLEAN[-1].engine
    assert issue.title == f"Torture: {part} on {engine} did not end"
    assert f'TORTURE_ARGS="{part} {engine} --seed 170000001"' in issue.body


def test_a_long_text_is_cut() -> None:
    [issue] = found(replace(WRONG, violations=["x" * 100_000]), *CLEAN[1:])
    assert len(issue.body) < 65_536


def test_the_same_is_not_opened_twice(tmp_path: Path) -> None:
    for one in (WRONG, *CLEAN[1:-1]):
        figures.save(one, tmp_path)
    new, old = found(WRONG, *CLEAN[1:-1])
    arguments = ["report", str(tmp_path), "--run", "17", "--run-url", URL]
    gh = Gh("something else", old.title)
    assert nightly.main(arguments, gh) == 0
    assert gh.told == []
    assert nightly.main([*arguments, "--open"], gh) == 0
    assert gh.told == [
        (["issue", "create", "--title", new.title, "--body-file", "-"], new.body),
        (["issue", "comment", "41", "--body-file", "-"], f"Again.\n\n{old.body}"),
    ]
