"""What an operator does to a store, and what the audit log has of it."""

import asyncio
import logging
from typing import Any

import pytest

from leasedkeyq import KeyAlreadyPresentError, MemoryStore, StoreError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandPayloadError,
    LaneConfig,
    RetryPolicy,
    UnknownLaneError,
    UnknownScheduleError,
)
from leasedkeyq.operations.items.burying import BURYING
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import ItemFilter, ItemView
from leasedkeyq.stores import Claim, Put, Store
from tests.lanes.support import clock
from tests.operations.support import bury, mail_manager


def on(store: Store) -> Operator:
    return Operator(store, clock=clock)


async def the(operator: Operator, queue: str, key: str | int) -> ItemView:
    found = await operator.item(queue, key)
    assert found is not None
    return found


async def test_put_and_what_is_refused() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        report = await operator.put("q", "k", '{"n": 12345678901234567890}', actor="ann")
        assert (report.done, report.note) == (1, "added")
        view = await the(operator, "q", "k")
        assert (view.id, view.raw) == (report.id, '{"n": 12345678901234567890}')
        again = await operator.put("q", "k", "1", if_present="skip", actor="ann")
        assert (again.done, again.note) == (0, "skipped")
        with pytest.raises(KeyAlreadyPresentError):
            await operator.put("q", "k", "1", if_present="reject", actor="ann")
        with pytest.raises(ValueError, match="the value must be JSON"):
            await operator.put("q", "k", "{", actor="ann")
        with pytest.raises(ValueError, match="one of leasedkeyq itself"):
            await operator.put("leasedkeyq.schedules", "k", "1", actor="ann")
        with pytest.raises(ValueError, match="actor must say"):
            await operator.put("q", "k", "1", actor="")


async def test_a_lane_takes_commands_only() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        await manager.submit("mail", send(to="ann"))
        with pytest.raises(ValueError, match="'mail' is a lane"):
            await on(store).put("mail", "k", "1", actor="ann")
        await manager.shutdown()


async def test_a_submitted_command_runs() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        with pytest.raises(UnknownLaneError, match="told of a lane 'mail'"):
            await operator.submit("mail", "send", '{"to": "ann"}', actor="ann")
        report = await operator.submit(
            "mail", "send", '{"to": "ann"}', key="k", priority=3, unchecked=True, actor="ann"
        )
        view = await operator.find(report.command_id)
        assert view is not None
        assert (view.id, view.key, view.kind, view.priority) == (report.id, "k", "send", -3)
        manager, _ = mail_manager(store)
        await manager.start()
        assert await manager.handle(report.command_id) == "sent to ann"
        await manager.shutdown()


async def test_a_submission_is_checked_against_what_workers_have_told() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, _ = mail_manager(store, LaneConfig(0, 2, partitions=3))
        await manager.start()
        await asyncio.sleep(1)
        operator = on(store)
        with pytest.raises(CommandPayloadError, match="told of a command type 'nope'"):
            await operator.submit("mail", "nope", "{}", actor="ann")
        with pytest.raises(CommandPayloadError, match=r"do not fit command 'send': .*to"):
            await operator.submit("mail", "send", "{}", actor="ann")
        with pytest.raises(CommandPayloadError, match="must be a JSON object"):
            await operator.submit("mail", "send", "[1]", actor="ann")
        with pytest.raises(ValueError, match="the arguments must be JSON"):
            await operator.submit("mail", "send", "{", actor="ann")
        assert [view.name for view in await operator.queues()] == []
        for name in ("ann", "bob", "eve"):
            raw = f'{{"to": "{name}"}}'
            report = await operator.submit("mail", "send", raw, key=name, actor="ann")
            assert await manager.handle(report.command_id) == f"sent to {name}"
        await manager.shutdown()


async def test_the_lease_of_a_living_worker_is_taken_by_force_only() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, _ = mail_manager(store, LaneConfig(0, 1))
        started: list[int] = []

        @manager.command("sleep")
        async def sleep() -> None:
            started.append(1)
            await asyncio.sleep(10_000)

        await manager.start()
        handle = await manager.submit("mail", sleep(), key="a")
        await asyncio.sleep(30)
        operator = on(store)
        refused = await operator.release("mail", "a", actor="ann")
        assert refused.done == 0
        assert "lives and runs it" in refused.failed[0][2]
        assert (await operator.release("mail", "a", force=True, actor="ann")).done == 1
        await asyncio.sleep(60)
        assert len(started) == 2
        await handle.cancel()
        await manager.shutdown()


