"""What the SQLite store applies together answers as if it came one by one."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Claim, Put, Refusal
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS
from leasedkeyq.types import PutPolicy

MOST = sqlite_transaction.PORTION


class Crowd(Differential):
    """Large batches on many keys, as many callers at a time make them."""

    queues: Sequence[str] = ("mail", "other")
    remembered = 200
    policies: Sequence[PutPolicy] = ("update", "buffer")

    async def run(self, steps: int) -> None:
        random = self._random
        for step in range(steps):
            match random.choice(("put", "put", "claim", "settle", "settle", "wait")):
                case "put":
                    await self.put([self._one_put() for _ in range(random.choice((1, 7, 20, 70)))])
                case "claim":
                    limit = random.choice((1, 10, 60))
                    lease_time = random.choice((None, 3.0))
                    await self.claim([Claim((("mail", limit),), limit, None, lease_time)] * 2)
                case "settle":
                    await self.settle(self._acks())
                case _:
                    await self.wait(random.choice((0.5, 2.0)))
            if step % 8 == 7:
                await self.compare()

    def _one_put(self) -> Put:
        pick, number = self._random.choice, self._random.randrange
        keys = [f"key-{number(300)}" for _ in range(pick((1, 1, 1, 1, 3, 20)))]
        return Put(
            pick(("mail", "mail", "mail", "mail", "mail", "mail", "mail", "other")),
            tuple((key, b"%d" % number(1000)) for key in keys),
            pick(("reject", "only_new")) if number(40) == 0 else pick(self.policies),
            pick((None, None, None, 1)),
            1.0 if number(40) == 0 else None,
            200 if number(40) == 0 else 0,
            pick(("", "bill")),
        )

    def _acks(self) -> list[Ack]:
        """Acknowledge leases from the latest on, in any order; now and then one twice."""
        places = [str(place) for place in range(self._random.choice((1, 9, 80)))]
        self._random.shuffle(places)
        if self._random.random() < 0.3:
            places.append(places[0])
        keeps = [2.0 if self._random.random() < 0.03 else 0.0 for _ in places]
        return [Ack("mail", "", at, b"1", keep) for at, keep in zip(places, keeps, strict=True)]


class CrowdInLines(Crowd):
    """The same, and many of the keys have lines."""

    policies: Sequence[PutPolicy] = ("append", "append", "append", "skip", "buffer", "update")


@pytest.mark.parametrize("crowd", [Crowd, CrowdInLines])
@pytest.mark.parametrize("seed", range(2))
def test_large_batches_answer_as_the_model_does(
    tmp_path: Path, seed: int, crowd: type[Crowd]
) -> None:
    async def main() -> None:
        clock = ManualClock()
        path = tmp_path / "q.db"
        store = SqliteStore(path, durability="normal", limits=SMALL_LIMITS, clock=clock)
        await crowd([store], clock, seed).run(48)
        await store.close()

    asyncio.run(main())


def statements(store: SqliteStore, seen: list[str]) -> None:
    """Note what the store asks SQLite for."""
    assert store._connection is not None
    store._connection.set_trace_callback(seen.append)


def test_puts_of_many_callers_are_few_statements(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        seen: list[str] = []
        statements(store, seen)
        await store.put([Put("q", ((f"key-{number}", b"1"),)) for number in range(3 * MOST)])
        assert len([sql for sql in seen if sql.lstrip().startswith("INSERT INTO items")]) == 3
        await store.close()

    asyncio.run(main())


def test_one_bad_put_among_many_is_refused_alone(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        bad: Any = 17
        puts = [
            Put("q", ((f"key-{number}", bad if number == 5 else b"1"),)) for number in range(MOST)
        ]
        answers = await store.put(puts)
        assert [index for index, a in enumerate(answers) if isinstance(a, StoreError)] == [5]
        assert (await store.count(["q"]))["q"].available == MOST - 1
        await store.close()

    asyncio.run(main())


def test_one_stale_lease_among_many_is_refused_alone(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        await store.put([Put("q", tuple((f"key-{number}", b"1") for number in range(20)))])
        (claimed,) = await store.claim([Claim((("q", 20),), 20)])
        acks = [Ack("q", item.key, item.token) for item in claimed]
        acks[7] = Ack("q", claimed[7].key, "another")
        answers = await store.settle(acks)
        assert [index for index, a in enumerate(answers) if isinstance(a, Refusal)] == [7]
        assert (await store.count(["q"]))["q"].in_flight == 1
        await store.close()

    asyncio.run(main())


def test_looking_for_live_keys_goes_by_the_index(tmp_path: Path) -> None:
    async def create() -> None:
        await SqliteStore(tmp_path / "q.db").close()

    asyncio.run(create())
    connection = sqlite3.connect(tmp_path / "q.db")
    sql = f"EXPLAIN QUERY PLAN {sqlite_transaction.ANY_LIVE}"
    ((_, _, _, plan),) = connection.execute(sql, [1] + ["a"] * MOST)
    assert plan.endswith("USING COVERING INDEX items_by_key (queue=? AND key=? AND in_line=?)")
    connection.close()
