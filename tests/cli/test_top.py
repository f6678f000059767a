"""``leasedkeyq top``: its pictures, and the real thing on a terminal."""

import asyncio
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.cli.output import cells
from leasedkeyq.cli.top.screen import HELP, ScreenStyle, draw, shares
from leasedkeyq.cli.top.state import FailureRow, LaneRow, RunningRow, TopState
from leasedkeyq.cli.top.terminal import keys_of
from leasedkeyq.lanes.presence.records import PAUSED, WORKERS_QUEUE
from tests.cli.commands import sqlite_shell
from tests.cli.lively import lively_worker
from tests.cli.pty_screen import on_terminal
from tests.servers.urls import empty_store

AT = 1_800_000_000.0
PLAIN = ScreenStyle(colours=False, blocks=True)
COLOURS = re.compile(rb"\x1b\[[34][0-7;]*m")
LEFT = b"\x1b[?25h\x1b[?1049l"
"""What gives the terminal back."""


def full(**more: Any) -> TopState:
    lanes = [
        LaneRow(
            name=f"lane-{number}",
            waiting=number * 12_345,
            in_flight=number,
            dead=number % 3,
            capacity=8,
            rate=number * 1.37,
            failed_rate=0.1,
            history=tuple(float(step % 7) for step in range(40)),
            oldest=number * 100.0,
            paused=number == 3,
        )
        for number in range(12)
    ]
    lanes.append(LaneRow(name="a-plain-queue-with-quite-a-long-name", is_lane=False, waiting=3))
    running = [
        RunningRow(
            queue="lane-1",
            lane="lane-1",
            id=number,
            key=f"order-{number}-图像" * 3,
            kind="render_the_picture",
            attempt=number % 3 + 1,
            since=number * 70.0,
            fraction=None if number % 2 else 0.5,
            text="page 3 of 10 \x1b[31m",
            holder="host 1",
        )
        for number in range(9)
    ]
    failures = [
        FailureRow(
            at=AT,
            outcome="retry" if number % 2 else "failed",
            lane="lane-1",
            key=f"key-{number}",
            kind="work",
            error="ValueError: something \x07 went wrong, and this is told at length: " * 3,
            queue="lane-1",
            id=number,
        )
        for number in range(30)
    ]
    state = TopState(
        store="SQLite store /srv/jobs.db",
        now=AT,
        lanes=lanes,
        running=running,
        failures=failures,
        workers=2,
        loaded=True,
    )
    for name, value in more.items():
        setattr(state, name, value)
    return state


def bare(lines: list[str]) -> list[str]:
    """Lines without styles."""
    found: list[str] = []
    for line in lines:
        first, *rest = line.split("\x1b[")
        found.append(first + "".join(part.partition("m")[2] for part in rest))
    return found


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 20), (40, 10), (200, 60), (20, 5)])
@pytest.mark.parametrize("look", [ScreenStyle(), PLAIN, ScreenStyle(colours=False, blocks=False)])
def test_every_picture_fits(size: tuple[int, int], look: ScreenStyle) -> None:
    columns, lines = size
    pictures = [
        full(),
        TopState(),
        full(pane="running"),
        full(pane="failures", message="lane 'x' is paused " * 9),
        full(help=True),
        full(detail=["x" * 300] * 100, detail_title="ITEM 1", scroll=90),
        full(trouble="the store cannot be read: " + "no route " * 30),
    ]
    for state in pictures:
        drawn = draw(state, columns, lines, look)
        assert len(drawn) == (lines if columns >= 40 and lines >= 10 else 1)
        for line in bare(drawn):
            assert cells(line) <= columns, line
            assert "\x07" not in line
            assert "\x1b" not in line
        if not look.blocks:
            assert not set("█░▁▂▃▄▅▆▇") & set("".join(drawn))


def test_a_picture_of_80_by_24() -> None:
    state = full(lanes=full().lanes[:4], running=full().running[:1], failures=full().failures[:2])
    drawn = [line.rstrip() for line in bare(draw(state, 80, 24, PLAIN))]
    assert drawn[:14] == [
        " leasedkeyq top  SQLite store /srv/jobs.db                             08:00:00Z",
        " 74,070 waiting  6 running  0 scheduled  3 dead  2 workers  8.2/s done  0.4/s f…",
        ">LANES           LOAD         WAIT    RUN SCHED  DEAD DONE/S              OLDEST",
        "  lane-0         ░░░░░░░░░░      0    0/8     0     0      0 ▁▂▃▅▆▇█▁▂▃▅▆   0.0s",
        "  lane-1         █░░░░░░░░░  12345    1/8     0     1    1.4 ▁▂▃▅▆▇█▁▂▃▅▆  1m40s",
        "  lane-2         ██░░░░░░░░  24690    2/8     0     2    2.7 ▁▂▃▅▆▇█▁▂▃▅▆  3m20s",
        "  paused lane-3  ████░░░░░░  37035    3/8     0     0    4.1 ▁▂▃▅▆▇█▁▂▃▅▆  5m00s",
        " RUNNING 1",
        "  lane-1     order-0-图像order… render_the_…    0.0s █████░░░░░  50%  page 3 of…",
        " FAILURES 2",
        "  08:00:00 failed  lane-1     key-0          ValueError: something \\x07 went wr…",
        "  08:00:00 retry   lane-1     key-1          ValueError: something \\x07 went wr…",
        "",
        "",
    ]
    assert drawn[23].startswith(" q quit  ? help")


