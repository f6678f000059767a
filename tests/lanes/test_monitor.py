"""The monitor: how often it looks, when it warns, and what it survives."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any, assert_type

import pytest

from leasedkeyq.lanes.monitor import MonitorConfig, QueueMonitor
from leasedkeyq.lanes.policies.alerts import Alert, AlertManager, AlertRule
from leasedkeyq.telemetry.stats import LaneStats, QueueStats
from tests.support import started, steps


class FakeQueue:
    """Says what it is told to say."""

    def __init__(self, pending: int = 0, active: int = 0) -> None:
        self.pending = pending
        self.active = active
        self.looks: list[float] = []
        self.trouble: Callable[[], None] | None = None

    async def stats(self) -> QueueStats:
        self.looks.append(asyncio.get_running_loop().time())
        if self.trouble is not None:
            self.trouble()
        lane = LaneStats(pending=self.pending, active=self.active)
        return QueueStats(total_pending=self.pending, total_active=self.active, lanes={"api": lane})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


async def test_it_looks_at_once_and_then_in_each_interval() -> None:
    queue = FakeQueue()
    monitor = QueueMonitor(queue)
    running = [monitor.running]
    await monitor.start()
    running.append(monitor.running)
    await asyncio.sleep(25)
    await monitor.stop()
    running.append(monitor.running)
    assert queue.looks == [0, 10, 20]
    assert running == [False, True, False]
    await asyncio.sleep(100)
    assert queue.looks == [0, 10, 20]


async def test_with_config() -> None:
    queue = FakeQueue()
    monitor = QueueMonitor.with_config(queue, MonitorConfig(interval=timedelta(seconds=5)))
    async with monitor as entered:
        assert_type(entered, QueueMonitor)
        await asyncio.sleep(11)
    assert queue.looks == [0, 5, 10]


async def test_stats_whether_it_runs_or_not() -> None:
    monitor = QueueMonitor(FakeQueue(3, 2))
    assert (await monitor.stats()).total_pending == 3
    async with monitor:
        assert (await monitor.stats()).total_active == 2


async def test_it_warns_once_per_crossing(caplog: pytest.LogCaptureFixture) -> None:
    queue = FakeQueue()
    async with QueueMonitor(queue, MonitorConfig(1, 100, 50)):
        await asyncio.sleep(0.5)
        said: list[list[str]] = []
        for pending, active in ((99, 49), (100, 0), (200, 50), (99, 50), (100, 49)):
            queue.pending, queue.active = pending, active
            await asyncio.sleep(1)
            said.append(warnings(caplog))
    assert said == [
        [],
        ["100 commands are pending, the limit is 100"],
        ["50 commands are active, the limit is 50"],
        [],
        ["100 commands are pending, the limit is 100"],
    ]


async def test_start_and_stop_are_idempotent_and_it_can_start_again() -> None:
    queue = FakeQueue()
    monitor = QueueMonitor(queue)
    await monitor.stop()
    await monitor.start()
    await monitor.start()
    await asyncio.sleep(5)
    await monitor.stop()
    await monitor.stop()
    assert queue.looks == [0]
    await monitor.start()
    await steps()
    assert queue.looks == [0, 5]
    await monitor.stop()
    assert len(asyncio.all_tasks()) == 1


async def test_a_queue_that_fails_is_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    queue = FakeQueue(pending=100)

    def fail() -> None:
        raise OSError("the disk is gone")

    queue.trouble = fail
    async with QueueMonitor(queue):
        await asyncio.sleep(15)
        assert caplog.text.count("OSError: the disk is gone") == 2
        assert warnings(caplog) == []
        queue.trouble = None
        await asyncio.sleep(10)
        assert len(warnings(caplog)) == 1


async def test_stop_while_it_looks() -> None:
    class SlowQueue(FakeQueue):
        async def stats(self) -> QueueStats:
            await asyncio.sleep(1000)
            raise AssertionError

    monitor = QueueMonitor(SlowQueue())
    await monitor.start()
    await steps()
    await monitor.stop()
    assert asyncio.get_running_loop().time() == 0
    assert len(asyncio.all_tasks()) == 1


async def test_alerts_are_checked_with_the_time() -> None:
    told: list[Alert] = []

    async def tell(alert: Alert) -> None:
        told.append(alert)

    queue = FakeQueue()
    loop = asyncio.get_running_loop()
    alerts = AlertManager([AlertRule.queue_depth(10)], [tell])
    async with QueueMonitor(queue, alerts=alerts, clock=lambda: 5000 + loop.time()):
        await asyncio.sleep(5)
        queue.pending = 10
        await asyncio.sleep(10)
        queue.pending = 0
        await asyncio.sleep(10)
    assert [(alert.level, alert.at) for alert in told] == [("warning", 5010), ("ok", 5020)]


async def test_a_callback_may_stop_the_monitor() -> None:
    async def stop(alert: Alert) -> None:
        await monitor.stop()

    alerts = AlertManager([AlertRule.queue_depth(10)], [stop])
    monitor = QueueMonitor(FakeQueue(pending=10), alerts=alerts)
    await monitor.start()
    await steps(20)
    assert not monitor.running
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_stop_still_stops() -> None:
    queue = FakeQueue()
    monitor = QueueMonitor(queue)
    await monitor.start()
    stopping = await started(monitor.stop())
    stopping.cancel()
    await asyncio.sleep(30)
    assert queue.looks == [0]


@pytest.mark.parametrize(
    "options, error",
    [
        ({"interval": 0}, ValueError),
        ({"interval": -1}, ValueError),
        ({"interval": inf}, ValueError),
        ({"interval": "10"}, TypeError),
        ({"pending_warning_threshold": 0}, ValueError),
        ({"active_warning_threshold": 0.5}, TypeError),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        MonitorConfig(**options)


def test_the_defaults() -> None:
    config = MonitorConfig()
    assert config == MonitorConfig(10.0, 100, 50)
    assert config.interval == 10.0
    assert config.pending_warning_threshold == 100
    assert config.active_warning_threshold == 50
