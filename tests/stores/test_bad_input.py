"""Mistakes on stores: an error that says what was wrong and what to do, and nothing has changed.

The mistakes are those of docs/reference/store-mistakes.md. What each error says is here.
"""

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore, connect
from leasedkeyq.engines.file.document.codec import add_checksum
from leasedkeyq.engines.sqlite.schema import APPLICATION_ID
from leasedkeyq.errors import LimitExceededError, StoreError
from leasedkeyq.model.requests import STATES, StoredItem
from leasedkeyq.repository import QueueItem, QueueRepository
from leasedkeyq.stores import Limits, Store
from leasedkeyq.telemetry import StoreMetrics
from tests.servers.urls import empty_store
from tests.test_documents import ROOT, Mistake, blocks, mistakes, run

PAGE = ROOT / "docs/reference/store-mistakes.md"
KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite", "json", "yaml", "postgresql", "redis"])

OPENING = {
    'connect("carrier-pigeon://jobs")': r"no store for the scheme 'carrier-pigeon' .*; known are ",
    'connect("jobs.db")': r"not a store URL: 'jobs.db'; it looks like sqlite:///jobs.db",
    'connect("sqlite://jobs.db")': r"names a host; write sqlite:///jobs.db .* as in sqlite:////srv",
    'connect("file://queue.yaml")': r"names a host; write file:///path .* and file:path",
    'connect("sqlite:///:memory:")': r"in memory is memory://, .*; write sqlite:///jobs.db",
    'connect("sqlite:///")': r"has no path; write sqlite:///path/to/file",
    'connect("memory://jobs")': r"memory:// has no path: every connect opens a new, empty store",
    'connect("sqlite:///jobs.db?durability=normal")': r"behind its path; pass options .* by name",
    'connect("file:queue.txt")': r"writes .yaml, .yml or .json, not 'queue.txt'",
    'connect("sqlite:///jobs.db", durability="most")': r"durability must be 'full' or 'normal'",
    'connect("sqlite:///jobs.db", busy_timeout=-1)': r"busy_timeout must be at least 0",
    'connect("memory://", durability="full")': r"unexpected keyword argument 'durability'",
    "Limits(value_size=0)": r"value_size must be at least 1, got 0",
    'connect("memory://", limits={"key_length": 64})': r"limits must be a .*Limits, got dict",
    'connect("sqlite:///missing/jobs.db")': r"missing/jobs.db: .* the folder must exist",
    'connect("file:missing/queue.json")': r"missing is not a folder; create it first",
    'connect("sqlite:///locked/jobs.db")': r"locked/jobs.db: .* the folder must .* be writable",
    'await connect("file:locked/queue.json").queue("jobs").put("x", 1)': (
        r"locked/queue.json: .*: give this process the right to write the file and its folder"
    ),
    'connect("sqlite:///locked")': r"locked: the file cannot be opened",
    'connect("sqlite:///notes.db")': r"notes.db: the file is not a SQLite database; name another",
    'connect("sqlite:///other.db")': r"other.db is .* not one of leasedkeyq; give it a file of its",
    'connect("sqlite:///newer.db")': r"newer.db has tables of version 99, .*: upgrade leasedkeyq",
    'await connect("file:newer.json").queue("jobs").put("x", 1)': (
        r"newer.json was written by another version .* version is 99, .*; upgrade"
    ),
    'await connect("file:nonsense.json").queue("jobs").put("x", 1)': (
        r"nonsense.json cannot be read, .*; mend it by hand, or move it away"
    ),
}

