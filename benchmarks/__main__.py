"""`python -m benchmarks`: measure, print the table, write the docs page and the README's table."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarks import figures, servers
from benchmarks.lane_scenarios import lane_scenarios
from benchmarks.measure import WorkerError, run_scenarios
from benchmarks.page import FEWEST_ROUNDS, page, readme_table, replace_between_markers
from benchmarks.peers import ROOT, SetUpError, find_peers, our_version
from benchmarks.report import Results, machine, peers_of, terminal_table
from benchmarks.scenarios import Scenario, memory_scenarios
from benchmarks.server_scenarios import postgres_scenarios, redis_scenarios
from benchmarks.store_scenarios import store_scenarios

PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
FIGURES = ROOT / "benchmarks" / "figures"
PARTS = {
    "memory": memory_scenarios,
    "stores": store_scenarios,
    "lanes": lane_scenarios,
    "postgres": postgres_scenarios,
    "redis": redis_scenarios,
}


def say(text: str) -> None:
    print(text, flush=True)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"measure, judge and write these alone: {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=FEWEST_ROUNDS,
        metavar="N",
        help="default: %(default)s; fewer write nothing",
    )
    parser.add_argument(
        "--scenario",
        default="",
        metavar="TEXT",
        help="measure and judge what has this in its title, write nothing",
    )
    parser.add_argument(
        "--quick", action="store_true", help="try everything in small, write and judge nothing"
    )
    parser.add_argument(
        "--no-fail", action="store_true", help="exit with 0 when a target is missed"
    )
    parser.add_argument(
        "--flat", action="store_true", help="watch the memory over ten million cycles instead"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if unknown := sorted({*options.parts} - PARTS.keys()):
        parser.error(f"there is no part {', '.join(unknown)}: {', '.join(PARTS)}")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    quick: bool = options.quick
    try:
        version = our_version()
    except SetUpError as error:
        say(str(error))
        return 2
    if options.flat:
        from benchmarks import flat  # noqa: PLC0415  # the one module here that needs the queue

        return flat.main(100_000 if quick else 10_000_000, say)
    parts = chosen(options.parts, options.scenario, quick=quick)
    if not parts:
        say(f"no scenario has {options.scenario!r} in its title")
        return 2
    wanted = {case.peer for part in parts.values() for scenario in part for case in scenario.cases}
    peers, left_out = find_peers(wanted, set_up=not quick)
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")
    try:
        with servers.running(parts):
            scenarios = [scenario for part in parts.values() for scenario in part]
            how_often = 1 if quick else options.rounds
            measured = iter(run_scenarios(scenarios, peers, how_often, progress))
    except (SetUpError, WorkerError) as error:
        progress("")
        say(str(error))
        return 2
    progress("")
    results = [
        Results(
            name,
            part,
            [next(measured) for _ in part],
            peers_of(part),
            version,
            datetime.now(UTC).date().isoformat(),
            machine(),
            judged=not quick,
        )
        for name, part in parts.items()
    ]
    say(terminal_table(results))
    say(f"\n{took(results)}")
    if quick:
        say("a quick run: the figures mean nothing, and nothing was written")
        return 0
    if left_out or options.scenario or options.rounds < FEWEST_ROUNDS:
        say("nothing was written: that takes all scenarios, libraries and rounds")
    else:
        write(results)
    missed = [claim.text for part in results for claim in part.missed()]
    if missed:
        say(f"{len(missed)} target(s) missed: {'; '.join(missed)}")
    return 1 if missed and not options.no_fail else 0


def chosen(
    names: Sequence[str], text: str = "", *, quick: bool = False
) -> dict[str, tuple[Scenario, ...]]:
    """The scenarios of the parts, or of all parts, that have this text in their titles."""
    parts = {
        name: tuple(scenario for scenario in made(quick=quick) if text in scenario.title)
        for name, made in PARTS.items()
        if name in names or not names
    }
    return {name: part for name, part in parts.items() if part}


def took(results: Sequence[Results]) -> str:
    """How long each part took."""
    seconds = {part.part: sum(found.seconds for found in part.measured) for part in results}
    each = ", ".join(f"{name} {some:.0f}" for name, some in seconds.items())
    return f"{sum(seconds.values()):.0f} seconds: {each}"


def write(results: Sequence[Results]) -> None:
    """Keep what was found, and write the page from what is known about all parts."""
    for part in results:
        figures.save(part, FIGURES)
        say(f"wrote the figures of {part.part}")
    known = {name: figures.load(name, part, FIGURES) for name, part in chosen(()).items()}
    if missing := [name for name, part in known.items() if part is None]:
        say(f"the page waits for the figures of {', '.join(missing)}")
        return
    write_page([part for part in known.values() if part is not None])


def write_page(results: Sequence[Results]) -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(results), encoding="utf-8")
    say(f"wrote the page {PAGE.name}")
    table = readme_table(results)
    if README.is_file():
        text = replace_between_markers(README.read_text(encoding="utf-8"), table)
        if text is not None:
            README.write_text(text, encoding="utf-8")
            say(f"wrote the table in {README.name}")
            return
    say(f"{README.name} has no place for the table, so here it is:\n\n{table}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
