"""The token buckets of caps on SQLite tables, within one transaction."""

import sqlite3
from collections.abc import Mapping
from typing import Final, cast

from leasedkeyq.model.caps import Bucket, BucketName

BUCKET_CHUNK: Final = 500
"""So many full buckets are deleted by a sweep, and some more by each claim that takes a token."""

# Buckets are kept by the name of their queue: they outlive its row, which goes with the last item.
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
# A sweep looks before it deletes: a `DELETE` takes the lock even if there is nothing to delete.
ANY_FULL: Final = "SELECT 1 FROM buckets WHERE queue = ? AND full_at <= ? LIMIT 1"
FORGET_FULL: Final = """
    DELETE FROM buckets WHERE rowid IN
    (SELECT rowid FROM buckets WHERE queue = ? AND full_at <= ? ORDER BY full_at LIMIT ?)
"""


class TokenBuckets:
    """The stored buckets of all queues, as of `now`."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._execute = connection.execute
        self._many = connection.executemany
        self._now = now

    def find(self, queue: str, name: BucketName) -> Bucket | None:
        """A bucket as it is stored; None stands for a full one."""
        row = self._execute(BUCKET, (queue, *name)).fetchone()
        return None if row is None else Bucket(*row)

    def keep(self, queue: str, taken: Mapping[BucketName, Bucket]) -> None:
        """Store the buckets of which a claim has taken tokens."""
        if taken:
            self._many(KEEP_BUCKET, [(queue, *name, *bucket) for name, bucket in taken.items()])
            # Twice as many as may be new: so full ones do not pile up without sweeps.
            self._execute(FORGET_FULL, (queue, self._now, 2 * len(taken)))

    def sweep(self, queue: str) -> float | None:
        """Forget buckets that are full; return when the next token comes to one without."""
        if self._execute(ANY_FULL, (queue, self._now)).fetchone():
            self._execute(FORGET_FULL, (queue, self._now, BUCKET_CHUNK))
        row = self._execute(NEXT_TOKEN, (queue, self._now)).fetchone()
        return None if row is None else cast("float", row[0])
