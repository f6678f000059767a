"""Claims with caps on SQLite tables, within one transaction."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import itemgetter
from typing import Any, Final, TypeAlias, cast

from leasedkeyq.engines.sqlite.moves import WriteNeededError
from leasedkeyq.engines.sqlite.reads import Reads
from leasedkeyq.engines.sqlite.rows import Space
from leasedkeyq.model.caps import EVERY_KEY, Bucket, BucketName, Rooms, matcher
from leasedkeyq.model.requests import Cap, Claim

BUCKET_CHUNK: Final = 500
"""So many full buckets are deleted by a sweep, and some more by each claim that takes a token."""

Candidate: TypeAlias = tuple[int, str, float, float | None]
"""The id of an item, its key, when it was put, and its deadline.

Values are not read while items are passed over.
"""

CANDIDATES: Final = """
    SELECT id, key, put_at, deadline FROM items INDEXED BY items_ready
    WHERE queue = ? AND state = 0 {} ORDER BY priority DESC, place
"""
CANDIDATE: Final = """
    SELECT id, key, put_at, deadline FROM items WHERE queue = ? AND key = ? AND state = 0 {}
"""
HURRIED: Final = """
    SELECT id, key, put_at, deadline FROM items INDEXED BY items_hurried
    WHERE queue = ? AND state = 0 AND deadline IS NOT NULL {} ORDER BY deadline, id
"""
ANY_HURRIED: Final = """
    SELECT 1 FROM items INDEXED BY items_hurried
    WHERE queue = ? AND state = 0 AND deadline IS NOT NULL LIMIT 1
"""
# Only stores with such caps have this index: it would slow the claims and acknowledgements of all.
INDEX_LEASED: Final = "CREATE INDEX items_leased ON items (queue, key, state) WHERE state = 2"
IS_INDEXED: Final = "SELECT 1 FROM sqlite_master WHERE name = 'items_leased'"
LEASED: Final = """
    SELECT key FROM items INDEXED BY items_leased
    WHERE queue = ? AND state = 2 AND key >= ? ORDER BY key
"""
BUCKET: Final = """
    SELECT level, at, next_at, full_at FROM buckets
    WHERE queue = ? AND pattern = ? AND own = ? AND key = ?
"""
KEEP_BUCKET: Final = """
    INSERT INTO buckets (queue, pattern, own, key, level, at, next_at, full_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (queue, pattern, own, key) DO UPDATE
    SET level = excluded.level, at = excluded.at, next_at = excluded.next_at,
    full_at = excluded.full_at
"""
NEXT_TOKEN: Final = """
    SELECT next_at FROM buckets WHERE queue = ? AND next_at > ? ORDER BY next_at LIMIT 1
"""
ANY_FULL: Final = "SELECT 1 FROM buckets WHERE queue = ? AND full_at <= ? LIMIT 1"
FORGET_FULL: Final = """
    DELETE FROM buckets WHERE rowid IN
    (SELECT rowid FROM buckets WHERE queue = ? AND full_at <= ? ORDER BY full_at LIMIT ?)
"""


class Capped(Reads):
    """Knows who has room under caps, as of `now`."""

    def with_room(self, space: Space, request: Claim, limit: int, caps: Sequence[Cap]) -> list[int]:
        """The ids of the items that a claim leases, in order. Their tokens are taken."""
        if request.kinds == ():
            return []
        rooms = self.rooms(space, caps)
        with closing(self.candidates(space, request)) as candidates:
            found: Iterator[Candidate] = rooms.among(candidates, itemgetter(1), limit)
            chosen = [number for number, *_ in found]
        if chosen and not self._writable:
            raise WriteNeededError
        self.keep_tokens(space, rooms)
        return chosen

    def rooms(self, space: Space, caps: Sequence[Cap]) -> Rooms:
        """What caps leave room for."""
        return Rooms(
            caps,
            lambda pattern, enough: self._leased(space, pattern, enough),
            lambda name: self._bucket(space.name, name),
            self._now,
        )

    def keep_tokens(self, space: Space, rooms: Rooms) -> None:
        """The tokens that were taken are gone."""
        if rooms.taken:
            rows = [(space.name, *name, *bucket) for name, bucket in rooms.taken.items()]
            self._many(KEEP_BUCKET, rows)
            self._execute(FORGET_FULL, (space.name, self._now, 2 * len(rows)))

    def any_hurried(self, space: Space) -> bool:
        """Whether an available item has a deadline of its own."""
        return self._execute(ANY_HURRIED, (space.id,)).fetchone() is not None

    def hurried(self, space: Space, request: Claim) -> sqlite3.Cursor:
        """The items that a claim asks for and that have a deadline, the nearest first."""
        return self._execute(HURRIED.format(_of(request.kinds)), [space.id, *(request.kinds or ())])

    def candidates(self, space: Space, request: Claim) -> sqlite3.Cursor:
        """The items that a claim asks for, in order, whether they have room or not."""
        kinds = request.kinds
        wanted = _of(kinds)
        if request.key is None:
            sql, values = CANDIDATES, [space.id, *(kinds or ())]
        else:
            sql, values = CANDIDATE, [space.id, request.key, *(kinds or ())]
        return self._execute(sql.format(wanted), values)

    def _leased(self, space: Space, pattern: str, enough: int) -> int:
        """How many keys are leased that match; it does not count further than to `enough`."""
        if pattern == EVERY_KEY or not space.in_flight:
            return space.in_flight
        if self._execute(IS_INDEXED).fetchone() is None:
            if not self._writable:
                raise WriteNeededError
            self._execute(INDEX_LEASED)
        matches = matcher(pattern)
        prefix = pattern.partition("*")[0]
        count = 0
        with closing(self._execute(LEASED, (space.id, prefix))) as rows:
            for (key,) in rows:
                if count >= enough or not key.startswith(prefix):
                    break
                count += matches(key)
        return count

    # Buckets

    def _bucket(self, queue: str, name: BucketName) -> Bucket | None:
        row = self._execute(BUCKET, (queue, *name)).fetchone()
        return None if row is None else Bucket(*row)

    def _sweep(self, queue: str) -> float | None:
        """As `Reads._sweep`, and of tokens, too."""
        seconds = super()._sweep(queue)
        now = self._now
        if self._execute(ANY_FULL, (queue, now)).fetchone():
            if not self._writable:
                raise WriteNeededError
            self._execute(FORGET_FULL, (queue, now, BUCKET_CHUNK))
        row: Any = self._execute(NEXT_TOKEN, (queue, now)).fetchone()
        if row is None:
            return seconds
        wait = cast("float", row[0]) - now
        return wait if seconds is None else min(seconds, wait)


def _of(kinds: Sequence[str] | None) -> str:
    """What a statement says of the kinds that are wanted."""
    return "" if kinds is None else f"AND kind IN ({', '.join('?' * len(kinds))})"
