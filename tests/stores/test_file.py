"""The file store against the machine, and what people do to its document."""

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import errors
from leasedkeyq.stores.contract import Ack, Cancel, Claim, Claimed, Put, Release
from leasedkeyq.stores.file import FileEngine, FileStore, FileStoreWarning
from leasedkeyq.stores.fileops import FileLock, FileOps, PolledLock
from leasedkeyq.stores.sealing import unseal
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS

SUFFIXES = pytest.mark.parametrize("suffix", ["yaml", "json"])
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["leasedkeyq.stores.file"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


def run(work: Callable[[FileStore], Awaitable[Any]], path: Path, **options: Any) -> Any:
    async def main() -> Any:
        store = FileStore(path, **options)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())


def put(engine: FileEngine, *keys: str, queue: str = "jobs", **options: Any) -> Any:
    items = tuple((key, json.dumps(key).encode()) for key in keys)
    return engine.apply([Put(queue, items, **options)])[0]


def claim(engine: FileEngine, count: int = 1, queue: str = "jobs", **options: Any) -> list[Claimed]:
    answer: Any = engine.apply([Claim(((queue, count),), count, **options)])[0]
    return list(answer)


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


def keys(engine: FileEngine, queue: str = "jobs") -> list[str]:
    """In the order in which they would be handed out."""
    return engine.read(
        lambda machine, now: (
            [item.key for item in machine.spaces[queue].state.ready]
            if queue in machine.spaces
            else []
        )
    )


def opened(path: Path, **options: Any) -> FileEngine:
    engine = FileEngine(path, **options)
    engine.settled = 0.0
    return engine


# The machine


