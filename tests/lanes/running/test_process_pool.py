"""Commands in processes: the end of a process ends one command, and none outlives its worker."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.lanes import (
    CallNext,
    CommandCancelledError,
    CommandExitError,
    CommandPayloadError,
    CommandProcessError,
    CommandTimeoutError,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RemoteCommandError,
    RetryPolicy,
    RunningCommand,
)
from tests.lanes.real_clock import PATIENCE, eventually, lives, run
from tests.lanes.running import process_commands
from tests.lanes.running.process_commands import Point, ShopError

ROOT = Path(__file__).resolve().parents[3]


def lane(builder: QueueManagerBuilder, config: LaneConfig | None = None) -> QueueManager:
    return builder.with_lane("x", config or LaneConfig(0, 2), 0).build()


def register(manager: QueueManager, *functions: Callable[..., Any]) -> list[Any]:
    return [
        manager.command(function.__name__, function, run_in="process") for function in functions
    ]


@pytest.fixture
def on_sqlite(tmp_path: Path) -> QueueManagerBuilder:
    return QueueManagerBuilder().with_storage(f"sqlite:///{tmp_path}/jobs.db")


def test_middleware_runs_in_the_worker_around_a_function_in_a_process() -> None:
    manager = lane(QueueManagerBuilder(), LaneConfig(0, 1, timeout=PATIENCE))
    [square] = register(manager, process_commands.square)
    pids: list[int] = []

    @manager.middleware
    async def around(command: RunningCommand, call_next: CallNext) -> Any:
        pids.append(os.getpid())
        return {**command.arguments, "result": await call_next()}

    async def main() -> None:
        async with manager:
            result = await (await manager.submit("x", square(12)))
            assert result == {"number": 12, "result": 144}

    run(main())
    assert pids == [os.getpid()]


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
def test_functions_run_in_processes_that_are_used_again(
    durable: bool, on_sqlite: QueueManagerBuilder
) -> None:
    manager = lane(
        on_sqlite if durable else QueueManagerBuilder(), LaneConfig(0, 1, timeout=PATIENCE)
    )
    about_me, square, later, moved = register(
        manager,
        process_commands.about_me,
        process_commands.square,
        process_commands.square_later,
        process_commands.moved,
    )

    async def main() -> None:
        async with manager:
            handle = await manager.submit("x", about_me(), key="k")
            first = await handle
            assert await (await manager.submit("x", square(12))) == 144
            assert await (await manager.submit("x", later(5))) == 25
            assert await (await manager.submit("x", moved(Point(1, 2)))) == Point(2, 2)
            second = await (await manager.submit("x", about_me(), key="k"))
            assert first.pop("id") == handle.id
            assert second.pop("id") != handle.id
        pid = first["pid"]
        assert pid != os.getpid()
        assert (
            first
            == second
            == {
                "lane": "x",
                "key": "k",
                "type": "about_me",
                "attempt": 1,
                "timeout": PATIENCE,
                "cancelled": False,
                "pid": pid,
                "own session": True,
                "deaf to Ctrl-C": True,
            }
        )
        assert not lives(pid), "closing the manager ends its processes"

    run(main())


def test_a_process_tells_its_worker_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = lane(QueueManagerBuilder())
    [tell] = register(manager, process_commands.tell)
    engine: Any = manager.queue()._engine
    told: list[tuple[str, Any]] = []
    monkeypatch.setattr(engine, "report", lambda job, value: told.append((job.key, value)))

    async def main() -> None:
        async with manager:
            for key in ("a", "b"):
                assert await (await manager.submit("x", tell(5000), key=key)) == 5000

    run(main())
    assert len(told) < 1000, "the newest of many is enough"
    for key in ("a", "b"):
        parts = [value["part"] for told_by, value in told if told_by == key]
        assert parts == sorted(parts)
        assert parts[-1] == 4999, "the last one is told before the end"


def test_errors_of_processes_come_as_from_another_worker() -> None:
    manager = lane(QueueManagerBuilder())
    functions = (
        process_commands.fail,
        process_commands.fail_locally,
        process_commands.leave,
        process_commands.strange,
        process_commands.wrong,
    )
    fail, fail_locally, leave, strange, wrong = register(manager, *functions)

    async def main() -> None:
        async with manager:
            with pytest.raises(ShopError, match="acme says 7") as caught:
                await (await manager.submit("x", fail("acme")))
            assert caught.value.code == 7
            assert "in fail\n    raise ShopError" in caught.value.__notes__[0]
            with pytest.raises(RemoteCommandError, match="HiddenError: nobody can import it"):
                await (await manager.submit("x", fail_locally()))
            with pytest.raises(CommandExitError, match=r"SystemExit\(3\)"):
                await (await manager.submit("x", leave()))
            with pytest.raises(CommandPayloadError, match=r"result of command 'strange' cannot"):
                await (await manager.submit("x", strange()))
            with pytest.raises(RemoteCommandError, match=r"does not fit the annotation of wrong"):
                await (await manager.submit("x", wrong()))
            letters = await manager.dlq.list()
            assert len(letters) == 5
            [letter] = [letter for letter in letters if letter.command_type == "fail"]
            assert letter.error == "ShopError: acme says 7"
            assert "in fail\n    raise ShopError" in letter.traceback

    run(main())


def test_a_process_that_dies_is_a_failed_attempt(on_sqlite: QueueManagerBuilder) -> None:
    manager = lane(on_sqlite, LaneConfig(0, 2, retry_policy=RetryPolicy.fixed(1, 0)))
    crash, killed = register(manager, process_commands.crash, process_commands.killed_at_first)

    async def main() -> None:
        async with manager:
            retried = await manager.submit("x", killed(1))
            hopeless = await manager.submit("x", killed(9), key="k")
            assert await retried == 2
            with pytest.raises(CommandProcessError, match="killed by SIGKILL") as caught:
                await hopeless
            assert (caught.value.signal, caught.value.exit_code) == ("SIGKILL", None)
            assert (caught.value.lane, caught.value.key) == ("x", "k")
            with pytest.raises(CommandProcessError, match="exit code 3") as caught:
                await (await manager.submit("x", crash(3)))
            assert (caught.value.signal, caught.value.exit_code) == ("", 3)
            letters = {letter.command_type: letter for letter in await manager.dlq.list()}
            assert "killed by SIGKILL" in letters["killed_at_first"].error
            assert letters["killed_at_first"].attempts == 2
            assert "exit code 3" in letters["crash"].error
            store = manager.queue().store
            assert store is not None
            [item] = (await store.browse("x", states=["buried"], prefix="k")).items
            assert ["killed by SIGKILL" in attempt.error for attempt in item.history] == [True] * 2

    run(main())


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_process_is_seen_to_die_whatever_its_command_has_left_behind(how: str) -> None:
    manager = lane(QueueManagerBuilder())
    [crash] = register(manager, process_commands.crash_beside)

    async def main() -> None:
        async with manager:
            handle = await manager.submit("x", crash(how, 3))
            with pytest.raises(CommandProcessError, match="exit code 3"):
                await handle.result(timeout=PATIENCE / 2)

    run(main())


def test_a_process_that_dies_while_it_is_idle_costs_no_attempt() -> None:
    manager = lane(QueueManagerBuilder().with_processes(1))
    [about_me] = register(manager, process_commands.about_me)
    pool: Any = manager.queue()._engine

    async def main() -> None:
        async with manager:
            pid = (await (await manager.submit("x", about_me())))["pid"]
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not pool._processes._idle[0].idle)
            again = await (await manager.submit("x", about_me()))
            assert again["pid"] != pid
            assert again["attempt"] == 1

    run(main())


def test_a_time_out_or_a_cancellation_ends_its_process_and_no_other_command(
    on_sqlite: QueueManagerBuilder, tmp_path: Path
) -> None:
    manager = lane(on_sqlite)
    spin, await_file, about_me = register(
        manager, process_commands.spin, process_commands.await_file, process_commands.about_me
    )
    pids, go_on, never = tmp_path / "pids", tmp_path / "go on", tmp_path / "never"

    async def main() -> None:
        async with manager:
            other = await manager.submit("x", await_file(str(go_on)))
            handle = await manager.submit("x", await_file(str(never)), timeout=0.3)
            with pytest.raises(CommandTimeoutError, match=r"longer than 0\.3 s"):
                await handle
            cancelled = await manager.submit("x", spin(str(pids)), key="k")
            await eventually(pids.exists)
            assert await cancelled.cancel()
            with pytest.raises(CommandCancelledError):
                await cancelled
            spinning = [int(pid) for pid in pids.read_text().split()]
            await eventually(lambda: not any(lives(pid) for pid in spinning))
            go_on.touch()
            survivor = await other
            assert survivor == (await (await manager.submit("x", about_me())))["pid"]

    run(main())


def test_closing_ends_the_process_and_gives_the_command_back(
    on_sqlite: QueueManagerBuilder, tmp_path: Path
) -> None:
    manager = lane(on_sqlite)
    [spin] = register(manager, process_commands.spin)
    pids = tmp_path / "pids"

    async def main() -> None:
        await manager.start()
        await manager.submit("x", spin(str(pids)), key="k")
        await eventually(pids.exists)
        assert await manager.close() == {"x": 1}
        assert not lives(int(pids.read_text().split()[0]))
        async with connect(f"sqlite:///{tmp_path}/jobs.db") as store:
            [[item]] = await store.look("x", ["k"])
            assert item.state == "available"

    run(main())


def test_processes_can_be_fewer_than_commands() -> None:
    manager = lane(QueueManagerBuilder().with_processes(1), LaneConfig(0, 5, timeout=PATIENCE))
    [about_me] = register(manager, process_commands.about_me)

    async def main() -> None:
        async with manager:
            handles = await manager.submit_many("x", [about_me() for _ in range(8)])
            assert len({(await handle)["pid"] for handle in handles}) == 1

    run(main())
    with pytest.raises(ValueError, match="most must be at least 1"):
        QueueManagerBuilder().with_processes(0)


def test_a_cancelled_wait_for_a_process_hands_it_on(tmp_path: Path) -> None:
    manager = lane(QueueManagerBuilder().with_processes(1), LaneConfig(0, 3))
    await_file, square = register(manager, process_commands.await_file, process_commands.square)
    go_on = tmp_path / "go on"

    async def main() -> None:
        async with manager:
            first = await manager.submit("x", await_file(str(go_on)))
            waiting = await manager.submit("x", square(2))
            last = await manager.submit("x", square(3))
            await eventually(lambda: last.status == "running")
            assert await waiting.cancel()
            go_on.touch()
            assert await last == 9
            assert await first
            with pytest.raises(CommandCancelledError):
                await waiting

    run(main())


WORKER = """
import asyncio, os, sys
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from tests.lanes.running.process_commands import spin

