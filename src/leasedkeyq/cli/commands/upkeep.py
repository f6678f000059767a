"""Commands that keep a store well: doctor, migrate."""

import asyncio
from typing import TYPE_CHECKING

import click

from leasedkeyq.cli.choices import SPAN, json_option
from leasedkeyq.cli.exit_codes import DONE, ERRORS_FOUND, REFUSED, WARNINGS_FOUND
from leasedkeyq.cli.output import counted, echo_json, printable
from leasedkeyq.cli.store_command import StoreCommand, StoreSession, hidden

if TYPE_CHECKING:
    from leasedkeyq.model.findings import Finding, SchemaState

CODES = {"error": ERRORS_FOUND, "warning": WARNINGS_FOUND}


@click.command("doctor", cls=StoreCommand, short_help="Find what goes wrong, and what to do.")
@click.option(
    "--look-again",
    type=SPAN,
    default=3.0,
    metavar="SPAN",
    show_default="3s",
    help="Count queues a second time after that, to see which ones only grow; 0: don't.",
)
@json_option
def doctor(session: StoreSession, *, look_again: float, as_json: bool) -> int:
    """Find what goes wrong, and what to do.

    It looks at the server or the file, its settings, rights, durability and clock, and at leases,
    dead letters, lanes, types of commands, schedules and workers. It changes nothing; a store of an
    older version is not migrated. The page "What doctor finds" of the documentation has all codes.

    The exit code is for monitoring: 0 if nothing was found but notes, 4 if there are warnings, 5 if
    there are errors; a store that is out of reach is an error. With --json, one array with an
    object for each finding: code, severity, what, where, advice.

    \b
    Examples:
      leasedkeyq doctor sqlite:///jobs.db
      leasedkeyq doctor --json | jq '.[] | select(.severity == "error")'
    """
    from leasedkeyq.operations.doctor import examine_url  # noqa: PLC0415 - help needs it not

    hidden.add(session.url, session.options)
    try:
        work = examine_url(session.url, session.options, look_again=look_again)
        found = asyncio.run(work)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        echo_json([_hidden(finding) for finding in found])
    else:
        _print_findings(found)
    return next((CODES[one.severity] for one in found if one.severity in CODES), DONE)


def _hidden(finding: "Finding") -> dict[str, str]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "what": hidden.hide(finding.what),
        "where": hidden.hide(finding.where),
        "advice": hidden.hide(finding.advice),
    }


def _print_findings(found: "list[Finding]") -> None:
    colours = {"error": "red", "warning": "yellow", "note": "cyan"}
    for finding in found:
        title = click.style(f"{finding.severity.upper():<8}", fg=colours[finding.severity])
        where = f"  {printable(hidden.hide(finding.where))}" if finding.where else ""
        click.echo(f"{title}{finding.code}{where}")
        click.echo(f"        {printable(hidden.hide(finding.what))}")
        if finding.advice:
            click.echo(f"        -> {printable(hidden.hide(finding.advice))}")
    by_severity = [
        counted(number, severity)
        for severity in colours
        if (number := sum(finding.severity == severity for finding in found))
    ]
    click.echo(", ".join(by_severity) if by_severity else "nothing was found", err=True)


@click.command("migrate", cls=StoreCommand, short_help="Show or run what brings it up to date.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL that would be run, and no more.")
@click.option("--yes", "-y", is_flag=True, help="Do it.")
@click.option("--check", is_flag=True, help="End with 4 if something would change.")
@json_option
def migrate(
    session: StoreSession, *, as_sql: bool, yes: bool, check: bool, as_json: bool
) -> int | None:
    """Show or run what brings it up to date.

    Programs bring their store up to date when they open it. This is for people who want to see it
    before, or who let the owner of a database run it: --sql prints it as one transaction, for
    SQLite and PostgreSQL. Redis and files have a version and no SQL.

    \b
    Examples:
      leasedkeyq migrate postgresql://shop@db/shop
      leasedkeyq migrate postgresql://shop@db/shop --sql > upgrade.sql
      leasedkeyq migrate sqlite:///jobs.db --yes
    """
    if as_sql and yes:
        raise click.UsageError("--sql prints what would be done, and --yes does it: give one")
    state = asyncio.run(_state(session, migrate=yes))
    if as_json:
        echo_json(state)
    elif state is None:
        click.echo("the store has no versions: there is nothing to migrate", err=True)
    elif as_sql:
        if not state.sql:
            reason = "nothing would change" if not state.outdated else "the store has no SQL"
            click.echo(reason, err=True)
        click.echo(state.sql, nl=False)
    else:
        _print_state(state, done=yes)
    return REFUSED if check and state is not None and state.outdated else None


def _print_state(state: "SchemaState", *, done: bool) -> None:
    if not state.outdated:
        click.echo(f"version {state.version}: up to date")
        return
    click.echo(f"version {state.version}, this leasedkeyq works with version {state.wanted}")
    for change in state.changes:
        click.echo(f"  {printable(change)}")
    if not done:
        click.echo("nothing was changed; --yes does it, --sql prints it", err=True)


async def _state(session: StoreSession, *, migrate: bool) -> "SchemaState | None":
    """What is there; opening a store migrates it, or changes nothing."""
    async with session.open(create=migrate) as store:
        return await store.schema_state()
