"""Time-outs cancel a command; failures are retried, and what fails for good is a dead letter."""

import asyncio

from leasedkeyq.lanes import (
    CommandTimeoutError,
    LaneConfig,
    QueueManagerBuilder,
    RetryPolicy,
    current_command,
)


async def main() -> None:
    policy = RetryPolicy.exponential(2).with_initial_delay(0.01).with_max_delay(0.1)
    config = LaneConfig(1, 5).with_timeout(0.1).with_retry_policy(policy)
    manager = QueueManagerBuilder().with_lane("external-api", config, 0).with_dlq(1000).build()

    @manager.command("flaky")
    async def flaky() -> str:
        attempt = current_command().attempt
        if attempt < 3:
            raise ConnectionError("try again")
        return f"worked at attempt {attempt}"

    @manager.command("hang")
    async def hang() -> None:
        await asyncio.sleep(3600)

    async with manager:
        print(await (await manager.submit("external-api", flaky())))
        handle = await manager.submit("external-api", hang())
        try:
            await handle
        except CommandTimeoutError:
            print("timed out", handle.attempt, "times")
        for letter in await manager.dlq.list():
            print("failed:", letter.command_type, "after", letter.attempts, "attempts")


asyncio.run(main())
