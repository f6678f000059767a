"""Alerts: told when a queue gets into trouble, and when it is out of it again."""

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from leasedkeyq import checks
from leasedkeyq.telemetry.stats import LaneStats, QueueStats
from leasedkeyq.types import Duration

logger = logging.getLogger(__name__)

AlertLevel: TypeAlias = Literal["ok", "warning", "critical"]
"""How bad it is."""

AlertKind: TypeAlias = Literal["queue_depth", "oldest_age", "failure_rate"]
"""What is looked at."""

SAMPLES = 100
"""How finely the window of a failure rate is divided."""


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """What to look at, and from where on it is a warning or critical.

    An alert begins when the value reaches a threshold and ends when it is below `release` times
    that threshold, so that a value that trembles around it does not raise it over and over. Make
    one with `queue_depth`, `oldest_age` or `failure_rate`.
    """

    kind: AlertKind
    warning: float | None
    """From where on it is a warning; None: never."""
    critical: float | None
    """From where on it is critical; None: never."""
    lane: str | None = None
    """The lane; None: all lanes together."""
    release: float = 0.8
    """Which share of a threshold the value must fall below, for the alert to end."""
    window: float = 300.0
    """Of a failure rate: over how many seconds."""
    least: int = 10
    """Of a failure rate: how many commands must have ended in the window."""

    def __post_init__(self) -> None:
        if self.warning is None and self.critical is None:
            raise ValueError("warning, critical or both must be given")
        most = 1 if self.kind == "failure_rate" else None
        for name, threshold in (("warning", self.warning), ("critical", self.critical)):
            if threshold is not None:
                checks.number(name, threshold, above=0, most=most)
        if self.warning is not None and self.critical is not None and self.warning > self.critical:
            raise ValueError(f"warning ({self.warning}) must not be above critical")
        checks.number("release", self.release, above=0, most=1)
        checks.number("window", self.window, above=0)
        checks.whole("least", self.least, 1)

    @classmethod
    def queue_depth(
        cls,
        warning: int | None = None,
        critical: int | None = None,
        *,
        lane: str | None = None,
        release: float = 0.8,
    ) -> "AlertRule":
        """The number of pending commands."""
        return cls(
            kind="queue_depth", warning=warning, critical=critical, lane=lane, release=release
        )

    @classmethod
    def oldest_age(
        cls,
        warning: Duration | None = None,
        critical: Duration | None = None,
        *,
        lane: str | None = None,
        release: float = 0.8,
    ) -> "AlertRule":
        """How long the oldest pending command has waited."""
        return cls(
            kind="oldest_age",
            warning=checks.wait_time("warning", warning),
            critical=checks.wait_time("critical", critical),
            lane=lane,
            release=release,
        )

    @classmethod
    def failure_rate(
        cls,
        warning: float | None = None,
        critical: float | None = None,
        window: Duration = 300.0,
        *,
        lane: str | None = None,
        least: int = 10,
        release: float = 0.8,
    ) -> "AlertRule":
        """The share, from 0 to 1, of commands that were given up among those that ended.

        Counted are those of the last `window`. While fewer than `least` have ended in it, the
        level stays as it is; when none has, it is ``"ok"``.
        """
        return cls(
            kind="failure_rate",
            warning=warning,
            critical=critical,
            lane=lane,
            release=release,
            window=checks.delay_time("window", window),
            least=least,
        )

    def level(self, value: float, current: AlertLevel = "ok") -> tuple[AlertLevel, float | None]:
        """The level of a value after `current`, and the threshold that decided."""
        if self.critical is not None:
            held = current == "critical"
            if value >= (self.critical * self.release if held else self.critical):
                return "critical", self.critical
        if self.warning is not None:
            held = current != "ok"
            if value >= (self.warning * self.release if held else self.warning):
                return "warning", self.warning
        return "ok", None


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A change of level."""

    rule: AlertRule
    lane: str | None
    """The lane, or None for all lanes together."""
    level: AlertLevel
    previous: AlertLevel
    value: float
    threshold: float | None
    """The threshold of `level`; None if that is ``"ok"``."""
    at: float
    """When it was seen, as Unix time."""

    def __str__(self) -> str:
        where = "all lanes" if self.lane is None else f"lane {self.lane!r}"
        what = self.rule.kind.replace("_", " ")
        limit = "" if self.threshold is None else f" (threshold {self.threshold:g})"
        return f"{self.level}: {what} of {where} is {self.value:g}{limit}, was {self.previous}"


AlertCallback: TypeAlias = Callable[[Alert], object]
"""Told of a change of level: a plain function, which is called in a thread and so may block, or a
coroutine function. What it returns is ignored."""


class AlertManager:
    """Keeps the level of each rule and tells of changes.

    Callbacks are called one alert after the other, and side by side with each other. One that
    raises, or takes longer than `callback_timeout`, is logged and harms nobody. As long as one
    that took too long does not end, it is not called again.

    Args:
        rules: What to look at.
        callbacks: Whom to tell.
        callback_timeout: How long a callback may take.
    """

    def __init__(
        self,
        rules: Iterable[AlertRule],
        callbacks: Iterable[AlertCallback] = (),
        *,
        callback_timeout: Duration = 10.0,
    ) -> None:
        self._watched = [_Watched(rule) for rule in rules]
        self._callbacks = [_Callback(function) for function in callbacks]
        self._timeout = checks.wait_time("callback_timeout", callback_timeout)

    def add_callbacks(self, *callbacks: AlertCallback) -> None:
        """Tell these, too. One that is told already is not told twice."""
        known = [callback.function for callback in self._callbacks]
        self._callbacks += [_Callback(function) for function in callbacks if function not in known]

    @property
    def rules(self) -> tuple[AlertRule, ...]:
        """The rules."""
        return tuple(watched.rule for watched in self._watched)

    @property
    def active(self) -> tuple[Alert, ...]:
        """For each rule whose level is not ``"ok"``: the alert that brought it there."""
        return tuple(w.alert for w in self._watched if w.alert and w.alert.level != "ok")

    async def check(self, stats: QueueStats, now: float | None = None) -> list[Alert]:
        """Compare `stats` with the rules, tell the callbacks of changes, and return these.

        The levels are set before anybody is told. When the call is cancelled, callbacks that run
        are cancelled, too.

        Args:
            stats: How things stand.
            now: The time; that of the system if None.
        """
        moment = time.time() if now is None else now
        changes = [alert for w in self._watched if (alert := w.look(stats, moment))]
        if changes and self._callbacks:
            async with asyncio.TaskGroup() as group:
                for callback in self._callbacks:
                    group.create_task(callback.tell(changes, self._timeout))
        return changes


class _Watched:
    """A rule and what has been seen of it."""

    def __init__(self, rule: AlertRule) -> None:
        self.rule = rule
        self.level: AlertLevel = "ok"
        self.alert: Alert | None = None
        self._ends: deque[tuple[float, int, int]] = deque()
        self._warned = False

    def look(self, stats: QueueStats, now: float) -> Alert | None:
        """The change of level, if there is one."""
        lanes = self._lanes(stats)
        value = self._value(lanes, now)
        if value is None:
            return None
        previous = self.level
        self.level, threshold = self.rule.level(value, previous)
        if self.level == previous:
            return None
        self.alert = Alert(
            rule=self.rule,
            lane=self.rule.lane,
            level=self.level,
            previous=previous,
            value=value,
            threshold=threshold,
            at=now,
        )
        return self.alert

    def _lanes(self, stats: QueueStats) -> list[LaneStats]:
        name = self.rule.lane
        if name is None:
            return list(stats.lanes.values())
        if name in stats.lanes:
            return [stats.lanes[name]]
        if not self._warned:
            self._warned = True
            logger.warning("an alert rule is about the lane %r, which there is not", name)
        return []

    def _value(self, lanes: list[LaneStats], now: float) -> float | None:
        match self.rule.kind:
            case "queue_depth":
                return sum(lane.pending for lane in lanes)
            case "oldest_age":
                return max((lane.oldest_age or 0.0 for lane in lanes), default=0.0)
            case "failure_rate":
                completed = sum(lane.completed for lane in lanes)
                return self._failure_rate(now, completed, sum(lane.failed for lane in lanes))

    def _failure_rate(self, now: float, completed: int, failed: int) -> float | None:
        ends, window = self._ends, self.rule.window
        if ends and (now < ends[-1][0] or completed < ends[-1][1] or failed < ends[-1][2]):
            ends.clear()  # the clock was set back, or the counters start anew
        while len(ends) > 1 and ends[1][0] <= now - window:
            ends.popleft()
        if len(ends) > 1 and ends[-1][0] - ends[-2][0] < window / SAMPLES:
            ends.pop()
        ends.append((now, completed, failed))
        more_completed, more_failed = completed - ends[0][1], failed - ends[0][2]
        count = more_completed + more_failed
        if 0 < count < self.rule.least:
            return None
        return more_failed / count if count else 0.0


class _Callback:
    """A callback, and the call of it that takes too long, if there is one."""

    def __init__(self, function: AlertCallback) -> None:
        if not callable(function):
            raise TypeError(f"a callback must be callable, got {type(function).__name__}")
        self.function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__  # of an object that is called
        )
        self._late: asyncio.Future[None] | None = None

    async def tell(self, alerts: list[Alert], timeout: float | None) -> None:
        """Call it for each alert. Raises nothing of its own."""
        for alert in alerts:
            if self._late is not None and not self._late.done():
                logger.warning("%r has not ended yet and is not told of: %s", self.function, alert)
                continue
            call = self._begin(alert)
            try:
                await asyncio.wait((call,), timeout=timeout)
            finally:
                if not call.done():
                    self._late = call
                    if isinstance(call, asyncio.Task):
                        call.cancel()
            if not call.done():
                logger.error("%r took longer than %s s with: %s", self.function, timeout, alert)
            elif call.cancelled():
                logger.error("%r was cancelled with: %s", self.function, alert)

    def _begin(self, alert: Alert) -> "asyncio.Future[None]":
        """Start a call; the future is done when it has really ended."""
        loop = asyncio.get_running_loop()
        if self._is_async:
            return loop.create_task(self._call(alert))
        ended: asyncio.Future[None] = loop.create_future()
        # Not of a pool: nobody waits for a daemon at the end of the program.
        threading.Thread(
            target=self._call_in_thread,
            args=(alert, loop, ended),
            name="leasedkeyq alert",
            daemon=True,
        ).start()
        return ended

    async def _call(self, alert: Alert) -> None:
        try:
            answer = self.function(alert)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("%r failed with: %s", self.function, alert)

    def _call_in_thread(
        self, alert: Alert, loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[None]"
    ) -> None:
        try:
            answer = self.function(alert)
            if inspect.isawaitable(answer):  # as of a lambda around a coroutine function
                asyncio.run_coroutine_threadsafe(_awaited(answer), loop).result()
        except BaseException:
            logger.exception("%r failed with: %s", self.function, alert)
        finally:
            with suppress(RuntimeError):  # the event loop is closed: nobody waits
                loop.call_soon_threadsafe(_finish, ended)


async def _awaited(answer: Awaitable[object]) -> None:
    await answer


def _finish(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)
