"""Lines of commands on stores of several processes: workers that are killed, other processes."""

import asyncio
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from tests.lanes.real_time import worker as lane_worker
from tests.lanes.real_time.scenarios import PATIENCE, Worker
from tests.lanes.real_time.worker import LANE
from tests.servers.urls import KINDS, empty_store

KEYS = 6
EACH = 12


@pytest.mark.parametrize("kind", KINDS)
def test_lines_keep_their_order_when_a_worker_is_killed(kind: str, tmp_path: Path) -> None:
    """Two workers, kill -9 of one: each command runs, and the order of each key holds."""
    options: dict[str, Any] = {"min_concurrency": 0, "max_concurrency": 4, "lease_time": 1.0}
    options["keep_results"] = 600.0

    async def submit(url: str) -> list[int]:
        manager = lane_worker.build(url, dict(options)).build()
        work = lane_worker.register(manager)
        pairs = [(f"key {number % KEYS}", work(number, 0.02)) for number in range(KEYS * EACH)]
        handles = await manager.submit_many(LANE, pairs)
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(url, dict(options))) for _ in range(2)]
            until = time.monotonic() + PATIENCE
            while len(workers[0].told) < 10 and time.monotonic() < until:
                await asyncio.sleep(0.01)
            workers[0].kill()
            async with asyncio.timeout(PATIENCE):
                results = await asyncio.gather(*(handle.wait() for handle in handles))
            check([fact for one in workers for fact in one.told])
        await manager.close()
        return results

    with empty_store(kind, tmp_path) as url:
        assert asyncio.run(submit(url)) == [*range(KEYS * EACH)]


def check(told: list[tuple[str, str, float]]) -> None:
    """Starts of a key never go back, and a command ends before the next of its key starts."""
    for key in range(KEYS):
        mine = [(when, int(number), what) for what, number, when in told]
        mine = sorted(fact for fact in mine if fact[1] % KEYS == key)
        starts = [number for _, number, what in mine if what == "start"]
        assert sorted(set(starts)) == [*range(key, KEYS * EACH, KEYS)]
        assert starts == sorted(starts), f"key {key}: {starts}"
        for (_, number, what), (_, following, _) in pairwise(mine):
            assert number == following or what == "end", f"{following} started beside {number}"


@pytest.mark.parametrize("kind", KINDS)
def test_handles_deep_in_a_line_are_told_by_other_processes(kind: str, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        config = LaneConfig(0, 4, keep_results=600.0)
        builders = [QueueManagerBuilder().with_lane("x", config, 0) for _ in range(2)]
        submitter, runner = [builder.with_storage(url).build() for builder in builders]
        ran: list[int] = []

        async def run(number: int) -> int:
            ran.append(number)
            return number

        note = submitter.command("note", run)
        runner.command("note", run)
        handles = await submitter.submit_many("x", [("k", note(n)) for n in range(60)])
        waiting = [asyncio.ensure_future(handle.wait()) for handle in handles]
        assert await handles[30].cancel()
        async with runner, asyncio.timeout(PATIENCE):
            done = await asyncio.gather(*waiting, return_exceptions=True)
        assert [n for n in done if isinstance(n, int)] == [n for n in range(60) if n != 30] == ran
        await submitter.close()

    with empty_store(kind, tmp_path) as url:
        asyncio.run(main(url))
