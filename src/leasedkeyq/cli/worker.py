"""``leasedkeyq worker``: run the lanes of a manager until told to stop."""

import argparse
import asyncio
import importlib
import inspect
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from leasedkeyq import LeasedKeyQError, __version__
from leasedkeyq.cli.health import HealthServer
from leasedkeyq.cli.probe import WorkerProbe
from leasedkeyq.cli.supervised import LAST_RESORT, Supervised, WorkerLimits
from leasedkeyq.cli.supervisor import Supervisor, can_supervise
from leasedkeyq.cli.worker_log import FORMATS, LEVELS, set_up
from leasedkeyq.lanes import (
    LaneConfigError,
    QueueManager,
    QueueManagerBuilder,
    QueueStats,
    UnknownLaneError,
)
from leasedkeyq.telemetry import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Outcome,
    SubmittedCommand,
)

logger = logging.getLogger("leasedkeyq.cli.worker")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The first one lets the worker end gracefully, a second one at once."""
DONE = 0
"""The exit code of a worker that was told to stop, and whose commands have all ended."""
CRASHED = 1
"""The exit code of a worker that could not start, or failed."""
MISUSED = 2
"""The exit code of a worker that was called in a way that makes no sense."""
STUCK = 70
"""The exit code of a worker whose event loop was blocked for too long: ``EX_SOFTWARE``."""
CUT_SHORT = 75
"""The exit code of a worker that ended while commands ran: ``EX_TEMPFAIL`` of ``sysexits.h``."""

EXTRA = re.compile(r"pip install ['\"]leasedkeyq\[")
"""What the errors of this package say where an extra is missing."""
LAST_GRACE = 5.0
"""Seconds that the process has to end by itself, once the worker has ended."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
HIGHEST_PORT = 65535
LAST_WORDS = 1.0
"""Seconds for the last line in the log of a worker that is stuck."""


class UsageError(Exception):
    """What was asked for on the command line is not there."""


class MissingExtraError(Exception):
    """Something is not installed that the store, or another part of the package, needs."""


def new_parser() -> argparse.ArgumentParser:
    """What reads the options of ``leasedkeyq worker``."""
    text = "Run the lanes of a manager until SIGTERM or SIGINT."
    parser = argparse.ArgumentParser(prog="leasedkeyq worker", description=text)
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a worker."""
    parser.add_argument(
        "target",
        metavar="module:manager",
        help="a QueueManager or QueueManagerBuilder in a module, or a function that returns one",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="keep commands there instead, such as sqlite:///jobs.db",
    )
    parser.add_argument(
        "--store-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option for the store, such as schema=shop; may be given several times",
    )
    parser.add_argument(
        "--lanes", metavar="A,B", help="run only these lanes; all of them by default"
    )
    parser.add_argument(
        "--drain-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long commands may go on after the first signal; 30 unless the manager says",
    )
    parser.add_argument(
        "--max-stall",
        type=_limit,
        metavar="SECONDS",
        help="end with exit code 70 when a command blocks the event loop for so long beyond its "
        "time-out; 60 unless the manager says",
    )
    parser.add_argument(
        "--processes",
        type=_number,
        metavar="N",
        help="run N worker processes, and start one again that dies",
    )
    parser.add_argument(
        "--max-commands",
        type=_number,
        metavar="N",
        help="replace a process after about so many commands",
    )
    parser.add_argument(
        "--max-memory",
        type=_size,
        metavar="SIZE",
        help="replace a process that uses more memory, such as 512M",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="for development: start the workers anew when a Python file changes",
    )
    parser.add_argument(
        "--health",
        type=_address,
        metavar="HOST:PORT",
        help="answer /livez, /readyz and /metrics over HTTP, such as at 127.0.0.1:8080",
    )
    parser.add_argument(
        "--stuck-after",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long the event loop may stand still before /livez fails; 30 by default",
    )
    parser.add_argument("--log-format", choices=FORMATS, default="text")
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    parser.add_argument("--supervised", type=int, help=argparse.SUPPRESS)


def main(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run a worker, or several that are supervised; returns the exit code.

    Args:
        options: What was asked for.
        arguments: The same as it was written, for the processes of a supervisor.

    Raises:
        UsageError: The options make no sense.
        MissingExtraError: An extra of this package is needed, and is not installed.
        PortError: The address of ``--health`` cannot be used.
    """
    set_up(options.log_format, options.log_level)
    if options.supervised is not None:
        return _run_worker(options, None)
    server = None if options.health is None else HealthServer(*options.health)
    try:
        if options.reload or any(
            wanted is not None
            for wanted in (options.processes, options.max_commands, options.max_memory)
        ):
            return _supervise(options, arguments, server)
        return _run_worker(options, server)
    finally:
        if server is not None:
            server.close()


def _supervise(
    options: argparse.Namespace, arguments: Sequence[str], server: HealthServer | None
) -> int:
    if not can_supervise():
        raise UsageError("--processes, --max-commands, --max-memory and --reload need a Unix")
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    command = [sys.executable, *flags, "-m", "leasedkeyq", *arguments]
    folder = Path.cwd() if options.reload else None
    supervisor = Supervisor(command, options.processes or 1, folder)
    if server is not None:
        server.start(supervisor)
        logger.info("tells its health at port %d", server.port)
    return supervisor.run()