MORE = r"use less, or open the store with limits=Limits\({}=...\)"
USING = {
    "await queue.put(1, 1)": r"key must be a str on a store, got 1",
    'await queue.put_many({"x": 1, 2: 2})': r"key must be a str on a store, got 2",
    'await queue.take(b"waiting")': r"key must be a str on a store, got b'waiting'",
    "await queue.peek(None)": r"key must be a str on a store, got None",
    "await queue.remove(1)": r"key must be a str on a store, got 1",
    'await queue.put("", 1)': r"key must not be empty",
    'await queue.put("k" * 21, 1)': r"key has 21 .*'k+'.* is 20: " + MORE.format("key_length"),
    r'await queue.put("a\x00b", 1)': r"key must be text without NUL .*, got 'a\\x00b'",
    r'await queue.put("a\ud800b", 1)': r"key must be text without .* lone .*, got 'a\\ud800b'",
    'store.queue("")': r"the name of a queue must not be empty",
    "store.queue(7)": r"the name of a queue must be a str on a store, got 7",
    'await queue.put("x", object())': r"value of key 'x' cannot be stored as JSON \(object\)",
    'await queue.put("x", {"when": [1j]})': r"value of key 'x' cannot .* objects of type complex",
    r'await queue.put("x", "a\ud800b")': r"value of key 'x' cannot be stored as JSON \(str\)",
    'await queue.put("x", {"rate": float("nan")})': r"key 'x' cannot .*: rate is nan, and JSON has",
    'await queue.put("x", "v" * 99)': r"key 'x' has 101 bytes; .* 100: "
    + MORE.format("value_size"),
    'await queue.put_many({"x": 1, "y": "v" * 99})': r"the value of key 'y' has 101 bytes",
    'await queue.put_many(dict.fromkeys("wxyz", 1))': (
        r"4 items in one put on queue 'jobs'; .* is 3: " + MORE.format("batch_size")
    ),
    'await store.queue("jobs", maxsize=1).put_many({"x": 1, "y": 2})': r"2 values do not .* is 1",
    'await store.queue("jobs", maxsize=1).put_many([("x", 1), ("x", 2)], if_present="append")': (
        r"2 values do not .* is 1"
    ),
    'await queue.put("x", 1, priority=2**63)': r"priority must be below 2\*\*63 on a store",
    'await queue.put("x", 1, priority=1.5)': r"priority must be an int",
    'await queue.put("x", 1, delay=-1)': r"delay must not be negative",
    'await queue.put("x", 1, if_in_flight="wait")': r"if_in_flight must be 'update', 'reject' or",
    'await queue.put("x", 1, if_present="buffer")': r"if_present must be 'append', 'update',",
    'await queue.put("x", 1, if_present="append", if_in_flight="update")': r"exclude each other",
    'await queue.put("waiting", 3, if_present="reject")': r"key 'waiting' is in the queue already",
    'await queue.put("leased", 3, if_in_flight="reject")': r"key 'leased' is in flight: it",
    'store.queue("jobs", value_type=3)': r"value_type cannot be 3: ",
    'await numbers.peek("text")': r"key 'text' is not as expected: Expected `int`, got `str`",
    "await queue.get(timeout=-1)": r"timeout must not be negative",
    "await queue.get(lease_timeout=0)": r"lease_timeout must be greater than 0; None means",
    "await queue.get_many(0)": r"n must be at least 1, got 0",
    'await queue.take("leased", timeout=0)': r"key 'leased' did not become available within 0 s",
    "await queue.ack(lease.token)": r"lease must be the Lease that get or take returned, got str",
    "await queue.ack(foreign)": r"there is no such lease on key 'leased' here",
    "await other_queue.release(lease)": r"there is no such lease on key 'leased' here",
    'await queue.extend(Lease("x", "leased"), 5)': r"there is no such lease on key 'leased' here",
    r'await queue.ack(Lease("\ud800", "\ud800"))': r"there is no such lease on key '\\ud800' here",
    "await queue.release(lease, requeue_front=True, delay=1)": r"requeue_front and delay exclude",
    'await queue.bury(lease, ValueError("x"))': r"error must be a str, got ValueError; str\(\)",
    'await queue.remove("waiting", id=0)': r"id must be at least 1, got 0",
    'await queue.requeue(buried, if_present="skip")': r"if_present must not be 'skip' here: the",
    "await queue.requeue(buried)": r"no buried item \d+: it was requeued, purged or dropped",
    'await store.browse("jobs", limit=0)': r"limit must be at least 1, got 0",
    'await store.browse("jobs", limit=-1)': r"limit must be at least 1, got -1",
    'await store.browse("jobs", states=["lost"])': r"states must be among .*; got 'lost'",
    'await store.browse("jobs", cursor="waiting")': r"cursor must be that of the page before",
    r'await store.browse("jobs", prefix="\ud800")': r"prefix must be text without NUL .*, as",
    'await closed_queue.put("x", 1)': r"put: the queue 'jobs' is closed",
    "await closed_queue.get()": r"get: the queue 'jobs' is closed",
    'await orphan.put("x", 1)': r"the .*store.* is closed",
    "await orphan.get()": r"the .*store.* is closed",
    "await orphan.qsize()": r"the .*store.* is closed",
}


