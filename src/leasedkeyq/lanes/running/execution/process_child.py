"""A process of the pool of a worker, seen from inside: it calls functions of commands by name.

It is started with nothing but a socket to its worker, over which frames of JSON come and go, and
the end of a pipe, the lifeline: the worker has the other end, and never writes to it. When the
worker is gone, however it ended, the lifeline says so, and the process ends.

Nothing is pickled. The worker names a function by its module, which is imported here, and sends
arguments and results as JSON, as a store would keep them.
"""

import asyncio
import contextvars
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable
from contextlib import suppress
from inspect import isawaitable
from types import FrameType, ModuleType
from typing import Any, BinaryIO, cast

import msgspec

from leasedkeyq.errors import describe
from leasedkeyq.lanes.commands.command import CommandCall, CommandFunction
from leasedkeyq.lanes.config import LaneConfig
from leasedkeyq.lanes.errors import CommandExitError, CommandPayloadError
from leasedkeyq.lanes.running.error_text import error_line, traceback_text
from leasedkeyq.lanes.running.execution.stacks import (
    StackFrame,
    awaitable_stack,
    thread_stack,
    told,
)
from leasedkeyq.lanes.running.job import CURRENT, WORKER, Job
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.running.remote_errors import join
from leasedkeyq.stores.finite import check_finite
from leasedkeyq.telemetry.process_memory import resident_memory

HEADER = 4
"""Bytes before each frame that say how long it is."""
MAIN = "__main__"
BETWEEN_REPORTS = 0.2
"""Seconds between two reports of a command, however often it tells something."""


class ProcessLoad(msgspec.Struct, tag=True, frozen=True):
    """From the worker: import the function of a type of command, to be called later."""

    command_type: str
    module: str
    name: str
    main_path: str = ""
    """The file of the main program of the worker, where the function is in that."""


class ProcessCall(msgspec.Struct, tag=True, frozen=True):
    """From the worker: call a function that was loaded."""

    command_type: str
    arguments: msgspec.Raw
    id: int
    lane: str
    queue: str
    scope: str
    key: str
    attempt: int
    timeout: float | None


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """To the worker: the function is there."""


class NotLoaded(msgspec.Struct, tag=True, frozen=True):
    """To the worker: the function cannot be had here."""

    reason: str
    traceback: str


class Returned(msgspec.Struct, tag=True, frozen=True):
    """To the worker: the function has returned this."""

    result: msgspec.Raw


class Failed(msgspec.Struct, tag=True, frozen=True):
    """To the worker: the function raised this, written down as for a store."""

    error: str


class ChildStack(msgspec.Struct, frozen=True):
    """To the worker, when it asks over a socket of its own: where the command is.

    Attributes:
        asked: Which question this answers.
        queue: The queue of the command; "" if none runs.
        id: Its number.
        frames: Its stack.
        memory: Resident bytes of the process.
    """

    asked: int
    queue: str
    id: int
    frames: tuple[StackFrame, ...]
    memory: int


class Reported(msgspec.Struct, tag=True, frozen=True):
    """To the worker, while a function runs: what the command reports of itself."""

    value: msgspec.Raw


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ProcessLoad | ProcessCall)

importing = False
"""Whether this is a process of a pool that imports a module: then no manager may be started."""


def frame(message: msgspec.Struct) -> bytes:
    """A message as it is sent."""
    raw = _encoder.encode(message)
    return len(raw).to_bytes(HEADER, "big") + raw


def main(link: socket.socket, lifeline: int, questions: socket.socket) -> None:
    """Serve the worker until it closes the socket.

    Args:
        link: Over which functions are called.
        lifeline: Closed when the worker is gone.
        questions: Over which the worker asks where a function is, while it runs.
    """
    # A terminal sends SIGINT, and systemd SIGTERM, to all processes of a worker: the worker decides
    # what becomes of its commands. A handler is not passed on to the programs that they start.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_worker)
    # What a command starts must not hold the socket: the worker would not see that this has died.
    link.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    questions.set_inheritable(False)
    os.register_at_fork(after_in_child=lambda: _let_go(link, lifeline, questions))
    child = Child(link)
    threading.Thread(target=_attend, args=(child, lifeline, questions), daemon=True).start()
    child.serve()


def _leave_to_worker(number: int, frame: FrameType | None) -> None:
    """Do nothing: the worker ends its processes itself, or ends, which they notice."""
    del number, frame


