"""Two stores of an engine, one of which has an idle transaction beside it, and their sizes."""

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.servers.postgres import PostgresServer, run_sql
from tests.servers.valkey import Server

ROOT: Final = Path(__file__).resolve().parents[3]
SCHEMA: Final = "leasedkeyq"
"""Where a PostgreSQL store has its tables, if nobody says where."""

Sizes = Mapping[str, int]
"""By name, as `bytes of the log`."""


@dataclass(frozen=True)
class Side:
    """A store, and how to look at it from outside."""

    url: str
    sizes: Callable[[], Sizes]
    tidy: Callable[[], bool]
    """Whether nothing grows any more of what could not be thrown away while the transaction was
    open. Called again and again while the work goes on."""


@dataclass(frozen=True)
class Pair:
    """The two stores, and the idle transaction beside the first of them."""

    beside: Side
    twin: Side
    idle: Callable[[], AbstractContextManager[None]]
    """To be called when the tables are there."""
    bounded: frozenset[tuple[str, str]]
    """The side and the name of each size that must not grow for ever. The transaction itself keeps
    PostgreSQL from throwing dead rows away, and SQLite from using its log again: these sizes grow
    as long as it is open, and must shrink afterwards."""


def pair_of(engine: str, folder: Path) -> AbstractContextManager[Pair]:
    """Two stores of the engine, until the end of the ``with``."""
    return {"sqlite": _sqlite_pair, "postgres": _postgres_pair, "redis": _redis_pair}[engine](
        folder
    )


@contextmanager
def _idle_transaction(*arguments: str) -> Generator[None]:
    """A transaction that has read something, and does nothing more, in a process of its own."""
    command = [sys.executable, "-m", "tests.torture.soak.idle_transaction", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        yield


# -- SQLite ----------------------------------------------------------------------------------------


@contextmanager
def _sqlite_pair(folder: Path) -> Generator[Pair]:
    paths = {side: folder / f"{side}.db" for side in ("beside", "twin")}
    sides = {side: _sqlite_side(path) for side, path in paths.items()}

    grows = ("bytes of the database", "bytes of the log")
    yield Pair(
        sides["beside"],
        sides["twin"],
        partial(_idle_transaction, str(paths["beside"])),
        frozenset({("beside", grows[0]), ("twin", grows[0]), ("twin", grows[1])}),
    )


def _sqlite_side(path: Path) -> Side:
    def sizes() -> Sizes:
        return {
            "bytes of the database": path.stat().st_size,
            "bytes of the log": Path(f"{path}-wal").stat().st_size,
        }

    looks = [0]

    def tidy() -> bool:
        # SQLite does not shorten its log. It begins at the start of it again when the store has
        # written all of it back: then the log is as long as at the last look.
        looks.append(Path(f"{path}-wal").stat().st_size)
        return looks[-1] == looks[-2]

    return Side(f"sqlite:///{path}", sizes, tidy)


# -- PostgreSQL ------------------------------------------------------------------------------------


@contextmanager
def _postgres_pair(folder: Path) -> Generator[Pair]:
    server = PostgresServer()
    try:
        urls: dict[str, str] = {}
        # In two databases of one server: a snapshot holds up the vacuum of its own database alone.
        for side in ("beside", "twin"):
            run_sql(server.url, f"CREATE DATABASE {side}")
            urls[side] = urlsplit(server.url)._replace(path=f"/{side}").geturl()

        yield Pair(
            _postgres_side(urls["beside"]),
            _postgres_side(urls["twin"]),
            partial(_idle_transaction, urls["beside"], SCHEMA),
            frozenset({("twin", "bytes of tables and indexes"), ("twin", "dead rows")}),
        )
    finally:
        server.remove()


def _postgres_side(url: str) -> Side:
    def ask(sql: str) -> int:
        return int(run_sql(url, sql) or 0)

    def dead() -> int:
        return ask(
            f"SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE schemaname = '{SCHEMA}'"
        )

    def sizes() -> Sizes:
        tables = (
            "SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables "
            f"WHERE schemaname = '{SCHEMA}'"
        )
        return {"bytes of tables and indexes": ask(tables), "dead rows": dead()}

    def tidy() -> bool:
        run_sql(url, "VACUUM")
        return dead() < FEW_DEAD

    return Side(url, sizes, tidy)


FEW_DEAD: Final = 1000
"""Rows that died while a vacuum was under way."""


# -- Redis -----------------------------------------------------------------------------------------


@contextmanager
def _redis_pair(folder: Path) -> Generator[Pair]:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with Server(*options) as first, Server(*options) as second:

        @contextmanager
        def idle() -> Generator[None]:
            # What comes closest to it: a transaction that is begun, watches all keys, and waits.
            with first.client(single_connection_client=True) as client:
                client.execute_command("WATCH", *client.keys("*"))
                client.execute_command("MULTI")
                yield

        names = ("keys", "bytes in memory")
        yield Pair(
            _redis_side(first),
            _redis_side(second),
            idle,
            frozenset((side, name) for side in ("beside", "twin") for name in names),
        )


def _redis_side(server: Server) -> Side:
    def sizes() -> Sizes:
        with server.client() as client:
            files = (server.folder / "appendonlydir").iterdir()
            return {
                "keys": client.dbsize(),
                "bytes in memory": client.info("memory")["used_memory"],
                "bytes of the append-only files": sum(path.stat().st_size for path in files),
            }

    return Side(server.url, sizes, lambda: True)


# -- this process ----------------------------------------------------------------------------------


def own_sizes() -> Sizes:
    """Of the process that has both stores open."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "bytes of memory of the process": pages * os.sysconf("SC_PAGE_SIZE"),
        "open files of the process": len(os.listdir("/proc/self/fd")),
    }
