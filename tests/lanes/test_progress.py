"""Progress: what commands tell of how far they have come, and who sees it when."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from leasedkeyq import LimitExceededError, MemoryStore
from leasedkeyq.lanes import (
    CommandPayloadError,
    LaneConfig,
    Progress,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    current_command,
    track,
)
from leasedkeyq.lanes.running.progress import decode_progress
from leasedkeyq.model.requests import Ack, Answer, Change, Extend, Limits
from tests.lanes.support import Build, clock, everywhere, in_memory, is_of_commands

TWICE: dict[str, Any] = {"retry_policy": RetryPolicy.fixed(1, 5.0)}


def built(builder: QueueManagerBuilder, **options: Any) -> QueueManager:
    return builder.with_lane("x", LaneConfig(0, 200, **options), 0).build()


# What is told


@pytest.mark.parametrize(
    "value, fraction",
    [(0.4, 0.4), (0.0, 0.0), (1, 1.0), (4, None), (True, None), (None, None), ({"a": [1]}, None)],
)
@everywhere
async def test_any_value_of_json_is_told(build: Build, value: Any, fraction: float | None) -> None:
    manager = built(build())

    @manager.command("work")
    async def work() -> str:
        current_command().progress(value, "page 4 of 10")
        await asyncio.sleep(3)
        return "done"

    async with manager:
        handle = await manager.submit("x", work())
        assert await handle.progress() is None
        await asyncio.sleep(2)
        told = await handle.progress()
        assert told is not None
        assert (told.value, told.fraction) == (value, fraction)
        assert (told.text, told.attempt) == ("page 4 of 10", 1)
        assert told.at > 0
        assert await manager.handle(handle.id).progress() == told
        assert await handle == "done"
        assert await handle.progress() == told


class Opaque:
    """What JSON does not have."""


@pytest.mark.parametrize(
    "value, text, error, match",
    [
        (1.5, "", ValueError, r"'work' of key 'k': a float is a fraction .* got 1.5; pass a count"),
        (-0.1, "", ValueError, "from 0 to 1"),
        (float("nan"), "", ValueError, "from 0 to 1"),
        ({"a": float("inf")}, "", CommandPayloadError, "'work' of key 'k': .* cannot be written"),
        (Opaque(), "", CommandPayloadError, "tell what JSON has"),
        (0.5, 7, TypeError, "text must be a str, got int"),
    ],
)
@everywhere
async def test_what_cannot_be_told_is_refused(
    build: Build, value: Any, text: Any, error: type[Exception], match: str
) -> None:
    manager = built(build(), retry_policy=RetryPolicy.none())

    @manager.command("work")
    async def work() -> None:
        current_command().progress(value, text)

    async with manager:
        with pytest.raises(error, match=match):
            await (await manager.submit("x", work(), key="k"))


async def test_what_is_too_large_for_the_store_is_refused() -> None:
    store = MemoryStore(clock=clock, limits=Limits(value_size=200))
    manager = built(QueueManagerBuilder(clock=clock).with_storage(store))

    @manager.command("work")
    async def work() -> str:
        with pytest.raises(LimitExceededError, match="the progress of command 'work' of key 'k'"):
            current_command().progress("x" * 200)
        current_command().progress("small")
        return "done"

    async with manager:
        assert await (await manager.submit("x", work(), key="k")) == "done"


async def test_a_worker_shows_what_the_attempt_of_another_told() -> None:
    store = MemoryStore(clock=clock)
    may_end = asyncio.Event()

    def worker() -> tuple[QueueManager, Any]:
        lanes = QueueManagerBuilder(clock=clock).with_storage(store).with_drain_timeout(1)
        manager = built(lanes, **TWICE)

        @manager.command("work")
        async def work() -> str:
            if current_command().attempt == 1:
                current_command().progress(0.5, "half")
                raise OSError
            await may_end.wait()
            return "done"

        return manager, work

    first, work = worker()
    async with first:
        handle = await first.submit("x", work())
        await asyncio.sleep(2)
        told = await handle.progress()
        assert told is not None
    second, _ = worker()
    async with second:
        await asyncio.sleep(10)
        mine = second.handle(handle.id)
        assert (mine.status, mine.attempt) == ("running", 2)
        assert await mine.progress() == told
        updates = mine.updates()
        assert await anext(updates) == told
        may_end.set()
        assert await mine == "done"
        assert [update async for update in updates] == []
        assert await mine.progress() == told
    await store.close()


def test_progress_of_another_program_is_shown_as_text() -> None:
    assert decode_progress(b"\xff!") == Progress(text="\N{REPLACEMENT CHARACTER}!")
    assert decode_progress(b"[1]") == Progress(text="[1]")
    assert decode_progress(None) is None


# Updates


@everywhere
async def test_updates_come_until_the_end(build: Build) -> None:
    manager = built(build())

    @manager.command("work")
    async def work() -> str:
        for number in range(10):
            current_command().progress(number / 10)
            await asyncio.sleep(0.55)
        return "done"

    async with manager:
        handle = await manager.submit("x", work())
        seen = [update.fraction async for update in manager.handle(handle.id).updates()]
        assert handle.done()
    assert seen == sorted(set(seen), key=lambda fraction: fraction or 0.0)
    assert 4 <= len(seen) <= 7
    assert seen[-1] == 0.9
    again = [update.fraction async for update in handle.updates()]
    assert again == [0.9]


@everywhere
async def test_updates_of_a_command_that_tells_nothing_end_with_it(build: Build) -> None:
    manager = built(build())

    @manager.command("work")
    async def work() -> None:
        await asyncio.sleep(5)

    async with manager:
        handle = await manager.submit("x", work())
        assert [update async for update in handle.updates()] == []
        assert handle.done()


async def test_updates_come_from_another_process() -> None:
    """A manager that is not started sees what the worker has told, and the end."""
    store = MemoryStore(clock=clock)
    worker = built(QueueManagerBuilder(clock=clock).with_storage(store))
    web = built(QueueManagerBuilder(clock=clock).with_storage(store))

    @worker.command("work")
    async def work() -> str:
        async for _ in track(range(8), "page"):
            await asyncio.sleep(1)
        return "done"

    async with worker:
        text = (await worker.submit("x", work())).id
        handle = web.handle(text)
        seen = [update async for update in handle.updates()]
        assert await handle == "done"
    assert 5 <= len(seen) <= 9
    assert seen == sorted(seen, key=lambda update: update.at)
    assert all(re.fullmatch(r"page [0-8] of 8", update.text) for update in seen)
    await web.close()


# Attempts


@everywhere
async def test_progress_stays_until_the_next_attempt_tells(build: Build) -> None:
    manager = built(build(), **TWICE)

    @manager.command("work")
    async def work() -> str:
        command = current_command()
        if command.attempt == 1:
            command.progress(0.7)
            raise LookupError  # at once: no renewal has told the store
        await asyncio.sleep(3)
        command.progress(0.2)
        await asyncio.sleep(3)
        return "done"

    async def told(after: float) -> tuple[Any, ...]:
        await asyncio.sleep(after)
        update = await manager.handle(handle.id).progress()
        assert update is not None
        return handle.status, update.fraction, update.attempt

    async with manager:
        handle = await manager.submit("x", work())
        assert await told(1) == ("scheduled", 0.7, 1)
        assert await told(5) == ("running", 0.7, 1)
        assert await told(4) == ("running", 0.2, 2)
        assert await handle == "done"


async def test_what_is_told_right_before_the_end_of_an_attempt_is_stored() -> None:
    """With the change that ends the attempt, in one trip: a retry, and a burial."""
    store = Counted(clock=clock)
    manager = built(QueueManagerBuilder(clock=clock).with_storage(store), **TWICE)

    @manager.command("work")
    async def work() -> None:
        current_command().progress(current_command().attempt)
        raise LookupError

    async with manager:
        handle = await manager.submit("x", work(), key="k")
        await asyncio.sleep(1)
        [[item]] = await store.look("x", ["k"])
        assert decode_progress(item.progress) == await handle.progress()
        with pytest.raises(LookupError):
            await handle
        [buried] = (await store.browse("x", states=["buried"])).items
    progress = decode_progress(buried.progress)
    assert progress is not None
    assert (progress.value, progress.attempt) == (2, 2)
    assert [len(trip) for trip in store.trips] == [2, 2]


async def test_what_is_told_before_a_worker_stops_is_stored() -> None:
    store = MemoryStore(clock=clock)
    manager = built(QueueManagerBuilder(clock=clock).with_storage(store))

    @manager.command("work")
    async def work() -> None:
        current_command().progress(0.5)
        await asyncio.sleep(60)

    await manager.start()
    await manager.submit("x", work(), key="k")
    await asyncio.sleep(0.1)
    await manager.close()
    [[item]] = await store.look("x", ["k"])
    assert (item.state, decode_progress(item.progress)) != ("available", None)
    assert item.attempt == 0


# Trips


class Counted(MemoryStore):
    """Notes when the store is told how far commands have come, and every trip that settles."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.trips: list[Sequence[Change]] = []
        self.told_at: list[float] = []

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        if not is_of_commands(requests):
            return await super().do_settle(requests)
        self.trips.append(requests)
        if any(isinstance(one, Extend) and one.progress is not None for one in requests):
            self.told_at.append(clock())
        return await super().do_settle(requests)


