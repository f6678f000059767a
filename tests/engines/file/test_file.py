"""The file store against the model, and what it writes."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import errors
from leasedkeyq.engines.file.file_operations import FileOperations
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.model.requests import Ack, Cancel, Claim, Put
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS
from tests.engines.file.support import SUFFIXES, claim, keys, opened, put, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


# The model


@SUFFIXES
@pytest.mark.parametrize("stores", [1, 2])
def test_it_answers_as_the_model_does(tmp_path: Path, suffix: str, stores: int) -> None:
    clock = ManualClock()

    async def main() -> None:
        # Two stores on one document read what the other has written each time.
        path = tmp_path / f"q.{suffix}"
        opened = [FileStore(path, clock=clock, limits=SMALL_LIMITS) for _ in range(stores)]
        await Differential(opened, clock, stores).run(150)
        for store in opened:
            await store.close()

    asyncio.run(main())


# Writing


def test_reading_and_changing_nothing_write_nothing(path: Path) -> None:
    engine = opened(path)
    assert claim(engine) == []
    assert keys(engine) == []
    assert not path.exists()
    put(engine, "a")
    before = FileOperations().stamp(path)
    assert claim(engine, queue="other") == []
    assert engine.apply([Cancel("jobs", "nobody"), Ack("jobs", "a", "wrong")])[0] == 0
    assert keys(engine) == ["a"]
    assert FileOperations().stamp(path) == before


def test_an_emptied_document_stays_a_document(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    lease = claim(engine)[0]
    engine.apply([Ack("jobs", "a", lease.token)])
    assert "queues: {}" in path.read_text()
    again = opened(path)
    assert put(again, "b") == (2,)
    assert claim(again)[0].fence == 2


def test_what_the_work_raises_undoes_it_all(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    before = path.read_bytes()

    def work(model: Any, now: float) -> None:
        model.put(Put("jobs", (("b", b"1"),)), now)
        raise LookupError

    with pytest.raises(LookupError):
        engine.change(work)
    assert path.read_bytes() == before
    assert keys(engine) == ["a"]


def test_the_copy_is_the_same_text_in_another_file(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    copy = path.with_name("queue.yaml.bak")
    assert copy.read_bytes() == path.read_bytes()
    assert copy.stat().st_ino != path.stat().st_ino


def test_the_mode_of_the_file_is_kept(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    path.chmod(0o600)
    put(engine, "b")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name("queue.yaml.bak").stat().st_mode & 0o777 == 0o600


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.yaml"):
        FileStore(tmp_path / "queue.txt")
    with pytest.raises(errors.StoreError, match="create it first"):
        FileStore(tmp_path / "nowhere" / "queue.yaml")


def test_closed(path: Path) -> None:
    async def main() -> None:
        store = FileStore(path)
        await store.put([Put("q", (("a", b"1"),))])
        await store.close()
        with pytest.raises(errors.StoreClosedError):
            await store.claim([Claim((("q", 1),))])
        with pytest.raises(errors.StoreClosedError):
            store.watch("q", lambda: None)
        with pytest.raises(errors.StoreClosedError):
            store.engine.apply([])

    asyncio.run(main())


@SUFFIXES
def test_what_could_not_be_read_back_is_refused_and_spoils_nobody_else(
    tmp_path: Path, suffix: str
) -> None:
    async def work(store: FileStore) -> None:
        answers = await store.put(
            [
                Put("q", (("a", b"1"),)),
                Put("q", (("lone \ud800", b"1"),)),
                Put("q", (("", b"1"),)),
                Put("q", (("b", b"1"),), priority=2**70),
                Put("q", (("c", b"1"),), delay=float("inf")),
                Put("", (("d", b"1"),)),
                Put("q", (("e", b"1"),)),
            ]
        )
        assert [isinstance(answer, errors.StoreError) for answer in answers] == [
            False,
            *[True] * 5,
            False,
        ]
        assert (await store.count())["q"].available == 2

    path = tmp_path / f"queue.{suffix}"
    run(work, path)
    assert keys(opened(path), "q") == ["a", "e"]


def test_a_file_with_the_inode_and_the_time_of_the_known_one_is_not_taken_for_it(
    path: Path,
) -> None:
    first, second = opened(path), opened(path)
    for number in range(10, 80):
        # After two writes the inodes come round again.
        for value in (b"00", b"%d" % number):
            second.apply([Put("jobs", (("a", value),))])
        os.utime(path, ns=(10**18, 10**18))
        (item,) = first.read(lambda model, now: model.look("jobs", "a", now))
        assert item.value == b"%d" % number
