"""The results as rows and tables, and what all texts about them share."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure import Figure, Measured, Turns, case_figure, claim_figure, is_met
from benchmarks.peers import PACKAGES
from benchmarks.scenarios import Claim, Measure, Scenario

Row = tuple[str, ...]
HEAD: Row = ("what", "target", "measured", "single rounds", "met")


@dataclass(frozen=True)
class Results:
    """What a run has found about one part.

    Attributes:
        measured: For each scenario what its rounds have found.
        peers: The packages that this one was compared with, and their versions.
        version: Of this package.
        date, machine: When and where.
        judged: The figures mean something, and targets are looked at.
    """

    part: str
    scenarios: Sequence[Scenario]
    measured: Sequence[Measured]
    peers: Sequence[str]
    version: str
    date: str
    machine: str
    judged: bool = True

    @property
    def rounds(self) -> int:
        """How many there were, of the scenario that had the most."""
        return max(len(found.rounds) for found in self.measured)

    def claims(self) -> list[tuple[Claim, Figure | None]]:
        return [
            (claim, claim_figure(scenario, claim, found.rounds))
            for scenario, found in zip(self.scenarios, self.measured, strict=True)
            for claim in scenario.claims
        ]

    def rows(self, *, headlines_only: bool = False) -> list[Row]:
        """A row per claim, under `HEAD`."""
        return [
            _row(claim, figure, self.judged)
            for claim, figure in self.claims()
            if claim.headline or not headlines_only
        ]

    def missed(self) -> list[Claim]:
        """The claims that do not hold, or were not measured."""
        return [claim for claim, figure in self.claims() if is_met(claim, figure) is False]


def peers_of(scenarios: Sequence[Scenario]) -> list[str]:
    """The packages from PyPI that are compared with, and their versions."""
    names = [case.peer for scenario in scenarios for case in scenario.cases]
    packages = [PACKAGES[name] for name in names if name in PACKAGES]
    return list(dict.fromkeys(f"{package.name} {package.version}" for package in packages))


def terminal_table(results: Sequence[Results]) -> str:
    """All claims, in columns."""
    rows = [HEAD, *(row for part in results for row in part.rows())]
    plain = [tuple(cell.replace("`", "").strip("*") for cell in row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*plain, strict=True)]
    plain.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in plain
    )


def markdown_table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def case_rows(scenario: Scenario, rounds: Sequence[Turns]) -> list[Row]:
    """A row per case that was measured: its name, then the median, lowest and highest round."""
    rows: list[Row] = []
    for case in scenario.cases:
        figure = case_figure(scenario, case, rounds)
        if figure is not None:
            values = (figure.value, figure.low, figure.high)
            rows.append((case.name, *(_plain(value, scenario.measure) for value in values)))
    return rows


def fact_rows(results: Sequence[Results]) -> list[Row]:
    """A head, and a row per case that said how it ran; cases of one name are one."""
    told = [found.facts for part in results for found in part.measured]
    cases = {name: facts for some in told for name, facts in some.items()}
    names = list(dict.fromkeys(name for facts in cases.values() for name in facts))
    rows = [(case, *(facts.get(name, "") for name in names)) for case, facts in cases.items()]
    return [("", *names), *rows]


def machine() -> str:
    """The kind of machine, and nothing that tells which one."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    cores = os.cpu_count() or 1
    return f"{python}, {platform.system()} {platform.machine()}, {cores} cores"


def _row(claim: Claim, figure: Figure | None, judged: bool) -> Row:
    met = {None: "", True: "yes", False: "**no**"}[is_met(claim, figure) if judged else None]
    if figure is None:
        return claim.text, _target(claim), "not measured", "", met
    spread = "one round"
    if figure.rounds > 1:
        spread = f"{_value(figure.low, claim)} to {_value(figure.high, claim)}"
    return claim.text, _target(claim), _value(figure.value, claim), spread, met


def _target(claim: Claim) -> str:
    if claim.at_least is not None:
        return f"at least {claim.at_least:g}x"
    if claim.at_most is None:
        return ""
    most = f"{claim.at_most:g}x" if claim.unit == "x" else _value(claim.at_most, claim)
    return f"at most {most}"


def _value(value: float, claim: Claim) -> str:
    if claim.unit == "%":
        return f"{(value - 1) * 100:+.0f} %"
    if claim.unit == "seconds":
        return _plain(value, "seconds")
    if claim.unit in ("bytes", "items"):
        return f"{value:.0f} {claim.unit}"
    if claim.unit == "cores":
        return f"{value:.2f} cores"
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x" if value < 100 else f"{value:.0f}x"


def _plain(value: float, measure: Measure) -> str:
    if measure == "cores":
        return f"{value:.2f} cores"
    if measure != "seconds":
        return f"{value:.0f} {measure}"
    return f"{value * 1e6:.2f} µs" if value < 0.01 else f"{value * 1e3:.2f} ms"
