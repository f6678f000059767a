"""Commands that change one item: put, submit, requeue, bury, remove, cancel, release and others."""

import sys
from typing import TYPE_CHECKING, Any

import click

from leasedkeyq.cli.choices import SPAN, json_option, yes_option
from leasedkeyq.cli.commands.look import find_item
from leasedkeyq.cli.exit_codes import NOT_FOUND
from leasedkeyq.cli.output import echo_json, printable
from leasedkeyq.cli.reports import tell_one
from leasedkeyq.cli.store_command import CommandFailedError, StoreCommand, StoreSession

if TYPE_CHECKING:
    from leasedkeyq.operations.operator import Operator
    from leasedkeyq.operations.views import ActionReport, ItemView

IF_PRESENT = click.Choice(["append", "update", "skip", "reject"])
id_option = click.option("--id", "number", type=click.IntRange(1), help="The item of this id.")


def _text_of(given: str | None, default: str | None = None) -> str:
    """What was written as a word, or is on standard input where that is ``-``."""
    if given == "-" or (given is None and default is None):
        return sys.stdin.read()
    return given if given is not None else default or ""


@click.command("put", cls=StoreCommand, words="QUEUE KEY [VALUE]", short_help="Put a value.")
@click.option("--priority", type=int, help="Higher goes first; 0 by default.")
@click.option("--delay", type=SPAN, metavar="SPAN", help="Available after this time: 30s, 2h.")
@click.option("--if-present", type=IF_PRESENT, help="What to do where the key is there already.")
@json_option
def put(
    session: StoreSession, *, queue: str, key: str, value: str | None, as_json: bool, **how: Any
) -> None:
    """Put a value into a plain queue.

    VALUE is JSON, so that a text has quotes around it. Without VALUE, or with -, it is read from
    standard input. A lane takes commands only: see submit.

    With --json, one object that says what was done.

    \b
    Examples:
      leasedkeyq put orders order-17 '{"total": 12}'
      leasedkeyq put orders order-18 '"a text"' --delay 10m
      jq .order order.json | leasedkeyq put orders order-19
    """
    text = _text_of(value)

    async def work(operator: "Operator") -> "ActionReport":
        return await operator.put(queue, key, text, actor=session.actor, **how)

    report = session.run(work, create=True)
    if as_json:
        echo_json(report)
    else:
        click.echo(f"{report.note}: key {printable(key)} of {printable(queue)}, id {report.id}")


