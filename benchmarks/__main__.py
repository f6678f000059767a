"""`python -m benchmarks`: measure, print the table, write the docs page and the README's table."""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks import servers
from benchmarks.lane_scenarios import lane_scenarios
from benchmarks.measure import WorkerError, run_scenarios
from benchmarks.page import page, readme_table, replace_between_markers
from benchmarks.peers import ROOT, SetUpError, find_peers, our_version
from benchmarks.report import Results, terminal_table
from benchmarks.scenarios import memory_scenarios
from benchmarks.server_scenarios import postgres_scenarios, redis_scenarios
from benchmarks.store_scenarios import store_scenarios

PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
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
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument(
        "--quick", action="store_true", help="try everything in small, write and judge nothing"
    )
    parser.add_argument(
        "--only", choices=tuple(PARTS), help="measure and judge this part alone, write nothing"
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
    parts = [options.only] if options.only else list(PARTS)
    scenarios = [scenario for part in parts for scenario in PARTS[part](quick=quick)]
    wanted = {case.peer for scenario in scenarios for case in scenario.cases}
    peers, left_out = find_peers(wanted, set_up=not quick)
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")
    start = time.monotonic()
    try:
        with servers.running(parts):
            how_often = 1 if quick else options.rounds
            rounds, facts = run_scenarios(scenarios, peers, how_often, progress)
    except (SetUpError, WorkerError) as error:
        progress("")
        say(str(error))
        return 2
    progress("")
    results = Results(scenarios, rounds, facts, version, judged=not quick)
    say(terminal_table(results))
    say(f"\n{time.monotonic() - start:.0f} seconds")
    if quick:
        say("a quick run: the figures mean nothing, and nothing was written")
        return 0
    if not left_out and not options.only:
        write(results)
    missed = results.missed()
    if missed:
        say(f"{len(missed)} target(s) missed: {'; '.join(claim.text for claim in missed)}")
    return 1 if missed and not options.no_fail else 0


def write(results: Results) -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(results), encoding="utf-8")
    say(f"wrote {PAGE.relative_to(ROOT)}")
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
