"""`TopApp`: the loop of `top`: what the poller has found is drawn, and keys do something."""

import asyncio
import logging
import textwrap
from asyncio import Task
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from leasedkeyq.cli.output import age, moment, printable, printable_lines
from leasedkeyq.cli.top.poller import TopPoller
from leasedkeyq.cli.top.screen import ScreenStyle, draw
from leasedkeyq.cli.top.state import PANES, SORTS, FailureRow, LaneRow, TopState
from leasedkeyq.cli.top.terminal import Terminal
from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import ActionReport, ItemView, LaneTotals

FRAME: Final = 0.1
"""Seconds at least between two pictures."""
MESSAGE_FOR: Final = 4.0
"""Seconds for which a message is shown."""
MOST_VALUE: Final = 20_000
"""Characters of a value that are shown."""
_STEPS: Final = {
    "up": -1,
    "down": 1,
    "page up": -10,
    "page down": 10,
    "home": -(10**6),
    "end": 10**6,
}


class TopApp:
    """A live view of a store, until it is told to end.

    Args:
        operator: Looks at the store, and acts.
        look: How things look.
        actor: Who acts, for the audit log.
    """

    def __init__(self, operator: Operator, look: ScreenStyle, *, actor: str) -> None:
        self._operator = operator
        self._actor = actor
        self._look = look
        self.state = TopState(store=operator.store.name)
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._poller = TopPoller(operator, self.state, self._changed.set)
        self._actions: set[Task[None]] = set()
        self._message_ends = 0.0
        self._about: tuple[str, int | None] = "", None
        """The item that is shown: its queue and its id."""
        self._page = 10

    async def run(self) -> None:
        """Show the store, until a key or a signal ends it.

        Raises:
            LeasedKeyQError: The store was closed.
        """
        loop = asyncio.get_running_loop()
        with _QuietLog(self._say), Terminal(self.press, self._changed.set, self._stop) as terminal:
            poller = asyncio.create_task(self._poller.run())
            poller.add_done_callback(lambda _: self._stop())
            try:
                while not self._stopped.is_set():
                    self._changed.clear()
                    if self.state.message and loop.time() > self._message_ends:
                        self.state.message = ""
                    width, height = terminal.size
                    self._page = max(1, height - 8)
                    terminal.show(draw(self.state, width, height, self._look))
                    await asyncio.sleep(FRAME)
                    waiting = [
                        asyncio.ensure_future(self._changed.wait()),
                        asyncio.ensure_future(self._stopped.wait()),
                    ]
                    await asyncio.wait(waiting, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                    for waiter in waiting:
                        waiter.cancel()
            finally:
                for task in (poller, *self._actions):
                    task.cancel()
                [ended, *_] = await asyncio.gather(poller, *self._actions, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    def _stop(self) -> None:
        self._stopped.set()
        self._changed.set()

    def _say(self, text: str) -> None:
        self.state.message = text
        self._message_ends = asyncio.get_running_loop().time() + MESSAGE_FOR
        self._changed.set()

    # Keys

    def press(self, key: str) -> None:
        """Do what a key means."""
        state = self.state
        self._changed.set()
        if key == "q":
            self._stop()
        elif state.help:
            state.help = False
        elif key in ("?", "h"):
            state.help = True
        elif key == "redraw":
            pass  # the next picture
        elif state.detail is not None:
            self._press_in_detail(key)
        elif key in _STEPS:
            state.select(state.pane, state.index(state.pane) + _STEPS[key])
        elif key in ("tab", "back tab"):
            step = 1 if key == "tab" else -1
            state.pane = PANES[(PANES.index(state.pane) + step) % len(PANES)]
        elif key == "s":
            state.sort = SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)]
        else:
            self._act(key)

    def _press_in_detail(self, key: str) -> None:
        state = self.state
        if key in ("escape", "enter"):
            state.detail = None
        elif key in _STEPS:
            last = max(0, len(state.detail or ()) - self._page)
            state.scroll = max(0, min(last, state.scroll + _STEPS[key]))
        elif key == "r":
            queue, number = self._about
            if number is not None:
                self._do(self._requeue(queue, number))

    def _act(self, key: str) -> None:
        """Do something with what is selected."""
        row = self.state.current()
        if row is None:
            return
        if key == "enter":
            self._do(self._show(row))
        elif key == "p":
            if isinstance(row, LaneRow) and row.is_lane:
                self._do(self._pause(row))
            else:
                self._say("only a lane can be paused: Tab goes to the lanes")
        elif key == "r":
            if isinstance(row, FailureRow) and row.id is not None:
                self._do(self._requeue(row.queue, row.id))
            else:
                self._say("only a failure can be put back: Tab goes to the failures")

    def _do(self, work: Awaitable[None]) -> None:
        async def action() -> None:
            try:
                await work
            except Exception as error:
                # A bug in one action does not end the view; the text says what it was.
                known = isinstance(error, LeasedKeyQError | ValueError)
                self._say(f"not done: {error if known else repr(error)}")

        task = asyncio.create_task(action())
        self._actions.add(task)
        task.add_done_callback(self._actions.discard)

    async def _pause(self, row: LaneRow) -> None:
        if row.paused:
            await self._operator.resume(row.name, actor=self._actor)
        else:
            await self._operator.pause(row.name, actor=self._actor)
        self._say(f"lane {row.name!r} {'goes on' if row.paused else 'is paused'}")
        await self._poller.look()
        self._changed.set()

    async def _requeue(self, queue: str, number: int) -> None:
        report: ActionReport = await self._operator.requeue(queue, number, actor=self._actor)
        if report.done:
            self._say(f"item {number} of {queue!r} was put back")
        else:
            reason = report.failed[0][2] if report.failed else report.note
            self._say(f"item {number} of {queue!r} was not put back: {reason or 'it is not dead'}")

    async def _show(self, row: object) -> None:
        state = self.state
        if isinstance(row, LaneRow):
            day = self._poller.series.totals(row.name, 86400)
            hour = self._poller.series.totals(row.name, 3600)
            self._about = "", None
            state.detail_title = f"{'LANE' if row.is_lane else 'QUEUE'} {row.name}"
            state.detail = lane_lines(row, hour, day)
        else:
            queue, number = getattr(row, "queue", ""), getattr(row, "id", None)
            item = None if number is None else await self._operator.item(queue, number)
            if item is None:
                self._say("it is not there any more")
                return
            self._about = item.queue, item.id
            state.detail_title = f"ITEM {item.id} OF {item.lane or item.queue}"
            state.detail = item_lines(item, state.now)
        state.scroll = 0
        self._changed.set()


