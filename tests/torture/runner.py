"""Runs a part on an engine: its rounds spread over processes, what they found added up.

Each process gets a stretch of the seeds (`python -m tests.torture.runner` with a folder). A process
that ends without findings is a violation of its own: nothing that was tried is dropped silently.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from tests.torture.part import Findings, Part, Trial
from tests.torture.parts import PARTS

ROOT: Final = Path(__file__).resolve().parents[2]
STRETCHES: Final = 4
"""For each process, one after the other: a slow one at the end holds up the others less."""
BROKEN: Final = "runs that broke off"
"""The name under which a trial counts that raised or died."""
FOUND: Final = "found.json"


def run_part(
    part: Part,
    engine: str,
    seeds: range,
    *,
    jobs: int,
    progress: Callable[[int], None] = lambda rounds: None,
) -> Findings:
    """Run the rounds and add up what they found. `progress` hears how many rounds are done."""
    found = nothing_wrong(part)
    done = 0
    with (
        tempfile.TemporaryDirectory(prefix="leasedkeyq-torture-") as folder,
        ThreadPoolExecutor(jobs if part.spread else 1) as pool,
    ):
        stretches = list(split(seeds, jobs * STRETCHES if part.spread else 1))
        running = {
            pool.submit(_run_apart, part.name, engine, some, Path(folder, str(some.start))): some
            for some in stretches
        }
        for stretch in as_completed(running):
            found += stretch.result()
            done += len(running[stretch])
            progress(done)
    return found


def run_here(part: Part, trial: Trial) -> Findings:
    """Run the rounds in this process. What breaks off a round is among the findings."""
    found = nothing_wrong(part)
    try:
        found += part.run(trial)
    except Exception:
        found.violation(BROKEN, trial.seeds.start, f"{trial.seeds}\n{traceback.format_exc()}")
    return found


def nothing_wrong(part: Part) -> Findings:
    """Findings with a zero for all that must not happen."""
    return Findings(wrong=Counter(dict.fromkeys((*part.wrong, BROKEN), 0)))


def split(seeds: range, many: int) -> Iterator[range]:
    """The seeds in as many stretches of about the same length, or fewer."""
    many = max(1, min(many, len(seeds)))
    for number in range(many):
        first, end = (len(seeds) * at // many for at in (number, number + 1))
        yield seeds[first:end]


def _run_apart(name: str, engine: str, seeds: range, folder: Path) -> Findings:
    folder.mkdir()
    log = folder / "log"
    arguments = [name, engine, str(seeds.start), str(seeds.stop), str(folder)]
    with log.open("wb") as told:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.torture.runner", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            check=False,
        )
    try:
        return from_json((folder / FOUND).read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = Findings()
        last = log.read_text(encoding="utf-8", errors="replace")[-4000:]
        words = f"{seeds}: the process ended with {ended.returncode}\n{last}"
        found.violation(BROKEN, seeds.start, words)
        return found


def to_json(found: Findings) -> str:
    return json.dumps(vars(found))


def from_json(text: str) -> Findings:
    plain = json.loads(text)
    plain["counted"] = Counter(plain["counted"])
    plain["wrong"] = Counter(plain["wrong"])
    return Findings(**plain)


def _main(name: str, engine: str, start: str, stop: str, folder: str) -> None:
    inner = Path(folder, "work")
    inner.mkdir()
    found = run_here(PARTS[name], Trial(engine, range(int(start), int(stop)), inner))
    # In one step: a process that dies here has found nothing, and not half of it.
    written = Path(folder, f"{FOUND}.new")
    written.write_text(to_json(found), encoding="utf-8")
    os.replace(written, Path(folder, FOUND))


if __name__ == "__main__":
    _main(*sys.argv[1:])
