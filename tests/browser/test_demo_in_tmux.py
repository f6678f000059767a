"""`make demo` in tmux: a live picture of six lanes, at the sizes that people have."""

import sys

import pytest

from tests.browser.tmux import Tmux, tmux
from tests.test_documents import ROOT

LANES = ["system", "control", "query", "session", "skill", "prompt"]
DEMO = (sys.executable, str(ROOT / "examples" / "demo.py"))


def pictures(window: Tmux) -> list[list[str]]:
    """The pictures on the screen, each as the first words of its lines. There should be one."""
    found: list[list[str]] = []
    for line in window.lines:
        first = line.split()[:1]
        if first == ["lane"]:
            found.append([])
        if found and line.startswith("  "):
            found[-1] += first
    return found


@pytest.mark.parametrize("columns, lines", [(80, 24), (120, 40)])
def test_the_demo_in_a_real_terminal(columns: int, lines: int) -> None:
    other = (120, 40) if columns == 80 else (80, 24)
    with tmux(columns, lines, *DEMO) as window:
        window.shows("waiting", "later", "running", "done", "153 commands submitted")
        window.until(lambda _: len(pictures(window)) == 1 and window.fits(columns, lines))
        window.shows("worker 1 was killed", "#####")
        window.resize(*other)
        shown = window.shows("Nothing was lost.", "ended with 0")
        assert window.fits(*other)
        [names] = pictures(window)
        assert names[: len(LANES) + 1] == ["lane", *LANES]
        assert sum("done, 1 given up." in line for line in shown) == 1
        assert "dead letter: call the bank: " in "\n".join(shown)
        bars = [line for line in shown if line.rstrip().endswith("#" * 20)]
        assert len(bars) == len(LANES)
        assert window.modes["cursor_flag"] == window.modes["wrap_flag"] == "1"
