"""Commands for lanes and schedules: pause, resume, run-now."""

from typing import TYPE_CHECKING

import click

from leasedkeyq.cli.choices import json_option
from leasedkeyq.cli.commands.look import find_item
from leasedkeyq.cli.exit_codes import NOT_FOUND
from leasedkeyq.cli.output import echo_json, printable
from leasedkeyq.cli.reports import tell_one
from leasedkeyq.cli.store_command import CommandFailedError, StoreCommand, StoreSession

if TYPE_CHECKING:
    from leasedkeyq.operations.operator import Operator
    from leasedkeyq.operations.views import ActionReport

schedule_option = click.option("--schedule", is_flag=True, help="NAME is a schedule, and no lane.")


@click.command("pause", cls=StoreCommand, words="NAME", short_help="Pause a lane or a schedule.")
@schedule_option
@click.option("--unchecked", is_flag=True, help="Also a lane that no worker has told of.")
@json_option
def pause(
    session: StoreSession, *, name: str, schedule: bool, unchecked: bool, as_json: bool
) -> None:
    """Pause a lane or a schedule until it is resumed.

    Commands that run go on. A schedule that is paused does not make up for its ticks later.

    \b
    Examples:
      leasedkeyq pause mail
      leasedkeyq pause --schedule nightly-report
    """

    async def work(operator: "Operator") -> "ActionReport":
        if schedule:
            return await operator.pause_schedule(name, actor=session.actor)
        return await operator.pause(name, unchecked=unchecked, actor=session.actor)

    tell_one(session.run(work), _named(name, schedule), as_json=as_json)


@click.command("resume", cls=StoreCommand, words="NAME", short_help="Resume a lane or a schedule.")
@schedule_option
@json_option
def resume(session: StoreSession, *, name: str, schedule: bool, as_json: bool) -> None:
    """Resume a lane or a schedule that is paused.

    \b
    Examples:
      leasedkeyq resume mail
      leasedkeyq resume --schedule nightly-report
    """

    async def work(operator: "Operator") -> "ActionReport":
        act = operator.resume_schedule if schedule else operator.resume
        return await act(name, actor=session.actor)

    report = session.run(work)
    if not report.done and not as_json:
        click.echo(f"{printable(_named(name, schedule))}: {report.note}", err=True)
        return
    tell_one(report, _named(name, schedule), as_json=as_json)


def _named(name: str, schedule: bool) -> str:
    return f"{'schedule' if schedule else 'lane'} {name}"


@click.command("run-now", cls=StoreCommand, words="NAME [KEY]", short_help="Run something now.")
@json_option
def run_now(session: StoreSession, *, name: str, key: str | None, as_json: bool) -> None:
    """Run a schedule now, or let a scheduled item be due now.

    NAME alone is a schedule: its command is submitted once more, and its ticks come as before. With
    a KEY or an id behind it, NAME is a queue or a lane.

    \b
    Examples:
      leasedkeyq run-now nightly-report
      leasedkeyq run-now mail customer-17
    """

    async def work(operator: "Operator") -> "ActionReport | None":
        if key is None:
            return await operator.run_schedule(name, actor=session.actor)
        found = await find_item(operator, name, key)
        if found is None:
            return None
        return await operator.run_now(found.queue, found.id, actor=session.actor)

    report = session.run(work)
    if report is None:
        raise CommandFailedError(f"there is no {key} of {name}", NOT_FOUND)
    if key is not None:
        tell_one(report, f"{key} of {name}", as_json=as_json)
    elif as_json:
        echo_json(report)
    else:
        click.echo(report.command_id)
