"""A worker that has something to do, for tests that look at it: ``lively_worker.py URL``."""

import asyncio
import os
import signal
import sys

from leasedkeyq import connect
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder, RetryPolicy, current_command

QUICK = LaneConfig(0, 4, retry_policy=RetryPolicy.none())


async def main(url: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with connect(url) as store:
        builder = QueueManagerBuilder()
        for priority, lane in enumerate(("mail", "images", "reports")):
            builder.with_lane(lane, QUICK, priority)
        manager = builder.with_storage(store).build()

        @manager.command("send")
        async def send(to: str) -> str:
            await asyncio.sleep(0.01)
            if to.startswith("bad"):
                raise ValueError(f"no such address: {to}")
            return to

        @manager.command("render")
        async def render(name: str) -> None:
            for step in range(600):
                current_command().progress(min(1.0, 0.4 + step / 1000), f"page {step}")
                await asyncio.sleep(1)

        async with manager:
            await manager.submit("reports", render("yearly"), key="report-2026")
            print("ready", flush=True)
            number = 0
            while not stopped.is_set():
                number += 1
                await manager.submit("mail", send(f"user-{number}"), key=f"user-{number}")
                if number % 10 == 1:
                    await manager.submit("images", send(f"bad-{number}"), key=f"bad-{number}")
                await asyncio.sleep(0.05)
    os._exit(0)  # the report goes on for minutes


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
