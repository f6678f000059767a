"""A monitor: looks at a queue from time to time and warns when too much is in it."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from leasedkeyq import checks
from leasedkeyq.lanes.policies.alerts import AlertManager
from leasedkeyq.telemetry.stats import QueueStats
from leasedkeyq.types import Duration

logger = logging.getLogger(__name__)


class HasStats(Protocol):
    """Anything that can tell its statistics, such as a `QueueManager`."""

    async def stats(self) -> QueueStats:
        """How things stand now."""
        ...


@dataclass(frozen=True, init=False)
class MonitorConfig:
    """How often to look, and how much is too much.

    Args:
        interval: Seconds between two looks.
        pending_warning_threshold: How many pending commands are worth a warning.
        active_warning_threshold: How many running commands are worth a warning.
    """

    interval: float
    pending_warning_threshold: int
    active_warning_threshold: int

    def __init__(
        self,
        interval: Duration = 10.0,
        pending_warning_threshold: int = 100,
        active_warning_threshold: int = 50,
    ) -> None:
        seconds = checks.delay_time("interval", interval)
        if seconds == 0:
            raise ValueError("interval must be greater than 0")
        pending = checks.whole("pending_warning_threshold", pending_warning_threshold, 1)
        active = checks.whole("active_warning_threshold", active_warning_threshold, 1)
        object.__setattr__(self, "interval", seconds)
        object.__setattr__(self, "pending_warning_threshold", pending)
        object.__setattr__(self, "active_warning_threshold", active)


class QueueMonitor:
    """Looks at a queue in the background, logs a warning when it is too full, and checks alerts.

    A warning is logged when a threshold is reached, and again only after the number was below it.
    What goes wrong while looking is logged, and the monitor goes on. ``async with`` starts and
    stops it.

    Args:
        queue: What to look at: a `QueueManager`, or anything with its `stats`.
        config: How often, and from where on to warn.
        alerts: Rules that are checked at each look.
        clock: Returns the Unix time.
    """

    def __init__(
        self,
        queue: HasStats,
        config: MonitorConfig | None = None,
        *,
        alerts: AlertManager | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._config = config or MonitorConfig()
        self._alerts = alerts
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._above: set[str] = set()

    @classmethod
    def with_config(cls, queue: HasStats, config: MonitorConfig) -> "QueueMonitor":
        """A monitor with another configuration."""
        return cls(queue, config)

    @property
    def running(self) -> bool:
        """Whether it looks from time to time."""
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Look now, and then once in each interval, until `stop`. Does nothing if it runs."""
        if not self.running:
            self._task = asyncio.create_task(self._run(), name="leasedkeyq monitor")

    async def stop(self) -> None:
        """Look no more; what is under way is cancelled and has ended when this returns."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def stats(self) -> QueueStats:
        """How things stand now, whether the monitor runs or not."""
        return await self._queue.stats()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        while True:
            try:
                stats = await self._queue.stats()
                self._warn(stats)
                if self._alerts is not None:
                    await self._alerts.check(stats, self._clock())
            except Exception:
                logger.exception("looking at a queue failed")
            await asyncio.sleep(self._config.interval)

    def _warn(self, stats: QueueStats) -> None:
        config = self._config
        for name, value, threshold in (
            ("pending", stats.total_pending, config.pending_warning_threshold),
            ("active", stats.total_active, config.active_warning_threshold),
        ):
            if value < threshold:
                self._above.discard(name)
            elif name not in self._above:
                self._above.add(name)
                logger.warning("%d commands are %s, the limit is %d", value, name, threshold)
