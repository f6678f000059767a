"""`Supervisor`: starts worker processes, starts those again that die, and replaces them in turn."""

import logging
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from leasedkeyq.cli.health import Health
from leasedkeyq.cli.metrics_text import merged
from leasedkeyq.cli.source_watch import SourceWatch

logger = logging.getLogger("leasedkeyq.cli.supervisor")

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
CRASHED: Final = 1
MISUSED: Final = 2
RANKS: Final = {0: 0, 75: 1}
"""How bad exit codes are; all others are worse."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds before a worker that has died is started again: twice as long each time."""
STEADY: Final = 60.0
"""Seconds after which a worker counts as well: if it dies then, the pauses begin anew."""
TICK: Final = 0.25
"""Seconds between two looks at the processes."""
LOOK: Final = 0.5
"""Seconds between two looks at sources."""
ANSWER: Final = 5.0
"""Seconds within which a worker answers how it is."""
KILL_AFTER: Final = 30.0
"""Seconds that workers have to end after the second signal."""
PIECE: Final = 65536


class WorkerProcess:
    """A worker process.

    Attributes:
        process: The process.
        started: Whether it runs commands.
        signals: How often it was told to end.
    """

    def __init__(self, command: Sequence[str], number: int) -> None:
        self.number = number
        self.began = time.monotonic()
        self.started = False
        self.signals = 0
        ours, theirs = socket.socketpair()
        with theirs:
            handle = theirs.fileno()
            # A group of its own: Ctrl-C in the terminal reaches the supervisor alone, which passes
            # it on once.
            self.process = subprocess.Popen(
                [*command, "--supervised", str(handle)],
                pass_fds=(handle,),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        self.socket = ours
        self._rest = b""
        self._lock = threading.Lock()
        self._questions = count(1)
        self._answers: dict[int, Health] = {}
        self._news = threading.Condition()

    def __repr__(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"

    def tell_to_end(self) -> None:
        """Send SIGTERM: the first lets it end gracefully, the second at once."""
        self.signals += 1
        self.process.send_signal(signal.SIGTERM)

    def read(self) -> Iterator[dict[str, Any]]:
        """What the worker has told; answers to questions are passed on."""
        try:
            # Without waiting: a process that a command has forked may hold the other end, and live
            # on after the worker.
            piece = self.socket.recv(PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.close()
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            message: dict[str, Any] = msgspec.json.decode(line)
            if "id" in message:
                with self._news:
                    self._answers[message["id"]] = Health(message["well"], message["text"])
                    self._news.notify_all()
            else:
                yield message

    def ask(self, what: str) -> Health:
        """How the worker is; for any thread but the one that reads."""
        number = next(self._questions)
        try:
            with self._lock:
                self.socket.sendall(msgspec.json.encode({"ask": what, "id": number}) + b"\n")
        except OSError:
            return Health(False, "it has ended")
        with self._news:
            self._news.wait_for(lambda: number in self._answers or self.socket.fileno() < 0, ANSWER)
            if number in self._answers:
                return self._answers.pop(number)
        if self.socket.fileno() < 0:
            return Health(False, "it has ended")
        return Health(False, f"it did not answer within {ANSWER:g} s")

    def close(self) -> None:
        """Close the socket."""
        with self._news:
            self.socket.close()
            self._news.notify_all()


class WorkerSlot:
    """The place of one worker, which one process after the other takes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: WorkerProcess | None = None
        self.successor: WorkerProcess | None = None
        self.failures = 0
        self.start_at = 0.0
        """When to start a process, by the monotonic clock, if there is none."""
        self.outworn: str | None = None
        """Why its process is to be replaced."""
        self.replace_at = 0.0


class Supervisor:
    """Runs worker processes until it is told to stop.

    Args:
        command: The command line of a worker.
        processes: How many workers.
        reload: A folder with the sources of the program: workers are started anew when they change.
    """

    def __init__(self, command: Sequence[str], processes: int, reload: Path | None = None) -> None:
        self._command = command
        self._slots = [WorkerSlot(number) for number in range(1, processes + 1)]
        self._leaving: set[WorkerProcess] = set()
        self._watch = None if reload is None else SourceWatch(reload)
        self._look_at = 0.0
        self._selector: selectors.BaseSelector
        self._woken: socket.socket
        self._signals = 0
        self._heard = 0
        self._kill_at: float | None = None
        self._codes: list[int] = []
        self._began = False
        """Whether a worker has run commands, so that the options make sense."""

    def run(self) -> int:
        """Run the workers; returns the worst of the exit codes with which they have ended."""
        self._woken, wake = socket.socketpair()
        with selectors.DefaultSelector() as self._selector, self._woken, wake:
            self._woken.setblocking(False)
            wake.setblocking(False)
            self._selector.register(self._woken, selectors.EVENT_READ)
            before = {number: signal.signal(number, self._hear) for number in STOP_SIGNALS}
            before_wake = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
            try:
                while not (self._signals and not self._children()):
                    self._step()
            finally:
                for child in self._children():  # only if this fails
                    child.process.kill()
                    child.process.wait()
                signal.set_wakeup_fd(before_wake)
                for number, old in before.items():
                    signal.signal(number, old)
        return max(self._codes, key=lambda code: RANKS.get(code, 2), default=0)

    def _hear(self, number: int, frame: object) -> None:
        del number, frame
        self._signals += 1  # nothing more: a signal may come while a line of the log is written

    def _children(self) -> list[WorkerProcess]:
        return [
            *(child for slot in self._slots for child in (slot.child, slot.successor) if child),
            *self._leaving,
        ]

    # What is done again and again

    def _step(self) -> None:
        now = time.monotonic()
        self._pass_signals_on(now)
        self._reap(now)
        if not self._signals:
            self._reload(now)
            self._replace(now)
            for slot in self._slots:
                if slot.child is None and now >= slot.start_at:
                    slot.child = self._start(slot)
        for key, _ in self._selector.select(TICK):
            if key.fileobj is self._woken:
                self._woken.recv(PIECE)
                continue
            child: WorkerProcess = key.data
            handle = key.fileobj
            for message in child.read():
                self._hear_from(child, message)
            if child.socket.fileno() < 0:
                self._selector.unregister(handle)

    def _start(self, slot: WorkerSlot) -> WorkerProcess | None:
        try:
            child = WorkerProcess(self._command, slot.number)
        except OSError as error:
            logger.error("worker %d could not be started: %s", slot.number, error)  # noqa: TRY400
            self._fail(slot, time.monotonic(), 0.0)
            return None
        self._selector.register(child.socket, selectors.EVENT_READ, child)
        logger.info("started %r", child)
        return child

    def _hear_from(self, child: WorkerProcess, message: dict[str, Any]) -> None:
        slot = self._slots[child.number - 1]
        if message["event"] == "started":
            child.started = self._began = True
            if self._watch is not None:
                self._watch.add(message["files"])
            if child is slot.successor:
                old, slot.child, slot.successor = slot.child, child, None
                slot.outworn = None
                if old is not None:
                    self._dismiss(old)
        elif message["event"] == "replace" and child is slot.child:
            slot.outworn = message["text"]

    def _dismiss(self, child: WorkerProcess) -> None:
        """Let a process end gracefully; another one has taken its place, or is going to."""
        self._leaving.add(child)
        child.tell_to_end()

    def _pass_signals_on(self, now: float) -> None:
        """The first signal lets workers end gracefully, the second one at once."""
        while self._heard < min(self._signals, 2):
            self._heard += 1
            logger.info("told to stop%s", "" if self._heard == 1 else " at once")
            for child in self._children():
                if child.signals < self._heard:
                    child.tell_to_end()
            if self._heard == 2:  # noqa: PLR2004  # the second signal
                self._kill_at = now + KILL_AFTER
        if self._kill_at is not None and now > self._kill_at:
            self._kill_at = now + KILL_AFTER
            for child in self._children():
                logger.warning("%r does not end, and is killed", child)
                child.process.kill()

    def _reap(self, now: float) -> None:
        for child in self._children():
            code = child.process.poll()
            if code is None:
                continue
            if child.socket.fileno() >= 0:
                for message in child.read():
                    self._hear_from(child, message)
            if child.socket.fileno() >= 0:
                self._selector.unregister(child.socket)
                child.close()
            self._ended(child, code, now)

    def _ended(self, child: WorkerProcess, code: int, now: float) -> None:
        slot = self._slots[child.number - 1]
        self._leaving.discard(child)
        if code == -signal.SIGTERM and child.signals and not child.started:
            code = 0  # it was told to end before it had begun to listen
        if self._signals:
            self._codes.append(CRASHED if code < 0 else code)
        if child is slot.successor:
            slot.successor = None
            logger.error("%r ended with %s before it ran anything", child, _said(code))
            slot.failures += 1
            slot.replace_at = now + _pause(slot.failures)
        elif child is slot.child:
            slot.child = None
            slot.outworn = None
            if self._signals:
                return
            if code == MISUSED and not self._began:
                # It would be the same for all of them, and the next time.
                logger.error("%r was called in a way that makes no sense: nothing is run", child)
                self._signals += 1
                self._codes.append(code)
                return
            logger.error("%r ended unexpectedly with %s", child, _said(code))
            self._fail(slot, now, now - child.began)
        elif code not in RANKS:
            logger.warning("%r, which was replaced, ended with %s", child, _said(code))

    def _fail(self, slot: WorkerSlot, now: float, lived: float) -> None:
        slot.failures = 1 if lived > STEADY else slot.failures + 1
        pause = _pause(slot.failures)
        slot.start_at = now + pause
        logger.info("worker %d is started again in %g s", slot.number, pause)

    def _replace(self, now: float) -> None:
        """Replace one worker at a time; its successor is started first."""
        if self._leaving or any(slot.successor for slot in self._slots):
            return
        for slot in self._slots:
            if slot.outworn is not None and slot.child is not None and now >= slot.replace_at:
                logger.info("%r is replaced: %s", slot.child, slot.outworn)
                slot.successor = self._start(slot)
                if slot.successor is None:
                    slot.replace_at = slot.start_at
                return

    def _reload(self, now: float) -> None:
        if self._watch is None or now < self._look_at:
            return
        self._look_at = now + LOOK
        changed = self._watch.changed()
        if not changed:
            return
        logger.info("%s has changed: all workers are started anew", ", ".join(changed[:3]))
        for slot in self._slots:
            for child in (slot.child, slot.successor):
                if child is not None:
                    self._dismiss(child)
            slot.child = slot.successor = slot.outworn = None
            slot.failures = 0
            slot.start_at = now

    # How they are: asked by other threads

    def live(self) -> Health:
        """As `HealthSource.live`: whether no worker is stuck."""
        answers = self._ask("live")
        return Health(all(answer.well for answer in answers.values()), _lines(answers))

    def ready(self) -> Health:
        """As `HealthSource.ready`: whether at least one worker can run commands."""
        answers = self._ask("ready")
        return Health(any(answer.well for answer in answers.values()), _lines(answers))

    def metrics(self) -> str:
        """As `HealthSource.metrics`: those of all workers, by the label ``process``."""
        return merged({str(number): text for number, (_, text) in self._ask("metrics").items()})

    def _ask(self, what: str) -> dict[int, Health]:
        """What all workers say, which are asked at the same time."""
        answers: dict[int, Health] = {}

        def ask(child: WorkerProcess) -> None:
            answers[child.number] = child.ask(what)

        children = [slot.child for slot in self._slots if slot.child is not None]
        threads = [threading.Thread(target=ask, args=(child,), daemon=True) for child in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(sorted(answers.items()))


def _pause(failures: int) -> float:
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 10)))


def _said(code: int) -> str:
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _lines(answers: dict[int, Health]) -> str:
    if not answers:
        return "no worker runs"
    return "\n".join(f"worker {number}: {answer.text}" for number, answer in answers.items())


def can_supervise() -> bool:
    """Whether this system has what a supervisor needs."""
    return hasattr(os, "setpgid") and hasattr(socket, "AF_UNIX")
