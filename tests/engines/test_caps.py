"""Caps: what they may say, which keys they match, and what is kept of them."""

import math
import random
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.engines.file.store import FileEngine
from leasedkeyq.engines.sqlite import token_buckets as sqlite_buckets
from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.model.caps import Bucket, BucketName, Buckets, Rooms, matcher
from leasedkeyq.model.requests import Ack, Cap, Claim, Claimed, Purge, Put, Release
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.testing import ManualClock
from tests.engines.file.document import repository_documents
from tests.engines.sqlite.support import plans, run

SLOW = Cap("q", rate=0.001)


# What they may say


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"each": True},
        {"burst": 2},
        {"in_flight": -1},
        {"in_flight": 1, "each": True},
        {"in_flight": 1, "rate": 1, "each": True},
        {"rate": 0},
        {"rate": -1.0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"rate": 10**400},
        {"rate": 1, "burst": 0.9},
        {"rate": 1, "burst": math.nan},
        {"rate": 1, "burst": math.inf},
        {"rate": 1e-10},
        {"rate": 5e-324},
        {"rate": 1, "burst": 1e10},
        {"rate": 1, "pattern": ""},
        {"rate": 1, "pattern": "a\x00*"},
        {"rate": 1, "pattern": "\ud800"},
    ],
)
def test_a_cap_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"in_flight|rate|burst|pattern|each"):
        Cap("q", **options)


@pytest.mark.parametrize(
    "options", [{"in_flight": 1.5}, {"in_flight": True}, {"rate": "1"}, {"rate": 1, "pattern": 1}]
)
def test_a_cap_of_other_types_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"in_flight|rate|pattern"):
        Cap("q", **options)


def test_two_rates_for_one_bucket_are_refused() -> None:
    def claim(*caps: Cap) -> None:
        Claim((("q", 1),), caps=caps)

    claim(SLOW, Cap("q", in_flight=1), Cap("q", in_flight=2))
    claim(SLOW, Cap("q", rate=1, each=True), Cap("q", "a", rate=1), Cap("other", rate=1))
    with pytest.raises(ValueError, match="two caps"):
        claim(SLOW, Cap("q", in_flight=1, rate=1))


# Patterns


