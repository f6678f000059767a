"""Commands of one key: every one in order, or the newest, or one only, or none beside another."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from leasedkeyq import KeyAlreadyPresentError, MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandFunction,
    DeadLetter,
    DrainTimeoutError,
    LaneConfig,
    LaneError,
    ManagerClosedError,
    QueueManager,
    RetryPolicy,
)
from leasedkeyq.lanes.events import COMMAND_SUBMITTED
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import Answer
from tests.lanes.support import Build, clock, everywhere, in_memory, now, on_a_store
from tests.lanes.trouble import Trouble, on, soon


class Hooks:
    """Commands that note their order; some fail as often as they are told."""

    def __init__(self, manager: QueueManager) -> None:
        self.ran: list[int] = []
        self.failures: Counter[int] = Counter()

        @manager.command("hook")
        async def hook(number: int, fails: int = 0, seconds: float = 0.1) -> int:
            self.ran.append(number)
            await asyncio.sleep(seconds)
            if self.failures[number] < fails:
                self.failures[number] += 1
                raise ValueError(f"no {number}")
            return number * 10

        @manager.command("shout")
        async def shout(text: str) -> str:
            return text.upper()

        self.hook: CommandFunction[..., int] = hook
        self.shout: CommandFunction[..., str] = shout


def hooks(build: Build, config: LaneConfig | None = None) -> tuple[QueueManager, Hooks]:
    manager = build().with_lane("x", config or LaneConfig(0, 4), 0).with_metrics().build()
    return manager, Hooks(manager)


RETRY = LaneConfig(0, 4, retry_policy=RetryPolicy.fixed(1, 5.0))
PAUSE = LaneConfig(0, 4, on_dead_letter="pause_key")


# Every one, in order


@everywhere
@pytest.mark.parametrize("partitions", [1, 3])
async def test_six_webhooks_have_six_results_in_order(build: Build, partitions: int) -> None:
    manager, mine = hooks(build, LaneConfig(0, 4, partitions=partitions))
    async with manager:
        handles = [await manager.submit("x", mine.hook(n), key="acme") for n in range(6)]
        assert [await handle for handle in handles] == [0, 10, 20, 30, 40, 50]
        assert len({handle.id for handle in handles}) == 6
    assert mine.ran == [0, 1, 2, 3, 4, 5]


@everywhere
async def test_one_that_waits_for_its_retry_keeps_those_behind_it_waiting(build: Build) -> None:
    manager, mine = hooks(build, RETRY)
    async with manager:
        handles = [
            await manager.submit("x", mine.hook(n, fails=1 if n == 1 else 0), key="k")
            for n in range(4)
        ]
        await soon(lambda: handles[1].status == "scheduled")
        assert [handle.status for handle in handles[2:]] == ["pending", "pending"]
        assert [await handle for handle in handles] == [0, 10, 20, 30]
    assert mine.ran == [0, 1, 1, 2, 3]


@everywhere
async def test_one_that_was_given_up_lets_the_next_go(build: Build) -> None:
    manager, mine = hooks(build)
    async with manager:
        handles = [
            await manager.submit("x", mine.hook(n, fails=1 if n == 1 else 0), key="k")
            for n in range(3)
        ]
        assert [await handles[0], await handles[2]] == [0, 20]
        [letter] = await manager.dlq.list()
        assert (letter.key, letter.holds) == ("k", False)
        # What is put back goes to the end of the line.
        more = [await manager.submit("x", mine.hook(n), key="k") for n in (3, 4)]
        await manager.dlq.requeue(letter)
        assert [await handle for handle in more] == [30, 40]
        await manager.drain()
    assert mine.ran == [0, 1, 2, 3, 4, 1]


@everywhere
async def test_keys_take_turns_however_long_their_lines_are(build: Build) -> None:
    manager, mine = hooks(build, LaneConfig(0, 1))
    await manager.submit_many("x", [("long", mine.hook(n)) for n in range(50)])
    await manager.submit("x", mine.hook(99), key="short")
    async with manager:
        await manager.drain()
    assert mine.ran.index(99) == 1


@everywhere
async def test_each_in_a_line_has_its_own_delay_and_time_limit(build: Build) -> None:
    manager, mine = hooks(build)
    async with manager:
        began = now()
        first = await manager.submit("x", mine.hook(0, seconds=1), key="k")
        later = await manager.submit("x", mine.hook(1), key="k", delay=10)
        last = await manager.submit("x", mine.hook(2), key="k")
        # It waits for the one before it, and only then for its time.
        assert later.status == "pending"
        await first
        await soon(lambda: later.status == "scheduled")
        await later
        assert now() - began == pytest.approx(10.1, abs=0.1)
        assert await last == 20
    assert mine.ran == [0, 1, 2]


@everywhere
async def test_pairs_may_name_a_key_several_times(build: Build) -> None:
    manager, mine = hooks(build)
    commands: list[tuple[str, Any]] = [
        ("a", mine.hook(1)),
        ("b", mine.shout("one")),
        ("a", mine.shout("two")),
        ("a", mine.hook(3)),
        ("b", mine.hook(4)),
    ]
    async with manager:
        handles = await manager.submit_many("x", commands)
        assert [await handle for handle in handles] == [10, "ONE", "TWO", 30, 40]
        assert [handle.key for handle in handles] == ["a", "b", "a", "a", "b"]


@everywhere
@pytest.mark.parametrize("mixed", [False, True])
async def test_a_key_may_come_several_times_whatever_the_policy(build: Build, mixed: bool) -> None:
    manager, mine = hooks(build)
    last: Any = mine.shout("c") if mixed else mine.hook(30)
    commands: list[Any] = [("a", mine.hook(1)), ("a", mine.hook(2)), ("a", last)]
    with pytest.raises(KeyAlreadyPresentError, match="lane 'x'"):
        await manager.submit_many("x", commands, if_present="reject")
    assert (await manager.stats()).total_pending == 0
    skipping = await manager.submit_many("x", commands, if_present="skip")
    assert len({handle.id for handle in skipping}) == 1
    others = [("b", command) for _, command in commands]
    updating = await manager.submit_many("x", others, if_present="update")
    assert len({handle.id for handle in updating}) == 1
    async with manager:
        assert [await handle for handle in skipping] == [10, 10, 10]
        assert {await handle for handle in updating} == {"C" if mixed else 300}


# The newest


@everywhere
async def test_an_update_replaces_the_newest_that_waits(build: Build) -> None:
    manager, mine = hooks(build)
    async with manager:
        first = await manager.submit("x", mine.hook(0, seconds=1), key="k", if_present="update")
        await soon(lambda: first.status == "running")
        newer = [
            await manager.submit("x", mine.hook(n), key="k", if_present="update")
            for n in range(1, 5)
        ]
        assert await first == 0
        assert [await handle for handle in newer] == [40, 40, 40, 40]
    assert mine.ran == [0, 4]


@everywhere
async def test_an_update_replaces_the_last_of_a_line_and_no_other(build: Build) -> None:
    manager, mine = hooks(build)
    async with manager:
        handles = [await manager.submit("x", mine.hook(n), key="k") for n in range(3)]
        handles.append(await manager.submit("x", mine.hook(3), key="k", if_present="update"))
        assert [await handle for handle in handles] == [0, 10, 30, 30]
    assert mine.ran == [0, 1, 3]


@everywhere
async def test_one_that_failed_gives_way_to_the_update_behind_it_and_to_no_other(
    build: Build,
) -> None:
    manager, mine = hooks(build, RETRY)
    async with manager:
        first = await manager.submit("x", mine.hook(0, fails=9, seconds=1), key="k")
        await soon(lambda: first.status == "running")
        second = await manager.submit("x", mine.hook(1), key="k", if_present="update")
        third = await manager.submit("x", mine.hook(2), key="k")
        assert [await first, await second, await third] == [10, 10, 20]
    assert mine.ran == [0, 1, 2]


@everywhere
async def test_no_handle_follows_one_that_was_appended(build: Build) -> None:
    manager, mine = hooks(build, RETRY)
    async with manager:
        first = await manager.submit("x", mine.hook(0, fails=9, seconds=1), key="k")
        await soon(lambda: first.status == "running")
        second = await manager.submit("x", mine.hook(1), key="k")
        with pytest.raises(ValueError, match="no 0"):
            await first
        assert await second == 10
    assert mine.ran == [0, 0, 1]


# One only


@everywhere
async def test_a_skipped_submit_has_the_handle_of_the_newest_that_is_there(build: Build) -> None:
    manager, mine = hooks(build)
    events = manager.subscribe_filtered(lambda event: event.key == COMMAND_SUBMITTED)
    async with manager:
        first = await manager.submit("x", mine.hook(1), key="k", if_present="skip")
        same = await manager.submit("x", mine.hook(2), key="k", if_present="skip")
        behind = await manager.submit("x", mine.hook(3), key="k")
        newest = await manager.submit("x", mine.hook(4), key="k", if_present="skip")
        assert (first.id, behind.id) == (same.id, newest.id)
        results = [await handle for handle in (first, same, behind, newest)]
        assert results == [10, 10, 30, 30]
        stats = await manager.stats()
    assert mine.ran == [1, 3]
    # What was skipped was not submitted.
    assert stats.lanes["x"].submitted == 2
    assert manager.metrics is not None
    assert manager.metrics.snapshot().series[0].submitted == 2
    told = [(await events.recv()).payload["command_id"] for _ in range(2)]
    assert told == [first.id, behind.id]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(events.recv(), 1)


@everywhere
async def test_a_key_can_be_unique_for_a_while_after_its_command_is_done(build: Build) -> None:
    manager, mine = hooks(build, LaneConfig(0, 4, keep_results=0))

    async def submit(number: int) -> Any:
        hour = timedelta(hours=1)
        return await manager.submit(
            "x", mine.hook(number), key="k", if_present="skip", unique_for=hour
        )

    async with manager:
        first = await submit(1)
        assert await first == 10
        await asyncio.sleep(3000)
        again = await submit(2)
        assert (again.id, await again) == (first.id, 10)
        await asyncio.sleep(1000)
        later = await submit(3)
        assert (later.id != first.id, await later) == (True, 30)
    assert mine.ran == [1, 3]


@everywhere
async def test_what_failed_or_was_cancelled_makes_no_key_unique(build: Build) -> None:
    manager, mine = hooks(build)
    options: Any = {"key": "k", "if_present": "skip", "unique_for": 60}
    async with manager:
        failing = await manager.submit("x", mine.hook(1, fails=1), **options)
        with pytest.raises(ValueError, match="no 1"):
            await failing
        cancelled = await manager.submit("x", mine.hook(2), **options)
        await cancelled.cancel()
        await manager.drain()
        assert await (await manager.submit("x", mine.hook(3), **options)) == 30
        assert await (await manager.submit("x", mine.hook(4), **options)) == 30


async def test_a_skipped_submit_of_another_type_tells_what_is_there() -> None:
    """Where only the store knows its type and its result."""
    store = MemoryStore(clock=clock)
    worker, theirs = hooks(lambda: on(store))
    submitter, mine = hooks(lambda: on(store))
    options: Any = {"key": "k", "if_present": "skip", "unique_for": 60}
    waiting = await worker.submit("x", theirs.shout("a"), key="k")
    one: Any = await submitter.submit("x", mine.hook(1), **options)
    async with worker:
        assert (await one, one.command_type) == ("A", "shout")
        assert await waiting == "A"
        failing = await worker.submit("x", theirs.hook(1, fails=1), key="other")
        with pytest.raises(ValueError, match="no 1"):
            await failing
    del one
    done: Any = await submitter.submit("x", mine.hook(2), **options)
    assert (await done, done.command_type) == ("A", "shout")
    await submitter.close()
    assert mine.ran == []


# None beside another


@everywhere
async def test_a_key_that_is_there_is_refused_where_that_was_asked_for(build: Build) -> None:
    manager, mine = hooks(build)
    first = await manager.submit("x", mine.hook(1), key="k", if_present="reject")
    with pytest.raises(KeyAlreadyPresentError) as caught:
        await manager.submit("x", mine.hook(2), key="k", if_present="reject")
    assert str(caught.value) == "lane 'x': a command of key 'k' waits or runs already"
    assert caught.value.keys == ("k",)
    many = {"a": mine.hook(3), "k": mine.hook(4)}
    with pytest.raises(KeyAlreadyPresentError) as caught:
        await manager.submit_many("x", many, if_present="reject")
    assert str(caught.value) == (
        "lane 'x': 1 of 2 keys have commands already, the first is 'k'; nothing was submitted"
    )
    async with manager:
        assert await first == 10
        assert await (await manager.submit("x", mine.hook(5), key="k", if_present="reject")) == 50
    assert mine.ran == [1, 5]


# Cancelling


@everywhere
async def test_one_of_a_line_is_cancelled(build: Build) -> None:
    manager, mine = hooks(build)
    async with manager:
        handles = [await manager.submit("x", mine.hook(n), key="k") for n in range(6)]
        for number in (2, 5):
            assert await handles[number].cancel()
            with pytest.raises(CommandCancelledError):
                await handles[number]
        await soon(lambda: bool(mine.ran))
        assert await handles[0].cancel()
        assert not await handles[2].cancel()
        assert [await handles[number] for number in (1, 3, 4)] == [10, 30, 40]
        await manager.drain()
        assert (await manager.stats()).lanes["x"].cancelled == 3
    assert mine.ran == [0, 1, 3, 4]


@everywhere
@pytest.mark.parametrize("running", [True, False])
async def test_all_of_a_key_are_cancelled(build: Build, running: bool) -> None:
    manager, mine = hooks(build)
    if running:
        await manager.start()
    handles = [await manager.submit("x", mine.hook(n, seconds=60), key="k") for n in range(5)]
    if running:
        await soon(lambda: bool(mine.ran))
    assert await manager.cancel("x", "k")
    for handle in handles:
        with pytest.raises(CommandCancelledError):
            await handle
    assert not await manager.cancel("x", "k")
    await manager.drain()
    await manager.close()
    assert mine.ran == ([0] if running else [])


async def test_one_of_a_long_line_is_cancelled_without_reading_the_line() -> None:
    store = Trouble()
    manager = on(store).with_lane("x", LaneConfig(0, 1), 0).build()
    mine = Hooks(manager)
    handles = [await manager.submit("x", mine.hook(n), key="k") for n in range(100)]
    edits = 0
    do_edit = store.do_edit

    async def counted(edit: Edit) -> list[Answer]:
        nonlocal edits
        edits += 1
        return await do_edit(edit)

    store.do_edit = counted  # type: ignore[method-assign]  # to count
    assert await handles[70].cancel()
    assert (edits, handles[70].status) == (0, "cancelled")
    await manager.close()


# A key that waits for its dead letter


async def held(manager: QueueManager, mine: Hooks) -> tuple[DeadLetter, list[Any]]:
    """A letter that holds the key, and the handles behind it."""
    handles = [
        await manager.submit("x", mine.hook(n, fails=1 if n == 1 else 0), key="k") for n in range(4)
    ]
    with pytest.raises(ValueError, match="no 1"):
        await handles[1]
    [letter] = await manager.dlq.list()
    return letter, handles[2:]


@everywhere
async def test_a_held_key_waits_and_nobody_waits_for_it(build: Build) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        letter, waiting = await held(manager, mine)
        assert letter.holds
        await asyncio.sleep(100)
        behind = await manager.submit("x", mine.hook(4), key="k", if_present="update")
        assert behind.id == waiting[-1].id  # the newest that waits is replaced
        await manager.drain(5)
        other = await manager.submit("x", mine.hook(9), key="other")
        assert await other == 90
        stats = (await manager.stats()).lanes["x"]
        assert (stats.held, stats.pending, stats.active) == (2, 0, 0)
        assert {handle.status for handle in waiting} == {"pending"}
        assert mine.ran == [0, 1, 9]
        with pytest.raises(KeyAlreadyPresentError):
            await manager.submit("x", mine.hook(5), key="k", if_present="reject")
        skipped = await manager.submit("x", mine.hook(5), key="k", if_present="skip")
        assert skipped.id == waiting[-1].id


@everywhere
async def test_a_letter_that_is_requeued_runs_before_those_behind_it(build: Build) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        letter, waiting = await held(manager, mine)
        assert await manager.dlq.requeue(letter)
        assert [await handle for handle in waiting] == [20, 30]
        await manager.drain()
        assert not await manager.dlq.requeue(letter)
        assert (await manager.stats()).lanes["x"].held == 0
    assert mine.ran == [0, 1, 1, 2, 3]


@everywhere
@pytest.mark.parametrize("how", ["pop", "clear"])
async def test_a_letter_that_is_dropped_lets_its_key_go_on(build: Build, how: str) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        _, waiting = await held(manager, mine)
        await getattr(manager.dlq, how)()
        assert [await handle for handle in waiting] == [20, 30]
    assert mine.ran == [0, 1, 2, 3]


@everywhere
async def test_a_letter_that_makes_room_lets_its_key_go_on(build: Build) -> None:
    manager = build().with_lane("x", PAUSE, 0).with_dlq(1).build()
    mine = Hooks(manager)
    async with manager:
        _, waiting = await held(manager, mine)
        failing = await manager.submit("x", mine.hook(7, fails=1), key="other")
        with pytest.raises(ValueError, match="no 7"):
            await failing
        assert [await handle for handle in waiting] == [20, 30]
        [letter] = await manager.dlq.list()
        assert (letter.key, letter.holds) == ("other", True)


@everywhere
async def test_one_behind_a_letter_is_cancelled(build: Build) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        letter, waiting = await held(manager, mine)
        assert await waiting[0].cancel()
        assert (await manager.stats()).lanes["x"].held == 1
        await manager.drain(5)
        await manager.dlq.requeue(letter)
        assert await waiting[1] == 30
    assert mine.ran == [0, 1, 1, 3]


@everywhere
async def test_a_cancelled_key_is_held_no_more_and_its_letter_stays(build: Build) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        _, waiting = await held(manager, mine)
        assert await manager.cancel("x", "k")
        for handle in waiting:
            with pytest.raises(CommandCancelledError):
                await handle
        [letter] = await manager.dlq.list()
        assert (letter.key, letter.holds) == ("k", False)
        more = [await manager.submit("x", mine.hook(n), key="k") for n in (5, 6)]
        await manager.dlq.requeue(letter)
        assert [await handle for handle in more] == [50, 60]
        await manager.drain()
        assert await manager.dlq.len() == 0
    assert mine.ran == [0, 1, 5, 6, 1]


@everywhere
async def test_a_letter_without_a_line_holds_its_key_too(build: Build) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        failing = await manager.submit("x", mine.hook(1, fails=1), key="k")
        with pytest.raises(ValueError, match="no 1"):
            await failing
        same = await manager.submit("x", mine.hook(2), key="k", if_present="skip")
        with pytest.raises(ValueError, match="no 1"):
            await same
        behind = await manager.submit("x", mine.hook(3), key="k", if_present="update")
        await asyncio.sleep(10)
        assert behind.status == "pending"
        # Pushed by hand, another letter of the key is beside it, and changes nothing.
        payload = {"number": 8}
        await manager.dlq.push(DeadLetter(lane="x", command_type="hook", key="k", payload=payload))
        letters = await manager.dlq.list()
        assert sorted(found.payload["number"] for found in letters) == [1, 8]
        [letter] = [found for found in letters if found.holds]
        await manager.dlq.requeue(letter)
        assert await behind == 30
    assert mine.ran == [1, 1, 3]


async def test_a_letter_that_is_pushed_replaces_no_command_that_came_meanwhile() -> None:
    store = Trouble()
    manager, mine = hooks(lambda: on(store))
    store.takes["claimed"] = 1.0
    letter = DeadLetter(lane="x", command_type="hook", key="k", payload={"number": 8})
    pushing = asyncio.create_task(manager.dlq.push(letter))
    await asyncio.sleep(0.5)
    behind = await manager.submit("x", mine.hook(1), key="k")
    await pushing
    assert [found.payload for found in await manager.dlq.list()] == [{"number": 8}]
    async with manager:
        assert await behind == 10
    assert mine.ran == [1]


@everywhere
async def test_a_letter_may_hold_its_key_again(build: Build) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        first = await manager.submit("x", mine.hook(1, fails=2), key="k")
        second = await manager.submit("x", mine.hook(2), key="k")
        with pytest.raises(ValueError, match="no 1"):
            await first
        for _ in range(2):
            [letter] = await manager.dlq.list()
            assert letter.holds
            assert mine.ran[-1] == 1
            await manager.dlq.requeue(letter)
            await manager.drain()
        assert await second == 20
        assert await manager.dlq.len() == 0
    assert mine.ran == [1, 1, 1, 2]


async def test_in_memory_what_waits_behind_a_letter_is_lost_in_the_end() -> None:
    manager, mine = hooks(in_memory, PAUSE)
    async with manager:
        _, waiting = await held(manager, mine)
    for handle in waiting:
        with pytest.raises(ManagerClosedError):
            await handle
    # The letters outlive the manager; there is nothing to let go.
    assert await manager.dlq.clear() == 1


async def test_on_a_store_the_next_manager_finds_the_held_key() -> None:
    store = MemoryStore(clock=clock)
    manager, mine = hooks(lambda: on(store), PAUSE)
    async with manager:
        await held(manager, mine)
    again, mine = hooks(lambda: on(store), PAUSE)
    mine.failures[1] = 1  # so that it does not fail once more
    async with again:
        await again.drain(5)
        assert (await again.stats()).lanes["x"].held == 2
        [letter] = await again.dlq.list()
        await again.dlq.requeue(letter)
        await again.drain()
    assert mine.ran == [1, 2, 3]


@pytest.mark.parametrize("if_present", ["update", "skip"])
async def test_a_handle_is_not_that_of_a_failure_before_a_requeue(if_present: Any) -> None:
    """A letter keeps the id of its command, which the submitter knows as failed."""
    store = MemoryStore(clock=clock)
    producer, mine = hooks(lambda: on(store), PAUSE)
    worker, theirs = hooks(lambda: on(store), PAUSE)
    async with worker:
        failing = await producer.submit("x", mine.hook(1, fails=1), key="k")
        with pytest.raises(ValueError, match="no 1"):
            await failing
        worker.pause("x")
        [letter] = await worker.dlq.list()
        await worker.dlq.requeue(letter)
        handle = await producer.submit("x", mine.hook(2), key="k", if_present=if_present)
        assert (handle.id, handle.status) == (failing.id, "pending")
        worker.resume("x")
        assert await handle == (20 if if_present == "update" else 10)
        assert failing.status == "failed"
    assert theirs.ran == [1, 2 if if_present == "update" else 1]
    await producer.close()


@everywhere
async def test_a_drain_that_takes_too_long_counts_no_held_commands(build: Build) -> None:
    manager, mine = hooks(build, PAUSE)
    async with manager:
        await held(manager, mine)
        slow = await manager.submit("x", mine.hook(8, seconds=100), key="slow")
        await manager.submit("x", mine.hook(9), key="slow")
        with pytest.raises(DrainTimeoutError) as caught:
            await manager.drain(1)
        assert caught.value.left == {"x": 2}
        await slow


# Results of many


async def test_many_handles_of_one_line_take_few_trips() -> None:
    store = Trouble()
    submitter = on(store).with_lane("x", LaneConfig(0, 1), 0).build()
    worker = on(store).with_lane("x", LaneConfig(0, 1), 0).build()
    mine = Hooks(submitter)
    Hooks(worker)
    handles = await submitter.submit_many("x", [("k", mine.hook(n)) for n in range(300)])
    lines = 0
    line = store.do_line

    async def counted(*asked: Any) -> Any:
        nonlocal lines
        lines += 1
        return await line(*asked)

    store.do_line = counted  # type: ignore[method-assign]  # to count
    waiting = [asyncio.ensure_future(handle.wait()) for handle in handles]
    await asyncio.sleep(1)
    assert lines <= 2
    async with worker:
        assert await asyncio.gather(*waiting) == [10 * n for n in range(300)]
    # Two changes of the queue for each command, and at most a look for each of them.
    assert lines <= 2 * 300
    await submitter.close()


# Bad input


@everywhere
async def test_unique_for_goes_with_skip_alone(build: Build) -> None:
    manager, mine = hooks(build)
    for policy in (None, "append", "update", "reject"):
        wrong: Any = policy
        with pytest.raises(ValueError, match="unique_for needs if_present"):
            await manager.submit("x", mine.hook(1), key="k", if_present=wrong, unique_for=5)
    with pytest.raises(ValueError, match="unique_for must not be negative"):
        await manager.submit("x", mine.hook(1), key="k", if_present="skip", unique_for=-1)
    unknown: Any = "wait"
    with pytest.raises(ValueError, match="on_dead_letter must be 'continue' or 'pause_key'"):
        LaneConfig(0, 1).with_on_dead_letter(unknown)
    assert (await manager.stats()).total_pending == 0
    await manager.close()


async def test_only_postgresql_takes_a_connection() -> None:
    for build, error in ((in_memory, LaneError), (on_a_store, StoreError)):
        manager, mine = hooks(build)
        with pytest.raises(error, match="PostgreSQL"):
            await manager.submit("x", mine.hook(1), connection=object())
        with pytest.raises(error, match="PostgreSQL"):
            await manager.submit_many("x", [mine.hook(1)], connection=object())
        assert (await manager.stats()).total_pending == 0
        await manager.close()
