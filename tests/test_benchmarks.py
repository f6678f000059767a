"""What `make bench` does with its figures. The measuring itself is tried by a run of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import figures, measure
from benchmarks.measure import Facts, Measured, Turns, run_scenarios
from benchmarks.page import page, readme_table
from benchmarks.peers import Peer
from benchmarks.report import Results, peers_of
from benchmarks.scenarios import Case, Claim, Scenario

PLACES = "<!-- benchmark:start -->\n<!-- benchmark:end -->\n"


def found(name: str, seconds: float = 1.0, date: str = "2026-01-01") -> Results:
    """A part of which each case took as long."""
    scenarios = command.PARTS[name](quick=False)
    measured = [
        Measured(
            [{case.name: [seconds] * scenario.turns for case in scenario.cases}] * 3,
            {case.name: {"setting": name} for case in scenario.cases[:1]},
            60.0,
        )
        for scenario in scenarios
    ]
    where = "CPython 3.11"
    return Results(name, scenarios, measured, peers_of(scenarios), "0.1.0", date, where)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for all that is written."""
    monkeypatch.setattr(command, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(command, "README", tmp_path / "README.md")
    monkeypatch.setattr(command, "FIGURES", tmp_path / "figures")
    (tmp_path / "README.md").write_text(PLACES)
    return tmp_path


def tables(text: str) -> dict[str, str]:
    """The sections of a page by their heads."""
    return {part.partition("\n")[0]: part for part in text.split("\n### ")}


@pytest.mark.parametrize("quick", [False, True])
def test_scenarios_are_complete(quick: bool) -> None:
    parts = command.chosen((), quick=quick)
    assert list(parts) == list(command.PARTS)
    scenarios = [scenario for part in parts.values() for scenario in part]
    titles = [scenario.title for scenario in scenarios]
    assert len(set(titles)) == len(titles)
    for scenario in scenarios:
        names = [case.name for case in scenario.cases]
        assert len(set(names)) == len(names)
        for claim in scenario.claims:
            assert {*claim.over, *claim.under} <= {*names}, claim.text


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    part = found("redis", 0.00123456)
    figures.save(part, tmp_path)
    kept = figures.load("redis", part.scenarios, tmp_path)
    assert kept is not None
    assert kept.measured[0].rounds[2] == {name: [0.0012346] for name in part.measured[0].rounds[0]}
    rounded = [replace(each, rounds=again.rounds) for each, again in _pairs(part, kept)]
    assert kept == replace(part, measured=rounded)


def _pairs(one: Results, other: Results) -> list[tuple[Measured, Measured]]:
    return list(zip(one.measured, other.measured, strict=True))


def test_nothing_is_known_of_a_part_that_was_never_measured(tmp_path: Path) -> None:
    assert figures.load("redis", (), tmp_path) is None


def test_a_scenario_that_is_new_was_not_measured(tmp_path: Path) -> None:
    part = found("lanes")
    figures.save(part, tmp_path)
    case = Case("a", "somebody", "work", {})
    new = Scenario("new", "", (case,), (Claim("new claim", ("a",), (), 2.0),), turns=1)
    kept = figures.load("lanes", [*part.scenarios, new], tmp_path)
    assert kept is not None
    assert kept.rows()[-1] == ("new claim", "at least 2x", "not measured", "", "**no**")
    assert "### new\n" in page([kept])


def test_the_page_waits_for_all_parts(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.write([found("memory"), found("redis")])
    assert "waits for the figures of stores, lanes, postgres" in capsys.readouterr().out
    assert not (places / "benchmarks.md").exists()
    command.write([found(name) for name in ("stores", "lanes", "postgres")])
    assert (places / "benchmarks.md").read_text() == page([found(name) for name in command.PARTS])
    assert (
        readme_table([found(name) for name in command.PARTS]) in (places / "README.md").read_text()
    )


def test_one_part_is_renewed_and_the_others_stay(places: Path) -> None:
    command.write([found(name) for name in command.PARTS])
    before = tables((places / "benchmarks.md").read_text())
    command.write([found("redis", 2.0, "2026-02-02")])
    after = tables((places / "benchmarks.md").read_text())
    changed = {name for name, table in after.items() if table != before[name]}
    redis = {scenario.title for scenario in command.PARTS["redis"](quick=False)}
    assert changed == {"# Benchmarks", *redis}
    [line] = [line for line in after["# Benchmarks"].splitlines() if line.startswith("| Redis |")]
    assert line.startswith("| Redis | 0.1.0 | 2026-02-02 | 3 | saq ")
    [line] = [line for line in after["# Benchmarks"].splitlines() if line.startswith("| lanes |")]
    assert line.startswith("| lanes | 0.1.0 | 2026-01-01 | 3 | a3s-lane ")
    assert "2026-01-01 to 2026-02-02" in (places / "README.md").read_text()


def test_a_scenario_may_want_fewer_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_round(
        scenario: Scenario, peers: Mapping[str, Peer], folder: Path, facts: Facts, **how: Any
    ) -> Turns:
        del peers, folder, facts
        ran.append((scenario.title, how["backwards"]))
        return {"a": [1.0]}

    ran: list[tuple[str, bool]] = []
    monkeypatch.setattr(measure, "run_round", run_round)
    monkeypatch.setattr(measure, "ENVIRONMENTS", tmp_path)
    claims = (Claim("claim", ("a",)),)
    scenarios: Sequence[Scenario] = (
        Scenario("short", "", (), claims, turns=1),
        Scenario("long", "", (), claims, turns=1, rounds=1),
    )
    measured = run_scenarios(scenarios, {}, 3, lambda text: None)
    assert ran == [("short", False), ("long", False), ("short", True), ("short", False)]
    results = Results("memory", scenarios, measured, (), "1", "today", "here")
    assert [row[3] for row in results.rows()] == ["1.00x to 1.00x", "one round"]
    assert results.rounds == 3


def test_parts_and_scenarios_by_name() -> None:
    assert list(command.chosen(["redis", "memory"])) == ["memory", "redis"]
    some = command.chosen([], "submit to start")
    assert {name: len(part) for name, part in some.items()} == {
        "stores": 1,
        "lanes": 1,
        "postgres": 1,
        "redis": 1,
    }
    assert command.chosen(["memory"], "submit to start") == {}
    assert command.parse([]).rounds == 3
    assert command.parse(["redis", "--rounds", "1"]).parts == ["redis"]


@pytest.mark.parametrize("arguments", [["rediss"], ["--rounds", "0"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(arguments)
