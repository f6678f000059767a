"""Commands that change many items: requeue-all, cancel-all, remove-all, purge."""

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from leasedkeyq.cli.choices import (
    dry_run_option,
    filter_options,
    item_filter,
    json_option,
    yes_option,
)
from leasedkeyq.cli.output import counted
from leasedkeyq.cli.reports import tell_many
from leasedkeyq.cli.store_command import StoreCommand, StoreSession

if TYPE_CHECKING:
    from leasedkeyq.operations.operator import Operator
    from leasedkeyq.operations.views import ActionReport, ItemFilter

Verb = Literal["requeue", "remove", "cancel"]


def _all(
    session: StoreSession,
    verb: Verb,
    queue: str | None,
    wanted: "ItemFilter",
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Count, ask, and do something to all items that match."""
    where = "all queues" if queue is None else queue

    async def count(operator: "Operator") -> "ActionReport":
        return await operator.bulk(verb, queue, wanted, dry_run=True, actor=session.actor)

    async def change(operator: "Operator") -> "ActionReport":
        return await operator.bulk(
            verb, queue, wanted, progress=_progress if not as_json else None, actor=session.actor
        )

    if dry_run or not yes:
        counted_now = session.run(count)
        if dry_run or not counted_now.matched:
            tell_many(counted_now, where, as_json=as_json)
            return
        items = counted(counted_now.matched, "item")
        session.confirm(f"{verb.capitalize()} {items} of {where}?", yes=False)
    report = session.run(change)
    if sys.stderr.isatty() and not as_json:
        click.echo("\r\x1b[K", nl=False, err=True)
    tell_many(report, where, as_json=as_json)


def _progress(report: "ActionReport") -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{report.done:,} of {report.matched:,} found ...", nl=False, err=True)


@click.command(
    "requeue-all", cls=StoreCommand, words="[QUEUE]", short_help="Put back all dead items."
)
@filter_options(states=False)
@click.option("--every-queue", is_flag=True, help="In all queues, where QUEUE is left out.")
@dry_run_option
@yes_option
@json_option
def requeue_all(
    session: StoreSession,
    *,
    queue: str | None,
    every_queue: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Put all dead items back into their queues, or some.

    In steps of some hundred; what was done before Ctrl-C stays done. With --json, one object with
    counts and the first hundred failures.

    \b
    Examples:
      leasedkeyq requeue-all mail --error "connection refused" --dry-run
      leasedkeyq requeue-all mail --kind send --newer-than 2h --yes
      leasedkeyq requeue-all --every-queue --yes
    """
    _check_where(queue, every_queue)
    _all(
        session,
        "requeue",
        queue,
        item_filter(**chosen),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )


@click.command(
    "cancel-all", cls=StoreCommand, words="QUEUE", short_help="Cancel all items that match."
)
@filter_options()
@dry_run_option
@yes_option
@json_option
def cancel_all(
    session: StoreSession,
    *,
    queue: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Cancel all items that match, of those that wait or run.

    Whoever awaits one is told. In steps of some hundred; what was done before Ctrl-C stays done.

    \b
    Examples:
      leasedkeyq cancel-all mail --kind newsletter --dry-run
      leasedkeyq cancel-all mail --state waiting --older-than 1d --yes
    """
    wanted = item_filter(**chosen)
    _all(session, "cancel", queue, wanted, yes=yes, dry_run=dry_run, as_json=as_json)


@click.command(
    "remove-all", cls=StoreCommand, words="QUEUE", short_help="Forget all items that match."
)
@filter_options()
@dry_run_option
@yes_option
@json_option
def remove_all(
    session: StoreSession,
    *,
    queue: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Forget all items that match, for good.

    Say which: without --state, items in every state match, those that run included.

    \b
    Examples:
      leasedkeyq remove-all mail --state dead --older-than 30d --dry-run
      leasedkeyq remove-all mail --state done --yes
    """
    wanted = item_filter(**chosen)
    _all(session, "remove", queue, wanted, yes=yes, dry_run=dry_run, as_json=as_json)


@click.command("purge", cls=StoreCommand, words="QUEUE", short_help="Empty a queue.")
@click.option("--dead", is_flag=True, help="Only the dead items.")
@click.option("--results", is_flag=True, help="Only the results that are kept.")
@dry_run_option
@yes_option
@json_option
def purge(
    session: StoreSession,
    *,
    queue: str,
    dead: bool,
    results: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Empty a queue or a lane, for good.

    Leases in it end, and whoever awaits a command hears that it is lost.

    \b
    Examples:
      leasedkeyq purge mail --dead
      leasedkeyq purge mail --yes
    """
    if dead and results:
        raise click.UsageError("--dead and --results exclude each other")
    part: Literal["buried", "results", "all"] = (
        "buried" if dead else "results" if results else "all"
    )

    async def count(operator: "Operator") -> "ActionReport":
        return await operator.purge(queue, part, dry_run=True, actor=session.actor)

    async def change(operator: "Operator") -> "ActionReport":
        return await operator.purge(queue, part, actor=session.actor)

    if dry_run or not yes:
        found = session.run(count)
        if dry_run or not found.matched:
            tell_many(found, queue, as_json=as_json)
            return
        what = {"buried": "dead items", "results": "results", "all": "items"}[part]
        session.confirm(f"Purge {found.matched:,} {what} of {queue}?", yes=False)
    tell_many(session.run(change), queue, as_json=as_json)


def _check_where(queue: str | None, every_queue: bool) -> None:
    if (queue is None) != every_queue:
        raise click.UsageError("name a QUEUE, or say --every-queue")
