"""A worker process for the tests in real time: it tells when commands start and end.

``start NUMBER TIME`` and ``end NUMBER TIME``, one line each, as Unix time; ``ready`` before.
"""

import asyncio
import json
import sys
import time
from typing import Any

from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, RateLimitConfig

LANE = "work"


def build(url: str | None, options: dict[str, Any]) -> QueueManagerBuilder:
    """A manager with one lane. `options` are those of the lane, as JSON has them."""
    limit = options.pop("rate_limit", None)
    if limit is not None:
        options["rate_limit"] = RateLimitConfig.per_second(*limit)
    builder = QueueManagerBuilder().with_lane(LANE, LaneConfig(**options), 0)
    return builder if url is None else builder.with_storage(url)


def register(manager: QueueManager) -> Any:
    @manager.command("work")
    async def work(number: int, seconds: float = 0.0) -> int:
        print(f"start {number} {time.time()}", flush=True)
        if seconds:
            await asyncio.sleep(seconds)
        print(f"end {number} {time.time()}", flush=True)
        return number

    return work


async def main(url: str, options: str) -> None:
    manager = build(url, json.loads(options)).build()
    register(manager)
    print("ready", flush=True)
    await manager.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
