"""Actions on many items: bounded steps, and nothing that has changed meanwhile is damaged."""

import asyncio
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import CommandCancelledError
from leasedkeyq.operations.items import bulk
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import ActionReport, ItemFilter
from leasedkeyq.stores import Claim, Put
from tests.lanes.support import clock
from tests.operations.support import bury, mail_manager


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_A_STEP", 7)


async def test_requeue_those_that_match_in_steps() -> None:
    async with MemoryStore(clock=clock) as store:
        for number in range(20):
            await bury(store, f"q{number % 2}", f"k{number}", f"OSError: {number % 4}", "a")
        await bury(store, "q0", "other", "ValueError", "b")
        operator = Operator(store, clock=clock)
        wanted = ItemFilter(kind="a", error="oserror")
        told: list[ActionReport] = []
        dry = await operator.bulk("requeue", None, wanted, dry_run=True, actor="ann")
        assert (dry.matched, dry.done, dry.dry_run) == (20, 20, True)
        assert sum(view.buried for view in await operator.queues()) == 21
        report = await operator.bulk("requeue", None, wanted, progress=told.append, actor="ann")
        assert (report.matched, report.done, report.complete) == (20, 20, True)
        assert [one.matched for one in told] == [7, 14, 20]
        assert not told[0].complete
        assert sum(view.buried for view in await operator.queues()) == 1
        none = await operator.bulk("requeue", None, wanted, actor="ann")
        assert (none.matched, none.complete) == (0, True)


async def test_it_can_be_stopped_and_goes_on_when_called_again() -> None:
    async with MemoryStore(clock=clock) as store:
        await store.put([Put("q", tuple((f"k{n}", b"1") for n in range(20)))])
        operator = Operator(store, clock=clock)
        asked: list[int] = []

        def stop() -> bool:
            asked.append(1)
            return len(asked) > 2

        report = await operator.bulk("remove", "q", ItemFilter(), should_stop=stop, actor="ann")
        assert (report.done, report.complete) == (14, False)
        rest = await operator.bulk("remove", "q", ItemFilter(), actor="ann")
        assert (rest.done, rest.complete) == (6, True)


async def test_what_changes_meanwhile_is_left_alone_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MemoryStore(clock=clock) as store:
        await store.put([Put("q", tuple((f"k{n}", b"1") for n in range(5)))])
        await store.put([Put("q", (("k4", b"2"),), "append")])
        operator = Operator(store, clock=clock)
        edit = store.edit

        async def edit_late(*arguments: Any, **options: Any) -> Any:
            await store.claim([Claim((("q", 2),), 2)])
            return await edit(*arguments, **options)

        monkeypatch.setattr(store, "edit", edit_late)
        wanted = ItemFilter(states=("available", "in_line"))
        report = await operator.bulk("remove", "q", wanted, actor="ann")
        assert (report.matched, report.done, report.failed_count) == (6, 4, 2)
        assert {why for _, _, why in report.failed} == {"it has changed meanwhile, or is gone"}
        [view] = await operator.queues()
        assert (view.in_flight, view.available) == (2, 0)


async def test_items_that_are_put_meanwhile_are_left_alone() -> None:
    async with MemoryStore(clock=clock) as store:
        await store.put([Put("q", tuple((f"k{n}", b"1") for n in range(10)))])
        operator = Operator(store, clock=clock)
        numbers = iter(range(1000))

        async def put_more(_: ActionReport) -> None:
            await store.put([Put("q", ((f"new{next(numbers)}", b"1"),))])

        report = await operator.bulk("cancel", "q", ItemFilter(), progress=put_more, actor="ann")
        assert report.done == 10
        [view] = await operator.queues()
        assert view.available == 2


async def test_cancelled_commands_tell_their_submitters() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        handles = [await manager.submit("mail", send(to="ann"), key=f"k{n}") for n in range(9)]
        report = await Operator(store, clock=clock).bulk(
            "cancel", "mail", ItemFilter(kind="send"), actor="ann"
        )
        assert report.done == 9
        ends = await asyncio.gather(*handles, return_exceptions=True)
        assert all(isinstance(end, CommandCancelledError) for end in ends)
        await manager.shutdown()


async def test_priority_and_time_of_many() -> None:
    async with MemoryStore(clock=clock) as store:
        await store.put([Put("q", tuple((f"k{n}", b"1") for n in range(9)))])
        await store.put([Put("q", tuple((f"later{n}", b"1") for n in range(9)), delay=600.0)])
        operator = Operator(store, clock=clock)
        late = ItemFilter(key_prefix="later")
        nonsense: Any = "nonsense"
        assert (await operator.bulk("priority", "q", late, priority=7, actor="ann")).done == 9
        assert (await operator.bulk("run_now", "q", ItemFilter(), actor="ann")).done == 9
        [claimed] = await store.claim([Claim((("q", 9),), 9)])
        assert {item.key[:5] for item in claimed} == {"later"}
        with pytest.raises(ValueError, match="priority goes with"):
            await operator.bulk("priority", "q", ItemFilter(), actor="ann")
        with pytest.raises(ValueError, match="can be done to items that are"):
            await operator.bulk("requeue", "q", ItemFilter(states=("done",)), actor="ann")
        with pytest.raises(ValueError, match="verb must be"):
            await operator.bulk(nonsense, "q", ItemFilter(), actor="ann")
        with pytest.raises(ValueError, match="left alone"):
            await operator.bulk("remove", "leasedkeyq.lanes", ItemFilter(), actor="ann")
