"""``leasedkeyq tail``, in a process of its own, beside a worker in another."""

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from leasedkeyq import connect
from leasedkeyq.cli.commands.tail import line
from leasedkeyq.cli.output import cells
from leasedkeyq.lanes.durable.reports.event_batches import LISTENER
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.operations.views import FeedEvent
from tests.cli.commands import sqlite_shell
from tests.cli.lively import PATIENCE, command, lively_worker
from tests.servers.urls import empty_store

AT = 1_800_000_000.0


def listeners(url: str) -> int:
    async def count() -> int:
        async with connect(url) as store:
            return len((await store.browse(WORKERS_QUEUE, prefix=LISTENER)).items)

    return asyncio.run(count())


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_a_worker_of_another_process_is_followed(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url, lively_worker(url):
        words = ("--limit", "3", "--json", "--for", "60s", "--outcome", "failed", "--key", "bad-*")
        with command("tail", url, "images", *words) as tail:
            out, err = tail.communicate(timeout=PATIENCE)
        assert (tail.returncode, err) == (0, "")
        events = [json.loads(text) for text in out.splitlines()]
        assert [event["outcome"] for event in events] == ["failed"] * 3
        assert {event["lane"] for event in events} == {"images"}
        assert all(event["error"].startswith("ValueError: no such address") for event in events)
        assert listeners(url) == 0


def test_ctrl_c_ends_it_and_nobody_is_left_listening(tmp_path: Path) -> None:
    with empty_store("sqlite", tmp_path) as url, lively_worker(url):
        for sent, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
            with command("tail", url, "--kind", "send") as tail:
                assert tail.stdout is not None
                first = tail.stdout.readline()
                assert " send" in first
                tail.send_signal(sent)
                out, err = tail.communicate(timeout=PATIENCE)
                assert (tail.returncode, err) == (code, "")
                assert "Traceback" not in out
            assert listeners(url) == 0


def test_a_closed_pipe_ends_it_though_nothing_happens(tmp_path: Path) -> None:
    with empty_store("sqlite", tmp_path) as url, lively_worker(url):
        with command("tail", url, "no-such-queue") as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            began = time.monotonic()
            while not listeners(url):
                assert time.monotonic() - began < PATIENCE
                time.sleep(0.3)
            tail.stdout.close()
            assert tail.wait(PATIENCE) == 141
            assert tail.stderr.read() == ""
            tail.stdout = None
        assert listeners(url) == 0


def test_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = sqlite_shell(tmp_path, capsys)
    assert shell("tail", "--outcome", "exploded").code == 2
    assert shell.bare("tail", f"sqlite:///{tmp_path}/none.db").code == 3
    assert shell("tail", "--for", "0.1s").code == 0


def test_lines_fit_the_terminal() -> None:
    events = [
        FeedEvent(at=AT, outcome="completed", queue="mail", key="user-1", kind="send", attempt=1),
        FeedEvent(
            at=AT,
            outcome="retry",
            queue="a-lane-with-a-long-name",
            key="k" * 200,
            kind="send",
            attempt=3,
            delay=90.0,
            error="ValueError: \x1b[31mno\x07 way\nTraceback",
        ),
        FeedEvent(at=AT, outcome="dead_lettered", queue="图像", key="图像" * 30, kind="render"),
        FeedEvent(at=AT, outcome="pressure", queue="mail", lane="mail", count=12_345),
        FeedEvent(at=AT, outcome="dropped", count=700, worker="abc"),
    ]
    narrow = [line(event, 80) for event in events]
    assert all(cells(text) <= 80 for text in narrow)
    assert narrow[0] == "08:00:00 completed mail         user-1               send"
    assert narrow[3].split()[1:] == ["pressure", "mail", "12,345", "waiting"]
    assert narrow[4] == "08:00:00 dropped   700 events of worker abc"
    wide = line(events[1], None)
    assert "again in 1m30s" in wide
    assert "#3" in wide
    assert "\x1b" not in wide
    assert "\\x1b[31mno\\x07 way" in wide
    assert "Traceback" not in wide
    dropped = FeedEvent(at=AT, outcome="dropped", count=1, worker="\x1b[31m", queue="\x9b31m")
    assert "\x1b" not in line(dropped, None)
    assert narrow[2].split()[1] == "dead"
