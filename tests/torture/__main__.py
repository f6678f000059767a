"""`python -m tests.torture`: run parts at full length, keep their figures, write the page.

python -m tests.torture                          all parts on all their engines
python -m tests.torture kills postgres           one part on one engine
python -m tests.torture kills --seed 17 --amount 1    repeat a round that found something

`part.py` says what a part is, `parts/` has them, `runner.py` spreads the rounds of one over
processes, `figures.py` keeps what was found, `page.py` makes docs/reliability.md from that, and
`test_slices.py` runs a little of each part in `make test`.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report import machine
from leasedkeyq import __version__
from tests.torture import figures, page
from tests.torture.figures import Figures
from tests.torture.part import ENGINES, Part
from tests.torture.parts import PARTS
from tests.torture.releases.other_release import SDIST
from tests.torture.runner import run_part


def say(text: str) -> None:
    print(text, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description=(__doc__ or "").partition("\n\n`part.py`")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PART|ENGINE",
        help=f"parts: {', '.join(PARTS)}; engines: {', '.join(ENGINES)}; default: all",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="the seed of the first round (default: %(default)s); each round has the next one",
    )
    parser.add_argument(
        "--amount",
        type=int,
        metavar="N",
        help="rounds; with fewer than at full length nothing is kept",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: %(default)s, one per core)",
    )
    parser.add_argument(
        "--figures",
        type=Path,
        metavar="FOLDER",
        help="keep the figures there, however few rounds, and write no page",
    )
    parser.add_argument(
        "--sdist",
        type=Path,
        metavar="PATH",
        help="the sdist of an earlier release, for the part releases",
    )
    parser.add_argument("--list", action="store_true", help="list the parts and end")
    parser.add_argument("--page", action="store_true", help="write the page alone and end")
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.words} - PARTS.keys() - {*ENGINES}):
        parser.error(f"there is no part or engine {', '.join(unknown)} (--list shows them)")
    if options.jobs < 1 or (options.amount is not None and options.amount < 1):
        parser.error("--jobs and --amount must be at least 1")
    return options


def chosen(words: Sequence[str]) -> list[tuple[Part, str]]:
    """The parts and engines that are asked for."""
    parts = [part for name, part in PARTS.items() if name in words] or list(PARTS.values())
    engines = [engine for engine in ENGINES if engine in words] or list(ENGINES)
    return [(part, engine) for part in parts for engine in engines if engine in part.amounts]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.list:
        say(listing())
        return 0
    if options.page:
        page.write()
        return 0
    if options.sdist is not None:
        os.environ[SDIST] = str(options.sdist.resolve(strict=True))
    runs = chosen(options.words)
    if not runs:
        say(f"none of these parts is tried on {', '.join(options.words)}: --list shows where")
        return 2
    clean = True
    for part, engine in runs:
        found = run(part, engine, options)
        say(summary(found))
        clean &= found.clean
        if options.figures is not None:
            figures.save(found, options.figures)
        elif found.rounds >= part.amounts[engine]:
            figures.save(found)
            page.write()
    return 0 if clean else 1


def run(part: Part, engine: str, options: argparse.Namespace) -> Figures:
    amount: int = options.amount or part.amounts[engine]
    seeds = range(options.seed, options.seed + amount)
    say(f"{part.name} on {engine}: {amount:,} rounds from seed {seeds.start}")
    begun = time.monotonic()

    def progress(rounds: int) -> None:
        say(f"  {rounds:,} of {amount:,} rounds, {time.monotonic() - begun:,.0f} s")

    found = run_part(part, engine, seeds, jobs=options.jobs, progress=progress)
    return Figures(
        part=part.name,
        engine=engine,
        first_seed=seeds.start,
        rounds=amount,
        tried=found.tried,
        counted=dict(sorted(found.counted.items())),
        wrong=dict(found.wrong),
        violations=found.violations,
        seconds=figures.times_of(found),
        took=round(time.monotonic() - begun),
        date=datetime.now(UTC).date().isoformat(),
        version=__version__,
        machine=machine(),
    )


def summary(found: Figures) -> str:
    """What was found, for a terminal."""
    unit = PARTS[found.part].unit
    lines = [f"  {found.tried:,} {unit} in {found.took} s"]
    lines += [f"  {many:>12,} {name}" for name, many in found.counted.items()]
    lines += [
        f"  {one.p50:.3f} s p50, {one.p99:.3f} p99, {one.max:.3f} at most: {name} ({one.samples:,})"
        for name, one in found.seconds.items()
    ]
    lines += [f"  {many:>12,} {name}" for name, many in found.wrong.items()]
    lines += found.violations
    if not found.clean:
        lines.append(
            f'To repeat a round: make torture TORTURE_ARGS="{found.part} {found.engine}'
            ' --seed SEED --amount 1"'
        )
    return "\n".join(lines)


def listing() -> str:
    lines: list[str] = []
    for part in PARTS.values():
        where = ", ".join(f"{engine} {rounds:,}" for engine, rounds in part.amounts.items())
        lines.append(f"{part.name}: {part.title} (rounds: {where})")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
