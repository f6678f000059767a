"""A program that begins a transaction, reads something, and waits until its input ends.

As long as it does, SQLite cannot write the log back into the database beyond what it sees, and
PostgreSQL throws no row away that it may see.
"""

import asyncio
import sqlite3
import sys

import asyncpg


def read_sqlite(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM items").fetchone()
    _wait()
    connection.close()


async def read_postgres(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await connection.fetchval(f'SELECT count(*) FROM "{schema}".items')
    _wait()
    await connection.close()


def _wait() -> None:
    print("reading", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1].startswith("postgresql:"):
        asyncio.run(read_postgres(sys.argv[1], sys.argv[2]))
    else:
        read_sqlite(sys.argv[1])
