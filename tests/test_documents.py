"""The documents tell the truth: their code runs and prints what they say.

Every ```python block of README.md, CONTRIBUTING.md and docs/ is run. A block that starts an event
loop is a complete program and runs in a process of its own, as it would for a reader. The other
blocks of a page build on each other: they share one namespace, and one event loop in virtual time.
What a block prints stands below it in a ```text block under the line "Output:".

A block that cannot run stands below a line `<!-- not run: the reason -->`. There should be none.
"""

import ast
import inspect
import io
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import leasedkeyq
from tests.forks import Python

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

FEATURES = {
    "backpressure",
    "basic",
    "error_handling",
    "graceful_shutdown",
    "in_flight_policies",
    "keyed_consumer",
    "lane_events",
    "lane_metrics",
    "lane_monitoring",
    "lane_rates_and_boosts",
    "lane_shutdown",
    "lane_storage",
    "lane_timeouts_and_retries",
    "lanes",
    "lease_timeouts",
    "metrics",
    "newsroom",
    "priorities_and_delays",
    "several_consumers",
}
LANGUAGES = {"python", "text", "console", "sh"}
FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})(?P<language>\S*)\s*$")
LOOKS_LIKE_A_FENCE = re.compile(r"^\s*(```|~~~)")
STARTS_A_LOOP = re.compile(r"\basyncio\.(run|Runner)\(|^if __name__ ==", re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.MULTILINE)
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a page. `before` is the last line of text between it and the one above."""

    page: Path
    line: int
    language: str
    source: str
    before: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    before = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if not LOOKS_LIKE_A_FENCE.match(line):
            before = line.strip() or before
            continue
        where = f"{name_of(page)}:{number}"
        fence = FENCE.match(line)
        assert fence, f"{where}: a plain block has nothing behind its language"
        assert not fence["indent"], f"{where}: an indented block would not be run"
        assert fence["language"] in LANGUAGES, f"{where}: is {fence['language']!r} to be run?"
        end = lines.index(fence["fence"], number)
        source = "\n".join(lines[number:end]) + "\n"
        found.append(Block(page, number, fence["language"], source, before))
        before = ""
        number = end + 1
    return found


def runnable(page: Path) -> Iterator[tuple[Block, str]]:
    """The Python blocks of a page, each with what it is said to print."""
    found = blocks(page)
    for number, block in enumerate(found, start=1):
        if block.language == "python" and not NOT_RUN.fullmatch(block.before):
            output = [follower for follower in found[number:][:1] if follower.before == "Output:"]
            yield block, output[0].source if output else ""


def start(program: Path, folder: Path) -> str:
    """Run a program as a reader does, with warnings as errors and without a terminal."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    with Python(
        *("-W", "error", program),
        cwd=folder,
        env=environment | {"PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            said, trouble = process.communicate(timeout=100)
        finally:
            process.kill()
    assert (process.returncode, trouble) == (0, ""), said + trouble
    return said


async def run(source: str, namespace: dict[str, Any], page: Path, line: int = 0) -> str:
    """Run a piece of code in which `await` is allowed everywhere; return what it prints."""
    # As many lines above it as on the page: then a traceback leads to the document.
    code = compile(
        "\n" * line + source,
        str(page),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    with redirect_stdout(io.StringIO()) as output:
        result = eval(code, namespace)
        if inspect.iscoroutine(result):
            await result
    return output.getvalue()


async def run_page(page: Path, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page and compare what they print; return the names that they leave."""
    namespace: dict[str, Any] = {"__name__": name_of(page)}
    for block, says in runnable(page):
        if STARTS_A_LOOP.search(block.source):
            program = folder / f"line_{block.line}.py"
            program.write_text(block.source, encoding="utf-8")
            prints = start(program, folder)
        else:
            prints = await run(block.source, namespace, page, block.line)
        assert prints == says, f"{block} prints something else than the page says"
    return namespace


@pytest.mark.parametrize("page", PAGES, ids=name_of)
async def test_code_of_page(page: Path, tmp_path: Path) -> None:
    await run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_output_belongs_to_code(page: Path) -> None:
    found = blocks(page)
    for block, follower in pairwise(found):
        shows_output = block.language == "python" and follower.language == "text"
        assert shows_output == (follower.before == "Output:"), f"{follower}: output of what?"


def test_no_code_is_left_out() -> None:
    left_out = [block for page in PAGES for block in blocks(page) if NOT_RUN.search(block.before)]
    assert left_out == []


def test_readme_example_is_short() -> None:
    example, says = next(runnable(ROOT / "README.md"))
    assert STARTS_A_LOOP.search(example.source), "a complete program"
    assert says, "with its output"
    lines = [line for line in example.source.splitlines() if line.strip()]
    assert len(lines) <= 20


def test_readme_has_a_place_for_the_benchmark() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    performance = text.partition("\n## Performance\n")[2].partition("\n## ")[0]
    assert performance.count("<!-- benchmark:start -->") == 1
    assert performance.count("<!-- benchmark:end -->") == 1
    assert text.count("<!-- benchmark:") == 2
    assert performance.index("<!-- benchmark:start -->") < performance.index("<!-- benchmark:end")


def test_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(leasedkeyq.__version__)} - ", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    text = page.read_text(encoding="utf-8")
    assert set(MAKE.findall(text)) <= targets


# The table of bad input


class Mistake(NamedTuple):
    call: str
    error: str
    reason: str | None


def mistakes(page: Path) -> list[Mistake]:
    """The rows of the tables of mistakes in a page."""
    text = page.read_text(encoding="utf-8")
    row = re.compile(r"^\|[^|]*\| `([^`|]+)` \| `(\w+)`(?:, reason `\"(\w+)\"`)? \|$", re.MULTILINE)
    rows = row.findall(text)
    heads = 2 * text.count("\n| mistake |")
    assert len(rows) == text.count("\n| ") - heads, "a row is not understood"
    return [Mistake(call, error, reason or None) for call, error, reason in rows]


async def test_bad_input(tmp_path: Path) -> None:
    page = ROOT / "docs/reference/errors.md"
    names = await run_page(page, tmp_path)
    queues = [names["queue"], names["other_queue"], names["closed_queue"]]

    async def contents() -> list[object]:
        return [(await q.snapshot(), await q.buried(), await q.qsize()) for q in queues]

    before = await contents()
    for call, error, reason in mistakes(page):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the table says which
            await run(call, names, page)
        assert type(raised.value).__name__ == error, f"{call}: {raised.value!r}"
        assert getattr(raised.value, "reason", None) == reason, call
        assert str(raised.value), call
        assert await contents() == before, f"{call} changed something"


# The examples


def test_every_feature_has_an_example() -> None:
    assert {path.stem for path in EXAMPLES} >= FEATURES


@pytest.mark.parametrize("program", EXAMPLES, ids=name_of)
def test_example(program: Path, tmp_path: Path) -> None:
    assert start(program, tmp_path).strip()
