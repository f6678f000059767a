"""What was found by a part on an engine, kept in a file: the page is written from all of them."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.torture.part import ENGINES, Findings

FOLDER: Final = Path(__file__).resolve().parent / "figures"


@dataclass(frozen=True)
class Times:
    """Measured times in seconds."""

    samples: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Figures:
    """One run of a part on an engine."""

    part: str
    engine: str
    first_seed: int
    rounds: int
    tried: int
    counted: Mapping[str, int]
    wrong: Mapping[str, int]
    violations: list[str]
    seconds: Mapping[str, Times]
    took: int
    """Seconds."""
    date: str
    version: str
    machine: str

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not any(self.wrong.values())


def times(samples: Iterable[float]) -> Times:
    """The figures of measured times."""
    ordered = sorted(samples)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    rounded = (round(one, 4) for one in (statistics.median(ordered), p99, ordered[-1]))
    return Times(len(ordered), *rounded)


def times_of(found: Findings) -> dict[str, Times]:
    return {name: times(samples) for name, samples in found.seconds.items() if samples}


def save(figures: Figures, folder: Path = FOLDER) -> None:
    """Keep the figures, in place of those that were kept before."""
    folder.mkdir(exist_ok=True, parents=True)
    text = json.dumps(asdict(figures), indent=1, ensure_ascii=False)
    path = folder / f"{figures.part}-{figures.engine}.json"
    path.write_text(f"{text}\n", encoding="utf-8")


def load(folder: Path = FOLDER) -> list[Figures]:
    """All that are kept: by part, and by engine as tables show them."""
    found = [_read(path) for path in folder.glob("*.json")]
    return sorted(found, key=lambda one: (one.part, ENGINES.index(one.engine)))


def _read(path: Path) -> Figures:
    plain = json.loads(path.read_text(encoding="utf-8"))
    plain["seconds"] = {name: Times(**one) for name, one in plain["seconds"].items()}
    return Figures(**plain)
