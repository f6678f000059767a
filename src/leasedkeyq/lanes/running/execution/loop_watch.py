"""`LoopWatch`: sees from another thread when an event loop does not give way, and says why.

A command that blocks (``time.sleep``, a driver that is not asynchronous, a long calculation) holds
up everything else in its event loop: other commands, their time-outs, and the renewal of leases. No
code in that loop can help then. So a thread looks at it from time to time, and asks it for a sign
of life while commands run. As long as the answers come, that is all it does.
"""

import asyncio
import logging
import sys
import threading
import time
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from leasedkeyq.errors import describe
from leasedkeyq.lanes.running.job import BATCH, CURRENT, Job

logger = logging.getLogger("leasedkeyq")

TICK = 0.25
"""Seconds between two looks at an event loop."""
NOTICE = 2.0
"""Seconds after which the log names what blocks an event loop, while it does."""
LATE = 1.0
"""Seconds by which a look is so late that the whole process must have stood still."""
VERY_LATE = 5.0
"""Seconds by which a look is so late that the log says so."""
LOG_PATIENCE = 1.0
"""Seconds for which the watch waits for a line in the log: what blocks may be the log itself."""
MAX_STALL = 60.0
"""Seconds beyond the time-out of a command after which a blocked event loop counts as stuck."""
MOST_NAMED = 5
"""Commands that one line in the log names."""
ADVICE = "make it a plain function (def), or use a thread: await asyncio.to_thread(...)"


class LeaseKeeper(Protocol):
    """What keeps leases alive while an event loop is blocked. Called in the thread of the watch."""

    @property
    def tick(self) -> float:
        """Seconds between two looks at the event loop, at most."""
        ...

    @property
    def notice(self) -> float:
        """Seconds after which the log names what blocks the event loop, at most."""
        ...

    def is_needed(self) -> bool:
        """Whether there is any lease."""
        ...

    def keep(self) -> None:
        """The event loop is blocked: renew the leases, if it is time."""
        ...

    def let_go(self) -> None:
        """The event loop goes on, and renews the leases itself."""
        ...


class Blocker(NamedTuple):
    """What an event loop runs at a moment: a command, if `job` is given, or something else."""

    job: Job | None
    task: str | None
    place: str
    others: int = 0
    """How many other commands are in its batch."""

    def __str__(self) -> str:
        if self.job is not None:
            lane = self.job.partition.lane.id
            more = f" (and {self.others} others of its batch)" if self.others else ""
            return f"lane {lane!r}: command {self.job.kind!r} of key {describe(self.job.key)}{more}"
        return "a callback" if self.task is None else f"task {self.task!r}"

    @property
    def extra(self) -> dict[str, Any]:
        """For logs that are read by programs."""
        job = self.job
        if job is None:
            return {"task": self.task, "place": self.place}
        return {
            "lane": job.partition.lane.id,
            "command_type": job.kind,
            "command_id": str(job.id),
            "key": job.key,
            "place": self.place,
        }