async def test_a_requeued_command_is_done_for_whoever_submits_it() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store, LaneConfig(0, 1, retry_policy=RetryPolicy.none()))
        await manager.start()
        handle = await manager.submit("mail", send(to="nobody"), key="k")
        with pytest.raises(ValueError, match="no such address"):
            await handle
        operator = on(store)
        dead = await the(operator, "mail", "k")
        assert dead.state == "buried"
        assert dead.error.startswith("ValueError: no such address: 'nobody'")
        report = await operator.requeue("mail", dead.id, actor="ann")
        assert (report.done, report.matched) == (1, 1)
        gone = await operator.requeue("mail", dead.id, actor="ann")
        assert (gone.done, gone.matched) == (0, 0)
        await asyncio.sleep(1)
        assert (await the(operator, "mail", "k")).state == "buried"  # it has failed again
        await manager.shutdown()


async def test_a_cancelled_command_tells_its_submitter_also_while_it_runs() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store, LaneConfig(0, 1))
        ended: list[str] = []

        @manager.command("sleep")
        async def sleep() -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                ended.append("sleep")

        await manager.start()
        running = await manager.submit("mail", sleep(), key="a")
        waiting = await manager.submit("mail", send(to="ann"), key="b")
        await asyncio.sleep(1)
        other, _ = mail_manager(store, LaneConfig(0, 1))
        operator = on(store)
        assert (await operator.cancel("mail", "b", actor="ann")).done == 1
        with pytest.raises(CommandCancelledError):
            await other.handle(waiting.id)
        view = await operator.find(running.id)
        assert view is not None
        assert view.state == "in_flight"
        assert view.worker
        assert view.holder
        assert (await operator.cancel("mail", view.id, actor="ann")).done == 1
        with pytest.raises(CommandCancelledError):
            await other.handle(running.id)
        await asyncio.sleep(60)
        assert ended == ["sleep"]
        again = await operator.cancel("mail", view.id, actor="ann")
        assert (again.done, again.failed[0][2]) == (0, "it cannot be done: it is done")
        await other.shutdown()
        await manager.shutdown()


async def test_a_cancelled_member_is_told_to_its_gather() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store, LaneConfig(0, 1))
        handle = await manager.gather([send(to="ann"), send(to="bob")], lane="mail")
        operator = on(store)
        page = await operator.items("mail", ItemFilter(states=("available",)))
        assert [view.workflow[:8] for view in page.items] == ["member 1", "member 2"]
        assert (await operator.cancel("mail", page.items[0].key, actor="ann")).done == 1
        await manager.start()
        first, second = await handle
        assert (first.status, second.result) == ("cancelled", "sent to bob")
        await manager.shutdown()


async def test_remove_by_key_takes_the_line_and_by_id_one_value() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        for number in range(4):
            await store.put([Put("q", (("k", str(number).encode()),), "append")])
        line = (await operator.line("q", "k")).items
        assert (await operator.remove("q", line[1].id, actor="ann")).done == 1
        assert [view.value for view in (await operator.line("q", "k")).items] == [0, 2, 3]
        assert (await operator.remove("q", "k", actor="ann")).done == 3
        assert (await operator.remove("q", "k", actor="ann")).matched == 0
        await bury(store, "q", "d", "ValueError")
        assert (await operator.remove("q", "d", actor="ann")).done == 1
        assert await operator.queues() == []
        with pytest.raises(ValueError, match="left alone"):
            await operator.remove("leasedkeyq.lanes", "x", actor="ann")


async def test_bury_says_by_whom() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await store.put([Put("q", (("a", b"1"),)), Put("q", (("b", b"2"),), delay=600.0, kind="x")])
        await store.put([Put("q", (("c", b"1"),)), Put("q", (("c", b"2"),), "append")])
        await store.put([Put("q", (("d", b"1"),), delay=600.0, kind="x")])
        await store.put([Put("q", (("d", b"2"),), "append", kind="y")])
        for key in "abcd":
            assert (await operator.bury("q", key, reason="no more", actor="ann")).done == 1, key
        buried = (await operator.items("q", ItemFilter(states=("buried",)))).items
        assert [view.error for view in buried] == ["buried by ann: no more"] * 4
        assert [view.kind for view in buried] == ["", "x", "", "x"]
        assert [view.raw for view in buried] == ["1", "2", "1", "1"]
        left = (await operator.items("q", ItemFilter(states=("available",)))).items
        assert [(view.key, view.raw, view.kind) for view in left] == [
            ("c", "2", ""),
            ("d", "2", "y"),
        ]
        await store.claim([Claim((("q", 1),), key="c")])
        running = await operator.bury("q", "c", actor="ann")
        assert (running.done, running.failed_count) == (0, 1)
        assert (await operator.bury("q", "nobody", actor="ann")).matched == 0


class _ProcessEndsError(BaseException):
    pass


