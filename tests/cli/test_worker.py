"""``leasedkeyq worker``: real processes that are told to stop, and mistakes."""

import asyncio
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import __version__
from leasedkeyq.__main__ import main
from leasedkeyq.cli.worker import _shown
from leasedkeyq.cli.worker_log import JsonLines
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from tests.forks import Program
from tests.servers.urls import KINDS, empty_store

PATIENCE = 60.0

APP = """
import asyncio
import time
from leasedkeyq.lanes import CommandRegistry, LaneConfig, QueueManagerBuilder, RetryPolicy

def configured():
    config = LaneConfig(0, 8, lease_time=2, cancel_grace=0.5)
    lanes = QueueManagerBuilder().with_lane("work", config, 0).with_lane("other", config, 1)
    return lanes.with_drain_timeout(20)

manager = configured().build()

@manager.command("work")
async def work(number: int, seconds: float) -> int:
    print(f"start {number}", flush=True)
    await asyncio.sleep(seconds)
    print(f"end {number}", flush=True)
    return number * 2

@manager.command("relay")
async def relay(number: int) -> str:
    handle = await manager.submit("work", work(number, 0.0))
    return f"relayed {await handle}"

@manager.command("fail")
async def fail() -> None:
    raise LookupError("nothing there")

@manager.command("stuck")
async def stuck(where: str) -> None:
    print("start stuck", flush=True)
    if where == "thread":
        await asyncio.to_thread(time.sleep, 3600)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

class Holder:
    builder = configured().with_commands(manager.queue().registry)

def make():
    return manager

async def make_later():
    return Holder.builder

text = "no manager"
"""


