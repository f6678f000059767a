"""Workers leave records of their lanes and command types in the store."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from leasedkeyq import MemoryStore, StoreError
from leasedkeyq.lanes import (
    KeyLimit,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RateLimitConfig,
    RetryPolicy,
    resource,
)
from leasedkeyq.lanes.presence.catalog_records import CATALOG_QUEUE, LaneRecord, TypeRecord
from leasedkeyq.lanes.presence.directory import (
    forget_lane,
    forget_type,
    read_lanes,
    read_types,
)
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import Answer, Cancel, Limits, Purge, Put
from tests.lanes.support import clock


def build(store: MemoryStore, config: LaneConfig | None = None) -> QueueManager:
    builder = QueueManagerBuilder(clock=clock).with_storage(store)
    return builder.with_lane("mail", config or LaneConfig(), 5).build()


async def started(manager: QueueManager) -> None:
    """Let a worker live for a moment."""
    await manager.start()
    await asyncio.sleep(1)
    await manager.close()


async def lanes_after(config: LaneConfig) -> LaneRecord:
    store = MemoryStore(clock=clock)
    await started(build(store, config))
    [record] = await read_lanes(store)
    return record


async def test_a_lane_is_known_after_its_worker_has_gone() -> None:
    config = LaneConfig(
        1,
        4,
        timeout=20,
        lease_time=60,
        partitions=2,
        keep_results=10,
        global_concurrency=8,
        rate_limit=RateLimitConfig.per_second(100, burst=10),
        key_rate_limit=RateLimitConfig.per_minute(6, burst=1),
        key_limits=[KeyLimit("eu-*", 3), KeyLimit("us-*", None, RateLimitConfig.per_hour(5))],
        retry_policy=RetryPolicy.exponential(3),
        max_attempts=7,
        on_dead_letter="pause_key",
    )
    record = await lanes_after(config)
    assert (record.name, record.priority) == ("mail", 5)
    assert (record.min_concurrency, record.max_concurrency) == (1, 4)
    assert (record.timeout, record.lease_time, record.keep_results) == (20.0, 60.0, 10.0)
    assert record.queues == ("mail#0", "mail#1")
    assert record.on_dead_letter == "pause_key"
    assert record.max_attempts == 7
    assert record.retry == "3 retries, after 1 s, each 2 times as long, at most 60 s"
    assert record.limits == (
        "8 at a time in all workers",
        "100 per second, burst 10",
        "each key: 6 per minute, burst 1",
        "keys eu-*: 3 at a time",
        "keys us-*: 5 per hour, burst 1",
    )
    assert record.seen_at > clock() - 2


async def test_a_plain_lane_has_few_words() -> None:
    class Own:
        def delay(self, attempt: int, error: BaseException) -> None: ...

    record = await lanes_after(LaneConfig())
    assert (record.limits, record.retry, record.queues) == ((), "no retries", ("mail",))
    assert (await lanes_after(LaneConfig(retry_policy=Own()))).retry == "as Own decides"
    once = LaneConfig(retry_policy=RetryPolicy.fixed(1, 5))
    assert (await lanes_after(once)).retry == "1 retry, after 5 s"


@dataclass
class Address:
    street: str
    number: int = 1


async def types_of(register: Any) -> list[TypeRecord]:
    store = MemoryStore(clock=clock)
    manager = build(store)
    register(manager)
    await started(manager)
    return await read_types(store)


async def test_a_command_type_is_known_with_the_schema_of_its_arguments() -> None:
    def register(manager: QueueManager) -> None:
        @manager.command("send", lane="mail", timeout=9)
        async def send(to: Address, copies: int = 2, *, tags: list[str] = []) -> None:  # noqa: B006
            """Send a letter.

            It may take a day.
            """

        @manager.command("plain")
        def plain(anything: Any, when: object = object()) -> None: ...

        @manager.command("order")
        @dataclass
        class Order:
            """An order."""

            number: int

            async def execute(self) -> None: ...

    order, plain, send = await types_of(register)
    assert (send.name, send.doc, send.lane, send.run_in) == (
        "send",
        "Send a letter.",
        "mail",
        "loop",
    )
    assert send.timeout == 9.0
    assert [(one.name, one.required, one.default) for one in send.parameters] == [
        ("to", True, ""),
        ("copies", False, "2"),
        ("tags", False, "[]"),
    ]
    schema = json.loads(send.schema)
    assert schema["type"] == "object"
    assert schema["required"] == ["to"]
    assert schema["properties"]["copies"] == {"type": "integer", "default": 2}
    assert schema["properties"]["to"] == {"$ref": "#/$defs/Address"}
    assert schema["$defs"]["Address"]["properties"]["street"] == {"type": "string"}
    assert (plain.run_in, plain.lane) == ("thread", None)
    assert [one.name for one in plain.parameters] == ["anything", "when"]
    assert (order.doc, order.run_in) == ("An order.", "loop")
    assert [one.name for one in order.parameters] == ["number"]


async def test_resources_are_no_arguments_of_a_type() -> None:
    class Pool: ...

    def register(manager: QueueManager) -> None:
        @manager.lifespan
        async def opened() -> AsyncIterator[Pool]:
            yield Pool()

        @manager.command("load")
        async def load(name: str, pool: Pool = resource()) -> None: ...

    [load] = await types_of(register)
    assert [one.name for one in load.parameters] == ["name"]


async def test_a_batch_is_known_by_its_item() -> None:
    def register(manager: QueueManager) -> None:
        @manager.batch("index", size=1)
        async def index(items: list[int]) -> None: ...

    [index] = await types_of(register)
    assert index.run_in == "batch"
    assert json.loads(index.schema)["properties"] == {"item": {"type": "integer"}}


async def test_records_are_written_again_after_an_hour_or_when_they_differ() -> None:
    store = MemoryStore(clock=clock)
    ids: list[set[int]] = []

    async def note(config: LaneConfig | None = None) -> None:
        await started(build(store, config))
        page = await store.browse(CATALOG_QUEUE, states=("done",))
        ids.append({item.id for item in page.items})

    await note()
    await asyncio.sleep(1800)
    await note()
    assert len(ids[0]) == 1
    assert ids[1] == ids[0]
    await asyncio.sleep(1900)
    await note()
    assert ids[2] != ids[1]
    await note(LaneConfig(0, 9))
    assert ids[3] != ids[2]
    assert len(ids[3]) == 1, "the old record is gone"
    assert [record.max_concurrency for record in await read_lanes(store)] == [9]


async def test_records_are_forgotten_after_a_month_unless_a_worker_lives() -> None:
    store = MemoryStore(clock=clock)
    await started(build(store))
    await asyncio.sleep(29 * 86400)
    assert len(await read_lanes(store)) == 1
    await asyncio.sleep(2 * 86400)
    assert await read_lanes(store) == []
    assert await store.count() == {}


async def test_a_worker_that_lives_long_tells_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.lanes.durable.workers.CATALOG_EVERY", 100.0)
    monkeypatch.setattr("leasedkeyq.lanes.presence.catalog.RECORD_FRESH", 10.0)
    store = MemoryStore(clock=clock)
    async with build(store):
        await asyncio.sleep(1)
        [first] = await read_lanes(store)
        await asyncio.sleep(120)
        [second] = await read_lanes(store)
        assert second.seen_at > first.seen_at + 90


async def test_lanes_and_types_that_come_later_are_told() -> None:
    store = MemoryStore(clock=clock)
    manager = build(store)
    async with manager:
        await asyncio.sleep(1)
        manager.queue().add_lane("later", LaneConfig(), 1)

        @manager.command("new")
        async def new() -> None: ...

        await asyncio.sleep(20)
        assert [record.name for record in await read_lanes(store)] == ["later", "mail"]
        assert [record.name for record in await read_types(store)] == ["new"]


async def test_a_record_can_be_forgotten_by_hand() -> None:
    store = MemoryStore(clock=clock)
    manager = build(store)

    @manager.command("old")
    async def old() -> None: ...

    await started(manager)
    assert await forget_lane(store, "mail")
    assert not await forget_lane(store, "mail")
    assert await read_lanes(store) == []
    assert await forget_type(store, "old")
    assert await read_types(store) == []


async def test_what_the_store_does_not_take_is_left_out() -> None:
    store = MemoryStore(clock=clock, limits=Limits(key_length=30, value_size=400))
    manager = build(store)
    manager.queue().add_lane("l" * 28, LaneConfig(), 1)  # its key has more characters

    @manager.command("long")
    async def long(this: int, that: int, other: int, more: int, most: int) -> None: ...

    await started(manager)
    assert [record.name for record in await read_lanes(store)] == ["mail"]
    assert await read_types(store) == []


async def test_a_store_that_takes_no_records_is_worked_on_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore(clock=clock, limits=Limits(key_length=10))
    manager = build(store)

    @manager.command("add")
    async def add(one: int, other: int) -> int:
        return one + other

    with caplog.at_level("WARNING"):
        async with manager:
            assert await (await manager.submit("mail", add(1, 2), key="k")) == 3
            await asyncio.sleep(100)
    assert "workers" not in caplog.text
    assert set(await store.count()) == {"mail"}


async def test_records_of_another_version_are_left_out() -> None:
    store = MemoryStore(clock=clock)
    await started(build(store))
    await store.put([Put(CATALOG_QUEUE, (("lane:odd", b"1"), ("type:odd", b"1")))])
    for key in ("lane:odd", "type:odd"):
        await store.settle([Cancel(CATALOG_QUEUE, key, b"\xff", 100.0)])
    assert [record.name for record in await read_lanes(store)] == ["mail"]
    assert await read_types(store) == []


class Unlisted(MemoryStore):
    """Fails to write the catalog as often as it is told."""

    failures = 0

    async def do_edit(self, edit: Edit) -> list[Answer]:
        if edit.queue == CATALOG_QUEUE and self.failures:
            self.failures -= 1
            raise StoreError("out of order")
        return await super().do_edit(edit)


async def test_commands_run_where_the_catalog_cannot_be_written() -> None:
    store = Unlisted(clock=clock)
    store.failures = 10**6
    builder = QueueManagerBuilder(clock=clock).with_storage(store).with_partition_sharing()
    manager = builder.with_lane("mail", LaneConfig(1, 4, partitions=2), 5).build()

    @manager.command("add")
    async def add(one: int) -> int:
        return one + 1

    async with manager:
        async with asyncio.timeout(100):
            assert await (await manager.submit("mail", add(1))) == 2
        assert await read_lanes(store) == []
        store.failures = 0
        await asyncio.sleep(200)
        assert [record.name for record in await read_lanes(store)] == ["mail"]


async def test_a_store_that_has_lost_everything_is_told_again() -> None:
    store = MemoryStore(clock=clock)
    manager = build(store)
    async with manager:
        await asyncio.sleep(5)
        await store.settle([Purge(WORKERS_QUEUE), Purge(CATALOG_QUEUE)])
        assert await read_lanes(store) == []
        await asyncio.sleep(40)
        assert [record.name for record in await read_lanes(store)] == ["mail"]
