"""``leasedkeyq``: the group of all commands, and how a call of one ends.

A new command is a function in a module of `leasedkeyq.cli.commands`, and a line in `COMMANDS`.
"""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click
from click.shell_completion import shell_complete

from leasedkeyq import LeasedKeyQError, StoreError, UnstorableError
from leasedkeyq.cli.exit_codes import (
    BUG,
    CLOSED_PIPE,
    DONE,
    INTERRUPTED,
    MISUSED,
    NO_STORE,
    NOT_FOUND,
    REFUSED,
)
from leasedkeyq.cli.output import printable_lines
from leasedkeyq.cli.store_command import URL_VARIABLE, CommandFailedError, hidden

PROGRAM = "leasedkeyq"
COMPLETE_VARIABLE = "_LEASEDKEYQ_COMPLETE"


class CommandEntry(NamedTuple):
    """Where a command is.

    Attributes:
        group: Under which title the help has it.
        module: Its module in `leasedkeyq.cli.commands`.
        function: Its name there.
        summary: What it does, in a line: the first line of its help.
    """

    group: str
    module: str
    function: str
    summary: str


LOOK, ACT, MANY, CONTROL, KEEP, SERVICE = (
    "Look",
    "Change an item",
    "Change many",
    "Lanes and schedules",
    "Keep a store",
    "Run and set up",
)
COMMANDS: dict[str, CommandEntry] = {
    "queues": CommandEntry(LOOK, "look", "queues", "List all queues with what they hold."),
    "list": CommandEntry(LOOK, "look", "list_items", "List the items of a queue or a lane."),
    "show": CommandEntry(LOOK, "look", "show", "Show an item with all that is known of it."),
    "stats": CommandEntry(LOOK, "look", "stats", "Show the store at a glance."),
    "workers": CommandEntry(LOOK, "look", "workers", "List the workers, and what they run."),
    "schedules": CommandEntry(LOOK, "look", "schedules", "List the schedules, and when they run."),
    "tail": CommandEntry(LOOK, "tail", "tail", "Show what happens, live."),
    "top": CommandEntry(LOOK, "top", "top", "Watch lanes, commands and failures, live."),
    "put": CommandEntry(ACT, "act", "put", "Put a value into a plain queue."),
    "submit": CommandEntry(ACT, "act", "submit", "Submit a command to a lane."),
    "requeue": CommandEntry(ACT, "act", "requeue", "Put a dead item back into its queue."),
    "bury": CommandEntry(
        ACT, "act", "bury", "Give up an item that waits: it is dead then, and can be requeued."
    ),
    "remove": CommandEntry(ACT, "act", "remove", "Forget an item, for good."),
    "cancel": CommandEntry(ACT, "act", "cancel", "Cancel a command; whoever awaits it is told."),
    "release": CommandEntry(
        ACT,
        "act",
        "release",
        "Take a lease from a holder that has died.",
    ),
    "edit-priority": CommandEntry(
        ACT, "act", "edit_priority", "Change the priority of an item that waits."
    ),
    "requeue-all": CommandEntry(
        MANY,
        "bulk",
        "requeue_all",
        "Put all dead items back into their queues, or some.",
    ),
    "cancel-all": CommandEntry(
        MANY, "bulk", "cancel_all", "Cancel all items that match, of those that wait or run."
    ),
    "remove-all": CommandEntry(
        MANY, "bulk", "remove_all", "Forget all items that match, for good."
    ),
    "purge": CommandEntry(
        MANY,
        "bulk",
        "purge",
        "Empty a queue or a lane, for good.",
    ),
    "pause": CommandEntry(
        CONTROL,
        "control",
        "pause",
        "Pause a lane or a schedule until it is resumed.",
    ),
    "resume": CommandEntry(
        CONTROL, "control", "resume", "Resume a lane or a schedule that is paused."
    ),
    "run-now": CommandEntry(
        CONTROL,
        "control",
        "run_now",
        "Run a schedule now, or let a scheduled item be due now.",
    ),
    "doctor": CommandEntry(KEEP, "upkeep", "doctor", "Find what goes wrong, and what to do."),
    "migrate": CommandEntry(KEEP, "upkeep", "migrate", "Show or run what brings it up to date."),
    "move": CommandEntry(KEEP, "carry", "move", "Move items to another store."),
    "export": CommandEntry(KEEP, "carry", "export", "Write a backup."),
    "import": CommandEntry(KEEP, "carry", "import_", "Put a backup into a store."),
    "bench": CommandEntry(KEEP, "bench", "bench", "Measure how fast a store is here."),
    "completion": CommandEntry(
        SERVICE, "completion", "completion", "Print the completion of a shell."
    ),
    "web": CommandEntry(
        SERVICE, "web", "web", "Serve the web page of stores until Ctrl-C or SIGTERM."
    ),
    "worker": CommandEntry(
        SERVICE, "worker", "worker", "Run the lanes of a manager until told to stop."
    ),
}
"""All commands, in the order of the help."""