def _let_go(link: socket.socket, lifeline: int, questions: socket.socket) -> None:
    """A process that a command has forked is none of the pool: it must not hold the socket."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.close(link.detach())  # `close` would leave it to the file that reads from it
    os.close(lifeline)
    questions.close()


def _attend(child: "Child", lifeline: int, questions: socket.socket) -> None:
    """Answer the questions of the worker, and end this process when the worker is gone."""
    events = select.poll()
    events.register(lifeline, select.POLLIN)
    events.register(questions, select.POLLIN)
    while not any(place == lifeline for place, _ in events.poll()):
        try:
            asked = questions.recv(256)
            if asked:  # the worker has given up on all but the last
                questions.sendall(frame(child.stack(asked[-1])), socket.MSG_DONTWAIT)
        except Exception:  # a question must not keep the process from ending with its worker
            asked = b""
        if not asked:
            events.unregister(questions)
    # Together with what the command has started: it is the head of its own group of processes.
    os.killpg(os.getpgrp(), signal.SIGKILL)


class Child:
    """Calls functions for a worker, one at a time."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._frames: BinaryIO = link.makefile("rb")
        self._functions: dict[str, CommandFunction[..., Any]] = {}
        self._partitions: dict[tuple[str, str, str], Partition] = {}
        self._sending = threading.Lock()
        self._report: Any = None
        self._reported = threading.Event()
        self._reporter: threading.Thread | None = None
        self._now: tuple[ProcessCall, Any] | None = None
        """What is called at the moment, with what it has returned to be awaited, if anything."""
        self._thread = threading.get_ident()
        WORKER.tell = self._tell

    def serve(self) -> None:
        """Answer every message of the worker."""
        while len(header := self._frames.read(HEADER)) == HEADER:
            message = _decoder.decode(self._frames.read(int.from_bytes(header, "big")))
            if isinstance(message, ProcessLoad):
                self._send(self._load(message))
            else:
                # So that no command sees the context variables that another one has set.
                answer = contextvars.copy_context().run(self._call, message)
                _flush()
                self._send_report()  # behind the answer, it would be taken for the next command's
                self._send(answer)

    def _send(self, message: msgspec.Struct) -> None:
        raw = frame(message)
        with self._sending:
            self._link.sendall(raw)

    def _tell(self, value: Any) -> None:
        """Send a report of the command that runs, soon: of many, only the newest is sent."""
        self._report = Reported(msgspec.Raw(_encoder.encode(value)))
        self._reported.set()
        if self._reporter is None:
            self._reporter = threading.Thread(target=self._send_reports, daemon=True)
            self._reporter.start()

    def _send_reports(self) -> None:
        while self._reported.wait():
            self._reported.clear()
            with suppress(OSError):  # the worker is gone
                self._send_report()
            time.sleep(BETWEEN_REPORTS)

    def _send_report(self) -> None:
        with self._sending:
            report, self._report = self._report, None
            if report is not None:
                self._link.sendall(frame(report))

    def _load(self, message: ProcessLoad) -> Loaded | NotLoaded:
        try:
            self._functions[message.command_type] = _load(message)
        except BaseException as error:
            return NotLoaded(error_line(error), traceback_text(error))
        return Loaded()

    def _call(self, message: ProcessCall) -> Returned | Failed:
        function = self._functions[message.command_type]
        self._now = message, None
        try:
            command = function.decode(bytes(message.arguments))
            CURRENT.set(self._job(message, command))
            result: Any = function.call(command.arguments)
            if isawaitable(result):
                self._now = message, result
                result = asyncio.run(_awaited(result))
            return Returned(_written(message.command_type, result))
        except BaseException as raised:
            error = raised if isinstance(raised, Exception) else _exit(message, raised)
            return Failed(join(error_line(error), traceback_text(error), error, timed_out=False))
        finally:
            self._now = None

    def stack(self, asked: int) -> ChildStack:
        """Where the command is that runs at the moment. Called in another thread."""
        now = self._now
        if now is None:
            return ChildStack(asked, "", 0, (), resident_memory())
        message, awaited = now
        places = thread_stack(self._thread) if awaited is None else []
        if awaited is not None:
            places = awaitable_stack(awaited, self._thread)
        codes = [place.frame.f_code for place in places]
        if Child._call.__code__ in codes:
            places = places[codes.index(Child._call.__code__) :]
        return ChildStack(asked, message.queue, message.id, told(places), resident_memory())

    def _job(self, message: ProcessCall, command: CommandCall[Any]) -> Job:
        """What `current_command` shows of the command."""
        place = (message.lane, message.queue, message.scope)
        partition = self._partitions.get(place)
        if partition is None:
            lane = Lane(message.lane, 0, LaneConfig(), 0)
            partition = self._partitions[place] = Partition(lane, 0, message.queue)
            partition.scope = message.scope
        job = Job(
            message.id,
            partition,
            message.command_type,
            message.key,
            command,
            0.0,
            0,
            message.timeout,
            None,
        )
        job.attempt = message.attempt
        job.status = "running"
        return job


def _flush() -> None:
    """Write what a command has printed: a process that is killed later would lose it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or not there at all
            stream.flush()


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _exit(message: ProcessCall, raised: BaseException) -> CommandExitError:
    lane, kind, key = message.lane, message.command_type, message.key
    text = f"lane {lane!r}: command {kind!r} of key {describe(key)} raised {raised!r}"
    error = CommandExitError(text, lane=lane, command_type=kind, key=key)
    error.__cause__ = raised
    return error


def _written(kind: str, result: Any) -> msgspec.Raw:
    try:
        raw = _encoder.encode(result)
        check_finite(result, raw)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise CommandPayloadError(
            f"the result of command {kind!r} cannot be written down: {error}; what a process "
            "returns must be something that msgspec can encode",
            command_type=kind,
        ) from error
    return msgspec.Raw(raw)


def _load(message: ProcessLoad) -> CommandFunction[..., Any]:
    """The function that a message names, from its module.

    Raises:
        LookupError: The module has no such function.
    """
    global importing  # noqa: PLW0603  # managers ask for it, from the modules imported here
    importing = True
    try:
        place: Any = _module(message)
    finally:
        importing = False
    for part in message.name.split("."):
        place = getattr(place, part, None)
    if place is None:
        raise LookupError(f"module {message.module!r} has no function {message.name!r}")
    function: Any = cast("Any", place).function if isinstance(place, CommandFunction) else place
    return CommandFunction(message.command_type, function)


def _module(message: ProcessLoad) -> ModuleType:
    if message.module != MAIN:
        return importlib.import_module(message.module)
    module = sys.modules[MAIN]
    if getattr(module, "__file__", None) == message.main_path:
        return module
    # Not under its own name: what it does as a program must not be done again.
    spec = importlib.util.spec_from_file_location("__mp_main__", message.main_path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{message.main_path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["__mp_main__"] = sys.modules[MAIN] = module
    spec.loader.exec_module(module)
    return module
