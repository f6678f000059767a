"""Write the figures of the documentation that `leasedkeyq bench` compares with.

They are taken from benchmarks/figures/, which `make bench` writes, and go into the package. Run it
when those have changed: a test holds the two against each other.
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src/leasedkeyq/operations/bench_figures.json"


class Source(NamedTuple):
    """A figure of the documentation, and what `leasedkeyq bench` calls the same."""

    engine: str
    what: str
    file: str
    scenario: str
    case: str


SOURCES = (
    Source(
        "sqlite",
        "cycle",
        "stores",
        "SQLite: put, get, ack by 64 callers and by one",
        "one by one",
    ),
    Source(
        "file",
        "cycle",
        "stores",
        "The file store: put, get, ack by one caller",
        "JSON, 100 items waiting",
    ),
    *(
        Source(name.lower(), what, file, f"{name}: {scenario}", "this package, `put`")
        for name, file in (("PostgreSQL", "postgres"), ("Redis", "redis"))
        for what, scenario in (
            ("put", "putting one by one"),
            ("batch_put", "putting in batches"),
        )
    ),
)


def figures() -> dict[str, Any]:
    """The figures: seconds for one item, by engine and by what is done."""
    found: dict[str, Any] = {}
    for source in SOURCES:
        path = ROOT / f"benchmarks/figures/{source.file}.json"
        page = json.loads(path.read_text(encoding="utf-8"))
        rounds = page["scenarios"][source.scenario]["rounds"]
        seconds = median(turn for each in rounds for turn in each[source.case])
        engine = found.setdefault(
            source.engine, {"machine": page["machine"], "date": page["date"], "seconds": {}}
        )
        engine["seconds"][source.what] = float(f"{seconds:.3g}")
    return found


def text() -> str:
    """The file, as it is to be."""
    return json.dumps(figures(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{TARGET.relative_to(ROOT)} is written\n")