async def test_a_bury_that_is_stopped_leaves_the_command_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await store.put([Put("q", (("a", b"1"),), delay=600.0, kind="send")])
        before = await the(operator, "q", "a")
        for error in (asyncio.CancelledError(), StoreError("away")):

            async def fail(self: Store, claims: object, error: BaseException = error) -> None:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(Store, "claim", fail)
                with pytest.raises(type(error)):
                    await operator.bury("q", "a", actor="ann")
            after = await the(operator, "q", "a")
            assert (after.state, after.kind, after.due) == ("scheduled", "send", before.due)


async def test_a_bury_whose_process_died_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await store.put([Put("q", (("a", b"1"),), delay=600.0, kind="send")])
        [before] = (await store.browse("q")).items

        async def fail(*arguments: object, **options: object) -> None:
            raise _ProcessEndsError

        with monkeypatch.context() as patched:
            patched.setattr(Store, "claim", fail)
            patched.setattr(Store, "edit", fail)
            with pytest.raises(_ProcessEndsError):
                await operator.bury("q", "a", actor="ann")
        left = await the(operator, "q", "a")
        assert (left.state, left.kind) == ("available", f"{BURYING}{before.due!r}:send")
        await store.put([Put("q", (("a", b"2"),), "append", kind="send")])
        refused = await operator.bury("q", "a", actor="ann")
        assert "try again" in refused.failed[0][2]
        again = await the(operator, "q", "a")
        assert (again.state, again.kind, again.due) == ("scheduled", "send", before.due)
        assert (await operator.bury("q", "a", actor="ann")).done == 1
        [dead] = (await store.browse("q", states=("buried",))).items
        assert (dead.id, dead.kind, dead.value) == (before.id, "send", b"1")


async def test_release_gives_a_lease_back() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await store.put([Put("q", (("a", b"1"), ("b", b"2")))])
        await store.claim([Claim((("q", 1),))])
        assert (await operator.release("q", "a", actor="ann")).done == 1
        view = await the(operator, "q", "a")
        assert (view.state, view.attempt, view.error) == ("available", 1, "released by ann")
        [[first]] = await store.claim([Claim((("q", 1),))])
        assert first.key == "a"  # at the front
        not_leased = await operator.release("q", "b", actor="ann")
        assert (not_leased.done, not_leased.failed_count) == (0, 1)
        assert (await operator.release("q", "c", actor="ann")).matched == 0


async def test_a_waiting_item_is_edited_in_its_place() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await store.put(
            [Put("q", (("a", b"1"), ("b", b"2"))), Put("q", (("c", b"3"),), delay=60.0)]
        )
        b, c = await the(operator, "q", "b"), await the(operator, "q", "c")
        assert (await operator.set_priority("q", b.id, 5, actor="ann")).action == "priority"
        assert (await operator.edit("q", b.id, value='"new"', actor="ann")).done == 1
        assert (await operator.run_now("q", c.id, actor="ann")).done == 1
        assert (await the(operator, "q", "c")).state == "available"
        [[first]] = await store.claim([Claim((("q", 1),))])
        assert (first.key, first.value) == ("b", b'"new"')
        leased = await operator.edit("q", b.id, value="1", actor="ann")
        assert (leased.done, leased.failed[0][2]) == (0, "it does not wait: it is leased")
        assert (await operator.edit("q", 999, value="1", actor="ann")).matched == 0


async def test_an_edit_overwrites_no_newer_value() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await operator.put("q", "k", '{"n": 1}', actor="ann")
        seen = await the(operator, "q", "k")
        await operator.put("q", "k", '{"n": 2}', actor="producer")
        late = await operator.edit("q", seen.id, value="3", expected=seen.raw, actor="ann")
        assert (late.done, late.failed_count) == (0, 1)
        now = await the(operator, "q", "k")
        assert (now.id, now.raw) == (seen.id, '{"n": 2}')
        await store.claim([Claim((("q", 1),))])
        leased = await operator.edit("q", seen.id, value="3", expected=now.raw, actor="ann")
        assert (leased.done, leased.failed_count) == (0, 1)


async def test_an_item_that_is_not_what_was_seen_is_left_alone() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        for key in ("a", "b", "c"):
            await operator.put("q", key, "1", actor="ann")
        seen = [await the(operator, "q", key) for key in ("a", "b", "c")]
        await store.claim([Claim((("q", 1),))])
        await operator.remove("q", "c", actor="bob")
        report = await operator.change_seen("remove", seen, actor="ann")
        assert (report.done, report.matched, report.failed_count) == (1, 3, 2)
        assert (await the(operator, "q", "a")).state == "in_flight", "its lease goes on"
        assert await operator.item("q", "b") is None
        refused = await operator.change_seen("requeue", [await the(operator, "q", "a")], actor="a")
        assert refused.failed[0][2] == "it cannot be done: it is leased"
        with pytest.raises(ValueError, match="priority goes with"):
            await operator.change_seen("priority", seen, actor="ann")


