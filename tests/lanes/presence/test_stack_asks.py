"""A worker says where a command is that it runs, when another program asks."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.connect import connect
from leasedkeyq.lanes import Handle, LaneConfig, UnknownCommandError
from leasedkeyq.lanes.presence.directory import read_workers
from leasedkeyq.lanes.presence.records import GRACE, WORKERS_QUEUE
from leasedkeyq.lanes.presence.stack_asks import ANSWER_KEPT, StackAnswer, ask_stack
from leasedkeyq.model.requests import Counts, Put
from leasedkeyq.stores import Store
from tests.forks import Program
from tests.lanes.durable.workers_support import Diary, memory, worker
from tests.lanes.presence import stack_commands
from tests.lanes.presence.test_registry_on_stores import command, until
from tests.lanes.presence.test_worker_registry import engine
from tests.servers.urls import KINDS, empty_store


async def running(store: Store, handle: Handle[None]) -> None:
    """Wait until a worker runs a command."""
    await until(handle.refresh, lambda status: status == "running")


async def answer_of(store: Store, handle: Handle[None], function: str) -> StackAnswer:
    """The answer, once the command is in its function."""

    async def ask() -> StackAnswer | None:
        try:
            return await ask_stack(store, handle.id, 30)
        except UnknownCommandError:
            return None  # it has not begun yet

    def arrived(answer: StackAnswer | None) -> bool:
        return answer is not None and any(one.function == function for one in answer.frames)

    answer = await until(ask, arrived)
    assert answer is not None
    return answer


PLACES = {
    "waiting": ("task", ["waiting", "sleep_inside"], "asleep in a task"),
    "in_thread": ("thread", ["in_thread"], "asleep in a thread"),
    "in_process": ("process", ["in_process"], "asleep in a process"),
    "awaiting_in_process": ("process", ["awaiting_in_process", "sleep_inside"], "asleep in a task"),
    "batched": ("task", ["batched", "sleep_inside"], "asleep in a task"),
}


def test_where_a_command_is_wherever_it_runs(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        manager = stack_commands.build(url)
        async with connect(url) as store:
            await manager.start()
            handles = {
                name: await manager.submit("work", command(manager, name)(1000.0), key=name)
                for name in PLACES
            }
            for name, handle in handles.items():
                where, functions, line = PLACES[name]
                answer = await answer_of(store, handle, functions[-1])
                assert answer.where == where
                own = [one for one in answer.frames if one.file == stack_commands.__file__]
                assert [one.function for one in own] == functions
                assert answer.frames[0] == own[0], "what is ours is left out"
                assert line in own[-1].source
                assert answer.memory > 2**20
                assert 0 < answer.running_for < 600
                [record] = await read_workers(store)
                assert answer.worker == record.id
                # It has been looked at since: so it is known for how long it is there.
                again = await answer_of(store, handle, functions[-1])
                assert again.unchanged_for is not None
                assert again.frames[-1] == answer.frames[-1]
            batched = await ask_stack(store, handles["batched"].id, 30)
            assert batched.note == "it is one of 1 commands of a batch"
            assert [
                item for item in (await store.browse(WORKERS_QUEUE)).items if "ask:" in item.key
            ] == []
            stack_commands.RELEASE.set()
            for handle in handles.values():
                await handle.cancel()
            await manager.close()

    with empty_store("sqlite", tmp_path) as url:
        asyncio.run(run(url))


@contextmanager
def worker_process(url: str) -> Generator[None]:
    with Program("tests.lanes.presence.stack_commands", url) as process:
        assert process.stdout.readline() == "started\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_answers_while_its_event_loop_is_blocked(kind: str, tmp_path: Path) -> None:
    async def run(url: str) -> None:
        with worker_process(url):
            async with connect(url) as store:
                await until(lambda: read_workers(store), bool)
                manager = stack_commands.build(url)
                waits = await manager.submit("work", command(manager, "waiting")(1000.0), key="w")
                await answer_of(store, waits, "sleep_inside")
                blocks = await manager.submit("work", command(manager, "blocking")(1000.0), key="b")
                answer = await answer_of(store, blocks, "blocking")
                assert answer.where == "task"
                assert "time.sleep(seconds)" in answer.frames[-1].source
                assert "the event loop of its worker has been blocked for" in answer.note
                assert "by lane 'work': command 'blocking' of key 'b'" in answer.note
                [record] = await until(
                    lambda: read_workers(store), lambda seen: bool(seen[0].presence.blocked)
                )
                assert record.alive
                assert {one.key for one in record.presence.running} == {"w", "b"}
                # A command that the blocked one holds up says so, too.
                other = await answer_of(store, waits, "sleep_inside")
                assert "command 'blocking' of key 'b'" in other.note
                await manager.close()

    with empty_store(kind, tmp_path) as url:
        asyncio.run(run(url))


async def only_worker(store: MemoryStore) -> str:
    [record] = await read_workers(store)
    return record.id


async def test_for_how_long_it_has_been_there(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    manager, note = worker(store, Diary(), "", LaneConfig(0, 4, lease_time=60))
    loop = asyncio.get_running_loop()
    stacks = manager.queue()._engine.stacks
    monkeypatch.setattr(stacks, "_clock", loop.time)
    async with manager:
        handle = await manager.submit("x", note("a", 1000.0), key="a")
        await asyncio.sleep(1)
        first = await ask_stack(store, handle.id)
        assert first.unchanged_for is None, "nobody has looked before"
        assert first.running_for == pytest.approx(1, abs=0.5)
        await asyncio.sleep(20)
        second = await ask_stack(store, handle.id)
        assert second.unchanged_for == pytest.approx(20, abs=1)
        assert second.frames[-1].function == "sleep"
        await asyncio.sleep(100)  # it is looked at for a minute only
        assert (await ask_stack(store, handle.id)).unchanged_for is None
        await handle.cancel()


async def test_a_command_that_moves_on_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    manager, _ = worker(store, Diary(), "", LaneConfig(0, 4, lease_time=60))
    monkeypatch.setattr(manager.queue()._engine.stacks, "_clock", asyncio.get_running_loop().time)

    @manager.command("moves")
    async def moves() -> None:
        await asyncio.sleep(10)
        await asyncio.sleep(1000)

    async with manager:
        handle = await manager.submit("x", moves(), key="a")
        await asyncio.sleep(1)
        await ask_stack(store, handle.id)
        await asyncio.sleep(19)
        answer = await ask_stack(store, handle.id)
        assert answer.unchanged_for == pytest.approx(10, abs=1)
        await handle.cancel()


async def test_a_command_that_does_not_run_is_refused() -> None:
    store = memory()
    manager, note = worker(store, Diary())
    with pytest.raises(UnknownCommandError, match="is not the id of a command"):
        await ask_stack(store, "nonsense")
    with pytest.raises(UnknownCommandError, match="no living worker runs its lane"):
        await ask_stack(store, "7.x.a")
    async with manager:
        await asyncio.sleep(1)
        with pytest.raises(UnknownCommandError, match="its worker does not run it any more"):
            await ask_stack(store, "7.x.a")
        with pytest.raises(UnknownCommandError, match="no living worker runs its lane"):
            await ask_stack(store, "7.y.a")
    del note


async def test_a_worker_that_does_not_answer_leaves_no_question_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = memory()
    manager, note = worker(store, Diary())
    async with manager:
        handle = await manager.submit("x", note("a", 1000.0), key="a")
        await asyncio.sleep(5)
        group = engine(manager)._workers
        monkeypatch.setattr(group._answers, "hear", lambda *_: None)
        with pytest.raises(TimeoutError, match="the worker has not answered within 2 s"):
            await ask_stack(store, handle.id, 2)
        counts = (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE]
        assert (counts.available, counts.in_flight) == (0, 1)
        await handle.cancel()


async def test_answers_and_forgotten_questions_go_by_themselves() -> None:
    store = memory()
    manager, note = worker(store, Diary())
    async with manager:
        handle = await manager.submit("x", note("a", 1000.0), key="a")
        await asyncio.sleep(1)
        await ask_stack(store, handle.id)
        await store.put([Put(WORKERS_QUEUE, (("ask:nobody:1", b"{}"),))])
        await asyncio.sleep(ANSWER_KEPT + GRACE)
        await manager.pause("x")  # all workers look
        await asyncio.sleep(1)
        assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == Counts(
            in_flight=1, scheduled=1
        )
        await manager.resume("x")
        await handle.cancel()


async def test_a_question_that_makes_no_sense_is_answered_with_nothing() -> None:
    store = memory()
    manager, _ = worker(store, Diary())
    async with manager:
        await asyncio.sleep(1)
        key = f"ask:{await only_worker(store)}:1"
        [placed] = await store.put([Put(WORKERS_QUEUE, ((key, b"\xff"),))])
        assert isinstance(placed, tuple)
        await asyncio.sleep(1)
        [item] = await store.results(WORKERS_QUEUE, [placed[0].id])
        assert item is not None
        assert item.value == b'{"found":false}'


async def test_the_worker_that_runs_it_answers_among_several() -> None:
    """It has not told yet that it runs the command: so all workers of the lane are asked."""
    store = memory()
    (first, note), (second, _) = (worker(store, Diary(), f"{n}") for n in range(2))
    async with first, second:
        await asyncio.sleep(4)
        handle = await first.submit("x", note("a", 1000.0), key="a")
        await asyncio.sleep(0.1)
        answer = await ask_stack(store, handle.id)
        assert any(one.function.endswith("note") for one in answer.frames)
        await handle.cancel()
