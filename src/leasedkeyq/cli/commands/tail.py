"""tail: what happens in a store, as it happens."""

import asyncio
import select
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from leasedkeyq.cli.choices import SPAN, json_option
from leasedkeyq.cli.output import age, counted, cut, echo_json, printable, terminal_width
from leasedkeyq.cli.store_command import StoreCommand, StoreSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasedkeyq.operations.live.feed import Feed
    from leasedkeyq.operations.operator import Operator
    from leasedkeyq.operations.views import FeedEvent, FeedOutcome

OUTCOMES: "dict[str, FeedOutcome]" = {
    "submitted": "submitted",
    "started": "started",
    "completed": "completed",
    "retry": "retry",
    "failed": "failed",
    "timeout": "timeout",
    "cancelled": "cancelled",
    "dead": "dead_lettered",
    "ended": "ended",
    "pressure": "pressure",
    "idle": "idle",
    "shutdown": "shutdown",
    "dropped": "dropped",
}
"""What can be said for ``--outcome``, and the outcome of a `FeedEvent` that is meant."""
_SHOWN = {outcome: name for name, outcome in OUTCOMES.items()}
PIPE_LOOK = 1.0
"""Seconds after which a pipe that nobody reads any more is noticed."""


@click.command("tail", cls=StoreCommand, words="[QUEUE...]", short_help="Show what happens, live.")
@click.option(
    "--outcome",
    "-o",
    "outcomes",
    multiple=True,
    type=click.Choice(list(OUTCOMES)),
    metavar="OUTCOME",
    help=f"Only this: {', '.join(OUTCOMES)}. May be given several times.",
)
@click.option("--kind", "kinds", multiple=True, help="Only commands of this type.")
@click.option("--key", "-k", "keys", multiple=True, help="Only keys that match, such as order-*.")
@click.option("--limit", "-l", type=click.IntRange(1), help="End after so many lines.")
@click.option("--for", "duration", type=SPAN, metavar="SPAN", help="End after this time.")
@json_option
def tail(
    session: StoreSession,
    *,
    queue: tuple[str, ...],
    outcomes: tuple[str, ...],
    kinds: tuple[str, ...],
    keys: tuple[str, ...],
    limit: int | None,
    duration: float | None,
    as_json: bool,
) -> None:
    """Show what happens, live.

    That is in all queues and lanes, or in those that are named. Workers publish what they do while
    somebody listens, and stop soon after. A queue that no worker serves is looked at again and
    again: what comes and goes between two looks is not seen, and how an item has ended is known
    only if it left a result, was buried or came back. Commands that programs without workers
    submit are shown when they start. If there is too much, some is dropped, and a line says how
    many.

    Times are UTC. With --json, each line is an object. Ctrl-C ends it.

    \b
    Examples:
      leasedkeyq tail sqlite:///jobs.db
      leasedkeyq tail mail --outcome failed --outcome dead
      leasedkeyq tail --key 'order-*' --json | jq .error
    """

    async def work(operator: "Operator") -> None:
        from leasedkeyq.operations.live.feed import Feed  # noqa: PLC0415 - the help needs it not

        feed = Feed(
            operator.store,
            queue or None,
            kinds=kinds,
            keys=keys,
            outcomes=[OUTCOMES[name] for name in outcomes],
        )
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGTERM, _end, feed)
        if sys.stderr.isatty():
            click.echo(f"listening to {printable(operator.store.name)}, Ctrl-C ends it", err=True)
        async with feed:
            with suppress(TimeoutError):
                async with asyncio.timeout(duration):
                    number = 0
                    async for event in _while_read(feed):
                        if as_json:
                            echo_json(event)
                        else:
                            click.echo(line(event, _width()))
                        sys.stdout.flush()
                        number += 1
                        if number == limit:
                            return

    session.run(work)


_ending: set[asyncio.Task[None]] = set()


def _end(feed: "Feed") -> None:
    task = asyncio.get_running_loop().create_task(feed.close())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


async def _while_read(feed: "Feed") -> "AsyncIterator[FeedEvent]":
    """The events of a feed, until nobody reads them any more.

    Raises:
        BrokenPipeError: Standard output is a pipe that nobody reads.
    """
    following = asyncio.ensure_future(anext(feed))
    try:
        while True:
            done, _ = await asyncio.wait([following], timeout=PIPE_LOOK)
            if done:
                try:
                    event = following.result()
                except StopAsyncIteration:
                    return
                following = asyncio.ensure_future(anext(feed))
                yield event
            elif _nobody_reads():
                raise BrokenPipeError
    finally:
        following.cancel()


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose other end is closed."""
    if sys.stdout.isatty() or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False  # it is no file, as in a test
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _width() -> int | None:
    return terminal_width() if sys.stdout.isatty() else None


def line(event: "FeedEvent", width: int | None) -> str:
    """An event in one line, of at most `width` columns."""
    when = datetime.fromtimestamp(event.at, UTC).strftime("%H:%M:%S")
    parts = [f"{when} {_SHOWN[event.outcome]:<9}"]
    if event.outcome == "dropped":
        parts.append(counted(event.count or 0, "event"))
        parts.append(printable(f"of worker {event.worker}" if event.worker else event.queue))
        return _fitted(" ".join(parts), width)
    parts.append(f"{cut(printable(event.queue), 12):<12}")
    if event.key:
        parts.append(f"{cut(printable(event.key), 20):<20}")
    if event.kind:
        parts.append(printable(event.kind))
    if event.attempt > 1:
        parts.append(f"#{event.attempt}")
    if event.delay is not None:
        parts.append(f"again in {age(event.delay)}")
    if event.count is not None:
        parts.append(f"{event.count:,} waiting")
    if event.error:
        parts.append(printable(event.error.partition("\n")[0]))
    return _fitted(" ".join(parts), width)


def _fitted(text: str, width: int | None) -> str:
    return text.rstrip() if width is None else cut(text.rstrip(), width)
