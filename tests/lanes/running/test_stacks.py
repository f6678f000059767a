"""Stacks of coroutines and threads, taken from outside."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import msgspec
import pytest

from leasedkeyq.lanes.running.execution import processes
from leasedkeyq.lanes.running.execution.process_child import ChildStack, ProcessCall, frame
from leasedkeyq.lanes.running.execution.processes import PoolProcess
from leasedkeyq.lanes.running.execution.stacks import (
    StackFrame,
    awaitable_stack,
    thread_stack,
    told,
)


async def innermost(gate: asyncio.Event) -> None:
    await gate.wait()  # it waits here


async def awaits(gate: asyncio.Event) -> None:
    await innermost(gate)


async def yields(gate: asyncio.Event) -> AsyncIterator[int]:
    await innermost(gate)
    yield 1


async def iterates(gate: asyncio.Event) -> None:
    async for _ in yields(gate):
        pass


async def gathers(gate: asyncio.Event) -> None:
    await asyncio.gather(asyncio.sleep(0), innermost(gate))


async def awaits_a_task(gate: asyncio.Event) -> None:
    await asyncio.create_task(awaits(gate))


async def shields(gate: asyncio.Event) -> None:
    await asyncio.wait_for(innermost(gate), 1000)


class Own:
    """Something of one's own that can be awaited."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate

    def __await__(self) -> Generator[Any, None, None]:
        yield from innermost(self.gate).__await__()


async def awaits_its_own(gate: asyncio.Event) -> None:
    await Own(gate)


def names(frames: tuple[StackFrame, ...]) -> list[str]:
    return [frame.function for frame in frames if frame.file == __file__]


@pytest.mark.parametrize(
    "work, between",
    [
        (awaits, []),
        (iterates, ["yields"]),
        (gathers, []),
        (awaits_a_task, ["awaits"]),
        (shields, []),
        (awaits_its_own, ["Own.__await__"]),
    ],
)
async def test_the_chain_of_what_a_task_awaits(
    work: Callable[[asyncio.Event], Awaitable[None]], between: list[str]
) -> None:
    gate = asyncio.Event()
    task = asyncio.ensure_future(work(gate))
    for _ in range(5):
        await asyncio.sleep(0)
    frames = told(awaitable_stack(task, threading.get_ident()))
    assert names(frames) == [work.__name__, *between, "innermost"]
    waits = next(frame for frame in frames if frame.function == "innermost")
    assert waits.source == "await gate.wait()  # it waits here"
    gate.set()
    await task
    assert awaitable_stack(task, threading.get_ident()) == []


async def test_a_task_that_runs_has_the_frames_of_its_thread() -> None:
    found: list[tuple[StackFrame, ...]] = []

    def deep() -> None:
        found.append(told(awaitable_stack(task, threading.get_ident())))

    async def outer() -> None:
        await inner()

    async def inner() -> None:
        deep()

    task = asyncio.ensure_future(outer())
    await task
    assert [name.rpartition(".")[2] for name in names(found[0])] == ["outer", "inner", "deep"]


def test_the_stack_of_a_thread() -> None:
    ready, gate = threading.Event(), threading.Event()

    def blocks() -> None:
        ready.set()
        gate.wait(60)

    thread = threading.Thread(target=blocks)
    thread.start()
    ready.wait(60)
    time.sleep(0.05)
    assert thread.ident is not None
    frames = told(thread_stack(thread.ident))
    gate.set()
    thread.join()
    assert frames[0].function.endswith("blocks"), "threading itself is left out"
    assert frames[-1].function.endswith("wait")
    assert told(thread_stack(thread.ident)) == ()
    assert told(thread_stack(0)) == ()


def test_a_deep_stack_is_told_by_its_end() -> None:
    def deep(levels: int) -> tuple[StackFrame, ...]:
        if levels:
            return deep(levels - 1)
        return told(thread_stack(threading.get_ident()))

    frames = deep(300)
    assert len(frames) == 100
    assert frames[-1].function.endswith("thread_stack")


async def test_an_answer_of_a_process_that_comes_late_does_not_spoil_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "STACK_LIMIT", 0.05)
    here, there = socket.socketpair()
    nothing: Any = None
    process = PoolProcess(asyncio.get_running_loop(), nothing, here)
    process.call = ProcessCall("work", msgspec.Raw(b"{}"), 7, "x", "x", "", "a", 1, None)
    first, second = (frame(ChildStack(asked, "x", 7, (), 4096)) for asked in (1, 2))
    with here, there:
        there.sendall(first[:9])
        assert process.ask_stack() is None
        there.sendall(first[9:] + second)
        answer = process.ask_stack()
    assert answer is not None
    assert answer.asked == 2
