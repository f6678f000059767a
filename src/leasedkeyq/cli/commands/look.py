"""Commands that show what is there: queues, list, show, stats, workers, schedules."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from leasedkeyq.cli.choices import SPAN, filter_options, item_filter, json_option
from leasedkeyq.cli.exit_codes import NOT_FOUND
from leasedkeyq.cli.output import (
    Column,
    age,
    cut,
    echo_fields,
    echo_json,
    echo_table,
    moment,
    printable,
    printable_lines,
    size,
    terminal_width,
)
from leasedkeyq.cli.store_command import CommandFailedError, StoreCommand, StoreSession

if TYPE_CHECKING:
    from leasedkeyq.operations.operator import Operator
    from leasedkeyq.operations.views import ItemView, QueueView

CLEAR = "\x1b[H\x1b[2J"
LINE_SHOWN = 10
"""Values behind an item that `show` prints."""

_QUEUE_COLUMNS = (
    Column("QUEUE", shrinks=True),
    Column("WAITING", "right"),
    Column("SCHED", "right"),
    Column("RUNNING", "right"),
    Column("DEAD", "right"),
    Column("DONE", "right"),
    Column("OLDEST", "right"),
    Column("NOTE"),
)


@click.command("queues", cls=StoreCommand, short_help="List all queues with what they hold.")
@click.option("--all", "internal", is_flag=True, help="Also those of leasedkeyq itself.")
@click.option("--watch", "-w", is_flag=True, help="Look again every two seconds, until Ctrl-C.")
@click.option("--every", type=SPAN, default=2.0, metavar="SPAN", help="How often to look again.")
@json_option
def queues(
    session: StoreSession, *, internal: bool, watch: bool, every: float, as_json: bool
) -> None:
    """List all queues with what they hold.

    WAITING items can be leased now or wait behind others of their key, SCHED comes later, RUNNING
    is leased, DEAD was given up (buried), and DONE are results that are still kept. OLDEST is for
    how long the next item has been there.

    With --json, one array with an object for each queue; with --watch, one such line for each look.

    \b
    Examples:
      leasedkeyq queues sqlite:///jobs.db
      leasedkeyq queues --watch
      leasedkeyq queues --json | jq '.[] | select(.buried > 0) | .name'
    """

    async def work(operator: "Operator") -> None:
        while True:
            found = await operator.queues(internal=internal)
            if watch and not as_json and sys.stdout.isatty():
                click.echo(CLEAR, nl=False)
                click.echo(f"{moment(time.time())}  {printable(operator.store.name)}")
            _print_queues(found, as_json=as_json)
            if not watch:
                return
            sys.stdout.flush()
            await asyncio.sleep(max(0.1, every))

    session.run(work)


def _print_queues(found: "list[QueueView]", *, as_json: bool) -> None:
    if as_json:
        echo_json(found)
    elif found:
        echo_table(
            _QUEUE_COLUMNS,
            [
                [
                    view.name,
                    str(view.available),
                    str(view.scheduled),
                    str(view.in_flight),
                    str(view.buried),
                    str(view.done),
                    age(view.oldest),
                    _queue_note(view),
                ]
                for view in found
            ],
        )
    else:
        click.echo("no queue holds anything", err=True)


def _queue_note(view: "QueueView") -> str:
    notes = ["paused"] if view.paused else []
    if view.held:
        notes.append(f"{view.held} held")
    return ", ".join(notes)


_ITEM_COLUMNS = (
    Column("ID", "right"),
    Column("STATE"),
    Column("KEY", shrinks=True),
    Column("KIND", shrinks=True),
    Column("TRY", "right"),
    Column("AGE", "right"),
    Column("VALUE OR ERROR", shrinks=True),
)


@click.command("list", cls=StoreCommand, words="QUEUE", short_help="List the items of a queue.")
@filter_options()
@click.option(
    "--outcome",
    type=click.Choice(["completed", "failed", "cancelled"]),
    help="Only items that are done, and ended so.",
)
@click.option("--limit", "-l", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@click.option("--all", "all_pages", is_flag=True, help="All pages, one after the other.")
@click.option("--newest-first", "-r", is_flag=True, help="Begin with the newest.")
@json_option
def list_items(
    session: StoreSession,
    *,
    queue: str,
    limit: int,
    cursor: str | None,
    all_pages: bool,
    newest_first: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """List the items of a queue or a lane.

    In the order in which they were put. If there are more, the cursor of the next page is told on
    standard error. What the store has no index for (all but states and whole keys) is searched for,
    some thousand items per page, so that a page may be short and still be followed by others.

    With --json, one object for each item, in a line of its own.

    \b
    Examples:
      leasedkeyq list mail --state buried --error timeout
      leasedkeyq list mail --state waiting --older-than 1h --newest-first
      leasedkeyq list mail --all --json > mail.jsonl
    """
    wanted = item_filter(**chosen)

    async def work(operator: "Operator") -> tuple[int, str | None]:
        found, place = 0, cursor
        while True:
            page = await operator.items(
                queue, wanted, cursor=place, limit=limit, newest_first=newest_first
            )
            _print_items(page.items, as_json=as_json)
            found += len(page.items)
            place = page.cursor
            # A page of a search may be empty; whoever asked for one page gets what there is.
            if place is None or (not all_pages and found):
                return found, place

    found, place = session.run(work)
    if place is not None:
        click.echo(f"there are more: --cursor {place}", err=True)
    if not found:
        raise CommandFailedError(f"nothing in {queue!r} matches", NOT_FOUND)


def _print_items(items: "tuple[ItemView, ...]", *, as_json: bool) -> None:
    if as_json:
        for view in items:
            echo_json(view)
    elif items:
        now = time.time()
        echo_table(
            _ITEM_COLUMNS,
            [
                [
                    str(view.id),
                    view.state if view.outcome is None else view.outcome,
                    view.key,
                    view.kind,
                    str(view.attempt),
                    age(now - view.put_at),
                    cut(_told(view), 200),
                ]
                for view in items
            ],
        )


def _told(view: "ItemView") -> str:
    """What a line of a list says of an item beside its key."""
    if view.state == "buried" and view.error:
        return view.error.partition("\n")[0]
    return view.raw_result if view.state == "done" else view.raw


@click.command("show", cls=StoreCommand, words="QUEUE [KEY]", short_help="Show an item.")
@click.option("--id", "number", type=click.IntRange(1), help="The item of this id.")
@click.option("--command", "command_id", metavar="ID", help="The command of this id.")
@json_option
def show(
    session: StoreSession,
    *,
    queue: str,
    key: str | None,
    number: int | None,
    command_id: str | None,
    as_json: bool,
) -> None:
    """Show an item with all that is known of it.

    KEY is a key or the id of an item: a key goes before an id that looks alike. QUEUE may also be
    the id of a command, as Handle.id tells it, with no KEY behind it.

    With --json, one object; `line` has the values that wait behind it.

    \b
    Examples:
      leasedkeyq show mail customer-17
      leasedkeyq show mail --id 4711
      leasedkeyq show 4711.mail.customer-17
    """

    async def work(operator: "Operator") -> "tuple[ItemView | None, list[ItemView]]":
        found = await find_item(operator, queue, key, number=number, command_id=command_id)
        behind: list[ItemView] = []
        if found is not None and found.state in ("available", "scheduled", "in_flight"):
            page = await operator.line(
                found.queue, found.key, cursor=str(found.id), limit=LINE_SHOWN + 1
            )
            behind = list(page.items)
        return found, behind

    found, behind = session.run(work)
    if found is None:
        what = f"{queue!r}" if key is None and number is None else f"{key or number!r} in {queue!r}"
        raise CommandFailedError(f"there is no {what}", NOT_FOUND)
    if as_json:
        echo_json({"item": found, "line": behind})
    else:
        _print_item(found, behind)


async def find_item(
    operator: "Operator",
    queue: str,
    key: str | None,
    *,
    number: int | None = None,
    command_id: str | None = None,
) -> "ItemView | None":
    """The item that the words of a command mean: a key, an id, or the id of a command."""
    if number is not None:
        return await operator.item(queue, number)
    if key is None:
        return await operator.find(command_id or queue)
    found = await operator.item(queue, key)
    if found is None and key.isascii() and key.isdigit():
        found = await operator.item(queue, int(key))
    return found


def _print_item(view: "ItemView", behind: "list[ItemView]") -> None:
    now = time.time()
    fields = [
        ("queue", printable(view.queue)),
        ("key", printable(view.key)),
        ("id", str(view.id)),
        ("command", view.command_id),
        ("type", printable(view.kind)),
        ("state", view.state + (" (its line waits for it)" if view.holds else "")),
        ("outcome", view.outcome or ""),
        ("put", f"{moment(view.put_at)}  ({age(now - view.put_at)} ago)"),
        (_due_name(view), "" if view.due is None else _when(view.due, now)),
        ("priority", str(view.priority) if view.priority else ""),
        ("attempt", str(view.attempt) if view.attempt else ""),
        ("leased", "" if view.leased_at is None else _when(view.leased_at, now)),
        ("holder", printable(view.holder)),
        ("worker", printable(view.worker)),
        ("deadline", "" if view.deadline is None else _when(view.deadline, now)),
        ("ended", "" if view.ended_at is None else _when(view.ended_at, now)),
        ("time-out", "" if view.timeout is None else age(view.timeout)),
        ("workflow", printable(view.workflow)),
        ("trace", printable(view.trace_id)),
        ("progress", "" if view.progress is None else printable(str(view.progress))),
        ("size", size(view.size)),
    ]
    echo_fields([field for field in fields if field[1]])
    for title, text in (("value", view.raw), ("result", view.raw_result), ("error", view.error)):
        if text:
            click.echo(f"\n{title}:")
            click.echo(_indented(text))
    if view.history:
        click.echo("\nattempts:")
        for attempt in view.history:
            line = printable(attempt.error.partition("\n")[0])
            click.echo(f"  {attempt.number}  {moment(attempt.ended_at)}  {attempt.how}  {line}")
    if behind:
        click.echo("\nbehind it:")
        for other in behind[:LINE_SHOWN]:
            line = f"  {other.id}  {other.kind}  {other.raw}"
            click.echo(cut(printable(line), max(40, terminal_width() - 1)))
        if len(behind) > LINE_SHOWN:
            click.echo("  ...")


def _due_name(view: "ItemView") -> str:
    return {"in_flight": "lease ends", "done": "kept until"}.get(view.state, "due")


def _when(unix: float, now: float) -> str:
    away = f"in {age(unix - now)}" if unix > now else f"{age(now - unix)} ago"
    return f"{moment(unix)}  ({away})"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in printable_lines(text).split("\n"))


@click.command("stats", cls=StoreCommand, short_help="Show the store at a glance.")
@json_option
def stats(session: StoreSession, as_json: bool) -> None:
    """Show the store at a glance.

    With --json, one object.

    \b
    Examples:
      leasedkeyq stats sqlite:///jobs.db
      leasedkeyq stats --json | jq .buried
    """

    async def work(operator: "Operator") -> Any:
        return await operator.stats()

    found = session.run(work)
    if as_json:
        echo_json(found)
        return
    echo_fields(
        [
            ("store", printable(found.store)),
            ("durability", found.durability),
            ("queues", str(found.queues)),
            ("lanes", str(found.lanes) + _paused(found.paused)),
            ("workers", str(found.workers)),
            ("schedules", str(found.schedules)),
            ("waiting", str(found.available) + (f" ({found.held} held)" if found.held else "")),
            ("scheduled", str(found.scheduled)),
            ("running", str(found.in_flight)),
            ("dead", str(found.buried)),
            (
                "done",
                f"{found.done} ({found.done_failed} failed, {found.done_cancelled} cancelled)",
            ),
            ("oldest", age(found.oldest)),
        ]
    )


def _paused(lanes: tuple[str, ...]) -> str:
    return f" (paused: {', '.join(map(printable, lanes))})" if lanes else ""


_WORKER_COLUMNS = (
    Column("WORKER", shrinks=True),
    Column("HOST", shrinks=True),
    Column("PID", "right"),
    Column("VERSION"),
    Column("UP", "right"),
    Column("SEEN", "right"),
    Column("MEMORY", "right"),
    Column("RUNS", "right"),
    Column("LANES", shrinks=True),
)


@click.command("workers", cls=StoreCommand, short_help="List the workers, and what they run.")
@click.option("--running", is_flag=True, help="Also the commands that they run.")
@json_option
def workers(session: StoreSession, running: bool, as_json: bool) -> None:
    """List the workers, and what they run.

    UP is for how long a worker has run, SEEN when it last told that it lives.

    With --json, one array with an object for each worker.

    \b
    Examples:
      leasedkeyq workers
      leasedkeyq workers --running
    """

    async def work(operator: "Operator") -> Any:
        return await operator.workers()

    found = session.run(work)
    if as_json:
        echo_json(found)
        return
    if not found:
        raise CommandFailedError("no worker has told of itself", NOT_FOUND)
    now = time.time()
    echo_table(
        _WORKER_COLUMNS,
        [
            [
                view.id + ("" if view.alive else " (dead)"),
                view.host,
                str(view.pid),
                view.version,
                age(now - view.started_at),
                age(now - view.seen_at),
                size(view.memory) if view.memory else "-",
                str(view.running_count),
                ",".join(lane.lane for lane in view.lanes),
            ]
            for view in found
        ],
    )
    if running:
        for view in found:
            for command in view.running:
                line = f"{view.id}  {command.kind}  {command.command_id}"
                click.echo(f"{printable(line)}  {age(now - command.since)}")


_SCHEDULE_COLUMNS = (
    Column("SCHEDULE", shrinks=True),
    Column("LANE", shrinks=True),
    Column("TYPE", shrinks=True),
    Column("WHEN", shrinks=True),
    Column("NEXT"),
    Column("RUNS", "right"),
)


@click.command("schedules", cls=StoreCommand, short_help="List the schedules.")
@json_option
def schedules(session: StoreSession, as_json: bool) -> None:
    """List the schedules, and when they run.

    With --json, one array with an object for each schedule.

    \b
    Examples:
      leasedkeyq schedules
      leasedkeyq schedules --json | jq '.[] | select(.paused) | .name'
    """

    async def work(operator: "Operator") -> Any:
        return await operator.schedules()

    found = session.run(work)
    if as_json:
        echo_json(found)
        return
    if not found:
        raise CommandFailedError("there are no schedules", NOT_FOUND)
    echo_table(
        _SCHEDULE_COLUMNS,
        [
            [
                view.name,
                view.lane,
                view.kind,
                view.words or view.expression or f"every {age(view.every)}",
                "paused" if view.paused else moment(next(iter(view.next_runs), None)),
                str(view.runs),
            ]
            for view in found
        ],
    )
