"""What an operator sees of a store."""

import asyncio

import msgspec
import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, UnknownCommandError
from leasedkeyq.operations.items.error_groups import group_of
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import ItemFilter
from leasedkeyq.stores import Put
from tests.lanes.support import clock
from tests.operations.support import bury, mail_manager


async def test_queues_with_their_counts() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = Operator(store, clock=clock)
        assert await operator.queues() == []
        await store.put([Put("b", (("x", b"1"), ("y", b"2"))), Put("a", (("z", b"3"),), delay=60)])
        await bury(store, "b", "w", "ValueError: 1")
        a, b = await operator.queues()
        assert (a.name, a.available, a.scheduled, a.oldest) == ("a", 0, 1, None)
        assert (b.name, b.available, b.buried, b.kind) == ("b", 2, 1, "queue")
        assert b.oldest is not None
        stats = await operator.stats()
        assert (stats.queues, stats.available, stats.scheduled, stats.buried) == (2, 2, 1, 1)
        assert stats.durability == "none"
        assert msgspec.json.decode(msgspec.json.encode(stats))["store"] == store.name


async def test_a_command_is_shown_with_its_arguments() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        handle = await manager.submit("mail", send(to="ann"), key="k")
        operator = Operator(store, clock=clock)
        [queue] = await operator.queues()
        assert (queue.name, queue.kind, queue.lane) == ("mail", "lane", "mail")
        view = await operator.find(handle.id)
        assert view is not None
        assert view == await operator.item("mail", "k") == await operator.item("mail", view.id)
        assert view.command_id == handle.id
        assert (view.kind, view.value["to"], view.lane) == ("send", "ann", "mail")
        assert msgspec.json.decode(view.raw) == view.value
        [lane] = await operator.lanes()
        assert (lane.name, lane.available) == ("mail", 1)
        with pytest.raises(UnknownCommandError):
            await operator.find("nonsense")
        assert await operator.find(handle.id.replace("k", "j")) is None
        assert await operator.item("mail", "j") is None
        assert await operator.item("mail", 999) is None
        await manager.shutdown()


async def test_pages_of_a_filter_are_bounded_and_complete() -> None:
    async with MemoryStore(clock=clock) as store:
        await store.put(
            [Put("q", tuple((f"{'even' if n % 2 == 0 else 'odd'}-{n}", b"1") for n in range(40)))]
        )
        operator = Operator(store, clock=clock)
        wanted = ItemFilter(key_prefix="even-")
        keys: list[str] = []
        cursor: str | None = None
        while True:
            page = await operator.items("q", wanted, cursor=cursor, limit=3)
            assert len(page.items) <= 3
            keys += [item.key for item in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert keys == [f"even-{n}" for n in range(0, 40, 2)]
        count = await operator.count_matching("q", wanted)
        assert (count.count, count.complete) == (20, True)
        few = await operator.count_matching(None, wanted, most=10)
        assert not few.complete
        with pytest.raises(ValueError, match="cursor"):
            await operator.items("q", cursor="7,8")
        with pytest.raises(ValueError, match="limit"):
            await operator.items("q", limit=0)


async def test_the_partitions_of_a_lane_are_one_listing() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store, LaneConfig(0, 2, partitions=3))
        for number in range(12):
            await manager.submit("mail", send(to="x"), key=f"k{number}")
            await asyncio.sleep(1)
        operator = Operator(store, clock=clock)
        first = await operator.items("mail", limit=5)
        second = await operator.items("mail", limit=50, cursor=first.cursor)
        keys = [item.key for item in (*first.items, *second.items)]
        assert sorted(keys) == sorted(f"k{number}" for number in range(12))
        assert second.cursor is None
        view = await operator.item("mail", "k7")
        assert view is not None
        assert view.queue.startswith("mail#")
        assert view.lane == "mail"
        [found] = (await operator.items("mail", ItemFilter(key="k7"))).items
        assert found == view
        await manager.shutdown()