def naively(pattern: str, key: str) -> bool:
    """What a pattern means, in as few words as possible."""
    if not pattern:
        return not key
    if pattern[0] == "*":
        return any(naively(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return key[:1] == pattern[0] and naively(pattern[1:], key[1:])


def test_a_star_is_any_characters_and_all_else_is_itself() -> None:
    picks = random.Random(5)
    for _ in range(3000):
        pattern = "".join(picks.choices("*ab.\n", k=picks.randrange(1, 6)))
        key = "".join(picks.choices("ab.\n", k=picks.randrange(6)))
        assert matcher(pattern)(key) == naively(pattern, key), (pattern, key)
    for letter in r"%_?[]!^$\+()|{}#":
        assert matcher(f"{letter}*")(f"{letter}b")
        assert not matcher(letter)("b")
    assert not matcher("a")("A")


def test_a_pattern_with_many_stars_takes_no_longer() -> None:
    began = time.process_time()
    assert not matcher("*a" * 250 + "b")("a" * 512)
    assert matcher("*a" * 250)("a" * 512)
    assert time.process_time() - began < 5


# Buckets


def test_a_bucket_has_its_token_at_the_moment_that_it_says() -> None:
    picks = random.Random(7)
    for _ in range(3000):
        now = 1.7e9 + picks.random() * 1e8
        rate, burst = 10 ** picks.uniform(-3, 4), picks.choice([1, 1.0, 2.5, 10])
        bucket = None
        taken = 0
        while bucket is None or bucket.has_token(rate, now):
            bucket = Bucket.after(bucket, rate, burst, now)
            taken += 1
            if bucket.full_at <= now:
                break  # so fast that it is full again at once
        else:
            assert taken == int(burst)
            assert bucket.has_token(rate, bucket.next_at)
            assert not bucket.has_token(rate, math.nextafter(bucket.next_at, 0))
            assert bucket.next_at <= bucket.full_at


def test_buckets_that_are_full_are_forgotten_and_no_more_is_remembered_than_they_need() -> None:
    buckets = Buckets()
    picks = random.Random(3)
    now = 1000.0
    for _ in range(5000):
        now += picks.choice((0, 0.05, 0.5))
        name = BucketName("*", True, f"k{picks.randrange(30)}")
        rate = picks.choice((10, 0.001, 0.1))
        buckets.forget(now)
        before = buckets.all.get(name)
        if before is None or before.has_token(rate, now):
            buckets.keep(name, Bucket.after(before, rate, 2, now))
        assert len(buckets.all) <= 30
        assert len(buckets._filling) <= 30
        assert len(buckets._coming) <= 70
        waiting = [b.next_at for b in buckets.all.values() if b.next_at > now]
        assert buckets.earliest(now) == min(waiting, default=None)
    buckets.forget(now + 2000)
    assert not buckets
    assert not buckets._filling
    assert buckets.earliest(now + 2000) is None


def test_when_no_key_can_have_room_no_further_key_is_looked_at() -> None:
    def keys(wanted: list[str]) -> Any:
        for number in range(1000):
            wanted.append(f"k{number}")
            yield wanted[-1]

    for caps, looked_at in (
        ([Cap("q", in_flight=5)], 3),
        ([SLOW], 2),
        ([Cap("q", "k*", in_flight=5)], 1000),
        ([Cap("q", rate=0.001, each=True)], 9),
    ):
        wanted: list[str] = []
        list(Rooms(caps, lambda _, __: 3, lambda _: None, 0.0).among(keys(wanted), str, 9))
        assert len(wanted) == looked_at


# In the model


def put(*keys: str, queue: str = "q") -> Put:
    return Put(queue, tuple((key, b"1") for key in keys))


def claim(limit: int, *caps: Cap, **options: Any) -> Claim:
    return Claim((("q", limit),), limit, caps=caps, **options)


def test_an_empty_queue_is_kept_until_its_buckets_are_full() -> None:
    model = StoreModel()
    model.put(put("a"), 0.0)
    [a] = model.claim(claim(1, Cap("q", rate=0.5)), 0.0)
    assert model.settle(Ack("q", "a", a.token), 1.0) is None
    assert model.sweep("q", 1.0) == 1.0
    assert "q" in model.queues
    assert model.sweep("q", 2.0) is None
    assert "q" not in model.queues


async def test_an_edit_that_does_not_happen_leaves_the_tokens_as_they_were() -> None:
    store = MemoryStore(clock=ManualClock())
    await store.put([put("a", "b")])
    assert len((await store.claim([claim(1, SLOW)]))[0]) == 1
    with pytest.raises(Exception, match="no such lease"):
        await store.edit("q", lambda _: [put("c"), Ack("q", "a", "nobody")])
    assert await store.claim([claim(9, SLOW)]) == [()]


# In a file


def leased(engine: FileEngine, request: Claim) -> list[str]:
    items: Any = engine.apply([request])[0]
    return [item.key for item in items]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_document_keeps_tokens_while_they_are_missing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"queue.{suffix}"
    clock = ManualClock()
    engine = FileEngine(path, clock=clock)
    engine.apply([put("a", 'b"\x85\u2028', queue="q")])
    assert "buckets" not in path.read_text()
    each = Cap("q", rate=1 / 3, each=True)
    assert leased(engine, claim(9, each, lease_time=None)) == ["a", 'b"\x85\u2028']
    text = path.read_bytes()
    assert b"buckets" in text
    # Looking at it writes nothing, whoever does.
    other = FileEngine(path, clock=clock)
    for reader in (engine, other):
        assert leased(reader, claim(9, each)) == []
        assert reader.change(lambda model, now: model.sweep("q", now)) == 3
    assert path.read_bytes() == text
    other.apply([Purge("q")])
    other.apply([put("a", "c")])
    assert leased(other, claim(9, each)) == ["c"]
    clock.advance(3)
    assert leased(engine, claim(9, each)) == ["a"]
    engine.apply([Purge("q")])
    clock.advance(3)
    assert engine.change(lambda model, now: model.sweep("q", now)) is None
    assert "buckets" not in path.read_text()
    assert re.search(r'queues"?: \{\}', path.read_text())


def test_a_repository_keeps_tokens_through_another_name(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    engine = repository_documents.opened(path, clock=ManualClock())
    repository_documents.put(engine, "a", "b")
    cap = Cap("jobs", rate=0.001)
    assert len(repository_documents.claim(engine, 9, caps=(cap,))) == 1
    again = repository_documents.opened(path, clock=ManualClock())
    assert repository_documents.claim(again, 9, caps=(cap,)) == []
    again.change(lambda model, now: again.change_settings(name="work"))
    renamed = FileEngine(path, clock=ManualClock())
    request = Claim((("work", 9),), 9, caps=(Cap("work", rate=0.001),))
    assert leased(renamed, request) == []
    assert leased(renamed, Claim((("work", 9),), 9)) == ["b"]


def test_what_a_person_makes_of_the_tokens_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    engine = FileEngine(path, clock=ManualClock())
    engine.file.settled = 0.0
    engine.apply([put("a", "b", "c")])
    assert leased(engine, claim(1, SLOW)) == ["a"]
    good = path.read_text()
    [line] = re.findall("buckets: .*\n", good)
    path.write_text(good.replace(line, "buckets: [1, 2]\n"))
    with pytest.warns(UserWarning, match="buckets"):
        assert leased(engine, claim(1, SLOW)) == []
    path.write_text(path.read_text().replace(line, ""))
    assert leased(engine, claim(9, SLOW)) == ["b"]


# On SQLite


def test_claims_with_caps_go_by_indexes(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def fill(store: SqliteStore) -> None:
        await store.put([put(*(f"k{number}" for number in range(500)))])
        await store.claim([claim(100, Cap("q", rate=0.001, burst=200, each=True))])
        await store.claim([claim(100, Cap("q", "k*", in_flight=200))])

    run(path, fill)
    name = ("q", "*", 1, "k1")
    for sql, values, index in (
        (sqlite_transaction.CANDIDATES.format(""), (1,), "items_ready (queue=?)"),
        (sqlite_transaction.CANDIDATES.format("AND kind IN (?)"), (1, ""), "items_ready (queue=?)"),
        (
            sqlite_transaction.CANDIDATE.format(""),
            (1, "k1"),
            "items_by_key (queue=? AND key=? AND in_line=?)",
        ),
        (sqlite_transaction.LEASED, (1, "k"), "COVERING INDEX items_leased (queue=? AND key>?)"),
        (
            sqlite_buckets.BUCKET,
            name,
            "buckets_by_name (queue=? AND pattern=? AND own=? AND key=?)",
        ),
        (sqlite_buckets.NEXT_TOKEN, ("q", 1.0), "buckets_by_token (queue=? AND next_at>?)"),
        (sqlite_buckets.ANY_FULL, ("q", 1.0), "buckets_by_filling (queue=? AND full_at<?)"),
    ):
        (plan,) = plans(path, sql, *values)
        assert index in plan, sql
    [*_, inner] = plans(path, sqlite_buckets.FORGET_FULL, "q", 1.0, 5)
    assert "buckets_by_filling (queue=? AND full_at<?)" in inner


def test_only_who_counts_by_pattern_has_an_index_of_leases(tmp_path: Path) -> None:
    def indexed(path: Path) -> bool:
        connection = sqlite3.connect(path)
        found = connection.execute(sqlite_transaction.IS_INDEXED).fetchone()
        connection.close()
        return found is not None

    async def plainly(store: SqliteStore) -> None:
        await store.put([put("a", "b", "c")])
        await store.claim([claim(1), claim(1, SLOW, Cap("q", in_flight=2))])

    async def by_pattern(store: SqliteStore) -> None:
        assert await store.claim([claim(1, Cap("q", "*c", in_flight=1))] * 2) != [(), ()]
        assert await store.claim([claim(1, Cap("q", "*c", in_flight=1))]) == [()]

    path = tmp_path / "q.db"
    run(path, plainly)
    assert not indexed(path)
    run(path, by_pattern)
    assert indexed(path)
    run(path, by_pattern_again)


async def by_pattern_again(store: SqliteStore) -> None:
    """The index follows what happens to leases."""
    held: list[Claimed] = []
    await store.settle([Purge("q")])
    await store.put([put("c1", "c2", "c3")])
    cap = Cap("q", "c*", in_flight=2)
    for _ in range(3):
        [items] = await store.claim([claim(9, cap)])
        assert len(items) == 2 - len(held)
        held.extend(items)
        first = held.pop(0)
        await store.settle([Release("q", first.key, first.token)])


def test_full_buckets_are_deleted_by_sweeps_and_by_claims(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    clock = ManualClock()
    cap = Cap("q", rate=1, each=True)

    def kept() -> int:
        connection = sqlite3.connect(path)
        count: int = connection.execute("SELECT count(*) FROM buckets").fetchone()[0]
        connection.close()
        return count

    async def fill_and_wait(store: SqliteStore) -> None:
        await store.put([put(*(f"k{number}" for number in range(1700)))])
        await store.claim([claim(1600, cap)])
        assert kept() == 1600
        clock.advance(5)
        await store.sweep(["q"])
        assert kept() == 1600 - sqlite_buckets.BUCKET_CHUNK
        await store.claim([claim(50, cap)])
        assert kept() == 1600 - sqlite_buckets.BUCKET_CHUNK - 50
        assert await store.sweep(["q"]) == [1.0]
        clock.advance(1)
        for _ in range(3):
            assert await store.sweep(["q"]) == [None]
        assert kept() == 0

    run(path, fill_and_wait, durability="normal", clock=clock)
