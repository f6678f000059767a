"""``python -m leasedkeyq worker``: run the lanes of a manager until told to stop."""

import argparse
import asyncio
import importlib
import inspect
import logging
import os
import re
import signal
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import msgspec

from leasedkeyq import LeasedKeyQError, __version__
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
LAST_WORDS = 1.0
"""Seconds for the last line in the log of a worker that is stuck."""


class UsageError(Exception):
    """What was asked for on the command line is not there."""


class MissingExtraError(Exception):
    """Something is not installed that the store, or another part of the package, needs."""


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
    parser.add_argument("--log-format", choices=FORMATS, default="text")
    parser.add_argument("--log-level", choices=LEVELS, default="info")


def main(options: argparse.Namespace) -> int:
    """Run a worker; returns its exit code.

    Raises:
        UsageError: The options make no sense.
        MissingExtraError: An extra of this package is needed, and is not installed.
    """
    set_up(options.log_format, options.log_level)
    # Until the manager listens to signals, nothing has begun. As the first process of a
    # container, this one would not even hear of a signal without a handler.
    before = {number: signal.signal(number, _end_at_once) for number in STOP_SIGNALS}
    end: threading.Timer | None = None
    try:
        with asyncio.Runner() as runner:
            code = runner.run(_work(options))
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


async def _work(options: argparse.Namespace) -> int:
    manager = await _prepared(options)
    slots = {lane.id: lane.most for lane in manager.queue().lanes.values() if lane.runs_here}
    store = _store_of(manager)
    manager.queue().add_instrument(CommandLog())
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
    left = await manager.run(STOP_SIGNALS)
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
    """Logs how commands end: those that are done for those who debug, the others for all."""

    def submitted(self, command: SubmittedCommand) -> None:
        """Nothing to tell."""

    def started(self, start: AttemptStart) -> None:
        """Nothing to tell."""

    def ended(self, end: AttemptEnd) -> None:
        """Log the end of an attempt."""
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