@SUFFIXES
@pytest.mark.parametrize("stores", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_it_answers_as_the_machine_does(
    tmp_path: Path, suffix: str, stores: int, seed: int
) -> None:
    clock = ManualClock()

    async def main() -> None:
        # Two stores on one document read what the other has written each time.
        path = tmp_path / f"q.{suffix}"
        opened = [FileStore(path, clock=clock, limits=SMALL_LIMITS) for _ in range(stores)]
        await Differential(opened, clock, seed).run(150)
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
    before = FileOps().stamp(path)
    assert claim(engine, queue="other") == []
    assert engine.apply([Cancel("jobs", "nobody"), Ack("jobs", "a", "wrong")])[0] is False
    assert keys(engine) == ["a"]
    assert FileOps().stamp(path) == before


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

    def work(machine: Any, now: float) -> None:
        machine.put(Put("jobs", (("b", b"1"),)), now)
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
        (item,) = first.read(lambda machine, now: machine.look("jobs", "a", now))
        assert item.value == b"%d" % number


# Edits


def test_a_new_item_a_changed_priority_and_comments(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b", "c")
    edit(
        path,
        ("queues:", "# the queues\nqueues:"),
        ("      - key: b\n", "      # b is urgent\n      - key: b # really\n        priority: 7\n"),
        (
            "# sum",
            "      - key: by-hand\n        value: {n: 1} # one\n        owner: ann\n# end\n# sum",
        ),
    )
    assert keys(engine) == ["b", "a", "c", "by-hand"]
    assert "1 items added, 0 removed, 1 changed" in engine.notices[-1]
    item = claim(engine, 4)[3]
    assert (item.key, item.value, item.id) == ("by-hand", b'{"n":1}', 4)
    text = path.read_text()
    for comment in (
        "# the queues\nqueues:",
        "# b is urgent\n",
        "b # really\n",
        "# one\n",
        "# end\n",
    ):
        assert comment in text
    assert 'owner: "ann"' in text
    engine.apply([Ack("jobs", "by-hand", item.token)])
    assert keys(opened(path)) == []


def test_the_style_of_a_person(path: Path) -> None:
    pytest.importorskip("ruamel.yaml")
    path.write_text(
        """
# my tasks
queues:
    mail:   # outgoing
        max_size: 10
        items:

        # the first
        - {key: one, value: [1, two, no], priority: 3}
        - key: 2
          value:
            # inside
            text: |
                # not a comment
                line two
            when: 2026-01-31
          note: |
            remember
        # the last
    short:
        - key: "three\\tx"
"""
    )
    engine = opened(path)
    assert keys(engine, "mail") == ["one", "2"]
    first, second = claim(engine, 2, "mail")
    assert first.value == b'[1,"two","no"]'
    assert json.loads(second.value) == {
        "text": "# not a comment\nline two\n",
        "when": "2026-01-31",
    }
    assert keys(engine, "short") == ["three\tx"]
    text = path.read_text()
    for comment in ("# my tasks", "# the first", "# the last"):
        assert comment in text
    assert "max_size: 10" in text
    assert "# not a comment\n" not in text
    assert keys(opened(path), "short") == ["three\tx"]
    assert first.token in path.read_text()


def test_removed_and_moved_by_hand(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b", "c")
    (lease,) = claim(engine)
    blocks = path.read_text().split("      - ")
    third, end = blocks[3].split("# sum")
    blocks[2:] = [third, f"{blocks[2]}# sum{end}"]
    path.write_text("      - ".join(blocks))
    assert keys(engine) == ["c", "b"]
    blocks = path.read_text().split("      - ")
    path.write_text("      - ".join([blocks[0], *blocks[2:]]))
    assert keys(engine) == ["c", "b"]
    refusal = engine.apply([Ack("jobs", "a", lease.token)])[0]
    assert isinstance(refusal, errors.LeasedKeyQError)


def test_comments_of_an_item_leave_with_it_and_others_stay(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    edit(path, ("      - key: a", "      # chapter one\n\n      # about a\n      - key: a"))
    (lease,) = claim(engine)
    assert "# about a" in path.read_text()
    engine.apply([Ack("jobs", "a", lease.token)])
    assert "# about a" not in path.read_text()
    assert "# chapter one" in path.read_text()


def test_fields_that_go_leave_their_comments(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    (lease,) = claim(engine)
    edit(path, ("        lease:", "        # taken\n        lease:"))
    engine.apply([Release("jobs", "a", lease.token)])
    assert "lease:" not in path.read_text()
    assert "# taken" in path.read_text()


def test_a_schedule_by_hand(path: Path) -> None:
    clock = ManualClock()
    engine = opened(path, clock=clock)
    put(engine, "a")
    edit(path, ("      - key: a\n", "      - key: a\n        due: 2023-11-14T23:13:21+01:00\n"))
    assert keys(engine) == []
    clock.now += 1.0
    assert [item.key for item in claim(engine)] == ["a"]


def test_an_edit_of_an_old_version_adds_only(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    text = path.read_text()
    (lease,) = claim(engine)
    put(engine, "c")
    path.write_text(
        text.replace("# sum", "      - key: mine\n# sum").replace("- key: b", "- key: B")
    )
    with pytest.warns(FileStoreWarning, match="1 new items"):
        assert keys(engine) == ["b", "c", "mine"]
    assert engine.apply([Ack("jobs", "a", lease.token)]) == [None]
    assert len(list(path.parent.glob("*.damaged-*"))) == 2


@pytest.mark.parametrize("later", [0, 2])
def test_an_old_version_put_back_unchanged_takes_nothing_back(path: Path, later: int) -> None:
    engine = opened(path)
    put(engine, "a")
    text = path.read_bytes()
    (lease,) = claim(engine)
    for number in range(later):
        put(engine, f"b{number}")
    path.write_bytes(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(claim(engine, 9)) == later
    # One version back is what an interrupted write leaves; there is nothing to tell.
    assert ["older version" in str(warning.message) for warning in caught] == [True] * bool(later)
    assert engine.apply([Ack("jobs", "a", lease.token)]) == [None]


NONSENSE = [
    ("key: b", "key: a", "twice"),
    ("    id: 2", "    id: 1", "twice"),
    ("    id: 2", "    id: two", "id"),
    ("priority: 3", "priority: high", "priority"),
    ("priority: 3", "priority: 1.5", "priority"),
    ("priority: 3", "priority: 3\n        priority: 33", "priority"),
    ("version: 1", "version: 27", "version"),
    ("put_at: 2", "put_at: tomorrow 2", "time"),
    ("      - key: b\n", "      - nokey: 1\n", "key"),
    ("      - key: b\n", "      - key: [b]\n", "text"),
    ("      - key: b\n", "      - key: b\n        state: lost\n", "state"),
    ("      - key: b\n", "      - key: b\n        lease: {fence: 9}\n", "token"),
    ("      - key: b\n", "      - key: b\n        next: {value: 9}\n", "lease"),
    ("      - key: b\n", "      - key: b\n     oops\n", "YAML"),
    ("    items:\n", "    items: none\n    more:\n", "list"),
    ("queues:\n", "queues: 7\nothers:\n", "mapping"),
    ("# sum", "\x00\x01 # sum", "YAML"),
]


@pytest.mark.parametrize("old, new, reason", NONSENSE)
def test_nonsense_is_set_aside_and_the_last_version_restored(
    path: Path, old: str, new: str, reason: str
) -> None:
    engine = opened(path)
    put(engine, "a")
    put(engine, "b", priority=3)
    good = path.read_bytes()
    edit(path, (old, new))
    bad = path.read_bytes()
    with pytest.warns(FileStoreWarning, match="last good version"):
        assert keys(engine) == ["b", "a"]
    assert path.read_bytes() == good
    aside, note = sorted(path.parent.glob("*.damaged-*"))
    assert aside.read_bytes() == bad
    assert note.name == f"{aside.name}.reason"
    assert reason in note.read_text()
    assert reason in engine.notices[-1]
    assert put(engine, "c") == (3,)


def test_two_leases(path: Path) -> None:
    engine = opened(path)
    put(engine, "a", "b")
    first, second = claim(engine, 2)
    edit(path, (second.token, first.token))
    with pytest.warns(FileStoreWarning, match="another item"):
        assert keys(engine) == []


def test_twice_in_json(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    engine = opened(path)
    put(engine, "a")
    edit(path, ('"key": "a"', '"key": "x", "key": "a"'))
    with pytest.warns(FileStoreWarning, match="twice"):
        assert keys(engine) == ["a"]


def test_a_missing_file_is_not_an_empty_queue(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    path.unlink()
    assert keys(engine) == ["a"]  # as if the first write had been interrupted
    put(engine, "b")
    path.unlink()
    with pytest.warns(FileStoreWarning, match="missing"):
        assert keys(engine) == ["a", "b"]
    path.unlink()
    path.with_name("queue.yaml.bak").unlink()
    assert keys(engine) == []


def test_damage_without_a_copy_is_an_error_and_nothing_is_touched(path: Path) -> None:
    path.write_text("queues: [")
    engine = opened(path)
    for _ in range(2):
        with pytest.raises(errors.StoreError, match="mend it by hand"):
            put(engine, "a")
    assert path.read_text() == "queues: ["
    path.write_text("queues: {}\n")
    assert put(engine, "a") == (1,)


def test_a_newer_version_is_not_touched(path: Path) -> None:
    from leasedkeyq.stores.sealing import seal

    text = seal(b"version: 2\nrevision: 1\nqueues: {}\n", yaml=True)
    path.write_bytes(text)
    path.with_name("queue.yaml.bak").write_bytes(text)
    with pytest.raises(errors.StoreError, match="upgrade"):
        put(opened(path), "a")
    assert path.read_bytes() == text


def test_warnings_that_are_errors_do_not_lose_the_answer(path: Path) -> None:
    engine = opened(path)
    put(engine, "b")
    put(engine, "a", priority=1)
    path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [item.key for item in claim(engine)] == ["a"]
    assert "missing" in engine.notices[-1]


def test_yaml_without_ruamel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    engine = opened(path)
    put(engine, "a")
    edit(path, ("# sum", "      - key: plain\n# sum"))
    assert keys(engine) == ["a", "plain"]
    edit(path, ("key: plain", "key: 'quoted'"))
    text = path.read_text()
    with pytest.raises(errors.StoreError, match=r"leasedkeyq\[yaml\]"):
        put(engine, "b")
    assert path.read_text() == text


# Others


def _work(path: Path, count: int, log: Path, threads: int) -> None:
    engine = FileEngine(path)

    def consume() -> None:
        while True:
            taken = claim(engine, 4, lease_time=60.0)
            if (
                not taken
                and not engine.read(lambda machine, now: machine.count("jobs", now)).available
            ):
                return
            done = engine.apply([Ack("jobs", item.key, item.token) for item in taken])
            assert all(answer is None for answer in done)
            with log.open("a") as file:
                file.writelines(f"{item.key} {item.fence}\n" for item in taken)

    workers = [threading.Thread(target=consume) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@SUFFIXES
def test_eight_processes_of_four_threads_do_each_item_once(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    log = tmp_path / "log"
    log.touch()
    count = 200
    put(FileEngine(path), *(f"k{number}" for number in range(count)))
    started = [processes.Process(target=_work, args=(path, count, log, 4)) for _ in range(8)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(key for key, _ in lines) == sorted(f"k{number}" for number in range(count))
    assert len({fence for _, fence in lines}) == count
    assert not list(tmp_path.glob("*.damaged*"))
    assert unseal(path.read_bytes(), yaml=suffix == "yaml")[1]


def test_a_forked_child_has_a_lock_of_its_own(path: Path) -> None:
    engine = opened(path)
    put(engine, "a")
    engine._lock.acquire(shared=False)
    pid = os.fork()
    if pid == 0:
        put(engine, "b")
        os._exit(0)
    time.sleep(0.1)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    engine._lock.release()
    assert os.waitpid(pid, 0)[1] == 0
    assert keys(engine) == ["a", "b"]


def test_without_flock_there_is_another_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.stores.fileops.fcntl", None)
    engines = [FileEngine(path) for _ in range(4)]
    assert isinstance(engines[0]._lock, PolledLock)

    def work(engine: FileEngine) -> None:
        for number in range(10):
            put(engine, f"{id(engine)} {number}")
            assert claim(engine, lease_time=60.0)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = engines[0].read(lambda machine, now: machine.count("jobs", now))
    assert (counts.in_flight, counts.available) == (40, 0)
    assert not engines[0].notices
    engines[0]._lock.acquire(shared=False)
    waiting = threading.Thread(target=put, args=(engines[1], "late"))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    engines[0].close()
    waiting.join(20)
    assert not waiting.is_alive()


def test_without_flock_and_filelock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.stores.fileops.fcntl", None)
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(errors.StoreError, match=r"leasedkeyq\[filelock\]"):
        FileEngine(path)


def test_a_removed_lock_file_is_made_again(path: Path) -> None:
    first, second = opened(path), opened(path)
    assert isinstance(first._lock, FileLock)
    put(first, "a")
    path.with_name("queue.yaml.lock").unlink()
    put(second, "b")
    put(first, "c")
    assert keys(first) == ["a", "b", "c"]
    assert first._lock.path.stat().st_ino == os.fstat(first._lock._file or 0).st_ino


def _put_later(path: Path) -> None:
    time.sleep(0.2)
    put(FileEngine(path), "a")


@pytest.mark.parametrize("kernel", [True, False])
def test_a_put_by_another_process_wakes(
    path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
) -> None:
    if not kernel:
        monkeypatch.setattr("leasedkeyq.stores.file_watch.FileWatch._open", lambda self: None)

    async def work(store: FileStore) -> None:
        woken = asyncio.Event()
        end = store.watch("jobs", woken.set)
        process = processes.Process(target=_put_later, args=(path,))
        process.start()
        await asyncio.wait_for(woken.wait(), 20)
        await asyncio.to_thread(process.join)
        woken.clear()
        await store.put([Put("jobs", (("b", b"1"),))])
        await asyncio.wait_for(woken.wait(), 1)
        end()

    run(work, path)
    assert not [t for t in threading.enumerate() if "leasedkeyq watch" in t.name]


def test_callers_share_a_write(path: Path) -> None:
    async def work(store: FileStore) -> int:
        puts = [store.put([Put("jobs", ((f"k{n}", b"1"),))]) for n in range(200)]
        await asyncio.gather(*puts)
        return store.engine._document.revision

    assert run(work, path) < 20
