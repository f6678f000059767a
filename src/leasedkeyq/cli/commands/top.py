"""top: a live view that fills the terminal."""

import os
import sys
from typing import TYPE_CHECKING

import click

from leasedkeyq.cli.exit_codes import MISUSED
from leasedkeyq.cli.store_command import CommandFailedError, StoreCommand, StoreSession

if TYPE_CHECKING:
    from leasedkeyq.operations.operator import Operator


@click.command("top", cls=StoreCommand, short_help="Watch lanes, commands and failures, live.")
@click.option("--ascii", "plain", is_flag=True, help="Draw bars with letters, not with blocks.")
def top(session: StoreSession, *, plain: bool) -> None:
    """Watch lanes, commands and failures, live.

    Lanes with what waits and runs in them, how much is done per second and how that was over the
    last minutes; what runs now, with its progress; and failures as they come. Keys pause and resume
    a lane, put a failure back, and look into an item; ? explains them. With NO_COLOR set, there
    are no colours.

    It needs a terminal. For a pipe, there are tail and queues --watch.

    \b
    Examples:
      leasedkeyq top sqlite:///jobs.db
      NO_COLOR=1 leasedkeyq top redis://cache.example.com/0
    """
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise CommandFailedError(
            "top needs a terminal for what it shows and for keys; in a pipe, use leasedkeyq tail "
            "or leasedkeyq queues --watch --json",
            MISUSED,
        )
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        raise CommandFailedError(
            "top needs a terminal that can move its cursor, and TERM says that this one cannot; "
            "set TERM, such as TERM=xterm, or use leasedkeyq queues --watch",
            MISUSED,
        )
    if os.name != "posix":
        raise CommandFailedError("top needs a POSIX terminal; use queues --watch", MISUSED)
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")

    async def work(operator: "Operator") -> None:
        # Only this command needs them.
        from leasedkeyq.cli.top.app import TopApp  # noqa: PLC0415
        from leasedkeyq.cli.top.screen import ScreenStyle  # noqa: PLC0415

        look = ScreenStyle(
            colours=not os.environ.get("NO_COLOR"), blocks=encoding == "utf8" and not plain
        )
        await TopApp(operator, look, actor=session.actor).run()

    session.run(work)
