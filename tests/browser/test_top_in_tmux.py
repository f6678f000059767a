"""``leasedkeyq top`` in tmux: a real terminal, at the sizes that people have."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from leasedkeyq import connect
from leasedkeyq.cli.output import cells
from tests.browser.tmux import Tmux, tmux
from tests.cli.lively import lively_worker
from tests.servers.urls import empty_store

GIVEN_BACK = {"cursor_flag": "1", "wrap_flag": "1", "alternate_on": "0"}
"""How a terminal is set that no program has taken."""


@pytest.mark.parametrize("columns, lines", [(80, 24), (120, 40)])
def test_top_in_a_real_terminal(columns: int, lines: int, tmp_path: Path) -> None:
    with (
        empty_store("sqlite", tmp_path) as url,
        lively_worker(url),
        tmux(columns, lines, sys.executable, "-m", "leasedkeyq", "top", url) as window,
    ):
        window.shows("images", "mail", "reports", "no such address", "/s done", "page ")
        shown = window.shows("1 worker", "q quit")
        assert len(shown) == lines
        assert all(cells(line) <= columns for line in shown)
        assert shown[0].startswith(" leasedkeyq top  SQLite store")
        assert shown[0].rstrip().endswith("Z")
        assert "1 worker" in shown[1]
        assert shown[2].startswith(">LANES")
        assert shown[-1].startswith(" q quit")
        titles = [line.split()[0] for line in shown if line[:2] in (" R", " F", ">L")]
        assert titles == [">LANES", "RUNNING", "FAILURES"]
        assert any("█" in line and "%" in line for line in shown)
        window.press("Down", "p")
        window.shows("paused mail")
        window.press("p")
        window.until(lambda text: "paused mail" not in text)
        window.press("Tab", "Tab", "End", "r")
        window.shows("was put back")
        window.press("Up", "Enter")  # what was put back is another item now
        window.shows("ITEM", "ValueError: no such address")
        window.press("Escape")
        window.shows(">FAILURES")
        window.press("?")
        window.shows("pause the selected lane")
        window.press("x")
        other = (120, 40) if columns == 80 else (80, 24)
        window.resize(*other)
        window.until(lambda text: text.count("\n") == other[1] - 1 and "\n q quit" in text)
        shown = window.shows(">FAILURES", "LANES")
        assert all(cells(line) <= other[0] for line in shown)
        window.press("q")
        shown = window.shows("ended with 0")
        assert not any("LANES" in line for line in shown)  # the screen from before is back
        assert window.modes == GIVEN_BACK


def test_ctrl_c_and_ctrl_z(tmp_path: Path) -> None:
    with (
        empty_store("sqlite", tmp_path) as url,
        lively_worker(url),
        tmux(80, 24, "bash", "--norc", "-i") as window,
    ):
        program = shlex.join([sys.executable, "-m", "leasedkeyq", "top", url])
        window.press(f"NO_COLOR=1 {program}", "Enter")
        window.shows(">LANES", "1 worker")
        window.press("C-z")
        window.until(lambda text: "Stopped" in text and ">LANES" not in text)
        window.press("fg", "Enter")
        window.shows(">LANES", "1 worker", "q quit")
        window.press("C-c")
        window.until(lambda text: ">LANES" not in text)
        window.press("echo it said $?; stty -a | grep -o '[- ]echo '", "Enter")
        window.shows("it said 0")
        assert any(line.strip() == "echo" for line in window.lines)


def is_drawn(window: Tmux, columns: int, lines: int, _: str = "") -> bool:
    """Whether each part of the picture is on the screen once, at its place, and nothing else."""
    shown = window.lines
    titles = [line[1:].split()[0] for line in shown if line[1:2].isupper()]
    lanes = [line.split()[0] for line in shown if line.startswith("  ") and "/4 " in line]
    return (
        window.fits(columns, lines)
        and shown[0].startswith(" leasedkeyq top")
        and shown[-1].startswith(" q quit")
        and titles == ["LANES", "RUNNING", "FAILURES"]
        and sum("1 worker" in line for line in shown) == 1
        and lanes == ["images", "mail", "reports"]
    )


def test_nothing_of_another_size_stays_on_the_screen(tmp_path: Path) -> None:
    with (
        empty_store("sqlite", tmp_path) as url,
        lively_worker(url),
        tmux(80, 24, sys.executable, "-m", "leasedkeyq", "top", url) as window,
    ):
        window.shows("1 worker", "images", "page ")
        for size in ((120, 40), (60, 16), (150, 24), (80, 50), (80, 24)):
            window.resize(*size)
            window.until(partial(is_drawn, window, *size))
        window.resize(30, 8)
        window.until(lambda text: "has 30x8" in text and "LANES" not in text)
        window.resize(80, 24)
        window.until(partial(is_drawn, window, 80, 24))


def press_q(window: Tmux, _: int) -> None:
    window.press("q")


def press_ctrl_c(window: Tmux, _: int) -> None:
    window.press("C-c")


def kill(_: Tmux, pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("leave", [press_q, press_ctrl_c, kill])
def test_the_terminal_is_as_it_was(leave: Callable[[Tmux, int], None], tmp_path: Path) -> None:
    async def put(url: str) -> None:
        async with connect(url) as store:
            await store.queue("letters").put("ada", "hello")

    with empty_store("sqlite", tmp_path) as url:
        # In a thread: the browser of other tests has an event loop in this one.
        with ThreadPoolExecutor() as thread:
            thread.submit(lambda: asyncio.run(put(url))).result()
        program = shlex.join([sys.executable, "-m", "leasedkeyq", "top", url])
        folder = shlex.quote(str(tmp_path))
        script = (
            f"trap : INT; cd {folder}; echo before; stty -g > before; "
            f"sh -c 'echo $$ > pid; exec \"$@\"' sh {program}; echo left with $?; stty -g > after"
        )
        with tmux(80, 24, "sh", "-c", script) as window:
            window.shows("letters", "q quit")
            assert window.modes != GIVEN_BACK
            leave(window, int((tmp_path / "pid").read_text()))
            shown = window.shows("left with 0", "ended with 0")
            assert window.modes == GIVEN_BACK
    assert [line for line in shown if line.strip()] == ["before", "left with 0", "ended with 0"]
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