async def test_many_commands_that_tell_much_take_one_trip_per_second() -> None:
    """100 commands tell 1,000 times a second each, for 4 seconds of virtual time."""
    store = Counted(clock=clock)
    manager = built(QueueManagerBuilder(clock=clock).with_storage(store))

    @manager.command("work")
    async def work() -> None:
        command = current_command()
        for step in range(40):
            for number in range(100):
                command.progress(step, str(number))
            await asyncio.sleep(0.1)

    async with manager:
        handles = await manager.submit_many("x", [work() for _ in range(100)])
        await asyncio.sleep(3.9)
        extending = [trip for trip in store.trips if isinstance(trip[0], Extend)]
        assert len(extending) == len(store.trips) == len(store.told_at)
        assert 2 <= len(extending) <= 4
        assert all(len(trip) == 100 for trip in extending)
        gaps = [later - earlier for earlier, later in pairwise(store.told_at)]
        assert all(gap >= 1.0 for gap in gaps)
        for handle in handles:
            await handle
    # Their results tell all: nothing more is said at the end.
    assert all(isinstance(one, Ack) for one in store.trips[-1])


async def test_progress_goes_with_renewals_that_come_anyway() -> None:
    """Leases that are renewed every second take no trip more when commands tell something."""
    stores = [Counted(clock=clock), Counted(clock=clock)]
    for tells, store in zip((False, True), stores, strict=True):
        manager = built(QueueManagerBuilder(clock=clock).with_storage(store), lease_time=4.5)

        @manager.command("work")
        async def work(tells: bool) -> None:
            for number in range(100):
                if tells:
                    current_command().progress(number)
                await asyncio.sleep(0.1)

        async with manager:
            await (await manager.submit("x", work(tells)))
    silent, told = stores
    assert len(silent.trips) == len(told.trips) == len(told.told_at) + 1


