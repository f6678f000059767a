"""``leasedkeyq worker --processes``: workers that die, are replaced, and end; real processes."""

import os
import re
import signal
import socket
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leasedkeyq.__main__ import main, run
from leasedkeyq.cli.health import Health
from leasedkeyq.cli.probe import WorkerProbe
from leasedkeyq.cli.source_watch import SourceWatch
from leasedkeyq.cli.supervised import Supervised, WorkerLimits, sources
from leasedkeyq.cli.supervisor import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    STEADY,
    Supervisor,
    WorkerProcess,
    WorkerSlot,
)
from leasedkeyq.telemetry import resident_memory
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
        # Of another length: Python tells sources apart by that, and by their times in seconds.
        changed = APP.replace("return number * 2", "return number * 3 + 0")
        (folder / "app.py").write_text(changed, encoding="utf-8")
        supervisor.hear("app.py has changed: all workers are started anew")
        until(lambda: runner.run(result(manager, "work", "work", 4, 0.0)) == 12)
        assert supervisor.end(signal.SIGTERM) == 0


def test_a_successor_that_cannot_start_is_followed_by_another(folder: Path, url: str) -> None:
    (folder / "app.py").write_text(
        f"{APP}\nimport pathlib\nif pathlib.Path('broken').exists(): 1 / 0\n", encoding="utf-8"
    )
    arguments = ("app:manager", "--store", url, "--max-commands", "1")
    with worker(folder, *arguments) as supervisor, producer(url) as (runner, manager):
        supervisor.hear("running the lanes")
        (folder / "broken").touch()
        assert runner.run(result(manager, "work", "work", 1, 0.0)) == 2
        supervisor.hear("ended with exit code 1 before it ran anything")
        (folder / "broken").unlink()
        supervisor.hear("told to stop by SIGTERM")  # the first one: its successor runs
        assert supervisor.end(signal.SIGTERM) == 0


def test_a_limit_of_memory_that_no_worker_can_keep_is_told(folder: Path, url: str) -> None:
    arguments = ("app:manager", "--store", url, "--max-memory", "1M")
    with worker(folder, *arguments) as supervisor, producer(url) as (runner, manager):
        supervisor.hear("--max-memory is 1 MiB, and the worker uses")
        assert runner.run(result(manager, "work", "work", 1, 0.0)) == 2
        assert supervisor.end(signal.SIGTERM) == 0
    assert not any("is replaced" in line for line in supervisor.told)


# Pieces


def test_what_a_worker_has_forked_does_not_hold_up_the_supervisor() -> None:
    # The process that is left holds the socket to the supervisor.
    child = WorkerProcess(["sh", "-c", "sleep 600 & kill -9 $$"], 1)
    try:
        assert child.process.wait(PATIENCE) == -signal.SIGKILL
        assert list(child.read()) == []
    finally:
        os.killpg(child.process.pid, signal.SIGKILL)
        child.close()


def test_a_mistake_after_a_worker_has_run_is_one_of_the_program() -> None:
    supervisor = Supervisor([], 1)
    [slot] = supervisor._slots
    for began, ends in ((True, 0), (False, 1)):
        slot.child = child = WorkerProcess(["true"], 1)
        child.process.wait(PATIENCE)
        child.close()
        supervisor._began = began
        supervisor._ended(child, 2, 100.0)
        assert supervisor._signals == ends


def test_a_question_to_a_worker_that_ends_is_answered() -> None:
    child = WorkerProcess(["sh", "-c", "sleep 600"], 1)
    answers: list[Health] = []
    asking = threading.Thread(target=lambda: answers.append(child.ask("live")))
    asking.start()
    os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait(PATIENCE)
    child.close()
    asking.join(PATIENCE)
    assert answers == [Health(False, "it has ended")]


class FailingProbe(WorkerProbe):
    """It waits for the store until it may go on, and its metrics cannot be collected."""

    def __init__(self) -> None:
        super().__init__(30)
        self.go_on = threading.Event()

    def ready(self) -> Health:
        self.go_on.wait(PATIENCE)
        raise ConnectionError("no store")

    def metrics(self) -> str:
        raise ZeroDivisionError


def test_a_worker_tells_that_it_lives_while_others_wait_for_its_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: None)
    ours, theirs = socket.socketpair()
    probe = FailingProbe()
    supervised = Supervised(theirs.detach(), probe, WorkerLimits())
    supervised.patience = None
    with ours, ours.makefile("r") as told:
        ours.settimeout(PATIENCE)
        for number, asked in enumerate(("ready", "live")):
            ours.sendall(f'{{"ask": "{asked}", "id": {number}}}\n'.encode())
        assert told.readline() == '{"id":1,"well":true,"text":"the event loop goes on"}\n'
        probe.go_on.set()
        assert told.readline() == (
            """{"id":0,"well":false,"text":"ConnectionError('no store')"}\n"""
        )
        ours.sendall(b'{"ask": "metrics", "id": 2}\n')
        assert told.readline() == '{"id":2,"well":false,"text":""}\n'
    supervised._thread.join(PATIENCE)
    assert not supervised._thread.is_alive()
    supervised._socket.close()


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
    limits = WorkerLimits(resident_memory() + 50 * 2**20, 3)
    monkeypatch.setattr(WorkerProbe, "started", lambda _: True)
    supervised = Supervised(theirs.detach(), WorkerProbe(30), limits)
    supervised.patience = None
    told = ours.makefile("r")
    ours.settimeout(PATIENCE)
    assert '"started"' in told.readline()
    assert supervised._limit_reached() is None
    ballast = bytearray(100 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    assert "MiB of memory" in (supervised._limit_reached() or "")
    del ballast
    supervised.commands = 3
    assert supervised._limit_reached() == "it has run 3 commands"
    with ours, told:
        assert '"replace"' in told.readline()
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


def test_modules_that_import_others_when_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(name)

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    assert str(Path(__file__).resolve()) in sources()


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
