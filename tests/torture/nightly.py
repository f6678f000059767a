"""`python -m tests.torture.nightly`: what the workflow nightly.yml runs, and what it opens.

    plan --run 17             the parts and engines as a matrix in JSON, and the first seed
    report FOLDER             the issues that figures in the folder are worth, on the terminal
    report FOLDER --open      open them with `gh`; what is open already gets a comment

One night has other seeds than the nights before. Whoever runs a night again has the same ones.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.torture import figures
from tests.torture.figures import Figures
from tests.torture.parts import PARTS

SEEDS_OF_A_NIGHT: Final = 10_000_000
"""More than any part has rounds."""
MOST_SEEDS: Final = 5
"""For which an issue has a command each."""
MOST_TEXT: Final = 40_000
"""Characters of an issue. GitHub takes 65,536."""
SEED: Final = re.compile(r"^seed (\d+): ")

Gh = Callable[[Sequence[str], str], str]
"""Runs `gh` with arguments and an input, and returns what it says."""


@dataclass(frozen=True)
class Issue:
    """What people should know. Two nights that find the same have the same title."""

    title: str
    body: str


def first_seed(run: int) -> int:
    """The seed with which the night of this number begins."""
    return run * SEEDS_OF_A_NIGHT + 1


def plan() -> list[dict[str, str]]:
    """Every part on every engine, as the matrix of a workflow takes them."""
    return [
        {"part": part.name, "engine": engine} for part in PARTS.values() for engine in part.amounts
    ]


def issues(kept: Sequence[Figures], *, seed: int, run_url: str) -> list[Issue]:
    """One for each part and engine where something is wrong, or of which there are no figures."""
    by_place = {(one.part, one.engine): one for one in kept}
    found: list[Issue] = []
    for place in plan():
        part, engine = place["part"], place["engine"]
        one = by_place.get((part, engine))
        if one is None:
            found.append(_not_ended(part, engine, seed, run_url))
        elif not one.clean:
            found.append(_wrong(one, run_url))
    return found


def _not_ended(part: str, engine: str, seed: int, run_url: str) -> Issue:
    return Issue(
        f"Torture: {part} on {engine} did not end",
        f"There are no figures of it: {run_url} has what it said.\n\n"
        f"To repeat it:\n\n```console\n{_command(part, engine, seed)}\n```\n",
    )


def _wrong(one: Figures, run_url: str) -> Issue:
    what = [name for name, many in one.wrong.items() if many]
    counts = "\n".join(f"- {one.wrong[name]:,} {name}" for name in what)
    said = "\n\n".join(one.violations)[:MOST_TEXT]
    # Longer than any row of backticks in it, so that the text cannot end it.
    fence = "`" * (1 + max((len(row) for row in re.findall(r"`+", said)), default=2))
    return Issue(
        f"Torture: {one.part} on {one.engine}: {', '.join(what)}",
        f"{counts}\n\nin {one.rounds:,} rounds from seed {one.first_seed} of leasedkeyq"
        f" {one.version} on {one.date}, {one.machine}: {run_url}\n\n"
        f"To repeat it:\n\n```console\n{_commands(one)}\n```\n\n"
        f"What was found, the first of it:\n\n{fence}text\n{said}\n{fence}\n",
    )


def _commands(one: Figures) -> str:
    matches = [SEED.match(words) for words in one.violations]
    seeds = list(dict.fromkeys(int(match[1]) for match in matches if match))
    commands = [_command(one.part, one.engine, seed, 1) for seed in seeds[:MOST_SEEDS]]
    return "\n".join([*commands, _command(one.part, one.engine, one.first_seed, one.rounds)])


def _command(part: str, engine: str, seed: int, amount: int | None = None) -> str:
    many = "" if amount is None else f" --amount {amount}"
    return f'make torture TORTURE_ARGS="{part} {engine} --seed {seed}{many}"'


def open_issues(found: Sequence[Issue], gh: Gh) -> None:
    """Open each, or tell an open one of the same title that it was found again."""
    listed = gh(
        ["issue", "list", "--state", "open", "--limit", "1000", "--json", "number,title"], ""
    )
    numbers = {one["title"]: str(one["number"]) for one in json.loads(listed)}
    for issue in found:
        number = numbers.get(issue.title)
        if number is None:
            gh(["issue", "create", "--title", issue.title, "--body-file", "-"], issue.body)
        else:
            gh(["issue", "comment", number, "--body-file", "-"], f"Again.\n\n{issue.body}")


def run_gh(arguments: Sequence[str], text: str) -> str:
    """`gh` of the workflow, which has its token in the environment."""
    command = ["gh", *arguments]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.nightly",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    planning = commands.add_parser("plan", help="print the matrix and the first seed")
    planning.add_argument("--run", type=int, required=True, metavar="N", help="the night")
    reporting = commands.add_parser("report", help="tell what figures are worth an issue")
    reporting.add_argument("folder", type=Path, help="with the figures")
    reporting.add_argument("--run", type=int, required=True, metavar="N", help="the night")
    reporting.add_argument("--run-url", default="this run", help="where its logs are")
    reporting.add_argument("--open", action="store_true", help="open the issues")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str], gh: Gh = run_gh) -> int:
    options = parse(arguments)
    seed = first_seed(options.run)
    if options.command == "plan":
        # As lines for the file of a step's outputs.
        print(f"seed={seed}")
        print(f"matrix={json.dumps({'include': plan()})}")
        return 0
    found = issues(figures.load(options.folder), seed=seed, run_url=options.run_url)
    for issue in found:
        print(f"{issue.title}\n\n{issue.body}")
    if options.open:
        open_issues(found, gh)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
