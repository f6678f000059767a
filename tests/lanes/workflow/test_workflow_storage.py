"""Chains and gathers in a storage of somebody else, which is loaded by the next process."""

import asyncio

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    CommandStorage,
    GatherOutcome,
    LaneConfig,
    QueueManagerBuilder,
    RetryPolicy,
    Storage,
)
from tests.lanes.support import clock
from tests.lanes.test_storage import ListStorage

CONFIG = LaneConfig(0, 4, retry_policy=RetryPolicy.none())


class App:
    """A process: a manager on a storage, and what its commands did."""

    def __init__(self, storage: Storage | MemoryStore) -> None:
        builder = QueueManagerBuilder(clock=clock).with_lane("a", CONFIG, 0)
        self.manager = builder.with_lane("b", CONFIG, 1).with_storage(storage).build()
        self.runs: list[object] = []
        self.broken = False

        @self.manager.command("first")
        async def first(number: int) -> int:
            self.runs.append(number)
            return number + 1

        @self.manager.command("second")
        async def second(number: int, factor: int = 10) -> int:
            self.runs.append(number)
            if self.broken:
                raise LookupError("nothing there")
            return number * factor

        @self.manager.command("total")
        async def total(outcomes: list[GatherOutcome[int]]) -> int:
            self.runs.append([outcome.result for outcome in outcomes])
            return len(outcomes)

        self.first, self.second, self.total = first, second, total


async def test_the_next_process_goes_on() -> None:
    storage = ListStorage()
    app = App(storage)
    await app.manager.pause("b")
    await app.manager.start()
    await app.manager.chain(app.first(1), app.second, app.first, lane=["a", "b", "a"])
    members = [app.first(number) for number in range(3)]
    await app.manager.gather(members, then=app.total, lane="a", then_lane="b")
    await asyncio.sleep(5)
    assert sorted(map(str, app.runs)) == ["0", "1", "1", "2"]
    await app.manager.close()

    again = App(storage)
    async with again.manager:
        pass
    assert sorted(map(str, again.runs)) == ["2", "20", "[1, 2, 3]"]
    assert storage.commands == {}


async def test_outcomes_of_an_earlier_process_count() -> None:
    storage = ListStorage()
    app = App(storage)
    await app.manager.start()
    app.broken = True
    await app.manager.pause("b")
    commands = [app.first(1), app.second(5)]
    await app.manager.gather(commands, then=app.total, lane="a", then_lane="b")
    await app.manager.chain(app.first(7), app.second, app.first, lane="a")
    await asyncio.sleep(5)
    assert len(storage.letters) == 2
    await app.manager.close()

    again = App(storage)
    async with again.manager:
        assert await again.manager.dlq.requeue_all() == 2
    assert again.runs.count([2, None]) == 1
    assert {8, 80} <= {run for run in again.runs if isinstance(run, int)}


async def test_gathers_are_no_commands_to_look_at_and_are_cleared_with_all() -> None:
    store = MemoryStore(clock=clock)
    app = App(store)
    storage = CommandStorage(store)
    await app.manager.gather([app.first(1)], then=app.total, lane="a")
    commands = await storage.load_commands()
    assert [command.command_type for command in commands] == ["total", "first"]
    assert all(command.workflow for command in commands)
    await storage.clear_all()
    assert await store.count() == {}
    await app.manager.close()
