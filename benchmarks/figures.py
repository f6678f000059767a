"""What was found about each part, kept in files: the page is written from all of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Measured, Turns
from benchmarks.report import Results
from benchmarks.scenarios import Scenario

DIGITS = 5
"""Of each value that is kept."""


def save(results: Results, folder: Path) -> None:
    """Keep what was found about a part, in place of what was kept before."""
    scenarios = {
        scenario.title: {
            "rounds": [_rounded(turns) for turns in found.rounds],
            "facts": found.facts,
            "seconds": round(found.seconds),
        }
        for scenario, found in zip(results.scenarios, results.measured, strict=True)
    }
    whole = {
        "version": results.version,
        "date": results.date,
        "machine": results.machine,
        "peers": results.peers,
        "scenarios": scenarios,
    }
    folder.mkdir(exist_ok=True)
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    _file(folder, results.part).write_text(f"{text}\n", encoding="utf-8")


def load(part: str, scenarios: Sequence[Scenario], folder: Path) -> Results | None:
    """What is kept about a part; None if nothing is.

    A scenario that was not there then has no rounds.
    """
    try:
        text = _file(folder, part).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    whole = json.loads(text)
    kept: dict[str, dict[str, Any]] = whole.pop("scenarios")
    measured = [Measured(**kept.get(scenario.title, {})) for scenario in scenarios]
    return Results(part=part, scenarios=scenarios, measured=measured, **whole)


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.json"


def _rounded(turns: Turns) -> Turns:
    return {
        name: [float(f"{value:.{DIGITS}g}") for value in values] for name, values in turns.items()
    }
