"""Where a running command is: its stack, taken from outside without disturbing it.

A coroutine that waits has no frames in any thread: its stack is the chain of what it awaits. One
that runs at the moment has the frames of its thread. Only names, files and lines are taken, never
the values of variables.
"""

import asyncio
import gc
import linecache
import sys
from collections.abc import Sequence
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

import msgspec

MOST_FRAMES = 100
"""Frames of a stack that are told: the innermost ones."""
LONGEST_LINE = 200
"""Characters of a line of code that are told."""
COROUTINE: Any = CoroutineType
GENERATOR: Any = GeneratorType
ASYNC_GENERATOR: Any = AsyncGeneratorType
FUTURE: Any = asyncio.Future
TASK: Any = asyncio.Task
"""What the chain of a coroutine is made of. Of whatever is found there, no type is known."""
LINKS: tuple[Any, ...] = (COROUTINE, GENERATOR, ASYNC_GENERATOR, FUTURE)
SEVERAL: Any = (set, list, tuple)
PACKAGE = __name__.partition(".")[0]
"""The frames of leasedkeyq itself are left out where a stack begins."""


class StackFrame(msgspec.Struct, array_like=True, frozen=True):
    """A line of a stack."""

    file: str
    line: int
    function: str
    source: str = ""


class StackPlace(msgspec.Struct, frozen=True):
    """A frame, with the line at which it is, before anything is read for it."""

    frame: FrameType
    line: int


def thread_stack(thread: int, since: FrameType | None = None) -> list[StackPlace]:
    """The stack of a thread, the outermost frame first; empty if there is no such thread.

    With `since`, it begins at that frame.
    """
    places: list[StackPlace] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        places.append(StackPlace(frame, frame.f_lineno))
        if frame is since:
            break
        frame = frame.f_back
    places.reverse()
    return places


def awaitable_stack(awaitable: Any, thread: int) -> list[StackPlace]:
    """The stack of a coroutine, a task or anything else that is awaited, as `thread_stack`.

    Args:
        awaitable: What is awaited.
        thread: The thread in which it runs, while it does.
    """
    places: list[StackPlace] = []
    seen: set[int] = set()
    step: Any = awaitable
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        if isinstance(step, TASK):
            step = step.get_coro()
            continue
        frame, is_running, following = _look_into(step)
        if is_running and frame is not None:
            return places + thread_stack(thread, frame)
        if frame is not None:
            places.append(StackPlace(frame, frame.f_lineno))
        if following is None and places:
            following = _awaited_by_asyncio(places[-1].frame)
        step = following
    return places


def _awaited_by_asyncio(frame: FrameType) -> Any:
    """The task that a function of asyncio waits for by a future of its own, such as `wait_for`."""
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] != "asyncio":
        return None
    values: list[Any] = list(frame.f_locals.values())
    for value in values:
        tasks: list[Any] = list(value) if isinstance(value, SEVERAL) else [value]
        for task in tasks:
            if isinstance(task, TASK) and not task.done():
                return task
    return None


def _look_into(step: Any) -> tuple[FrameType | None, bool, Any]:
    """The frame of one link of the chain, whether it runs right now, and the link behind it."""
    if isinstance(step, COROUTINE):
        return step.cr_frame, step.cr_running, step.cr_await
    if isinstance(step, GENERATOR):
        return step.gi_frame, step.gi_running, step.gi_yieldfrom
    if isinstance(step, ASYNC_GENERATOR):
        # While it waits, it counts as running, too.
        return step.ag_frame, step.ag_running and step.ag_await is None, step.ag_await
    if isinstance(step, FUTURE):
        children: Sequence[Any] = getattr(step, "_children", ())  # of `asyncio.gather`
        return None, False, next((child for child in children if not child.done()), None)
    # What else is awaited stands for something: an iterator of a future, a step of a generator.
    referents: list[Any] = gc.get_referents(step)
    return None, False, next((one for one in referents if isinstance(one, LINKS)), None)


def told(places: Sequence[StackPlace]) -> tuple[StackFrame, ...]:
    """A stack as it is told: from the first frame on that is not ours, with lines of code."""
    first = next((n for n, place in enumerate(places) if not _is_ours(place.frame)), 0)
    shown = places[first:][-MOST_FRAMES:]
    return tuple(
        StackFrame(
            place.frame.f_code.co_filename,
            place.line,
            place.frame.f_code.co_qualname,
            linecache.getline(
                place.frame.f_code.co_filename, place.line, place.frame.f_globals
            ).strip()[:LONGEST_LINE],
        )
        for place in shown
    )


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in (PACKAGE, "threading", "asyncio", "contextvars")
