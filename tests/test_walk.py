"""`make walk`: the way of a call through the code."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def walked(*arguments: str) -> str:
    command = [sys.executable, "tools/walk.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_put_goes_from_the_queue_through_the_contract_to_the_engine() -> None:
    first, *steps = walked("sqlite", "put").splitlines()
    assert re.fullmatch(r"put on sqlite +\d+ calls in +\d+ files, \d+ statements", first)
    folders = [step.strip().partition(".")[0] for step in steps]
    assert folders[0] == "stores/queue/store_queue"
    assert folders.index("stores/queue/store_queue") < folders.index("engines/sqlite/store")
    assert not {name for name in folders if "postgres" in name or "lanes" in name}


def test_the_counts_of_a_command_and_of_what_follows() -> None:
    until, after = walked("memory", "submit", "--counts").splitlines()
    calls = [int(number) for line in (until, after) for number in re.findall(r"(\d+) calls", line)]
    assert 0 < calls[0] <= calls[1]


def test_an_unknown_name_is_told() -> None:
    command = [sys.executable, "tools/walk.py", "oracle"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown: oracle" in done.stderr