def test_what_is_selected_stays_selected_and_in_view() -> None:
    state = full(sort="waiting")
    state.select("lanes", 0)
    assert state.current() == state.lanes[11]
    state.sort = "name"
    assert state.current() == state.lanes[11]
    drawn = bare(draw(state, 80, 16, PLAIN))
    assert any("lane-11" in line for line in drawn)
    state.pane = "failures"
    state.select("failures", 1000)
    drawn = bare(draw(state, 80, 24, PLAIN))
    assert any("key-29" in line for line in drawn)
    state.lanes = ()
    state.pane = "lanes"
    assert state.current() is None
    state.add_failure(state.failures[0])
    assert len(state.failures) == 30


def test_room_is_shared_out() -> None:
    assert shares(21, [3, 1, 50]) == [3, 1, 14]
    assert shares(21, [50, 50, 50]) == [6, 6, 6]
    assert shares(21, [0, 0, 0]) == [1, 1, 16]
    assert sum(shares(4, [9, 9, 9])) == 1


def test_help_fits_the_smallest_usual_terminal() -> None:
    assert max(map(len, HELP)) <= 76
    assert len(HELP) <= 18


def test_keys() -> None:
    assert keys_of("\x1b[A\x1bOBjkq") == ["up", "down", "down", "up", "q"]
    assert keys_of("\x1b") == ["escape"]
    assert keys_of("\x1b[1~\x1b[H\x1b[4~\x1b[F") == ["home", "home", "end", "end"]
    assert keys_of("\x1b[5~\x1b[Z\t\r") == ["page up", "back tab", "tab", "enter"]
    assert keys_of("\x1b[1;5Cx") == ["x"]
    assert keys_of("é?") == ["é", "?"]


# The real thing


def paused(url: str) -> list[str]:
    async def look() -> list[str]:
        async with connect(url) as store:
            page = await store.browse(WORKERS_QUEUE, prefix=PAUSED)
            return [item.key.removeprefix(PAUSED) for item in page.items]

    return asyncio.run(look())


def test_a_lively_store_on_a_terminal(tmp_path: Path) -> None:
    with (
        empty_store("sqlite", tmp_path) as url,
        lively_worker(url),
        on_terminal("-m", "leasedkeyq", "top", url) as screen,
    ):
        screen.shows("images", "mail", "reports", "report-2026", "no such address", "1 worker")
        screen.until(lambda text: "page " in text and "/s done" in text)
        assert len(screen.lines) == 24
        assert screen.lines[0].endswith("Z")
        assert COLOURS.search(screen.written)
        screen.press("j")
        screen.press("p")
        screen.shows("paused mail")
        assert paused(url) == ["mail"]
        screen.press("p")
        screen.until(lambda text: "paused mail" not in text and "goes on" in text)
        assert paused(url) == []
        screen.press("\r")
        screen.shows("LANE mail", "last hour")
        screen.press("\x1b")
        screen.shows("RUNNING")
        screen.press("\t\r")
        screen.shows("ITEM", "report-2026", '{"name":"yearly"}')
        screen.press("\x1b")
        screen.until(lambda text: ">RUNNING" in text)
        screen.press("\t\x1b[")
        time.sleep(0.02)
        screen.press("Fr")  # the rest of the key End
        screen.shows("was put back")
        screen.resize(120, 40)
        screen.until(lambda _: len(screen.lines) == 40 and "q quit" in screen.lines[39])
        assert len(screen.lines[0]) > 100
        screen.press("?")
        screen.shows("pause the selected lane")
        screen.press("q")
        assert screen.wait() == 0
        assert screen.written.rstrip().endswith(LEFT)
        assert screen.settings == screen.before


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_the_terminal_as_it_was(sent: signal.Signals, tmp_path: Path) -> None:
    with empty_store("sqlite", tmp_path) as url:
        asyncio.run(make(url))
        with on_terminal("-m", "leasedkeyq", "top", url, "--ascii", NO_COLOR="1") as screen:
            screen.shows("no queue holds anything")
            assert not COLOURS.search(screen.written)
            screen.process.send_signal(sent)
            assert screen.wait() == 0
            assert screen.written.rstrip().endswith(LEFT)
            assert screen.settings == screen.before


async def make(url: str) -> None:
    async with connect(url) as store:
        await store.count()


BROKEN = """
import asyncio, sys
from leasedkeyq import MemoryStore
from leasedkeyq.cli.top.app import TopApp
from leasedkeyq.cli.top.screen import ScreenStyle
from leasedkeyq.operations.operator import Operator

class Broken(Operator):
    async def queues(self, *, internal=False):
        raise RuntimeError("a bug")

asyncio.run(TopApp(Broken(MemoryStore()), ScreenStyle(), actor="me").run())
"""


def test_a_bug_leaves_the_terminal_as_it_was() -> None:
    with on_terminal("-c", BROKEN) as screen:
        assert screen.wait() == 1
        before, _, after = screen.written.partition(LEFT)
        assert b"\x1b[?1049h" in before
        assert b"RuntimeError: a bug" in after
        assert screen.settings == screen.before


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = sqlite_shell(tmp_path, capsys)
    done = shell("top")
    assert done.code == 2
    assert "needs a terminal" in done.err
    with on_terminal("-m", "leasedkeyq", "top", shell.url, TERM="dumb") as screen:
        assert screen.wait() == 2
        assert "queues --watch" in screen.text.replace("\n", "")
        assert b"\x1b[?1049h" not in screen.written