@pytest.fixture
def fresh_url(kind: str, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """A function that names a new store of a kind with every call."""
    numbers = count()

    def name_one() -> str:
        match kind:
            case "memory":
                return "memory://"
            case "json" | "yaml":
                return f"file://{tmp_path}/queue{next(numbers)}.{kind}"
            case _:
                return stores.enter_context(empty_store(kind, tmp_path))

    with ExitStack() as stores:
        yield name_one


async def everything(store: Store) -> list[StoredItem]:
    """All that a store shows."""
    return [
        item
        for queue in sorted(await store.count())
        for item in (await store.browse(queue, states=STATES, limit=1000)).items
    ]


async def raised_by(mistake: Mistake, names: dict[str, Any]) -> str:
    """Make a mistake; return what is wrong with the error, or "" for nothing."""
    call, name, reason = mistake
    says = (OPENING | USING)[call]
    try:
        async with asyncio.timeout(60):
            await run(call, names, PAGE)
    except Exception as error:
        if type(error).__name__ != name:
            return f"{call} raised {error!r}"
        if getattr(error, "reason", None) != reason:
            return f"{call}: the reason is {getattr(error, 'reason', None)!r}"
        # The name of the file is the first thing that an error tells of it.
        return "" if re.search(says, str(error), re.DOTALL) else f"{call} says: {error}"
    return f"{call} raised nothing"


def test_every_mistake_is_tried_and_no_other() -> None:
    assert [mistake.call for mistake in mistakes(PAGE)] == [*OPENING, *USING]


@KINDS
def test_a_mistake_changes_nothing_and_says_what_to_do(fresh_url: Callable[[], str]) -> None:
    (preparation,) = [block for block in blocks(PAGE) if block.language == "python"]
    source = preparation.source.replace('"memory://"', "fresh_url()")
    assert source.count("fresh_url()") == 3

    async def main() -> None:
        names: dict[str, Any] = {"fresh_url": fresh_url}
        await run(source, names, PAGE, preparation.line)
        stores = [names["store"], names["other_store"]]
        before = [await everything(store) for store in stores]
        wrong: list[str] = []
        for mistake in mistakes(PAGE):
            if mistake.call not in USING:
                continue
            wrong.append(await raised_by(mistake, names))
            if [await everything(store) for store in stores] != before:
                wrong.append(f"{mistake.call} changed something")
        assert not any(wrong), "\n".join(filter(None, wrong))
        # The lease is as good as before.
        await names["queue"].ack(names["lease"])
        for store in stores:
            await store.close()

    asyncio.run(main())


# Opening


def test_a_store_that_cannot_be_opened_says_why() -> None:
    # Root may write everywhere, so somebody else tries, in a folder that everybody can reach.
    code = "from tests.stores.test_bad_input import open_as_nobody; open_as_nobody()"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        command = [sys.executable, "-c", code, folder]
        child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        _, told = child.communicate(timeout=100)
    assert child.returncode == 0, told


def open_as_nobody() -> None:
    """Try all that cannot be opened. Runs in a process of its own."""
    for module in ("file", "sqlite"):
        import_module(f"leasedkeyq.engines.{module}.store")  # afterwards it may be out of reach
    opened = mistakes(PAGE)
    os.chdir(sys.argv[1])
    if os.geteuid() == 0:
        os.setuid(65534)
    Path("notes.db").write_text("Buy milk. " * 1000)
    Path("nonsense.json").write_text('{"queues": 5')
    Path("newer.json").write_bytes(add_checksum(b'{\n"version": 99,\n"queues": {},\n', yaml=False))
    Path("locked").mkdir()
    Path("locked").chmod(0o500)
    for name, statement in (
        ("other.db", "CREATE TABLE albums (title)"),
        ("newer.db", f"PRAGMA application_id = {APPLICATION_ID}"),
    ):
        connection = sqlite3.connect(name)
        connection.execute(statement)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    there = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}

    async def main() -> None:
        names: dict[str, Any] = {"connect": connect, "Limits": Limits}
        wrong = [await raised_by(row, names) for row in opened if row.call in OPENING]
        assert not any(wrong), "\n".join(filter(None, wrong))

    asyncio.run(main())
    for path, content in there.items():
        assert path.read_bytes() == content, path
    assert not Path("jobs.db").exists()
    Path("locked").chmod(0o700)


