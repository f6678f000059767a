"""The processes of a worker, in which CPU-bound functions of commands run.

A process is started when a command needs one, and is used again. It is the only thing that ends a
function for certain: a command that is cancelled, or whose time is up, is killed with its process,
and no other command notices.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from asyncio import AbstractEventLoop, CancelledError, Future
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from leasedkeyq.lanes.running.execution.process_child import (
    HEADER,
    ChildStack,
    Failed,
    Loaded,
    NotLoaded,
    ProcessCall,
    ProcessLoad,
    Reported,
    Returned,
    frame,
)

logger = logging.getLogger("leasedkeyq")

START_LIMIT = 120.0
"""Seconds in which a process has to start, and to import the module of a function."""
CLOSE_LIMIT = 2.0
"""Seconds that an idle process has to end by itself when the worker does."""
STACK_LIMIT = 1.0
"""Seconds in which a process has to say where its command is."""
FIRST_LOOK = 0.001
LAST_LOOK = 0.05
"""Seconds between two looks whether a process has ended, at first and at last."""

BOOTSTRAP = """\
import json, socket, sys
link = socket.socket(fileno={link})
size = int.from_bytes(link.recv(4, socket.MSG_WAITALL), "big")
sys.path[:] = json.loads(link.recv(size, socket.MSG_WAITALL))
from leasedkeyq.lanes.running.execution.process_child import main
main(link, {lifeline}, socket.socket(fileno={questions}))
"""
"""What a process does first. Before it knows where the worker imports from, it has no package."""

ProcessAnswer: TypeAlias = Loaded | NotLoaded | Returned | Failed
_decoder = msgspec.json.Decoder(Loaded | NotLoaded | Returned | Failed | Reported)
_stacks = msgspec.json.Decoder(ChildStack)


class ProcessDiedError(Exception):
    """A process of the pool has ended before it answered.

    Attributes:
        code: Its exit code, or the number of the signal that killed it, below 0.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ProcessStartError(Exception):
    """A process could not be started, or cannot call the function.

    Attributes:
        traceback: Where that went wrong in the process, as text.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


_lifelines: set[int] = set()
"""The ends that the pools of this process hold."""


def _let_go_of_lifelines() -> None:
    """A process that was forked off this one is not the worker, and must not pass for it."""
    for end in _lifelines:
        os.close(end)
    _lifelines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_lifelines)


class PoolProcess(asyncio.Protocol):
    """One process of the pool, as the worker sees it.

    Attributes:
        loaded: The types of commands whose functions it has imported.
        ended: Its exit code, when it has ended.
        call: What it is called for, while it is.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        process: "subprocess.Popen[bytes]",
        questions: socket.socket,
    ) -> None:
        self.loaded: set[str] = set()
        self.call: ProcessCall | None = None
        self._questions = questions
        self._asking = threading.Lock()
        self._asked = 0
        self._answered = b""
        """What has come of an answer that is not whole yet."""
        self.ended: Future[int] = loop.create_future()
        self._loop = loop
        self._process = process
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._waiter: Future[ProcessAnswer | None] | None = None
        self._report: Callable[[Any], None] | None = None
        self._closing = False

    # For the pool

    @property
    def idle(self) -> bool:
        """Whether it lives, and no function runs in it."""
        return self._waiter is None and self._transport is not None and not self._closing

    async def ask(
        self, message: ProcessLoad | ProcessCall, report: Callable[[Any], None] | None
    ) -> ProcessAnswer:
        """Send a message, and wait for the answer; `report` is told what it reports meanwhile.

        A cancelled call leaves the process at work: it must be killed then.

        Raises:
            ProcessDiedError: It has ended instead.
        """
        if self._transport is None:
            raise await self._died()
        waiter: Future[ProcessAnswer | None] = self._loop.create_future()
        self._waiter = waiter
        self._report = report
        self._transport.write(frame(message))
        answer = await waiter
        self._waiter = self._report = None
        if answer is None:
            raise await self._died()
        return answer

    async def _died(self) -> ProcessDiedError:
        await asyncio.wait([self.ended])  # which does not end with the task that waits for it
        return ProcessDiedError(self.ended.result())

    def ask_stack(self) -> ChildStack | None:
        """Where the function is that runs in it; None: it does not answer, or runs another one.

        Any thread may ask, and waits for the answer.
        """
        call = self.call
        if call is None or not self._asking.acquire(timeout=STACK_LIMIT):
            return None
        try:
            self._asked = self._asked % 255 + 1
            until = time.monotonic() + STACK_LIMIT
            self._questions.settimeout(STACK_LIMIT)
            self._questions.sendall(bytes([self._asked]))
            while True:  # the answer to an older question may come late
                answer = _stacks.decode(self._receive_stack(until))
                if answer.asked == self._asked:
                    is_its = (answer.queue, answer.id) == (call.queue, call.id)
                    return answer if is_its else None
        except (OSError, EOFError, msgspec.MsgspecError):
            return None
        finally:
            self._asking.release()

    def _receive_stack(self, until: float) -> bytes:
        wanted = HEADER
        while True:
            if len(self._answered) >= HEADER:
                wanted = HEADER + int.from_bytes(self._answered[:HEADER], "big")
            if len(self._answered) == wanted > HEADER:
                received, self._answered = self._answered, b""
                return received[HEADER:]
            self._questions.settimeout(max(0.001, until - time.monotonic()))
            some = self._questions.recv(wanted - len(self._answered))
            if not some:
                raise EOFError
            self._answered += some  # if the rest comes too late, the next call goes on from here

    def kill(self) -> None:
        """End it at once, with all processes that it has started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Let it end by itself; it does when nothing can come over the socket any more."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # For the event loop

    def connection_made(self, transport: Any) -> None:
        """The socket is ready."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take what comes from the process, frame by frame."""
        received = self._received
        received += data
        while len(received) >= HEADER:
            end = HEADER + int.from_bytes(received[:HEADER], "big")
            if len(received) < end:
                return
            message = _decoder.decode(bytes(received[HEADER:end]))
            del received[:end]
            self._take(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has let go of the socket: whatever it does now is of no use."""
        del exc
        self._transport = None
        self._questions.close()
        if not self._closing:
            self.kill()  # if it is ending by itself, that changes nothing
        self._look(FIRST_LOOK)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self, message: ProcessAnswer | Reported) -> None:
        if isinstance(message, Reported):
            if self._report is not None:
                self._report(msgspec.json.decode(message.value))
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(message)

    def _look(self, again: float) -> None:
        """See whether it has ended. There is nothing to wait for that every system has."""
        code = self._process.poll()
        if code is None:
            self._loop.call_later(again, self._look, min(2 * again, LAST_LOOK))
        elif not self.ended.done():
            self.ended.set_result(code)


class ProcessPool:
    """The processes of one worker.

    Attributes:
        most: How many there may be. None: as many as commands run in them at a time, which the
            lanes limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._idle: list[PoolProcess] = []
        self._all: set[PoolProcess] = set()
        self._waiting: deque[Future[PoolProcess | None]] = deque()
        self._lifeline: tuple[int, int] | None = None

    async def run(
        self,
        function: ProcessLoad,
        call: ProcessCall,
        *,
        begun: Callable[[], None],
        report: Callable[[Any], None] | None = None,
    ) -> Returned | Failed:
        """Call a function in a process.

        A cancelled call kills the process, and ends when it is dead.

        Args:
            function: Names the function.
            call: Its arguments, and what the command is to know of itself.
            begun: Called when the process is ready to call it.
            report: Told what the command reports of itself.

        Raises:
            ProcessDiedError: The process has ended before the function did.
            ProcessStartError: There is no process, or it cannot call the function.
        """
        process = await self._take()
        try:
            if function.command_type not in process.loaded:
                await self._load(process, function)
            begun()
            process.call = call
            answer = await process.ask(call, report)
        except CancelledError:
            if not process.idle:
                process.kill()
                await _until_done(process.ended)
            raise
        finally:
            process.call = None
            self._give(process)
        assert isinstance(answer, Returned | Failed)
        return answer

    async def _load(self, process: PoolProcess, function: ProcessLoad) -> None:
        name = f"{function.module}.{function.name}"
        try:
            async with asyncio.timeout(START_LIMIT):
                answer = await process.ask(function, None)
        except TimeoutError:
            process.kill()
            raise ProcessStartError(
                f"cannot run: its process was not ready within {START_LIMIT:g} s to call {name}"
            ) from None
        if isinstance(answer, NotLoaded):
            raise ProcessStartError(
                f"cannot run: its process cannot call {name}: {answer.reason}; a process imports "
                "the module of the function by itself, and knows nothing that the worker has done "
                "since",
                answer.traceback,
            )
        process.loaded.add(function.command_type)

    def process_of(self, queue: str, number: int) -> PoolProcess | None:
        """The process that runs the command of an item, if one does. Any thread may ask."""
        for process in list(self._all):
            call = process.call
            if call is not None and (call.queue, call.id) == (queue, number):
                return process
        return None

    # Processes

    async def _take(self) -> PoolProcess:
        """A process for one command: an idle one, a new one, or the next that is free."""
        while True:
            while self._idle:
                process = self._idle.pop()
                if process.idle:
                    return process
                self._all.discard(process)  # it has died while it had nothing to do
            if self.most is None or len(self._all) < self.most:
                try:
                    return await self._start()
                except BaseException:
                    self._wake(None)
                    raise
            turn: Future[PoolProcess | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                given = await turn
            except CancelledError:
                if turn.done() and not turn.cancelled():
                    given = turn.result()
                    if given is None:
                        self._wake(None)
                    else:
                        self._give(given)
                raise
            if given is not None:
                return given

    def _give(self, process: PoolProcess) -> None:
        """A process is free again, or has ended."""
        if not process.idle:
            self._all.discard(process)
            self._wake(None)
        elif not self._wake(process):
            self._idle.append(process)

    def _wake(self, process: PoolProcess | None) -> bool:
        """Hand a process to the next command that waits for one; None: it may start one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(process)
                return True
        return False

    async def _start(self) -> PoolProcess:
        loop = asyncio.get_running_loop()
        if self._lifeline is None:
            self._lifeline = os.pipe()
            _lifelines.add(self._lifeline[1])
        lifeline = self._lifeline[0]
        here, there = socket.socketpair()
        questions, answers = socket.socketpair()
        try:
            code = BOOTSTRAP.format(
                link=there.fileno(), lifeline=lifeline, questions=answers.fileno()
            )
            # It returns as soon as the process has begun, which takes a millisecond or two.
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, *_interpreter_flags(), "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(there.fileno(), lifeline, answers.fileno()),
                # The terminal does not know it: Ctrl-C is for the worker alone.
                start_new_session=True,
            )
        except OSError as error:
            here.close()
            questions.close()
            text = f"cannot run: no process can be started for it: {error}"
            raise ProcessStartError(text) from error
        finally:
            there.close()
            answers.close()
        made = PoolProcess(loop, process, questions)
        self._all.add(made)
        here.setblocking(False)
        path = json.dumps([each for each in sys.path if isinstance(each, str)]).encode()
        try:
            transport, _ = await loop.create_unix_connection(lambda: made, sock=here)
        except BaseException:
            here.close()
            made.kill()
            made.connection_lost(None)
            self._all.discard(made)
            raise
        transport.write(len(path).to_bytes(HEADER, "big") + path)
        return made

    async def close(self) -> None:
        """End all processes: those that are idle by themselves, within a time, the others now."""
        processes = list(self._all)
        self._all.clear()
        self._idle.clear()
        for process in processes:
            if process.idle:
                process.close()
            else:
                process.kill()
        if processes:
            await asyncio.wait([process.ended for process in processes], timeout=CLOSE_LIMIT)
        late = [process for process in processes if not process.ended.done()]
        for process in late:
            process.kill()
        if late:
            await asyncio.wait([process.ended for process in late], timeout=CLOSE_LIMIT)
        if self._lifeline is not None:
            _lifelines.discard(self._lifeline[1])
            for end in self._lifeline:
                os.close(end)
            self._lifeline = None


def _interpreter_flags() -> list[str]:
    """The flags of Python with which the worker was started; those in variables are inherited."""
    flags = [f"-W{option}" for option in sys.warnoptions]
    for name, value in sys._xoptions.items():
        flags.append(f"-X{name}" if value is True else f"-X{name}={value}")
    if sys.flags.optimize:
        flags.append(f"-{'O' * sys.flags.optimize}")
    if sys.flags.isolated:
        flags.append("-I")
    if sys.flags.dont_write_bytecode:
        flags.append("-B")
    return flags


async def _until_done(future: Future[Any]) -> None:
    """Wait for a future, also while the waiting task is cancelled."""
    while not future.done():
        with suppress(CancelledError):
            await asyncio.wait([future])
