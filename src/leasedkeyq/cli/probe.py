"""`WorkerProbe`: how a worker process is, seen from threads beside its event loop."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, TypeVar

from leasedkeyq import LeasedKeyQError
from leasedkeyq.cli.health import Health
from leasedkeyq.cli.metrics_text import lane_text
from leasedkeyq.lanes import QueueManager, QueueStats
from leasedkeyq.telemetry import LaneMetrics

T = TypeVar("T")

BEAT: Final = 0.2
"""Seconds between two signs of life of the event loop."""
ANSWER: Final = 2.0
"""Seconds within which the store has to answer."""
FRESH: Final = 1.0
"""Seconds for which an answer of the store is taken for that of the next request, too."""


class WorkerProbe:
    """Tells whether the worker of this process lives and is ready, and its metrics.

    Args:
        stuck_after: Seconds for which the event loop may stand still.
    """

    def __init__(self, stuck_after: float) -> None:
        self._stuck_after = stuck_after
        self._manager: QueueManager | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._beat = time.monotonic()
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._store = Health(False, "")
        self._metrics: LaneMetrics | None = None
        self._exposition: Callable[[], bytes] | None = None
        self._last_text = ""

    def attach(self, manager: QueueManager, *, measure: bool) -> None:
        """Watch the event loop that runs here, and a manager that is about to run in it."""
        self._loop = asyncio.get_running_loop()
        self._manager = manager
        if measure:
            self._measure(manager)
        self._beating = self._loop.create_task(self._keep_beating(), name="leasedkeyq beat")

    def detach(self) -> None:
        """The manager has ended."""
        if self._beating is not None:
            self._beating.cancel()

    def _measure(self, manager: QueueManager) -> None:
        """Count for Prometheus, unless the program does; in memory if its client is missing."""
        try:
            module: Any = import_module("leasedkeyq.telemetry.prometheus")
            client: Any = import_module("prometheus_client")
        except ImportError:
            self._metrics = manager.metrics
            if self._metrics is None:
                self._metrics = LaneMetrics()
                manager.queue().add_instrument(self._metrics)
            return
        with suppress(ValueError):  # the program has one in the same registry
            manager.queue().add_instrument(module.PrometheusInstrument())
        self._exposition = client.generate_latest

    async def _keep_beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(BEAT)

    # In other threads

    def started(self) -> bool:
        """Whether the manager has begun to run commands."""
        return self._manager is not None and self._manager.queue().started

    def live(self) -> Health:
        """As `HealthSource.live`."""
        still = time.monotonic() - self._beat
        if self._loop is not None and still > self._stuck_after:
            return Health(False, f"the event loop has stood still for {still:.1f} s")
        return Health(True, "the event loop goes on")

    def ready(self) -> Health:
        """As `HealthSource.ready`."""
        manager = self._manager
        if manager is None or not manager.queue().started:
            return Health(False, "it starts")
        if manager.is_shutting_down():
            return Health(False, "it ends")
        if not (live := self.live()).well:
            return live
        overdue = manager.queue().leases_overdue()
        if overdue > 0:
            return Health(False, f"leases should have been renewed {overdue:.1f} s ago")
        return self._ask_store(manager)

    def _ask_store(self, manager: QueueManager) -> Health:
        with self._lock:
            if time.monotonic() - self._asked_at > FRESH:
                try:
                    self._in_loop(manager.stats())
                except TimeoutError:
                    self._store = Health(False, f"the store did not answer within {ANSWER:g} s")
                except (LeasedKeyQError, CancelledError) as error:
                    self._store = Health(False, str(error))
                else:
                    self._store = Health(True, "the store answers, and leases are renewed")
                self._asked_at = time.monotonic()
            return self._store

    def metrics(self) -> str:
        """As `HealthSource.metrics`. While the loop stands still, they are those of before."""
        manager = self._manager
        if manager is None:
            return ""
        try:
            self._last_text = self._in_loop(self._collect(manager))
        except (TimeoutError, LeasedKeyQError, CancelledError):
            if self._exposition is not None:
                return self._exposition().decode()
        return self._last_text

    async def _collect(self, manager: QueueManager) -> str:
        stats: QueueStats | None = None
        if manager.queue().started and not manager.is_shutting_down():
            stats = await manager.stats()  # which also sets the gauges of instruments
        if self._exposition is not None:
            return self._exposition().decode()
        assert self._metrics is not None
        return lane_text(self._metrics.snapshot(), stats)

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done in the event loop, if that goes on."""
        loop = self._loop
        if loop is None or not loop.is_running():
            work.close()
            raise TimeoutError
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(ANSWER)
        except TimeoutError:
            future.cancel()
            raise