def test_a_missing_extra_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    path = tmp_path / "queue.yaml"
    path.write_text("queues: {jobs: {items: [{key: a, value: &one 1}]}}\n")

    async def main() -> None:
        store = connect(f"file://{path}")
        with pytest.raises(StoreError, match=r"pip install .leasedkeyq\[yaml\]"):
            await store.queue("jobs").get(timeout=0)
        await store.close()

    asyncio.run(main())
    assert path.read_text() == "queues: {jobs: {items: [{key: a, value: &one 1}]}}\n"


# What is no error


@KINDS
def test_a_value_of_another_type_is_buried_and_the_next_one_taken(
    fresh_url: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = connect(fresh_url())
        await store.queue("jobs").put_many([("bad", "text"), ("good", 7)])
        numbers = store.queue("jobs", value_type=int)
        key, value, _ = await numbers.get(timeout=60)
        assert (key, value) == ("good", 7)
        (buried,) = await numbers.buried()
        reason = "the stored value of key 'bad' is not as expected: Expected `int`, got `str`"
        assert (buried.key, buried.value, buried.error) == ("bad", b'"text"', reason)
        assert f"queue 'jobs': buried an item: {reason}" in caplog.text
        await store.close()

    asyncio.run(main())


@KINDS
def test_an_error_text_that_cannot_be_stored_is_made_storable(fresh_url: Callable[[], str]) -> None:
    async def main() -> None:
        store = connect(fresh_url())
        queue = store.queue("jobs")
        await queue.put("a", 1)
        _, _, lease = await queue.get(timeout=60)
        buried = await queue.bury(lease, "Datei \udce4.txt\x00 fehlt: \N{SNOWMAN}")
        assert buried.error == "Datei ?.txt\N{REPLACEMENT CHARACTER} fehlt: \N{SNOWMAN}"
        (item,) = (await store.browse("jobs", states=["buried"])).items
        assert item.error == item.history[-1].error == buried.error
        await store.close()

    asyncio.run(main())


@KINDS
def test_a_repository_takes_such_a_text_too(fresh_url: Callable[[], str]) -> None:
    with QueueRepository(fresh_url()) as repository:
        repository.enqueue(QueueItem.create("task", {}))
        item = repository.dequeue()
        assert item is not None
        failed = repository.fail(item.id, OSError("Datei \udce4.txt fehlt"))
        assert failed.error_message == "OSError: Datei ?.txt fehlt"


@KINDS
def test_nobody_gets_more_than_a_batch(fresh_url: Callable[[], str]) -> None:
    async def main() -> None:
        store = connect(fresh_url(), limits=Limits(batch_size=3))
        queue = store.queue("jobs")
        await queue.put_many(dict.fromkeys("abc", 1))
        await queue.put("d", 1)
        assert [key for key, _, _ in await queue.get_many(2**70)] == ["a", "b", "c"]
        assert [key for key, _, _ in await queue.get_many(2**70)] == ["d"]
        await store.close()

    asyncio.run(main())


def test_what_is_too_large_is_refused_once_by_the_store_and_waits_for_no_room() -> None:
    async def main() -> None:
        store = MemoryStore(limits=Limits(value_size=100, batch_size=2))
        metrics = StoreMetrics()
        store.instrument(metrics)
        queue = store.queue("jobs")
        with pytest.raises(LimitExceededError, match="the value of key 'x' has 101 bytes"):
            await queue.put("x", "v" * 99)
        with pytest.raises(LimitExceededError, match="3 items in one put on queue 'jobs'"):
            await queue.put_many(dict.fromkeys("xyz", 1))
        assert metrics.snapshot().items == {"jobs": {"refused": 4}}
        full = store.queue("full", maxsize=1)
        await full.put("a", 1)
        for too_much in (full.put("x", "v" * 99), full.put_many(dict.fromkeys("xyz", 1))):
            with pytest.raises(LimitExceededError):
                await asyncio.wait_for(too_much, 5)
        assert await full.available_keys() == {"a"}

    asyncio.run(main())
