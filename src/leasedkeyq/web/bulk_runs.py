"""Actions on many items, in the background of the page, while people watch their progress."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.operations.views import ActionReport

MOST_KEPT: Final = 50
"""Runs that are remembered; beyond it, the oldest that has ended is forgotten."""
MOST_AT_A_TIME: Final = 4
PATIENCE: Final = 2.0
"""Seconds for which a form waits for its run, so that most people never see that there is one."""

logger = logging.getLogger("leasedkeyq.web")

BulkWork: TypeAlias = Callable[
    [Callable[[ActionReport], None], Callable[[], bool]], Awaitable[ActionReport]
]
"""What a run does: it tells after each step what was done so far, and asks whether to stop."""


class TooManyRunsError(Exception):
    """As many actions on many items are under way as there may be at a time."""


class BulkRun:
    """An action on many items.

    Attributes:
        id: Its id in addresses.
        action: What it does, as a verb.
        target: What it does it to, in words.
        who: Who has started it.
        began: When, as Unix time.
        ended: When it ended; None while it goes on.
        done: How many items it has dealt with so far.
        matched: How many it has found so far.
        report: What became of it, once it has ended.
        error: Why it failed, if it did.
        stopped: Whether somebody wants it to stop.
    """

    def __init__(self, action: str, target: str, who: str) -> None:
        self.id = secrets.token_hex(8)
        self.action = action
        self.target = target
        self.who = who
        self.began = time.time()
        self.ended: float | None = None
        self.done = 0
        self.matched = 0
        self.report: ActionReport | None = None
        self.error = ""
        self.stopped = False
        self._over = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long; returns whether it has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    def tell(self, report: ActionReport) -> None:
        """How far it has come."""
        self.done, self.matched = report.done, report.matched

    def end(self, report: ActionReport | None, error: str = "") -> None:
        """It is over."""
        self.report, self.error = report, error
        if report is not None:
            self.done, self.matched = report.done, report.matched
        self.ended = time.time()
        self._over.set()


class BulkRuns:
    """The actions on many items of one store, by this process."""

    def __init__(self) -> None:
        self._runs: dict[str, BulkRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def get(self, run: str) -> BulkRun | None:
        """A run; None if it is not known here, or not any more."""
        return self._runs.get(run)

    def all(self) -> list[BulkRun]:
        """All that are remembered, the newest first."""
        return [*reversed(self._runs.values())]

    def start(
        self,
        run: BulkRun,
        work: BulkWork,
        ended: Callable[[BulkRun], Awaitable[None]],
    ) -> BulkRun:
        """Start a run.

        Args:
            run: The run.
            work: Does it.
            ended: Is told when it is over, whether it failed or not.

        Raises:
            TooManyRunsError: Enough are under way already.
        """
        if len(self._tasks) >= MOST_AT_A_TIME:
            raise TooManyRunsError(
                f"{MOST_AT_A_TIME} actions on many items are under way already; wait for one of "
                "them, or stop it"
            )
        while len(self._runs) >= MOST_KEPT:
            oldest = next((one for one in self._runs.values() if one.ended is not None), None)
            if oldest is None:
                break
            del self._runs[oldest.id]
        self._runs[run.id] = run
        task = asyncio.get_running_loop().create_task(
            self._run(run, work, ended), name=f"leasedkeyq web: {run.action}"
        )
        self._tasks[run.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run.id, None))
        return run

    async def close(self) -> None:
        """Stop what is under way, after the step that it is at."""
        for run in self._runs.values():
            run.stopped = True
        if tasks := [*self._tasks.values()]:
            await asyncio.wait(tasks)

    async def _run(
        self, run: BulkRun, work: BulkWork, ended: Callable[[BulkRun], Awaitable[None]]
    ) -> None:
        try:
            run.end(await work(run.tell, lambda: run.stopped))
        except (LeasedKeyQError, ValueError, LookupError) as error:
            run.end(None, str(error))
        except Exception:
            # What it says may quote a value of which a part is to be hidden.
            logger.exception("an action on many items has failed: %s", run.action)
            run.end(None, "it failed unexpectedly; the log of the page says more")
        except asyncio.CancelledError:
            run.end(None, "the page was shut down")
            raise
        await ended(run)