def lane_lines(row: LaneRow, hour: LaneTotals, day: LaneTotals) -> list[str]:
    """What is known of a lane, in lines."""
    able = "-" if row.capacity is None else f"{row.capacity:,}"
    lines = [
        f"waiting {row.waiting:,}   running {row.in_flight:,}   scheduled {row.scheduled:,}",
        f"dead {row.dead:,}   oldest {age(row.oldest)}",
        f"workers can run {able} at a time{', and it is paused' if row.paused else ''}",
        "",
        f"{'':<22}{'last hour':>14}{'last day':>14}",
    ]

    def line(title: str, one: object, other: object) -> str:
        return f"{title:<22}{one!s:>14}{other!s:>14}"

    for title, name in (
        ("done", "completed"),
        ("given up", "failed"),
        ("tried again", "retried"),
        ("timed out", "timed_out"),
        ("cancelled", "cancelled"),
    ):
        lines.append(line(title, f"{getattr(hour, name):,}", f"{getattr(day, name):,}"))
    lines.append(line("failure rate", f"{hour.failure_rate:.1%}", f"{day.failure_rate:.1%}"))
    for title, name in (("waited", "wait"), ("ran", "run")):
        for percent in (50, 95, 99):
            field = f"{name}_p{percent}"
            lines.append(
                line(f"{title} p{percent}", _span(getattr(hour, field)), _span(getattr(day, field)))
            )
    return lines


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else age(seconds)


def item_lines(item: ItemView, now: float) -> list[str]:
    """What is known of an item, in lines of at most 76 characters."""
    lines = [
        f"key        {printable(item.key)}",
        f"kind       {printable(item.kind) or '-'}",
        f"state      {item.state}, attempt {item.attempt}, priority {item.priority}",
        f"put        {moment(item.put_at)} ({age(now - item.put_at)} ago)",
    ]
    if item.leased_at is not None:
        lines.append(f"leased     {moment(item.leased_at)} ({age(now - item.leased_at)} ago)")
    if item.holder:
        lines.append(f"holder     {printable(item.holder)}")
    if item.progress is not None:
        lines.append(f"progress   {printable(str(item.progress))}")
    if item.command_id:
        lines.append(f"command    {printable(item.command_id)}")
    for attempt in item.history:
        error = printable(attempt.error.partition("\n")[0])
        lines.append(
            f"attempt {attempt.number:<2} {moment(attempt.ended_at)} {attempt.how} {error}"
        )
    lines += ["", "value", *_wrapped(item.raw[:MOST_VALUE])]
    if item.raw_result:
        lines += ["", "result", *_wrapped(item.raw_result[:MOST_VALUE])]
    if item.error:
        lines += ["", "error", *_wrapped(item.error[:MOST_VALUE])]
    return lines


def _wrapped(text: str) -> Sequence[str]:
    return [
        part
        for line in printable_lines(text).splitlines()
        for part in (textwrap.wrap(line, 74, replace_whitespace=False) or [""])
    ]


class _QuietLog(logging.Handler):
    """Shows warnings as messages: lines on the terminal would spoil the picture."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._before: list[tuple[logging.Logger, list[logging.Handler], bool]] = []

    def __enter__(self) -> None:
        for name in ("leasedkeyq", "asyncio"):
            log = logging.getLogger(name)
            self._before.append((log, [*log.handlers], log.propagate))
            log.handlers[:] = [self]
            log.propagate = False

    def __exit__(self, *error: object) -> None:
        for log, handlers, propagate in self._before:
            log.handlers[:], log.propagate = handlers, propagate

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage().partition("\n")[0])
