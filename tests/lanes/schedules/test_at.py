"""`submit(at=...)`: a command that starts at a moment."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from tests.lanes.support import EPOCH, Build, everywhere, now

START = datetime.fromtimestamp(EPOCH, UTC)


@everywhere
async def test_a_command_starts_at_a_moment(build: Build) -> None:
    manager = build().with_lane("work", LaneConfig(0, 8), 0).build()
    began: list[tuple[int, float]] = []

    @manager.command("note", lane="work")
    async def note(number: int) -> None:
        began.append((number, now()))

    async with manager:
        handle = await manager.submit(note(1), at=START + timedelta(seconds=30))
        assert handle.status == "scheduled"
        await manager.submit(
            "work", note(2), at=(START + timedelta(seconds=20)).astimezone(ZoneInfo("Asia/Tokyo"))
        )
        await manager.submit(note(3), at=START - timedelta(days=1))
        await manager.submit_many([note(4), note(5)], at=START + timedelta(seconds=25))
        await asyncio.sleep(31)
    assert sorted(began) == [(1, 30), (2, 20), (3, 0), (4, 25), (5, 25)]


@everywhere
async def test_moments_that_make_no_sense_are_refused(build: Build) -> None:
    manager = build().with_lane("work", LaneConfig(0, 8), 0).build()

    @manager.command("note", lane="work")
    async def note() -> None: ...

    naive = datetime(2027, 3, 1, 8, 30)  # noqa: DTZ001  # that is what is tested
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (
            ValueError,
            r"write datetime\(2027, 3, 1, 8, 30, tzinfo=UTC\), or datetime",
            {"at": naive},
        ),
        (ValueError, "at and delay exclude each other", {"at": START, "delay": 5}),
        (TypeError, "at must be a datetime, got date", {"at": date(2027, 3, 1)}),
        (TypeError, "at must be a datetime, got float", {"at": EPOCH}),
    ]
    submit: Any = manager.submit
    submit_many: Any = manager.submit_many
    for kind, message, arguments in wrong:
        with pytest.raises(kind, match=message):
            await submit(note(), **arguments)
        with pytest.raises(kind, match=message):
            await submit_many("work", [note()], **arguments)
    assert (await manager.stats()).total_pending == 0
    await manager.close()


def test_a_program_without_a_loop_submits_for_a_moment(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/jobs.db"
    builder = QueueManagerBuilder().with_lane("work", LaneConfig(0, 8), 0).with_storage(storage)
    manager = builder.build()

    @manager.command("note", lane="work")
    async def note() -> None: ...

    later = datetime.now(UTC) + timedelta(hours=1)
    assert manager.sync.submit(note(), at=later).status == "scheduled"
    assert [handle.status for handle in manager.sync.submit_many([note()], at=later)] == [
        "scheduled"
    ]
    with pytest.raises(ValueError, match="exclude each other"):
        manager.sync.submit(note(), at=later, delay=1)
    manager.sync.close()