class Worker:
    """A worker process, and what it has told so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        variables = {**os.environ, "PYTHONPATH": paths}
        self.process = Program(
            "leasedkeyq", "worker", *arguments, folder=folder, environment=variables, errors=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.told: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.strip())

    def hear(self, wanted: str) -> str:
        """Wait until it tells a line with `wanted` in it."""
        deadline = time.monotonic() + PATIENCE
        while not (found := [line for line in self.told if wanted in line]):
            try:
                self.told.append(self.lines.get(timeout=max(0.1, deadline - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"{wanted!r} was never told: {self.told}") from None
        return found[0]

    def end(self, *signals: signal.Signals) -> int:
        """Send signals, and wait for the end; returns the exit code."""
        for number in signals:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.listener.join(PATIENCE)
        while not self.lines.empty():
            self.told.append(self.lines.get())
        return code


@contextmanager
def worker(folder: Path, *arguments: str) -> Generator[Worker]:
    started = Worker(folder, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait(PATIENCE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    return tmp_path


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with empty_store(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@contextmanager
def producer(url: str) -> Generator[tuple[asyncio.Runner, QueueManager]]:
    """A manager on the store in this process, which runs nothing."""
    config = LaneConfig(0, 8, lease_time=2)
    builder = QueueManagerBuilder().with_lane("work", config, 0).with_lane("other", config, 1)
    manager = builder.with_storage(url).build()
    manager.command("work", work)
    manager.command("relay", relay)
    manager.command("fail", fail)
    manager.command("stuck", stuck)
    with asyncio.Runner() as runner:
        try:
            yield runner, manager
        finally:
            runner.run(manager.close())


async def work(number: int, seconds: float) -> int:
    raise NotImplementedError


async def relay(number: int) -> str:
    raise NotImplementedError


async def fail() -> None:
    raise NotImplementedError


async def stuck(where: str) -> None:
    raise NotImplementedError


def command(manager: QueueManager, kind: str, *arguments: Any) -> Any:
    types: dict[str, Any] = manager.queue().registry.types
    return types[kind](*arguments)


async def result(manager: QueueManager, lane: str, kind: str, *arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await (await manager.submit(lane, command(manager, kind, *arguments)))


def test_it_runs_commands_and_ends_when_it_is_told(folder: Path, url: str) -> None:
    arguments = ("app:manager", "--store", url, "--log-format", "json", "--log-level", "debug")
    with worker(folder, *arguments) as process, producer(url) as (runner, manager):
        assert runner.run(result(manager, "work", "work", 21, 0.0)) == 42
        # The command submits to the manager of its module, which is on the same store now.
        assert runner.run(result(manager, "other", "relay", 4)) == "relayed 8"
        with pytest.raises(LookupError, match="nothing there"):
            runner.run(result(manager, "work", "fail"))
        # It is told to end while a command runs, which is still done.
        running = runner.run(manager.submit("work", command(manager, "work", 1, 1.0)))
        process.hear("start 1")
        assert process.end(signal.SIGTERM) == 0
        assert "end 1" in process.told
        assert runner.run(running.wait()) == 2
    lines = [json.loads(line) for line in process.told if line.startswith("{")]
    assert len(lines) == len(process.told) - 6, "what commands print is between"
    started = next(line for line in lines if "running the lanes" in line["message"])
    assert started["lanes"] == ["work", "other"]
    assert started["concurrency"] == {"work": 8, "other": 8}
    assert started["version"] == __version__
    shown = url.replace("not%20secret", "***")
    assert started["message"] == (
        f"leasedkeyq {__version__}, store {shown}: running the lanes work (8 at a time), other (8 "
        "at a time)"
    )
    assert (started["level"], started["logger"]) == ("info", "leasedkeyq.cli.worker")
    assert started["store"] == shown
    failed = next(line for line in lines if line.get("outcome") == "failed")
    assert failed["error"] == "LookupError: nothing there"
    assert (failed["lane"], failed["command_type"], failed["attempt"]) == ("work", "fail", 1)
    assert sum(line.get("outcome") == "completed" for line in lines) == 4
    assert lines[-1]["message"] == "ended"


def test_what_is_not_done_in_time_is_left_for_others(folder: Path, file_url: str) -> None:
    url = file_url
    arguments = ("app:Holder.builder", "--store", url, "--drain-timeout", "0.2")
    with worker(folder, *arguments) as process, producer(url) as (runner, manager):
        runner.run(manager.submit("work", command(manager, "work", 1, 3600.0)))
        process.hear("start 1")
        assert process.end(signal.SIGTERM) == 75
        process.hear("ended with 1 commands still running")
        assert "end 1" not in process.told
        stats = runner.run(manager.stats())
        assert (stats.total_pending, stats.total_active) == (1, 0)


def test_a_second_signal_stops_it_at_once(folder: Path, file_url: str) -> None:
    url = file_url
    arguments = ("app:make", "--store", url, "--drain-timeout", "3600", "--log-level", "debug")
    with worker(folder, *arguments) as process, producer(url) as (runner, manager):
        runner.run(manager.submit("work", command(manager, "work", 1, 3600.0)))
        process.hear("start 1")
        process.process.send_signal(signal.SIGINT)
        process.hear("told to stop")
        assert process.end(signal.SIGINT) == 75


@pytest.mark.parametrize("where", ["task", "thread"])
def test_a_command_that_cannot_be_stopped_does_not_keep_the_worker(
    folder: Path, file_url: str, where: str
) -> None:
    arguments = ("app:manager", "--store", file_url, "--drain-timeout", "0.1")
    with worker(folder, *arguments) as process, producer(file_url) as (runner, manager):
        runner.run(manager.submit("work", command(manager, "stuck", where)))
        process.hear("start stuck")
        assert process.end(signal.SIGTERM) == 75
        process.hear("the process ends without it")
        # What it was doing is for others.
        assert runner.run(manager.stats()).lanes["work"].pending == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_has_begun_ends_it(folder: Path, number: signal.Signals) -> None:
    text = "print('importing', flush=True)\nimport time\ntime.sleep(3600)\n"
    (folder / "slow.py").write_text(text, encoding="utf-8")
    with worker(folder, "slow:manager") as process:
        process.hear("importing")
        assert process.end(number) == 0


def test_a_worker_without_a_store_says_so(folder: Path) -> None:
    with worker(folder, "app:manager") as process:
        process.hear("there is no store, so that nobody else can submit to this worker")
        assert process.end(signal.SIGTERM) == 0


def test_it_runs_only_the_lanes_that_are_asked_for(folder: Path, file_url: str) -> None:
    url = file_url
    option = ("--store-option", "durability=normal")
    arguments = ("app:make_later", "--store", url, "--lanes", "other", *option)
    with worker(folder, *arguments) as process, producer(url) as (runner, manager):
        runner.run(manager.submit("work", command(manager, "work", 1, 0.0)))
        assert runner.run(result(manager, "other", "work", 2, 0.0)) == 4
        assert process.end(signal.SIGTERM) == 0
        assert "start 1" not in process.told
        assert runner.run(manager.stats()).lanes["work"].pending == 1


def test_a_killed_worker_leaves_its_commands_to_the_next(folder: Path, url: str) -> None:
    arguments = ("app:manager", "--store", url)
    with producer(url) as (runner, manager):
        with worker(folder, *arguments) as victim:
            handle = runner.run(manager.submit("work", command(manager, "work", 3, 1.0)))
            victim.hear("start 3")
            victim.process.kill()
        with worker(folder, *arguments) as process:
            assert runner.run(asyncio.wait_for(handle.wait(), PATIENCE)) == 6
            assert process.end(signal.SIGTERM) == 0


def test_a_task_that_ends_unexpectedly_is_a_crash(folder: Path, file_url: str) -> None:
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    with worker(folder, "broken:manager", "--store", file_url) as process:
        process.hear("leasedkeyq heartbeat has ended unexpectedly")
        assert process.end() == 1
        process.hear("PlantedError")
        process.hear("ERROR leasedkeyq.cli.worker: the manager runs no more commands")


BROKEN = """
import asyncio
from leasedkeyq.lanes.durable.heartbeat import Heartbeat
from app import manager