async def test_the_queues_of_leasedkeyq_itself_are_left_alone() -> None:
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        internal = "leasedkeyq.audit"
        with pytest.raises(ValueError, match="one of leasedkeyq itself"):
            await operator.bury(internal, "changes", actor="ann")
        with pytest.raises(ValueError, match="one of leasedkeyq itself"):
            await operator.release(internal, "changes", force=True, actor="ann")
        with pytest.raises(ValueError, match="one of leasedkeyq itself"):
            await operator.submit(internal, "any", key="changes", unchecked=True, actor="ann")


async def test_the_arguments_of_a_command_are_edited() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        handle = await manager.submit("mail", send(to="ann"), key="k")
        operator = on(store)
        view = await the(operator, "mail", "k")
        assert (await operator.edit("mail", view.id, value='{"to": "bob"}', actor="x")).done == 1
        await manager.start()
        assert await handle == "sent to bob"
        await manager.shutdown()


async def test_purge() -> None:
    nonsense: Any = "nonsense"
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await store.put([Put("q", (("a", b"1"), ("b", b"2")))])
        await bury(store, "q", "d", "ValueError")
        assert (await operator.purge("q", "buried", dry_run=True, actor="ann")).matched == 1
        assert (await operator.purge("q", "buried", actor="ann")).done == 1
        assert (await operator.purge("q", dry_run=True, actor="ann")).matched == 2
        assert (await operator.purge("q", actor="ann")).done == 2
        with pytest.raises(ValueError, match="part must be"):
            await operator.purge("q", nonsense, actor="ann")


async def test_lanes_are_paused_and_resumed_for_all_workers() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        await manager.start()
        await manager.submit("mail", send(to="ann"))
        await asyncio.sleep(1)
        operator = on(store)
        await operator.submit("mail", "send", '{"to": "x"}', delay=60, unchecked=True, actor="a")
        await operator.submit("mail", "send", '{"to": "y"}', key="y", unchecked=True, actor="a")
        assert (await operator.pause("mail", actor="ann")).done == 1
        await asyncio.sleep(1)
        handle = await manager.submit("mail", send(to="bob"))
        await asyncio.sleep(100)
        assert handle.status == "pending"
        [view] = await operator.queues()
        assert view.paused
        assert (await operator.stats()).paused == ("mail",)
        assert (await operator.resume("mail", actor="ann")).done == 1
        assert await handle == "sent to bob"
        assert (await operator.resume("mail", actor="ann")).note == "it was not paused"
        with pytest.raises(UnknownLaneError):
            await operator.pause("nope", actor="ann")
        await manager.shutdown()


async def test_schedules_are_paused_resumed_and_run() -> None:
    async with MemoryStore(clock=clock) as store:
        manager, send = mail_manager(store)
        await manager.schedule("hourly", "0 * * * *", send(to="ann"), lane="mail").declare()
        operator = on(store)
        assert (await operator.pause_schedule("hourly", actor="ann")).done == 1
        assert (await operator.pause_schedule("hourly", actor="ann")).done == 0
        [view] = await operator.schedules()
        assert (view.paused, view.next_runs) == (True, ())
        assert (await operator.resume_schedule("hourly", actor="ann")).done == 1
        [view] = await operator.schedules()
        assert (view.paused, len(view.next_runs)) == (False, 5)
        report = await operator.run_schedule("hourly", actor="ann")
        await manager.start()
        assert await manager.handle(report.command_id) == "sent to ann"
        await manager.shutdown()
        for act in (operator.pause_schedule, operator.resume_schedule, operator.run_schedule):
            with pytest.raises(UnknownScheduleError):
                await act("nope", actor="ann")


async def test_every_action_is_one_line_of_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasedkeyq.audit")
    async with MemoryStore(clock=clock) as store:
        operator = on(store)
        await operator.put("q", "k", "1", actor="ann")
        await operator.remove("q", "k\n", actor="bob\nroot")
        with pytest.raises(ValueError, match="JSON"):
            await operator.put("q", "k", "{", actor="ann")
        await operator.bulk("remove", "q", ItemFilter(), actor="ann")
    lines = [record.getMessage() for record in caplog.records if record.name == "leasedkeyq.audit"]
    assert lines == [
        "put 'q' 'k' by 'ann': done",
        "remove 'q' 'k\\n' by 'bob\\nroot': nothing to do",
        *[line for line in lines if line.startswith("put 'q' 'k' by 'ann': ValueError: the value")],
        "bulk remove 'q' - by 'ann': done",
    ]
    facts: Any = caplog.records[0]
    assert (facts.action, facts.queue, facts.target, facts.actor) == ("put", "q", "k", "ann")