def _run_worker(options: argparse.Namespace, server: HealthServer | None) -> int:
    probe = WorkerProbe(options.stuck_after)
    supervised: Supervised | None = None
    if options.supervised is not None:
        limits = WorkerLimits(options.max_memory, options.max_commands)
        supervised = Supervised(options.supervised, probe, limits)
    if server is not None:
        server.start(probe)
        logger.info("tells its health at port %d", server.port)
    return _run_until_told(options, probe, supervised)


def _run_until_told(
    options: argparse.Namespace, probe: WorkerProbe, supervised: Supervised | None
) -> int:
    # Until the manager listens to signals, nothing has begun. As the first process of a
    # container, this one would not even hear of a signal without a handler.
    before = {number: signal.signal(number, _end_at_once) for number in STOP_SIGNALS}
    end: threading.Timer | None = None
    try:
        with asyncio.Runner() as runner:
            code = runner.run(_work(options, probe, supervised))
            end = end_for_certain(code)
    except UsageError:
        raise
    except KeyboardInterrupt:
        return DONE
    except (LeasedKeyQError, ImportError) as error:
        if EXTRA.search(str(error)):
            raise MissingExtraError(str(error)) from error
        if isinstance(error, ImportError):
            logger.exception("the worker failed")
        else:
            logger.error("%s", error)  # noqa: TRY400  # the message says it all
        return CRASHED
    except Exception:
        logger.exception("the worker failed")
        return CRASHED
    else:
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if end is not None:
            end.cancel()


def _end_at_once(*_: object) -> None:
    raise KeyboardInterrupt


def end_for_certain(code: int) -> threading.Timer:
    """End the process soon, should it not end by itself.

    Python waits for tasks and threads at its end, also for those of commands that went on
    although they were cancelled.
    """

    def end() -> None:
        logger.warning(
            "something still runs %g s after the end, such as a command that does not let itself "
            "be cancelled, or a thread of one; the process ends without it",
            LAST_GRACE,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(LAST_GRACE, end)
    timer.daemon = True
    timer.start()
    return timer


def end_stuck() -> None:
    """End the process at once, from another thread: its event loop is stuck."""

    def tell() -> None:
        logger.error("the worker ends, as its event loop is stuck: exit code %d", STUCK)
        sys.stdout.flush()
        sys.stderr.flush()

    # What the event loop is stuck in may be the log, or a full pipe behind it.
    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    telling.join(LAST_WORDS)
    os._exit(STUCK)


async def _work(
    options: argparse.Namespace, probe: WorkerProbe, supervised: Supervised | None
) -> int:
    manager = await _prepared(options)
    if supervised is not None:
        limit = manager.drain_timeout
        supervised.patience = None if limit is None else limit + LAST_RESORT
    slots = {lane.id: lane.most for lane in manager.queue().lanes.values() if lane.runs_here}
    store = _store_of(manager)
    manager.queue().add_instrument(CommandLog(supervised))
    probe.attach(manager, measure=options.health is not None)
    manager.queue().when_stuck(end_stuck)
    logger.info(
        "leasedkeyq %s, store %s: running the lanes %s",
        __version__,
        store or "none",
        ", ".join(f"{lane} ({most} at a time)" for lane, most in slots.items()),
        extra={
            "version": __version__,
            "store": store,
            "lanes": [*slots],
            "concurrency": slots,
            "pid": os.getpid(),
        },
    )
    if not manager.queue().durable:
        logger.warning(
            "there is no store, so that nobody else can submit to this worker: give it one with "
            "--store or with_storage"
        )
    try:
        left = await manager.run(STOP_SIGNALS)
    finally:
        probe.detach()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # it ends already, and with a code of its own
    if manager.interrupted:
        logger.warning(
            "ended with %d commands still running, which were cancelled",
            manager.interrupted,
            extra={"interrupted": manager.interrupted, "left": left},
        )
        return CUT_SHORT
    if left and not manager.queue().durable:
        logger.warning("ended, and lost the commands that were not run", extra={"left": left})
        return CUT_SHORT
    logger.info("ended", extra={"left": left})
    return DONE


async def _prepared(options: argparse.Namespace) -> QueueManager:
    """The manager that the options mean."""
    found = _find(options.target)
    if not isinstance(found, QueueManager | QueueManagerBuilder) and callable(found):
        found = found()
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, QueueManager | QueueManagerBuilder):
        raise UsageError(
            f"{options.target} is {type(found).__name__}; a worker needs a QueueManager, a "
            "QueueManagerBuilder, or a function that returns one of them"
        )
    lanes = [name.strip() for name in (options.lanes or "").split(",") if name.strip()]
    if options.lanes is not None and not lanes:
        raise UsageError("--lanes names no lane")
    try:
        manager = await _adapted(found, options, lanes)
    except (LaneConfigError, UnknownLaneError) as error:
        raise UsageError(str(error)) from error
    if options.drain_timeout is not None:
        manager.drain_timeout = options.drain_timeout
    if options.max_stall is not None:
        manager.queue().limit_stall(options.max_stall)
    return manager


