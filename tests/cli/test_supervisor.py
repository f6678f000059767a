"""``leasedkeyq worker --processes``: workers that die, are replaced, and end; real processes."""

import os
import re
import signal
import socket
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.__main__ import main, run
from leasedkeyq.cli.probe import WorkerProbe, memory
from leasedkeyq.cli.source_watch import SourceWatch
from leasedkeyq.cli.supervised import Supervised, WorkerLimits, sources
from leasedkeyq.cli.supervisor import FIRST_PAUSE, LONGEST_PAUSE, STEADY, Supervisor, WorkerSlot
from tests.cli.test_worker import APP, PATIENCE, Worker, command, producer, result, worker

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    return tmp_path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def until(holds: Callable[[], Any]) -> Any:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.02)
    return found


def processes(supervisor: Worker, number: int = 1) -> list[int]:
    """The processes that a worker has had so far, as the supervisor tells them."""
    pattern = re.compile(rf"started worker {number} \(process (\d+)\)")
    supervisor.hear(f"started worker {number} ")
    return [int(found[1]) for line in supervisor.told if (found := pattern.search(line))]


def is_there(process: int) -> bool:
    """Whether a process runs, which is not a child of ours."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_a_worker_that_is_killed_is_started_again_and_none_outlives_the_supervisor(
    folder: Path, url: str
) -> None:
    arguments = ("app:manager", "--store", url, "--processes", "2")
    with worker(folder, *arguments) as supervisor, producer(url) as (runner, manager):
        handle = runner.run(manager.submit("work", command(manager, "work", 1, 0.5)))
        supervisor.hear("start 1")
        first = [processes(supervisor, number)[0] for number in (1, 2)]
        for process in first:
            os.kill(process, signal.SIGKILL)
        supervisor.hear(f"worker 1 (process {first[0]}) ended unexpectedly with signal SIGKILL")
        # The command runs again in a new process, when its lease is over.
        assert runner.run(handle.result(PATIENCE)) == 2
        until(lambda: said(supervisor).count("start 1") == 2)
        supervisor.hear("is started again in 0.5 s")
        second = [until(partial(fresh, supervisor, number, first)) for number in (1, 2)]
        supervisor.process.kill()
        until(lambda: not any(is_there(process) for process in second))


def said(supervisor: Worker) -> list[str]:
    """All that it has told so far."""
    while not supervisor.lines.empty():
        supervisor.told.append(supervisor.lines.get())
    return supervisor.told


def fresh(supervisor: Worker, number: int, old: list[int]) -> int | None:
    said(supervisor)
    return next((one for one in processes(supervisor, number) if one not in old), None)


def test_processes_are_replaced_after_some_commands_and_end_gracefully(
    folder: Path, url: str
) -> None:
    arguments = ("app:manager", "--store", url, "--max-commands", "4")
    with worker(folder, *arguments) as supervisor, producer(url) as (runner, manager):
        for number in range(10):
            assert runner.run(result(manager, "work", "work", number, 0.0)) == 2 * number
        supervisor.hear("is replaced: it has run")
        until(lambda: fresh(supervisor, 1, processes(supervisor)[:1]))
        last = runner.run(manager.submit("work", command(manager, "work", 99, 1.0)))
        supervisor.hear("start 99")
        assert supervisor.end(signal.SIGTERM) == 0
        assert runner.run(last.result(PATIENCE)) == 198
    counts = Counter(line for line in supervisor.told if re.fullmatch(r"(start|end) \d+", line))
    assert set(counts.values()) == {1}, "each command ran once"
    assert len(counts) == 22
    assert supervisor.told.count("start 99") == 1


def test_the_second_signal_ends_all_at_once(folder: Path, url: str) -> None:
    arguments = ("app:manager", "--store", url, "--processes", "1", "--drain-timeout", "3600")
    with worker(folder, *arguments) as supervisor, producer(url) as (runner, manager):
        runner.run(manager.submit("work", command(manager, "work", 1, 3600.0)))
        supervisor.hear("start 1")
        supervisor.process.send_signal(signal.SIGINT)
        # One signal is passed on once: the worker waits for its command.
        supervisor.hear("INFO leasedkeyq: told to stop by SIGTERM")
        assert supervisor.end(signal.SIGINT) == 75
        assert runner.run(manager.stats()).lanes["work"].pending == 1


def test_a_mistake_ends_the_supervisor(folder: Path) -> None:
    with worker(folder, "app:nothing", "--processes", "1") as supervisor:
        assert supervisor.end() == 2
        supervisor.hear("there is no 'nothing' in the module 'app'")


def test_sources_that_change_are_loaded(folder: Path, url: str) -> None:
    arguments = ("app:manager", "--store", url, "--reload")
    with worker(folder, *arguments) as supervisor, producer(url) as (runner, manager):
        assert runner.run(result(manager, "work", "work", 4, 0.0)) == 8
        changed = APP.replace("return number * 2", "return number * 3")
        (folder / "app.py").write_text(changed, encoding="utf-8")
        supervisor.hear("app.py has changed: all workers are started anew")
        until(lambda: runner.run(result(manager, "work", "work", 4, 0.0)) == 12)
        assert supervisor.end(signal.SIGTERM) == 0


# Pieces


def test_the_pauses_grow_and_begin_anew() -> None:
    supervisor = Supervisor([], 1)
    slot = WorkerSlot(1)
    pauses: list[float] = []
    for lived in (0.0,) * 8 + (STEADY + 1, 0.0):
        supervisor._fail(slot, 100.0, lived)
        pauses.append(slot.start_at - 100.0)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[7] == LONGEST_PAUSE
    assert pauses[8:] == [FIRST_PAUSE, 2 * FIRST_PAUSE]


def test_limits_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(os, "kill", lambda *_: ended.set())
    ours, theirs = socket.socketpair()
    limits = WorkerLimits(memory() + 50 * 2**20, 3)
    supervised = Supervised(theirs.detach(), WorkerProbe(30), limits)
    supervised.patience = None
    assert supervised._limit_reached() is None
    ballast = bytearray(100 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    assert "MiB of memory" in (supervised._limit_reached() or "")
    del ballast
    supervised.commands = 3
    assert supervised._limit_reached() == "it has run 3 commands"
    with ours:
        ours.settimeout(PATIENCE)
        assert b'"replace"' in ours.recv(1000)
    # The supervisor is gone: the process ends itself.
    assert ended.wait(PATIENCE)
    supervised._thread.join(PATIENCE)
    supervised._socket.close()


def test_changes_of_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1", encoding="utf-8")
    for skipped in (".git", "venv", "__pycache__"):
        (tmp_path / skipped).mkdir()
    elsewhere = tmp_path / ".git" / "other.py"
    elsewhere.write_text("1", encoding="utf-8")
    watch = SourceWatch(tmp_path)
    assert watch.changed() == []
    (tmp_path / "b.py").write_text("1", encoding="utf-8")
    (tmp_path / "b.txt").write_text("1", encoding="utf-8")
    (tmp_path / "venv" / "c.py").write_text("1", encoding="utf-8")
    assert watch.changed() == [str(tmp_path / "b.py")]
    watch.add([str(elsewhere)])
    os.utime(tmp_path / "a.py", (1, 1))
    os.utime(elsewhere, (1, 1))
    assert watch.changed() == sorted([str(elsewhere), str(tmp_path / "a.py")])
    (tmp_path / "b.py").unlink()
    assert watch.changed() == [str(tmp_path / "b.py")]
    assert watch.changed() == []


def test_the_sources_of_a_program_are_known() -> None:
    found = sources()
    assert str(Path(__file__).resolve()) in found
    assert not any("site-packages" in file for file in found)


def test_the_console_script_is_the_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"leasedkeyq": f"{run.__module__}:run"}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--processes", "0"], "not a number from 1 on: 0"),
        (["--max-commands", "many"], "not a number from 1 on: many"),
        (["--max-memory", "512X"], "not a size such as 512M or 2G: 512X"),
        (["--health", "8080"], "not HOST:PORT, such as 127.0.0.1:8080: 8080"),
        (["--health", "127.0.0.1:99999"], "not HOST:PORT"),
        (["--stuck-after", "x"], "not a number of seconds"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["worker", "app:manager", *arguments])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