async def test_only_commands_that_have_told_something_are_renewed_early() -> None:
    store = Counted(clock=clock)
    manager = built(QueueManagerBuilder(clock=clock).with_storage(store))

    @manager.command("work")
    async def work(tells: bool) -> None:
        if tells:
            current_command().progress(0.5)
        await asyncio.sleep(5)

    async with manager:
        await manager.submit_many("x", [work(number == 7) for number in range(50)])
        await asyncio.sleep(4)
        assert [len(trip) for trip in store.trips] == [1]


async def test_a_store_that_fails_is_told_later() -> None:
    class Failing(Counted):
        failures = 2

        async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
            if self.failures:
                self.failures -= 1
                raise OSError("away")
            return await super().do_settle(requests)

    store = Failing(clock=clock)
    manager = built(QueueManagerBuilder(clock=clock).with_storage(store))

    @manager.command("work")
    async def work() -> None:
        current_command().progress(0.5)
        await asyncio.sleep(6)

    async with manager:
        await manager.submit("x", work(), key="k")
        await asyncio.sleep(5.5)
        [[item]] = await store.look("x", ["k"])
        assert item.progress is not None


# Where it is told


@pytest.mark.parametrize("stored", [False, True])
def test_a_plain_function_tells_from_its_thread(stored: bool) -> None:
    async def run() -> None:
        builder = QueueManagerBuilder()
        manager = built(builder.with_storage(MemoryStore()) if stored else builder)

        @manager.command("work")
        def work() -> int:
            return sum(track([1, 2, 3, 4], "part"))

        async with manager:
            handle = await manager.submit("x", work())
            assert await handle == 10
            told = await handle.progress()
        assert told is not None
        assert (told.fraction, told.text) == (1.0, "part 4 of 4")

    asyncio.run(run())


# track


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@everywhere
async def test_track_tells_with_each_item_that_is_done(build: Build) -> None:
    manager = built(build())
    seen: list[Any] = []

    def look() -> None:
        raw = decode_progress(getattr(current_command(), "_job").progress)  # noqa: B009
        seen.append(None if raw is None else (raw.value, raw.text))

    @manager.command("work")
    async def work() -> None:
        async for _ in track(["a", "b"], "page"):
            look()
        look()
        async for _ in track(numbers()):
            look()
        async for _ in track(numbers(), total=3):
            pass
        look()
        for _ in track(iter("ab"), "letter"):
            pass
        look()
        for _ in track([]):
            pass

    async with manager:
        await (await manager.submit("x", work()))
    assert seen == [
        (0.0, "page 0 of 2"),
        (0.5, "page 1 of 2"),
        (1.0, "page 2 of 2"),
        (1.0, "page 2 of 2"),
        (1, "1"),
        (2, "2"),
        (1.0, "3 of 3"),
        (2, "letter 2"),
    ]


async def test_track_outside_of_a_command_only_iterates() -> None:
    assert list(track("abc")) == ["a", "b", "c"]
    assert [number async for number in track(numbers())] == [0, 1, 2]
    with pytest.raises(TypeError, match="async for"):
        list(track(numbers()))
    wrong: Any = 7
    with pytest.raises(TypeError, match="items must be iterable, got int"):
        track(wrong)
    with pytest.raises(ValueError, match="total"):
        track("abc", total=-1)


async def test_in_memory_nothing_is_written() -> None:
    manager = built(in_memory())

    @manager.command("work")
    async def work() -> None:
        current_command().progress(0.5)
        await asyncio.sleep(1)

    async with manager:
        handle = await manager.submit("x", work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told = await handle.progress()
    assert told is not None
    assert told.fraction == 0.5