async def _adapted(
    found: QueueManager | QueueManagerBuilder, options: argparse.Namespace, lanes: list[str]
) -> QueueManager:
    """A manager on the store and with the lanes that are wanted."""
    builder: QueueManagerBuilder | None
    store: str | None = options.store
    if options.store_option and store is None:
        raise UsageError("--store-option goes with --store")
    if isinstance(found, QueueManagerBuilder):
        builder = found
    elif store is None and not lanes:
        return found
    else:
        builder = found.builder
        if builder is None:
            raise UsageError(
                f"{options.target} was not made by a QueueManagerBuilder, so that --store and "
                "--lanes cannot be applied to it"
            )
    if store is not None:
        builder.with_storage(store, **dict(map(_option, options.store_option)))
    if lanes:
        builder.run_only(*lanes)
    try:
        if isinstance(found, QueueManagerBuilder):
            return builder.build()
        await builder.rebuild(found)
    except (TypeError, ValueError) as error:
        if store is None or isinstance(error, LeasedKeyQError):
            raise
        raise UsageError(f"--store: {error}") from error
    return found


def _find(target: str) -> Any:
    """What ``module:name`` means.

    Raises:
        UsageError: There is no such thing.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise UsageError(f"{target!r} does not look like module:manager")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise UsageError(
            f"there is no module {error.name!r}; the current folder is {folder}"
        ) from None
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(f"there is no {path!r} in the module {module_name!r}") from None
    return found


def _option(text: str) -> tuple[str, Any]:
    """An option for a store: its value is JSON, or else text."""
    name, separator, value = text.partition("=")
    if not name.isidentifier() or not separator:
        raise UsageError(f"--store-option is NAME=VALUE, got {text!r}")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"not a number of seconds: {text}")
    return value


def _limit(text: str) -> float:
    value = _seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"not a number of seconds above 0: {text}")
    return value


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number from 1 on: {text}")
    return int(text)


def _size(text: str) -> int:
    """Bytes: a number, and K, M or G for powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    size = 0 if found is None else int(float(found[1]) * UNITS[found[2].upper()])
    if not size:
        raise argparse.ArgumentTypeError(f"not a size such as 512M or 2G: {text}")
    return size


def _address(text: str) -> tuple[str, int]:
    """A host and a port; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"not HOST:PORT, such as 127.0.0.1:8080: {text}")
    return host, int(port)


def _store_of(manager: QueueManager) -> str | None:
    """The store of a manager, for people to recognise; without the password in its URL."""
    storage = None if manager.builder is None else manager.builder.storage
    if isinstance(storage, str):
        return _shown(storage)
    store = manager.queue().store
    if store is None:
        return None
    path = getattr(store, "path", None)
    return type(store).__name__ if path is None else f"{type(store).__name__} {path}"


def _shown(url: str) -> str:
    """A URL without the password in it."""
    password = urlsplit(url).password
    if password:
        url = url.replace(f":{password}@", ":***@", 1)
    return re.sub(r"([?&][^=&#]*password=)[^&#]*", r"\1***", url)


class CommandLog:
    """Logs how commands end: those that are done for those who debug, the others for all.

    Args:
        supervised: Told how many have ended, if there is a supervisor.
    """

    def __init__(self, supervised: Supervised | None = None) -> None:
        self._supervised = supervised

    def submitted(self, command: SubmittedCommand) -> None:
        """Nothing to tell."""

    def started(self, start: AttemptStart) -> None:
        """Nothing to tell."""

    def ended(self, end: AttemptEnd) -> None:
        """Log the end of an attempt."""
        if self._supervised is not None:
            self._supervised.commands += 1
        level = _LEVELS[end.outcome]
        if logger.isEnabledFor(level):
            about = {"lane": end.lane, "command_type": end.kind, "command_id": end.command_id}
            numbers = {"attempt": end.attempt, "outcome": end.outcome}
            times = {"ran": end.ran, "total": end.total}
            text, why = "lane %r: command %r: %s", {}
            said: tuple[object, ...] = (end.lane, end.kind, end.outcome)
            if (error := end.error) is not None:
                text, said = f"{text}: %r", (*said, error)
                why = {"error": f"{type(error).__name__}: {error}"}
            logger.log(level, text, *said, extra={**about, **numbers, **times, **why})

    def dead_lettered(self, command: DeadLetteredCommand) -> None:
        """Nothing to tell beyond the end of its last attempt."""

    def gauges(self, stats: QueueStats) -> None:
        """Nothing to tell."""


_LEVELS: dict[Outcome, int] = {
    "completed": logging.DEBUG,
    "retry": logging.INFO,
    "cancelled": logging.INFO,
    "lost": logging.WARNING,
    "failed": logging.WARNING,
    "timeout": logging.WARNING,
}