class CommandGroup(click.Group):
    """Imports a command when it is called, or its help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name."""
        del ctx
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"leasedkeyq.cli.commands.{entry.module}")
        command = getattr(module, entry.function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of the group, without importing its commands."""
        del ctx
        groups = dict.fromkeys(entry.group for entry in COMMANDS.values())
        for group in groups:
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (name, entry.summary)
                        for name, entry in COMMANDS.items()
                        if entry.group == group
                    ]
                )


EPILOG = """\b
Examples:
  leasedkeyq queues sqlite:///jobs.db
  export LEASEDKEYQ_URL=postgresql://shop@db/shop
  leasedkeyq list mail --state buried
  leasedkeyq requeue-all mail --error "connection refused" --dry-run

\b
Exit codes:
  0    done
  1    not found, or nothing matched
  2    the command makes no sense, or needs --yes or an extra of the package
  3    the store is out of reach, broken, or not there
  4    refused, or some of several items could not be dealt with
  4, 5 doctor has found warnings, or errors
  130  ended by Ctrl-C
"""


def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the version, and end."""
    del param
    if value and not ctx.resilient_parsing:
        from leasedkeyq import __version__  # noqa: PLC0415 - finding it out takes long

        click.echo(f"leasedkeyq {__version__}")
        ctx.exit()


group = CommandGroup(
    name=PROGRAM,
    help=(
        "Look into queues on any store, and change what is there.\n\n"
        "The store is the first word of a command, or the environment variable "
        f"{URL_VARIABLE}: memory://, file:, sqlite:, postgresql:// or redis:// and a path or "
        "address. A lane may be named wherever a queue is asked for."
    ),
    epilog=EPILOG,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=print_version,
            help="Show the version.",
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit code. Errors are one line on standard error."""
    _replace_closed_streams()
    for word in (*arguments, os.environ.get(URL_VARIABLE, "")):
        if "@" in word or "://" in word:
            hidden.add(word.partition("=")[2] if word.startswith("--") else word)
    _hide_in_log()
    debug = "--debug" in arguments
    try:
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            import_module("leasedkeyq.cli.commands.completion")  # it knows bash better
            return shell_complete(group, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
        # Not `group.main`: that ends the process where a pipe is closed.
        with group.make_context(PROGRAM, [*(arguments or ["--help"])]) as context:
            code = group.invoke(context)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_pipe()
        return CLOSED_PIPE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.exceptions.Exit as ended:
        return ended.exit_code if arguments else MISUSED
    except Exception as error:
        if debug:
            _complain(traceback.format_exc().rstrip())
        text, code = explained(error)
        _complain(f"{PROGRAM}: {text}")
        return code
    return code if isinstance(code, int) else DONE


def explained(error: Exception) -> tuple[str, int]:
    """What is said of an error, in one line, and the exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, click.UsageError):
        name = error.ctx.info_name if error.ctx is not None else None
        known = name if name in COMMANDS else ""
        advice = f"{PROGRAM} {known} --help".replace("  ", " ")
        return f"{' '.join(error.format_message().split())} ({advice} tells more)", MISUSED
    if isinstance(error, CommandFailedError):
        return " ".join(error.message.split()), error.code
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split()), error.exit_code
    if isinstance(error, ModuleNotFoundError) and "pip install" in text:
        return text, MISUSED
    if isinstance(error, StoreError) and not isinstance(error, UnstorableError):
        return text, NO_STORE
    if isinstance(error, LeasedKeyQError):
        # There is no such lane, schedule or command.
        return text, NOT_FOUND if isinstance(error, LookupError) else REFUSED
    if isinstance(error, ValueError):
        return text, MISUSED
    if isinstance(error, OSError):
        return text, NO_STORE
    return f"{type(error).__name__}: {text} (--debug shows where)", BUG


def _complain(text: str) -> None:
    click.echo(printable_lines(hidden.hide(text)), err=True)


def _replace_closed_streams() -> None:
    """Let a stream that the caller has closed, as by ``>&-``, lead nowhere: it is None otherwise.

    It takes the number of the stream, too, which the file of a store would get.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for good


def _leave_pipe() -> None:
    """Let Python not complain at its end that what was printed cannot be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


class _HidingFormatter(logging.Formatter):
    """A line of the log of the package, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{PROGRAM}: {record.levelname.lower()}: {super().format(record)}"
        return printable_lines(hidden.hide(text))


def _hide_in_log() -> None:
    """Let warnings of the package be lines of their own, without passwords."""
    log = logging.getLogger("leasedkeyq")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(_HidingFormatter())
        # Whoever calls a command is told what became of it anyway.
        handler.addFilter(lambda record: record.name != "leasedkeyq.audit")
        log.addHandler(handler)
