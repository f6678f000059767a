"""A loss of power takes nothing that the SQLite store has acknowledged, but for the last claims.

It damages nothing either, and no fence is given out twice.

A store works, every step it makes in its files is written down, and the power goes after some of
them: what was synced is there, of the rest any part. Then Python's own SQLite opens what is left.
Only points near a sync, and some others, are tried here; `tests/torture` tries all of them.
"""

from pathlib import Path
from random import Random

import pytest

from leasedkeyq.engines.sqlite.transaction import SqliteTransaction
from tests.torture.power.disk import Disk, Name, Sync, SyncFolder, Truncate, Write
from tests.torture.power.sqlite_runs import DATABASE, Run, lose_power_often, losses, run


def working(folder: Path) -> Path:
    folder.mkdir()
    return folder


def sample(recorded: Run, dice: Random) -> set[int]:
    return recorded.points() | set(dice.sample(range(len(recorded.steps)), 20))


# The SQLite store


def test_what_was_acknowledged_survives(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 1, rounds=12)
    dice = Random(1)
    verdicts = losses(recorded, tmp_path, dice, points=sample(recorded, dice), outcomes=4)
    assert set(verdicts) <= {"kept", "unclaimed"}
    assert verdicts["kept"] > 100


def test_the_last_claims_may_be_lost_and_need_no_sync(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 3, rounds=20)
    ends = [told.steps for told in recorded.told]
    verdicts = losses(recorded, tmp_path, Random(3), points=ends, outcomes=3)
    assert set(verdicts) == {"kept", "unclaimed"}


def test_claims_are_synced_if_that_is_asked_for(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 3, rounds=20, sync_claims=True)
    ends = [told.steps for told in recorded.told]
    verdicts = losses(recorded, tmp_path, Random(3), points=ends, outcomes=3)
    assert set(verdicts) == {"kept"}


def test_at_normal_the_last_moments_may_be_lost_and_nothing_is_damaged(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 3, rounds=12, durability="normal")
    dice = Random(3)
    verdicts = losses(recorded, tmp_path, dice, points=sample(recorded, dice), outcomes=4)
    assert verdicts["lost"]
    assert set(verdicts) <= {"kept", "unclaimed", "lost"}


def test_power_goes_again_and_again(tmp_path: Path) -> None:
    """Also while the store recovers from the last time."""
    lose_power_often(tmp_path, Random(4), turns=12)


def test_a_new_database_whose_name_is_not_on_the_disk_yet(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 5, rounds=1)
    first_put = recorded.told[1].steps
    points = range(first_put + 1)
    assert set(losses(recorded, tmp_path, Random(5), points=points, outcomes=2)) <= {
        "kept",
        "unclaimed",
    }
    named = []
    disk = Disk({})
    for step in recorded.steps[:first_put]:
        disk.do(step)
        named.append(DATABASE in disk.least())
    # There are moments before the name is certain, and none once a caller knows of an item.
    assert not named[0]
    assert named[-1]


# The test itself: it finds what is wrong


def test_a_disk_that_does_not_sync_is_found_out(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 6, rounds=10)
    ends = [told.steps for told in recorded.told]
    verdicts = losses(recorded, tmp_path, Random(6), points=ends, outcomes=8, syncs=False)
    assert verdicts["lost"]
    assert verdicts["damaged"]


def test_a_folder_that_is_not_synced_is_found_out(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 7, rounds=4)
    ends = [told.steps for told in recorded.told]
    verdicts = losses(recorded, tmp_path, Random(7), points=ends, outcomes=3, folder_syncs=False)
    assert verdicts["lost"]


def test_a_store_that_does_not_mind_its_mark_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_fences(transaction: SqliteTransaction, count: int) -> int:
        transaction.fresh = False
        transaction._last_fence += count
        return transaction._last_fence - count

    monkeypatch.setattr(SqliteTransaction, "_take_fences", take_fences)
    recorded = run(working(tmp_path / "work"), 3, rounds=20)
    ends = [told.steps for told in recorded.told]
    assert losses(recorded, tmp_path, Random(3), points=ends, outcomes=3)["repeated"]


def test_every_step_is_written_down(tmp_path: Path) -> None:
    recorded = run(working(tmp_path / "work"), 8, rounds=40)
    disk = Disk({})
    done = 0
    for steps, files in recorded.seen:
        for step in recorded.steps[done:steps]:
            disk.do(step)
        done = steps
        assert disk.most(names=True) == files
    # The log was begun, written back, made shorter and removed, more than once.
    kinds = [type(step) for step in recorded.steps]
    assert min(kinds.count(kind) for kind in (Write, Truncate, Sync, SyncFolder)) > 3
    removed = [step for step in recorded.steps if isinstance(step, Name) and step.file is None]
    assert len(removed) > 1


# The disk


def test_what_is_synced_is_certain_and_the_rest_is_not() -> None:
    disk = Disk({"old": b"old"})
    for step in (
        Name("new", 1),
        Write(1, 0, b"a" * 1000),
        Sync(1),
        Write(1, 1000, b"b" * 1000),
        Write(0, 1, b"LD"),
    ):
        disk.do(step)
    assert disk.least() == {"old": b"old"}
    assert disk.most(names=False) == {"old": b"oLD"}
    assert disk.most(names=True) == {"old": b"oLD", "new": b"a" * 1000 + b"b" * 1000}
    disk.do(SyncFolder())
    disk.do(Name("old", None))
    assert disk.least() == {"old": b"old", "new": b"a" * 1000}
    dice = Random(1)
    found = [disk.any(dice) for _ in range(300)]
    assert {files.get("old") for files in found} >= {None, b"old", b"oLD"}
    contents = {files["new"] for files in found}
    assert all(content.startswith(b"a" * 1000) for content in contents)
    # Sectors end at 1024, 1536 and 2000.
    sectors = (b"b" * 24, b"b" * 512, b"b" * 464)
    assert b"a" * 1000 in contents
    assert b"a" * 1000 + sectors[0] in contents
    assert b"a" * 1000 + bytes(24) + sectors[1] in contents
    assert b"a" * 1000 + bytes(24) + bytes(512) + sectors[2] in contents
    assert any(set(content) - set(b"ab\0") for content in contents)
    disk.do(Sync(1))
    disk.do(Sync(0))
    disk.do(SyncFolder())
    everything = {"new": b"a" * 1000 + b"b" * 1000}
    assert disk.least() == disk.any(dice) == disk.most(names=True) == everything


def test_a_file_can_be_made_shorter_and_longer() -> None:
    disk = Disk({"file": b"123456"})
    disk.do(Truncate(0, 2))
    disk.do(Truncate(0, 4))
    disk.do(Write(0, 5, b"!"))
    assert disk.least() == {"file": b"123456"}
    assert disk.most(names=True) == {"file": b"12\0\0\0!"}
