"""Claims need no sync on SQLite, and fences only grow nevertheless.

What a loss of power leaves of them is tested in `test_power`.
"""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from leasedkeyq import connect
from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.model.requests import Ack, Claimed, Extend, Release
from tests.engines.sqlite.support import claim, put, run

FULL = 2


def levels_of(store: SqliteStore) -> list[int]:
    """For each commit from now on that has written something, how it was synced."""
    levels: list[int] = []
    transact = store._transact_once

    def note(requests: list[object], begin: str, here: bool, synced: bool) -> object:
        connection = store._connection
        assert connection is not None
        changes = connection.total_changes
        done = transact(requests, begin, here, synced)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as they come
        if connection.total_changes > changes:
            levels.append(connection.execute("PRAGMA synchronous").fetchone()[0])
        return done

    setattr(store, "_transact_once", note)  # noqa: B010  # type checkers know that it is a method
    return levels


def names(item: Claimed) -> tuple[str, str, str]:
    return item.queue, item.key, item.token


def test_a_claim_and_an_extension_are_not_synced_and_all_else_is(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        await store.put([put("q", "a", "b", "c")])
        first = await claim(store)  # it sets the mark
        levels = levels_of(store)
        [second] = await claim(store)
        await store.settle([Extend(*names(second), lease_time=60.0)])
        assert levels == [FULL - 1] * 2
        levels.clear()
        await store.settle([Ack(*names(first[0]))])
        await store.settle([Release(*names(second))])
        await store.put([put("q", "d")])
        assert levels == [FULL] * 3
        levels.clear()
        # Those who are served together with a put are synced together with it.
        await asyncio.gather(claim(store), store.put([put("q", "e")]))
        assert levels == [FULL]

    run(tmp_path / "q.db", use)


def test_claims_are_synced_on_demand(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        levels = levels_of(store)
        await store.put([put("q", "a", "b")])
        for _ in range(2):
            [item] = await claim(store)
            await store.settle([Extend(*names(item), lease_time=60.0)])
        assert levels == [FULL] * 5

    run(tmp_path / "q.db", use, sync_claims=True)


def test_claims_cannot_be_synced_where_nothing_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with pytest.raises(ValueError, match="sync_claims needs durability='full'"):
        connect(url, durability="normal", sync_claims=True)


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_fences_go_on_from_the_mark_in_a_store_that_is_opened_anew(
    tmp_path: Path, durability: str
) -> None:
    fences: list[int] = []

    async def use(store: SqliteStore) -> None:
        await store.put([put("q", *(f"{len(fences)}-{number}" for number in range(5)))])
        fences.extend(item.fence for item in await claim(store, limit=2))
        fences.extend(item.fence for item in await claim(store, limit=3))

    for _ in range(3):
        run(tmp_path / "q.db", use, durability=durability)
    # What was given out before the power went would have stayed below the mark.
    starts = fences[::5]
    assert [fence - starts[0] for fence in fences[:5]] == [0, 1, 2, 3, 4]
    assert all(b - a >= sqlite_transaction.FENCES for a, b in pairwise(starts))
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_claim_beyond_the_mark_is_synced_with_a_new_one(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "FENCES", 4)

    async def use(store: SqliteStore) -> None:
        await store.put([put("q", *(f"key-{number}" for number in range(20)))])
        levels = levels_of(store)
        fences = [item.fence for _ in range(12) for item in await claim(store)]
        assert [fence - fences[0] for fence in fences] == [*range(12)]
        # The first one, and each time that four more are used up.
        synced = [number for number, level in enumerate(levels) if level == FULL]
        assert synced == [0, 5, 10]
        levels.clear()
        await claim(store, limit=8)
        assert levels == [FULL]

    run(tmp_path / "q.db", use, durability=durability)


def test_a_put_moves_the_mark_on_before_claims_have_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "FENCES", 4)

    async def use(store: SqliteStore) -> None:
        await store.put([put("q", "first")])
        await claim(store)
        levels = levels_of(store)
        for number in range(12):
            await store.put([put("q", f"key-{number}")])
            await claim(store)
        assert levels == [FULL, FULL - 1] * 12

    run(tmp_path / "q.db", use)


def test_store_objects_that_take_turns_never_give_out_a_fence_twice(tmp_path: Path) -> None:
    async def main() -> None:
        stores = [SqliteStore(tmp_path / "q.db") for _ in range(3)]
        await stores[0].put([put("q", *(f"key-{number}" for number in range(30)))])
        fences = [item.fence for turn in range(30) for item in await claim(stores[turn % 3])]
        assert fences == sorted(set(fences))
        for store in stores:
            await store.close()

    asyncio.run(main())