async def test_filters() -> None:
    async with MemoryStore(clock=clock) as store:
        await bury(store, "q", "a", "ValueError: order 17 of 'ann' is gone\nTraceback: x", "ship")
        await bury(store, "q", "b", "ValueError: order 18 of 'bob' is gone", "ship")
        await bury(store, "q", "b", "OSError: disk", "pack")
        await store.put([Put("q", (("b", b'{"n": 12345678901234567890}'),))])
        operator = Operator(store, clock=clock)

        async def keys(wanted: ItemFilter) -> list[tuple[str, str]]:
            return [(item.key, item.state) for item in (await operator.items("q", wanted)).items]

        assert await keys(ItemFilter(error="ORDER 18")) == [("b", "buried")]
        assert await keys(ItemFilter(kind="ship")) == [("a", "buried"), ("b", "buried")]
        assert len(await keys(ItemFilter(key="b"))) == 3
        assert await keys(ItemFilter(key="b", states=("available",))) == [("b", "available")]
        assert await keys(ItemFilter(older_than=3600)) == []
        assert len(await keys(ItemFilter(newer_than=3600))) == 4
        groups = await operator.error_groups("q")
        assert [(group.count, group.kinds) for group in groups.groups] == [
            (2, {"ship": 2}),
            (1, {"pack": 1}),
        ]
        largest = groups.groups[0]
        assert largest.error == "ValueError: order … of … is gone"
        assert largest.example == "ValueError: order 17 of 'ann' is gone"
        assert len(await keys(ItemFilter(error_group=largest.error))) == 2
        assert (groups.letters, groups.complete) == (3, True)
        assert await operator.error_groups() == groups
        view = await operator.item("q", "b")
        assert view is not None
        assert "12345678901234567890" in view.raw


def test_errors_are_grouped_without_what_differs() -> None:
    alike = [
        "TimeoutError: 10.0.0.1:80 after 3.5 s, request 5f2b1c9e-aaaa-bbbb-cccc-0123456789ab",
        "TimeoutError: 10.0.0.2:8080 after 12 s, request 00000000-aaaa-bbbb-cccc-0123456789ab",
    ]
    assert len({group_of(error) for error in alike}) == 1
    assert group_of("KeyError: 'a'") == group_of('KeyError: "b"')
    assert group_of("ValueError: x1") != group_of("ValueError: x2")


async def test_the_line_of_a_key() -> None:
    async with MemoryStore(clock=clock) as store:
        for number in range(5):
            await store.put([Put("q", (("k", str(number).encode()),), "append")])
        operator = Operator(store, clock=clock)
        page = await operator.line("q", "k", limit=3)
        assert [item.value for item in page.items] == [0, 1, 2]
        rest = await operator.line("q", "k", cursor=page.cursor)
        assert [item.state for item in rest.items] == ["in_line", "in_line"]


async def test_results_and_values_that_are_no_json() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        await manager.start()
        handle = await manager.submit("mail", send(to="ann"), key="k")
        assert await handle == "sent to ann"
        await manager.shutdown()
        operator = Operator(store, clock=clock)
        view = await operator.find(handle.id)
        assert view is not None
        assert (view.state, view.outcome, view.result) == ("done", "completed", "sent to ann")
        assert view.raw_result == '"sent to ann"'
        assert await operator.item("mail", "k") == view
        await store.put([Put("q", (("k", b"\xff{"),))])
        odd = await operator.item("q", "k")
        assert odd is not None
        assert (odd.readable, odd.raw, odd.value) == (False, "\\xff{", None)


async def test_schedules() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        schedule = manager.schedule("nightly", "0 3 * * 1-5", send(to="ann"), lane="mail")
        await schedule.declare()
        await manager.shutdown()
        [view] = await Operator(store, clock=clock).schedules()
        assert (view.name, view.lane, view.kind) == ("nightly", "mail", "send")
        assert len(view.next_runs) == 5
        assert msgspec.json.decode(view.arguments)["to"] == "ann"