@click.command(
    "submit", cls=StoreCommand, words="LANE TYPE [ARGUMENTS]", short_help="Submit a command."
)
@click.option("--key", "-k", help="Commands of one key run one at a time.")
@click.option("--priority", type=int, help="Lower goes first, as in lanes.")
@click.option("--delay", type=SPAN, metavar="SPAN", help="Not before this time: 30s, 2h.")
@click.option("--deadline", type=SPAN, metavar="SPAN", help="It should start within this time.")
@click.option("--timeout", type=SPAN, metavar="SPAN", help="How long it may run.")
@click.option("--if-present", type=IF_PRESENT, help="What to do where the key is there already.")
@click.option(
    "--unique-for",
    type=SPAN,
    metavar="SPAN",
    help="With --if-present skip: also skip it so long after the end of one of its key.",
)
@click.option("--unchecked", is_flag=True, help="Do not check lane, type and arguments.")
@json_option
def submit(
    session: StoreSession,
    *,
    lane: str,
    type: str,  # noqa: A002 - the word is TYPE
    arguments: str | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Submit a command to a lane.

    ARGUMENTS is a JSON object with the arguments by name; - reads it from standard input. Lane,
    type and arguments are checked against what the workers of the store have told of them.

    Prints the id of the command, which show, cancel and Handle know. With --json, one object.

    \b
    Examples:
      leasedkeyq submit mail send '{"to": "ann@example.com"}'
      leasedkeyq submit mail send - --key ann --delay 1h < arguments.json
    """
    text = _text_of(arguments, "{}")

    async def work(operator: "Operator") -> "ActionReport":
        return await operator.submit(lane, type, text, actor=session.actor, **how)

    report = session.run(work, create=True)
    if as_json:
        echo_json(report)
    else:
        click.echo(report.command_id)
        if report.note == "skipped":
            click.echo("skipped: a command of its key is there, see its id", err=True)


async def _target(
    operator: "Operator", queue: str, key: str | None, number: int | None
) -> "tuple[str, str | int] | None":
    """The queue, and the key or the id, that the words of a command mean; None if not there.

    A key stands for all of its values, an id for one.
    """
    found: ItemView | None = await find_item(operator, queue, key, number=number)
    if found is None:
        return None
    by_key = number is None and key is not None and found.key == key
    return found.queue, found.key if by_key else found.id


def _named(queue: str, key: str | None, number: int | None) -> str:
    if key is None and number is None:
        return f"command {queue}"
    return f"{f'id {number}' if key is None else key} of {queue}"


def _act(
    session: StoreSession,
    action: str,
    words: tuple[str, str | None, int | None],
    question: str,
    *,
    yes: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Find an item, ask if need be, and do something to it."""
    named = _named(*words)
    if question:
        session.confirm(question.format(named), yes=yes)

    async def work(operator: "Operator") -> "ActionReport | None":
        target = await _target(operator, *words)
        if target is None:
            return None
        act = getattr(operator, action)
        report: ActionReport = await act(*target, actor=session.actor, **how)
        return report

    report = session.run(work)
    if report is None:
        raise CommandFailedError(f"there is no {named}", NOT_FOUND)
    tell_one(report, named, as_json=as_json)


@click.command("requeue", cls=StoreCommand, words="QUEUE [KEY]", short_help="Put back a dead item.")
@id_option
@json_option
def requeue(
    session: StoreSession, *, queue: str, key: str | None, number: int | None, as_json: bool
) -> None:
    """Put a dead item back into its queue.

    KEY is a key, whose last dead item is meant, or an id. QUEUE may be the id of a command, with no
    KEY behind it.

    \b
    Examples:
      leasedkeyq requeue mail customer-17
      leasedkeyq requeue mail --id 4711
    """

    async def work(operator: "Operator") -> "ActionReport | None":
        found = await _dead(operator, queue, key, number)
        if found is None:
            return None
        return await operator.requeue(found.queue, found.id, actor=session.actor)

    report = session.run(work)
    named = _named(queue, key, number)
    if report is None:
        raise CommandFailedError(f"there is no dead {named}", NOT_FOUND)
    tell_one(report, named, as_json=as_json)


async def _dead(
    operator: "Operator", queue: str, key: str | None, number: int | None
) -> "ItemView | None":
    """The dead item that is meant, also where others of its key wait."""
    from leasedkeyq.operations.views import ItemFilter  # noqa: PLC0415

    if key is not None and number is None:
        last: ItemView | None = None
        cursor: str | None = None
        while True:
            wanted = ItemFilter(states=("buried",), key=key)
            page = await operator.items(queue, wanted, cursor=cursor)
            last = page.items[-1] if page.items else last
            cursor = page.cursor
            if cursor is None:
                break
        if last is not None:
            return last
    return await find_item(operator, queue, key, number=number)


@click.command("bury", cls=StoreCommand, words="QUEUE [KEY]", short_help="Give up an item.")
@id_option
@click.option("--reason", default="", help="Why; it is a part of the error of the dead item.")
@json_option
def bury(
    session: StoreSession,
    *,
    queue: str,
    key: str | None,
    number: int | None,
    reason: str,
    as_json: bool,
) -> None:
    """Give up an item that waits: it is dead then, and can be requeued.

    \b
    Examples:
      leasedkeyq bury mail customer-17 --reason "asked not to be written to"
    """
    words = (queue, key, number)
    _act(session, "bury", words, "", yes=True, as_json=as_json, reason=reason)


@click.command("remove", cls=StoreCommand, words="QUEUE [KEY]", short_help="Forget an item.")
@id_option
@yes_option
@json_option
def remove(
    session: StoreSession,
    *,
    queue: str,
    key: str | None,
    number: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget an item, for good.

    A KEY stands for all of its values that wait or run; an id for one item. Whoever awaits a
    command hears that it is lost; cancel is kinder.

    \b
    Examples:
      leasedkeyq remove mail customer-17
      leasedkeyq remove mail --id 4711 --yes
    """
    words = (queue, key, number)
    _act(session, "remove", words, "Remove {} for good?", yes=yes, as_json=as_json)


@click.command("cancel", cls=StoreCommand, words="QUEUE [KEY]", short_help="Cancel a command.")
@id_option
@yes_option
@json_option
def cancel(
    session: StoreSession,
    *,
    queue: str,
    key: str | None,
    number: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Cancel a command; whoever awaits it is told.

    A KEY stands for all of its commands, an id for one. QUEUE may be the id of a command, as
    Handle.id tells it, with no KEY behind it. The run of a command that runs is ended.

    \b
    Examples:
      leasedkeyq cancel mail customer-17
      leasedkeyq cancel 4711.mail.customer-17 --yes
    """
    words = (queue, key, number)
    _act(session, "cancel", words, "Cancel {}?", yes=yes, as_json=as_json)


@click.command(
    "release", cls=StoreCommand, words="QUEUE KEY", short_help="Take a lease from a dead holder."
)
@click.option("--force", is_flag=True, help="Also if a worker that lives runs it.")
@yes_option
@json_option
def release(
    session: StoreSession, *, queue: str, key: str, force: bool, yes: bool, as_json: bool
) -> None:
    """Take a lease from a holder that has died.

    The attempt counts. A holder that lives after all is refused when it settles.

    \b
    Examples:
      leasedkeyq release mail customer-17
    """
    session.confirm(f"Take the lease of {key} of {queue} from its holder?", yes=yes)

    async def work(operator: "Operator") -> "ActionReport":
        return await operator.release(queue, key, force=force, actor=session.actor)

    tell_one(session.run(work), f"{key} of {queue}", as_json=as_json)


@click.command(
    "edit-priority",
    cls=StoreCommand,
    words="QUEUE KEY PRIORITY",
    short_help="Change the priority of an item.",
    context_settings={"ignore_unknown_options": True},
)
@json_option
def edit_priority(
    session: StoreSession, *, queue: str, key: str, priority: str, as_json: bool
) -> None:
    """Change the priority of an item that waits.

    KEY is a key or an id. PRIORITY is as the queue counts it: in plain queues the higher number
    goes first, in lanes the lower one, as in submit.

    \b
    Examples:
      leasedkeyq edit-priority orders order-17 10
      leasedkeyq edit-priority mail customer-17 -5
    """
    try:
        number = int(priority)
    except ValueError:
        raise click.UsageError(f"PRIORITY must be a whole number, got {priority!r}") from None

    async def work(operator: "Operator") -> "ActionReport | None":
        found = await find_item(operator, queue, key)
        if found is None:
            return None
        wanted = -number if found.command_id else number
        return await operator.set_priority(found.queue, found.id, wanted, actor=session.actor)

    report = session.run(work)
    named = _named(queue, key, None)
    if report is None:
        raise CommandFailedError(f"there is no {named}", NOT_FOUND)
    tell_one(report, named, as_json=as_json)
