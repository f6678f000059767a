"""The side of a worker process that a supervisor has started: a thread that speaks with it."""

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from leasedkeyq.cli.health import Health
from leasedkeyq.cli.probe import WorkerProbe
from leasedkeyq.telemetry import resident_memory

logger = logging.getLogger("leasedkeyq.cli.worker")

TICK: Final = 0.25
"""Seconds between two looks at the limits of the process."""
LAST_RESORT: Final = 20.0
"""Seconds beyond the drain time-out after which a worker without its supervisor ends at once."""
PIECE: Final = 65536


class WorkerLimits(msgspec.Struct, frozen=True):
    """After what a worker process is replaced."""

    memory: int | None = None
    """Bytes that it uses."""
    commands: int | None = None
    """Attempts of commands that have ended in it."""


class Supervised:
    """Tells the supervisor how this worker is, and ends the worker when the supervisor is gone.

    Messages are lines of JSON. The supervisor asks ``{"ask": "live", "id": 1}`` (or ``"ready"``, or
    ``"metrics"``), and is answered ``{"id": 1, "well": true, "text": "..."}``. The worker tells
    ``{"event": "started", "files": [...]}`` when it runs commands, with the sources of its modules,
    and ``{"event": "replace", "text": "..."}`` when a limit is reached.

    Args:
        handle: The socket to the supervisor, as a file descriptor.
        probe: Knows how the worker is.
        limits: After what the process is to be replaced.

    Attributes:
        commands: How many attempts have ended. The event loop counts.
        patience: Seconds that the worker has to end, once its supervisor is gone; None: it takes
            as long as it takes.
    """

    def __init__(self, handle: int, probe: WorkerProbe, limits: WorkerLimits) -> None:
        os.set_inheritable(handle, False)
        self.commands = 0
        self.patience: float | None = LAST_RESORT
        self._socket = socket.socket(fileno=handle)
        self._probe = probe
        self._limits = limits
        self._sending = threading.Lock()
        self._started = self._replaced = False
        self._thread = threading.Thread(target=self._run, name="leasedkeyq supervised", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rest = b""
        try:
            while True:
                self._tell_news()
                if not select.select([self._socket], [], [], TICK)[0]:
                    continue
                piece = self._socket.recv(PIECE)
                if not piece:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._take(msgspec.json.decode(line))
        except OSError:
            pass
        # The supervisor is gone, and nothing would start this worker again or stop it.
        os.kill(os.getpid(), signal.SIGTERM)
        if self.patience is not None:
            time.sleep(self.patience)
            os._exit(1)

    def _tell_news(self) -> None:
        if not self._started:
            if not self._probe.started():
                return
            self._started = True
            self._check_memory()
            self._send({"event": "started", "files": sources()})
        if not self._replaced and (why := self._limit_reached()):
            self._replaced = True
            self._send({"event": "replace", "text": why})

    def _check_memory(self) -> None:
        """Do without a limit of memory that every successor would exceed, too, as it starts."""
        limits = self._limits
        if limits.memory is not None and (used := resident_memory()) > limits.memory:
            logger.warning(
                "--max-memory is %.0f MiB, and the worker uses %.0f MiB before its first command: "
                "it is not replaced for its memory; give it more",
                limits.memory / 2**20,
                used / 2**20,
            )
            self._limits = WorkerLimits(None, limits.commands)

    def _limit_reached(self) -> str | None:
        limits = self._limits
        if limits.commands is not None and self.commands >= limits.commands:
            return f"it has run {self.commands} commands"
        if limits.memory is not None and (used := resident_memory()) > limits.memory:
            return f"it uses {used / 2**20:.0f} MiB of memory"
        return None

    def _take(self, question: dict[str, Any]) -> None:
        if question.get("ask") == "live":
            self._answer(question)
        else:  # it may wait for the store, and whether the worker lives must be told meanwhile
            threading.Thread(target=self._answer, args=(question,), daemon=True).start()

    def _answer(self, question: dict[str, Any]) -> None:
        asked = question.get("ask")
        try:
            if asked == "metrics":
                answer = Health(True, self._probe.metrics())
            else:
                answer = self._probe.live() if asked == "live" else self._probe.ready()
        except Exception as error:  # of a store, or of a collector of the program
            logger.exception("the worker cannot tell %s", asked)
            answer = Health(False, "" if asked == "metrics" else repr(error))
        with suppress(OSError):  # the thread that reads finds out that the supervisor is gone
            self._send({"id": question["id"], "well": answer.well, "text": answer.text})

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._socket.sendall(msgspec.json.encode(message) + b"\n")


def sources() -> list[str]:
    """The files of the imported modules that are not part of Python or installed packages."""
    installed = tuple({str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix)})
    files = {file for module in list(sys.modules.values()) if (file := _file_of(module))}
    found = {str(Path(file).resolve()) for file in files if file.endswith(".py")}
    return sorted(file for file in found if not file.startswith(installed))


def _file_of(module: ModuleType) -> str | None:
    try:
        file = getattr(module, "__file__", None)
    except Exception:  # some packages have modules that import others when they are asked
        return None
    return file if isinstance(file, str) else None
