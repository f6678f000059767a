"""`manager.sync` in processes: forks, kills, interrupts, and the end of a program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import Python
from tests.servers.urls import KINDS, empty_store

PATIENCE = 100.0

APP = """
import asyncio, os, signal, subprocess, sys, threading, time, warnings
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder

warnings.simplefilter("ignore", DeprecationWarning)  # a fork among threads, which is the point
manager = (
    QueueManagerBuilder()
    .with_lane("work", LaneConfig(0, 8, lease_time=30), 0)
    .with_storage(sys.argv[1])
    .build()
)

@manager.command("name", lane="work")
async def name(text: str) -> str:
    print("ran", text, flush=True)
    return text.upper()
"""

WORKER = """
from app import asyncio, manager

async def main():
    async with manager:
        await manager.drain(60)

asyncio.run(main())
"""

FORKS = """
from app import manager, name, os, signal, subprocess, sys, threading, time

def child(number):
    def submit(letter):
        manager.sync.submit(name(f"child {number}{letter}"))
    threads = [threading.Thread(target=submit, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    # A handle of the old process works in the new one, where something was submitted or not.
    assert first.result(60) == "PARENT"

first = None
if "before" in sys.argv:
    first = manager.sync.submit(name("parent"))
    waited = []
    # A thread that waits for a result does not keep the process from forking.
    waiting = threading.Thread(target=lambda: waited.append(first.result(60)), daemon=True)
    waiting.start()
children = []
for number in range(3):
    process = os.fork()
    if not process:
        if first is None:
            first = manager.sync.submit(name("parent"), key="parent", if_present="skip")
        child(number)
        os._exit(0)
    children.append(process)
if first is None:
    first = manager.sync.submit(name("parent"), key="parent", if_present="skip")
    waited = []
    waiting = threading.Thread(target=lambda: waited.append(first.result(60)), daemon=True)
    waiting.start()
codes = [os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])]
while manager.sync.stats().total_pending < 7:
    time.sleep(0.02)
subprocess.run([sys.executable, "worker.py", sys.argv[1]], check=True)
codes += [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children[1:]]
waiting.join(60)
print(codes, waited, manager.sync.stats().total_pending, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    return tmp_path


def start(folder: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(program, encoding="utf-8")
    return Python(
        folder / "program.py",
        *arguments,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def output(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=PATIENCE)
    finally:
        process.kill()


@pytest.mark.parametrize(
    "kind, submitted", [*((kind, "before") for kind in KINDS), ("sqlite", "after")]
)
def test_processes_that_are_forked_submit_on_their_own(
    kind: str, submitted: str, folder: Path
) -> None:
    """A server loads the program, submits or not, and forks; one of its processes is killed."""
    with empty_store(kind, folder) as url:
        process = start(folder, FORKS, url, submitted)
        said, trouble = output(process)
    assert (process.returncode, trouble) == (0, "")
    lines = said.splitlines()
    assert lines[-1] == "[-9, 0, 0] ['PARENT'] 0"
    wanted = ["parent", *(f"child {number}{letter}" for number in range(3) for letter in "ab")]
    assert sorted(lines[:-1]) == sorted(f"ran {one}" for one in wanted)


def test_ctrl_c_ends_the_wait_for_a_result(folder: Path) -> None:
    program = """
import signal
from app import manager, name
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start it without
handle = manager.sync.submit(name("never"))
try:
    print("waits", flush=True)
    handle.result()
except KeyboardInterrupt:
    print("interrupted", manager.sync.stats().total_pending, flush=True)
"""
    process = start(folder, program, f"sqlite:///{folder}/jobs.db")
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    assert output(process) == ("interrupted 1\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    "end", ["", "threading.Thread(target=handle.result, daemon=True).start()", "os._exit(0)"]
)
def test_a_program_ends_by_itself(end: str, folder: Path) -> None:
    program = f"""
from app import manager, name, os, threading
handle = manager.sync.submit(name("later"))
print("submitted", flush=True)
{end}
"""
    process = start(folder, program, f"sqlite:///{folder}/jobs.db")
    assert output(process) == ("submitted\n", "")
    assert process.returncode == 0
    worker = start(folder, WORKER, f"sqlite:///{folder}/jobs.db")
    assert output(worker) == ("ran later\n", "")


def test_a_new_process_does_not_use_the_memory_of_the_old_one(folder: Path) -> None:
    """In the new process the event loop of the old one seems to run."""
    program = """
import asyncio, os, sys, threading, warnings
from leasedkeyq.lanes import LaneConfig, LaneError, QueueManagerBuilder
warnings.simplefilter("ignore", DeprecationWarning)
manager = QueueManagerBuilder().with_lane("work", LaneConfig(0, 8), 0).build()

@manager.command("name", lane="work")
async def name(text: str) -> str:
    return text.upper()

async def main():
    async with manager:
        handle = await asyncio.to_thread(manager.sync.submit, name("x"))
        assert await asyncio.to_thread(handle.result, 60) == "X"
        if not os.fork():
            def submit():
                try:
                    manager.sync.submit(name("y"))
                except LaneError as error:
                    print(error, flush=True)
                os._exit(0)
            threading.Thread(target=submit).start()
            threading.Event().wait()
        await asyncio.to_thread(os.wait)

asyncio.run(main())
"""
    said, trouble = output(start(folder, program))
    assert "it does not run in this process" in said
    assert not trouble
