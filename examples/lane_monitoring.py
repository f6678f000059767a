"""Watch the depth of lanes, and be told when there is too much in them."""

import asyncio

from leasedkeyq.lanes import (
    Alert,
    AlertRule,
    LaneConfig,
    MonitorConfig,
    QueueManagerBuilder,
    QueueMonitor,
)


async def main() -> None:
    told = asyncio.Event()

    async def page(alert: Alert) -> None:
        print(f"{alert.level}: {alert.rule.kind} is {alert.value:.0f}")
        told.set()

    builder = QueueManagerBuilder().with_lane("mail", LaneConfig(0, 1), 0)
    rules = [AlertRule.queue_depth(warning=5, critical=100)]
    manager = builder.with_alerts(rules, page, monitor=MonitorConfig(interval=0.01)).build()

    @manager.command("send")
    async def send(number: int) -> int:
        return number

    async with manager:
        manager.pause("mail")
        for number in range(10):
            await manager.submit("mail", send(number))
        await told.wait()
        monitor = QueueMonitor.with_config(manager, MonitorConfig(interval=5))
        stats = await monitor.stats()
        print(f"pending: {stats.total_pending}, active: {stats.total_active}")
        manager.resume("mail")
        await manager.drain()


asyncio.run(main())