class LoopWatch:
    """Watches the event loop of an engine.

    Args:
        running: The jobs whose commands run.
        batches: The calls of handlers of batches that are under way, with their jobs.
        clock: A clock that never goes back, for tests.

    Attributes:
        keeper: Keeps leases while the event loop is blocked; None: there are none.
        max_stall: Seconds beyond its time-out for which a command may block the event loop. Then
            leases are not renewed any more. None: for ever.
        when_stuck: Called then, in the thread of the watch.
    """

    def __init__(
        self,
        running: Collection[Job],
        batches: Mapping[Task[Any], Sequence[Job]] = MappingProxyType({}),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keeper: LeaseKeeper | None = None
        self.max_stall: float | None = MAX_STALL
        self.when_stuck: Callable[[], None] | None = None
        self._running = running
        self._batches = batches
        self._clock = clock
        self._ended = threading.Event()
        self._loop: AbstractEventLoop | None = None
        self._loop_thread = 0
        self._due = inf
        """When the next look is due. One that comes much later tells that the process stood."""
        self._asked = self._answered = 0
        """How often the event loop was asked for a sign of life, and which of these it gave."""
        self._asked_at: float | None = None
        """Since when an answer is awaited. Time in which the process stood is not counted."""
        self._answered_at = 0.0
        self._blocked_for = 0.0
        """Seconds for which the event loop was blocked when it was last looked at."""
        self._told = self._stuck = False
        self._seen: dict[Job | str | None, Blocker] = {}
        """What the event loop ran whenever it was looked at while it was blocked."""

    @property
    def loop_thread(self) -> int:
        """The thread of the event loop, as far as it is known."""
        return self._loop_thread

    def blocker(self) -> str:
        """What the event loop runs at this moment, in words; for a blocked one."""
        return "" if self._loop is None else str(self._find(self._loop))

    @property
    def blocked_for(self) -> float:
        """Seconds for which the event loop has been blocked, as it was last looked at; or 0."""
        return self._blocked_for

    def start(self) -> None:
        """Watch the running event loop, until `stop` is called or the loop is closed."""
        self.bind(asyncio.get_running_loop())
        threading.Thread(target=self._run, name="leasedkeyq loop watch", daemon=True).start()

    def bind(self, loop: AbstractEventLoop) -> None:
        """Look at this event loop, which the calling thread runs."""
        self._loop = loop
        self._loop_thread = threading.get_ident()

    def stop(self) -> None:
        """Watch no more. The thread ends by itself, and nothing waits for it."""
        self._ended.set()

    def _run(self) -> None:
        pause: float | None = 0.0
        try:
            while pause is not None and not self._ended.wait(pause):
                pause = self.look()
        except Exception as error:
            text = "leasedkeyq loop watch has ended unexpectedly"
            log_apart(partial(_log, logging.ERROR, text, exc_info=error))
        finally:
            if self._asked_at is not None and self._answered == self._asked:
                self._goes_on()
            if self.keeper is not None:
                self.keeper.let_go()

    def look(self) -> float | None:
        """Look at the event loop once.

        Returns the seconds until the next look; None: the loop is closed.
        """
        loop = self._loop
        assert loop is not None
        if loop.is_closed():
            return None
        now = self._clock()
        stood = max(0.0, now - self._due)
        if stood > LATE:
            self._stood_still(stood)
        if self._asked_at is not None:
            if self._answered == self._asked:
                self._goes_on()
            elif not loop.is_running():
                self._forget()
            elif stood <= LATE:  # otherwise the loop is given the time to answer, too
                self._is_blocked(loop, now - self._asked_at)
        if self._asked_at is None and self._is_wanted() and loop.is_running():
            try:
                self._ask(loop)
            except RuntimeError:
                return None  # it was closed this moment
        pause = TICK if self.keeper is None else min(TICK, self.keeper.tick)
        self._due = self._clock() + pause
        return pause

    def _is_wanted(self) -> bool:
        return bool(self._running) or (self.keeper is not None and self.keeper.is_needed())

    # Signs of life

    def _ask(self, loop: AbstractEventLoop) -> None:
        self._asked += 1
        self._asked_at = self._clock()
        loop.call_soon_threadsafe(self._answer, self._asked)

    def _answer(self, number: int) -> None:
        """In the event loop: it goes on."""
        self._answered_at = self._clock()
        self._loop_thread = threading.get_ident()
        self._answered = number

    def _forget(self) -> None:
        self._asked_at = None
        self._blocked_for = 0.0
        self._told = self._stuck = False
        self._seen.clear()
        if self.keeper is not None:
            self.keeper.let_go()

    def _stood_still(self, seconds: float) -> None:
        """The whole process did not run: that time blames nobody."""
        if self._asked_at is None:
            return
        self._asked_at += seconds
        if seconds > VERY_LATE:
            loop = self._loop
            assert loop is not None
            _warn(
                "the whole process stood still for %.1f s, and no lease was renewed: it was "
                "stopped, the machine slept, or code that is not Python's held its interpreter "
                "lock, maybe %s",
                seconds,
                self._find(loop),
                extra={"seconds": seconds},
            )

    # An event loop that does not answer

    def _is_blocked(self, loop: AbstractEventLoop, seconds: float) -> None:
        self._blocked_for = seconds
        blocker = self._find(loop)
        self._seen.setdefault(blocker.job or blocker.task, blocker)
        if not self._stuck:
            limit = inf if self.max_stall is None else self.max_stall + _timeout(blocker.job)
            if self.keeper is not None and seconds >= limit:
                self._stuck = True
                self._give_up(blocker, seconds)
            elif self.keeper is not None:
                self.keeper.keep()
        notice = NOTICE if self.keeper is None else min(NOTICE, self.keeper.notice)
        if not self._told and seconds >= notice:
            self._told = True
            if blocker.job is not None:
                _warn(
                    "%s has not given way to the event loop for %.1f s, at %s; everything else "
                    "waits for it; %s",
                    blocker,
                    seconds,
                    blocker.place,
                    ADVICE,
                    extra={**blocker.extra, "seconds": seconds},
                )
            else:
                _warn(
                    "the event loop has been blocked for %.1f s by %s, at %s, which is no command "
                    "of a lane; commands wait for it",
                    seconds,
                    blocker,
                    blocker.place,
                    extra={**blocker.extra, "seconds": seconds},
                )

    def _give_up(self, blocker: Blocker, seconds: float) -> None:
        log_apart(
            partial(
                _log,
                logging.ERROR,
                "the event loop has been stuck for %.1f s, in %s, at %s; its leases are not "
                "renewed any more, so that other workers take its commands over",
                seconds,
                blocker,
                blocker.place,
                extra={**blocker.extra, "seconds": seconds},
            )
        )
        if self.keeper is not None:
            self.keeper.let_go()
        if self.when_stuck is not None:
            self.when_stuck()

    def _goes_on(self) -> None:
        assert self._asked_at is not None
        # If the process stood still just now, it may have been before or after the answer.
        seconds = max(self._blocked_for, self._answered_at - self._asked_at)
        seen = [*self._seen.values()]
        if seen and (self._told or seconds >= NOTICE):
            if len(seen) > 1:
                named = "; ".join(map(str, seen[:MOST_NAMED]))
                more = len(seen) - MOST_NAMED
                _warn(
                    "the event loop was blocked for %.1f s, in turn by %s%s",
                    seconds,
                    named,
                    f"; and {more} more" if more > 0 else "",
                    extra={"seconds": seconds},
                )
            elif seen[0].job is not None:
                _warn(
                    "%s ran %.1f s without giving way; %s",
                    seen[0],
                    seconds,
                    ADVICE,
                    extra={**seen[0].extra, "seconds": seconds},
                )
            else:
                _warn(
                    "the event loop was blocked for %.1f s by %s, at %s, which is no command of a "
                    "lane",
                    seconds,
                    seen[0],
                    seen[0].place,
                    extra={**seen[0].extra, "seconds": seconds},
                )
        self._forget()

    def _find(self, loop: AbstractEventLoop) -> Blocker:
        """What the event loop runs at this moment."""
        task = asyncio.current_task(loop)
        frame = sys._current_frames().get(self._loop_thread)
        place = "an unknown place"
        if frame is not None:
            code = frame.f_code
            place = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
        if task is None:
            return Blocker(None, None, place)
        jobs = self._jobs_of(task)
        job = jobs[0] if jobs else None
        return Blocker(job, task.get_name(), place, max(0, len(jobs) - 1))

    def _jobs_of(self, task: Task[Any]) -> Sequence[Job]:
        """The jobs whose commands run in a task, or have begun that task."""
        if (batch := self._batches.get(task)) is not None:
            return batch
        for job in list(self._running):
            if job.task is task:
                return (job,)
        # Python 3.11 does not tell the context of a task.
        context: Context | None = getattr(task, "get_context", lambda: None)()
        if context is None:
            return ()
        if batch := context.get(BATCH):
            return batch
        begun_by = context.get(CURRENT)
        return (begun_by,) if begun_by is not None and begun_by in self._running else ()


def _timeout(job: Job | None) -> float:
    return 0.0 if job is None else job.timeout or 0.0


def _warn(text: str, *arguments: object, extra: dict[str, Any]) -> None:
    log_apart(partial(_log, logging.WARNING, text, *arguments, extra=extra))


def _log(level: int, text: str, *arguments: object, **options: Any) -> None:
    logger.log(level, text, *arguments, **options)  # so that the record names this module


def log_apart(write: Callable[[], None]) -> None:
    """Write to the log, unless that takes long: the blocked thread may hold the lock of the log."""
    thread = threading.Thread(target=write, name="leasedkeyq log", daemon=True)
    thread.start()
    thread.join(LOG_PATIENCE)