class PlantedError(Exception):
    pass

async def run(self):
    await asyncio.sleep(0.5)
    raise PlantedError

Heartbeat.run = run
"""


# Mistakes

ON_A_STORE = ("worker", "app:manager", "--store", "memory://")


@pytest.fixture
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop("app", None)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["worker"], "module:manager"),
        (["worker", "app"], "'app' does not look like module:manager"),
        (["worker", "nowhere:manager"], "there is no module 'nowhere'"),
        (["worker", "app.sub:manager"], "there is no module 'app.sub'"),
        (["worker", "app:nothing"], "there is no 'nothing' in the module 'app'"),
        (["worker", "app:text"], "app:text is str; a worker needs a QueueManager"),
        (["worker", "app:configured.x"], "there is no 'configured.x'"),
        (["worker", "app:manager", "--lanes", "nope"], "there is no lane 'nope'; the lanes are:"),
        (["worker", "app:manager", "--lanes", " , "], "--lanes names no lane"),
        (["worker", "app:manager", "--store", "jobs.db"], "not a store URL"),
        (["worker", "app:manager", "--store", "what://x"], "no store for the scheme 'what'"),
        (["worker", "app:manager", "--store-option", "a=1"], "--store-option goes with --store"),
        ([*ON_A_STORE, "--store-option", "a"], "--store-option is NAME=VALUE, got 'a'"),
        ([*ON_A_STORE, "--store-option", "colour=red"], "unexpected keyword argument 'colour'"),
        (["worker", "app:manager", "--drain-timeout", "-1"], "not a number of seconds"),
        (["worker", "app:manager", "--drain-timeout", "soon"], "not a number of seconds: soon"),
        (["worker", "app:manager", "--max-stall", "0"], "not a number of seconds above 0: 0"),
        (["worker", "app:manager", "--max-stall", "x"], "not a number of seconds: x"),
        (["worker", "app:manager", "--log-format", "xml"], "invalid choice"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], said: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "module, url, extra",
    [
        ("redis", "redis://localhost", "leasedkeyq[redis]"),
        ("asyncpg", "postgresql://localhost/x", "leasedkeyq[postgres]"),
    ],
)
def test_a_missing_extra_is_one_line(module: str, url: str, extra: str, folder: Path) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = "
        f"['worker', 'app:configured', '--store', {url!r}]; "
        "import runpy; runpy.run_module('leasedkeyq', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert extra in line
    assert not done.stdout


def test_a_manager_without_a_builder_keeps_its_store(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "from leasedkeyq.lanes import CommandQueue, QueueManager\n"
    text += "manager = QueueManager(CommandQueue())\n"
    (in_folder / "bare.py").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["worker", "bare:manager", "--store", "memory://"])
    assert "was not made by a QueueManagerBuilder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, said",
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("def manager():\n    raise RuntimeError('broken')", "RuntimeError: broken"),
    ],
)
def test_a_module_that_fails_is_a_crash(
    in_folder: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    name = f"broken_{abs(hash(text))}"
    (in_folder / f"{name}.py").write_text(text, encoding="utf-8")
    assert main(["worker", f"{name}:manager"]) == 1
    told = capsys.readouterr().err
    assert "the worker failed" in told
    assert said in told


def test_a_store_that_cannot_be_opened_is_a_crash(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "not.db").mkdir()
    assert main(["worker", "app:manager", "--store", f"sqlite:///{in_folder}/not.db"]) == 1
    assert "not.db" in capsys.readouterr().err


# Logs


@pytest.mark.parametrize(
    "url, shown",
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("redis://me:pass@host/0", "redis://me:***@host/0"),
        ("redis://:pa%3Ass@host", "redis://:***@host"),
        ("postgresql://h/d?user=me&password=pass&x=1", "postgresql://h/d?user=me&password=***&x=1"),
        ("postgresql://h/d?sslpassword=pass", "postgresql://h/d?sslpassword=***"),
    ],
)
def test_no_password_is_logged(url: str, shown: str) -> None:
    assert _shown(url) == shown


def test_a_record_is_one_line_of_json() -> None:
    try:
        raise ValueError("why\nso")  # noqa: TRY301
    except ValueError:
        record = logging.LogRecord(
            "a.b", logging.ERROR, "path", 1, "it %s", ("failed\n",), sys.exc_info()
        )
    record.lane = "x"
    record.thing = object
    record.level = "not the level"
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == "it failed\n"
    assert told["level"] == "error"
    assert told["lane"] == "x"
    assert told["thing"] == "<class 'object'>"
    assert "ValueError: why\nso" in told["exception"]
    assert told["time"].endswith("+00:00")


def test_a_record_that_is_no_text_is_still_a_line() -> None:
    record = logging.LogRecord("a", logging.INFO, "path", 1, "bad \ud800", (), None)
    assert "bad" in json.loads(JsonLines().format(record))["message"]
