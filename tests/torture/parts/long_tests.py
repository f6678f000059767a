"""Part `long-tests`: tests of pytest that do more under ``TORTURE=1``, in groups.

In `make test` these tests run for a moment each. A round of this part is one group at full length,
in a pytest of its own: round 1 of an engine is its first group, and so on round and round.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tests.torture.part import Findings, Part, Trial

ROOT: Final = Path(__file__).resolve().parents[3]
FAILED: Final = "tests failed"
PROCESSES: Final = str(2 * (os.cpu_count() or 1))
"""As `make test` has them: half of the time of the tests is waiting."""
TIMEOUT: Final = 1500
"""Seconds for one test, below the thirty minutes of a part."""


@dataclass(frozen=True)
class Group:
    """Some tests that run together."""

    file: str
    only: str = ""
    """As ``-k`` of pytest takes it. Empty: all tests of the file."""
    alone: bool = False
    """In one process: where there is one test, others would cost more than they do."""


@dataclass(frozen=True)
class Ended:
    """A test that has run."""

    name: str
    seconds: float
    failure: str
    """Empty if it passed."""
    skipped: bool


TORTURE: Final = "tests/torture"
REAL_TIME: Final = f"{TORTURE}/test_real_time_torture.py"
STUCK: Final = f"{TORTURE}/test_stuck_workers_torture.py"
WEB: Final = f"{TORTURE}/test_web_scale_torture.py"
LONGER: Final = f"{TORTURE}/test_longer_torture.py"
PROGRESS: Final = "tests/lanes/durable/test_progress_on_stores.py"
AROUND: Final = "tests/lanes/durable/test_around_on_stores.py"
STORES: Final = "sqlite or postgresql or redis"

NAMED: Final[Mapping[str, tuple[Group, ...]]] = {
    "memory": (
        Group(f"{TORTURE}/test_memory_torture.py", alone=True),
        Group("tests/local/test_stress.py"),
        Group("tests/local/test_memory.py"),
        Group(LONGER, "state_machine"),
        Group(REAL_TIME, f"not ({STORES})"),
    ),
    "file": (
        Group("tests/doors/test_doors.py", "json", alone=True),
        Group(LONGER, "TestJson or yaml"),
        Group(f"{TORTURE}/test_file_programs_torture.py"),
    ),
    "sqlite": (
        Group(PROGRESS, f"sqlite or not ({STORES})", alone=True),
        Group(AROUND, f"sqlite or not ({STORES})", alone=True),
        Group("tests/cli/test_carry_commands.py", "move_that_is_killed", alone=True),
        Group("tests/engines/test_kill.py", "creates_a_database", alone=True),
        Group(f"{TORTURE}/test_broken_stores_torture.py"),
        Group(LONGER, "not (TestJson or yaml or state_machine)"),
        Group(STUCK, "sqlite or not (postgresql or redis or server)"),
        Group(REAL_TIME, "sqlite"),
        Group(WEB, "sqlite", alone=True),
    ),
    "postgres": (
        Group(PROGRESS, "postgresql", alone=True),
        Group(AROUND, "postgresql", alone=True),
        Group(STUCK, "postgresql"),
        Group(REAL_TIME, "postgresql"),
        Group(WEB, "postgresql", alone=True),
        Group(f"{TORTURE}/test_postgres_torture.py"),
    ),
    "redis": (
        Group(PROGRESS, "redis", alone=True),
        Group(AROUND, "redis", alone=True),
        Group("tests/engines/redis/scripts/test_caps.py", "counts_stay_right"),
        Group(f"{TORTURE}/test_redis_conformance_torture.py"),
        Group(STUCK, "redis or server"),
        Group(REAL_TIME, "redis"),
        Group(WEB, "redis", alone=True),
        Group(f"{TORTURE}/test_redis_torture.py"),
    ),
}
"""Those of which there is something to say: which tests, on which store, in which order."""


def all_groups() -> dict[str, tuple[Group, ...]]:
    """The named ones, and all other files with tests that do more at full length."""
    groups: dict[str, tuple[Group, ...]] = dict(NAMED)
    named = {group.file for some in NAMED.values() for group in some}
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file not in named and ASKS in path.read_text(encoding="utf-8"):
            folder = file.removeprefix("tests/engines/").partition("/")[0]
            engine = folder if folder in NAMED else "memory"
            groups[engine] += (Group(file),)
    return groups


ASKS: Final = 'os.environ.get("TORTURE")'
"""What a file with such tests has in it."""
GROUPS: Final = all_groups()


def run(trial: Trial) -> Findings:
    found = Findings()
    groups = GROUPS[trial.engine]
    for seed in trial.seeds:
        run_group(groups[(seed - 1) % len(groups)], seed, trial.folder, found)
    return found


def run_group(group: Group, seed: int, folder: Path, found: Findings) -> None:
    report = folder / f"{seed}.xml"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "0" if group.alone else PROCESSES),
        *("--dist", "worksteal", "--timeout", str(TIMEOUT), "-p", "no:cacheprovider"),
        # After that time pytest would print the stacks of all threads, once, while the test runs:
        # Python has crashed by that in a test that used much of the processor.
        *("-o", "faulthandler_timeout=0"),
        *("--basetemp", str(folder / f"{seed}.tmp"), f"--junit-xml={report}"),
        *(group.file, *(["-k", group.only] if group.only else [])),
    ]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TORTURE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    tests = list(read(report)) if report.exists() else []
    for test in tests:
        if test.skipped:
            found.counted["tests skipped"] += 1
            continue
        found.tried += 1
        if test.failure:
            found.violation(FAILED, seed, f"{test.name}\n{test.failure[-2000:]}")
    if ended.returncode and not any(test.failure for test in tests):
        words = f"{group}: pytest ended with {ended.returncode}\n{ended.stdout[-2000:]}"
        found.violation(FAILED, seed, f"{words}{ended.stderr[-2000:]}")


def read(report: Path) -> Iterator[Ended]:
    """The tests of a report in the form of JUnit."""
    for case in ET.parse(report).iter("testcase"):
        failures = [*case.iter("failure"), *case.iter("error")]
        yield Ended(
            f"{case.get('classname')}.{case.get('name')}",
            float(case.get("time", "0")),
            "\n".join(f"{one.get('message')}\n{one.text}" for one in failures),
            case.find("skipped") is not None,
        )


PART = Part(
    name="long-tests",
    title="Tests of the suite at full length",
    unit="tests",
    amounts={engine: len(groups) for engine, groups in GROUPS.items()},
    slice={"file": 1},
    run=run,
    wrong=(FAILED,),
    spread=False,
    note=(
        "What `make test` does for a moment, for longer: rate limits and lanes in real time on a "
        "busy machine, workers whose event loop is blocked, the conformance kit on older servers "
        "and on a cluster, the faults that the kit must find, other programs at the document of a "
        "repository, every page of the web page on a million items, plans of queries at a million "
        "rows, 64 claimers on a server, what Redis loses with `appendfsync everysec`, and ten "
        "million cycles in memory. A round is one file of tests on one store."
    ),
)
