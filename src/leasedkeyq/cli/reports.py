"""How the commands that change something tell what they did."""

from typing import TYPE_CHECKING

import click

from leasedkeyq.cli.exit_codes import NOT_FOUND, REFUSED
from leasedkeyq.cli.output import counted, echo_json, printable
from leasedkeyq.cli.store_command import CommandFailedError

if TYPE_CHECKING:
    from leasedkeyq.operations import ActionReport

PAST = {
    "requeue": "requeued",
    "remove": "removed",
    "cancel": "cancelled",
    "bury": "buried",
    "release": "released",
    "purge": "purged",
    "priority": "changed the priority of",
    "run_now": "made due now",
    "edit": "changed",
    "pause": "paused",
    "resume": "resumed",
}
FAILURES_SHOWN = 10


def tell_one(report: "ActionReport", what: str, *, as_json: bool) -> None:
    """Tell what became of an action on one item, and end with its exit code.

    Args:
        report: What became of it.
        what: What it was done to, for people.
        as_json: Whether to print the report as JSON.
    """
    if as_json:
        echo_json(report)
    if report.failed_count:
        raise CommandFailedError(f"{what}: {report.failed[0][2]}", REFUSED)
    if not report.matched:
        raise CommandFailedError(report.note or f"there is no {what}", NOT_FOUND)
    if not as_json:
        several = f" ({counted(report.done, 'item')})" if report.done > 1 else ""
        note = f" ({report.note})" if report.note else ""
        click.echo(f"{PAST[report.action]} {printable(what)}{several}{note}")


def tell_many(report: "ActionReport", where: str, *, as_json: bool) -> None:
    """Tell what became of an action on many items, and end with its exit code."""
    if as_json:
        echo_json(report)
    else:
        items = counted(report.done, "item")
        if report.dry_run:
            click.echo(f"would have {PAST[report.action]} {items} of {printable(where)}")
        elif report.matched:
            click.echo(f"{PAST[report.action]} {items} of {printable(where)}")
        for queue, number, why in report.failed[:FAILURES_SHOWN]:
            click.echo(printable(f"item {number} of {queue}: {why}"), err=True)
    if not report.matched:
        raise CommandFailedError(f"nothing in {where} matches", NOT_FOUND)
    if not report.complete:
        raise CommandFailedError("stopped before all were dealt with; call it again", REFUSED)
    if report.failed_count:
        raise CommandFailedError(
            f"{counted(report.failed_count, 'item')} could not be changed", REFUSED
        )