manager = QueueManagerBuilder().with_lane("x", LaneConfig(), 0).build()
run_spin = manager.command("spin", spin, run_in="process")

async def main():
    await manager.start()
    await (await manager.submit("x", run_spin(sys.argv[1])))

asyncio.run(main())
"""


def test_no_process_outlives_its_worker(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(pids)], env=environment)
    try:
        run(eventually(pids.exists))
        children = [int(pid) for pid in pids.read_text().split()]
        assert all(lives(pid) for pid in children)
    finally:
        worker.kill()
        worker.wait(PATIENCE)
    run(eventually(lambda: not any(lives(pid) for pid in children)))


UNGUARDED = """
import asyncio
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder

manager = QueueManagerBuilder().with_lane("x", LaneConfig(), 0).build()

@manager.command("one", run_in="process")
def one() -> int:
    return 1

async def main() -> None:
    async with manager:
        print("result", await (await manager.submit("x", one())))

asyncio.run(main())
"""


def test_a_program_that_starts_its_manager_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def result() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    code, told = result()
    assert code == 1
    assert "result 1" not in told
    assert "CommandProcessError: lane 'x': command 'one'" in told
    assert 'only under if __name__ == "__main__":' in told
    program.write_text(UNGUARDED.replace("\nasyncio", '\nif __name__ == "__main__":\n    asyncio'))
    assert result() == (0, "result 1\n")


# Bad input


def test_what_no_process_can_find_is_refused_when_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = lane(QueueManagerBuilder())

    def local() -> None:
        raise AssertionError

    by_hand = partial(process_commands.square, 2)
    anything: Any = lambda: None  # noqa: E731  # it is about lambdas
    with pytest.raises(TypeError, match=r"'a': run_in='process'.*it is a lambda; write a def"):
        manager.command("a", anything, run_in="process")
    with pytest.raises(TypeError, match=r"'b'.*registered.local is defined inside a function"):
        manager.command("b", local, run_in="process")
    with pytest.raises(TypeError, match=r"'c'.*partial has no name in a module; wrap it"):
        manager.command("c", by_hand, run_in="process")
    with pytest.raises(TypeError, match=r"'e'.*shifted is a method of an object.*write a def"):
        manager.command("e", Point(1).shifted, run_in="process")
    with pytest.raises(TypeError, match=r"'f'.*by square it finds.*decorate the function where"):
        manager.command("f", process_commands.counted(process_commands.square), run_in="process")
    manager.command("g", process_commands.counted_square, run_in="process")
    at_a_prompt = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", at_a_prompt)
    monkeypatch.setattr(process_commands.square, "__module__", "__main__")
    with pytest.raises(TypeError, match=r"'d'.*square is in a program without a file.*import it"):
        manager.command("d", process_commands.square, run_in="process")


def test_where_a_function_runs_must_fit_the_function() -> None:
    manager = lane(QueueManagerBuilder())
    anywhere: Any = "anywhere"
    with pytest.raises(TypeError, match=r"'a': a plain function would block the event loop"):
        manager.command("a", process_commands.square, run_in="loop")
    with pytest.raises(TypeError, match=r"'b': an async function runs in the event loop"):
        manager.command("b", process_commands.square_later, run_in="thread")
    with pytest.raises(ValueError, match=r"'c': run_in must be .*'process'.*got 'anywhere'"):
        manager.command("c", process_commands.square, run_in=anywhere)
    with pytest.raises(TypeError, match=r"'d': run_in is for functions.*Point is a class"):
        manager.command("d", run_in="process")(Point)
    with pytest.raises(TypeError, match=r"'e': pool is a resource.*open it in the function"):
        manager.command("e", process_commands.takes_resource, run_in="process")


def test_arguments_that_cannot_be_sent_are_refused_when_the_command_is_made() -> None:
    manager = lane(QueueManagerBuilder())
    [strange] = register(manager, process_commands.takes_anything)
    with pytest.raises(CommandPayloadError, match=r"'takes_anything' runs in another process"):
        strange(threading.Lock())
    with pytest.raises(CommandPayloadError, match=r"JSON has no such number"):
        strange(float("nan"))


def test_a_module_that_only_the_worker_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = lane(QueueManagerBuilder())
    monkeypatch.setattr(process_commands.square, "__module__", "made_by_hand")
    [square] = register(manager, process_commands.square)

    async def main() -> None:
        async with manager:
            with pytest.raises(CommandProcessError, match=r"cannot call made_by_hand.square") as no:
                await (await manager.submit("x", square(2)))
            assert "ModuleNotFoundError" in str(no.value)

    run(main())
