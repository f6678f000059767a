"""Commands that are submitted in transactions of SQLAlchemy and of psycopg."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import CommandFunction, Handle, LaneConfig, QueueManager, QueueManagerBuilder
from tests.servers.urls import empty_store

PROGRAMS = Path(__file__).resolve().parents[3] / "examples" / "postgres_transactions"
PATIENCE = 60.0
SUBMIT = "SELECT leasedkeyq.put('x', 'k', %s, kind => 'hook', if_present => 'append')"


class UndoError(Exception):
    pass


class Hooks:
    """A manager on a database of its own, with a table of its caller."""

    def __init__(self, url: str) -> None:
        builder = QueueManagerBuilder().with_storage(url).with_drain_timeout(PATIENCE)
        self.url = url
        self.manager: QueueManager = builder.with_lane("x", LaneConfig(0, 4), 0).build()
        self.ran: list[int] = []

        @self.manager.command("hook")
        async def hook(number: int) -> int:
            self.ran.append(number)
            return number * 10

        self.hook: CommandFunction[[int], int] = hook

    def of_dialect(self, name: str) -> str:
        """The URL of the database for SQLAlchemy."""
        return make_url(self.url).set(drivername=name).render_as_string(hide_password=False)

    def make_table(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute("CREATE TABLE orders (id int)")

    def orders(self) -> list[int]:
        """What is in the table of the caller."""
        with psycopg.connect(self.url) as connection:
            return [number for (number,) in connection.execute("SELECT id FROM orders ORDER BY id")]

    async def until_it_ran(self, count: int) -> None:
        while len(self.ran) < count:
            await asyncio.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def run(test: Callable[[Hooks], Awaitable[None]]) -> None:
        async def main(url: str) -> None:
            hooks = Hooks(url)
            hooks.make_table()
            try:
                async with asyncio.timeout(PATIENCE):
                    await test(hooks)
            finally:
                await hooks.manager.close()

        with empty_store("postgresql", tmp_path) as url:
            asyncio.run(main(url))

    return run


def command(number: int) -> dict[str, Any]:
    return {"payload": {"number": number}, "at": time.time()}


# SQLAlchemy on asyncpg


async def raw(session: AsyncSession) -> Any:
    return (await (await session.connection()).get_raw_connection()).driver_connection


def test_commands_go_with_a_session_of_sqlalchemy(run: Any) -> None:
    async def test(hooks: Hooks) -> None:
        engine = create_async_engine(hooks.of_dialect("postgresql+asyncpg"))
        try:
            await submit(hooks, engine)
        finally:
            await engine.dispose()
        assert hooks.ran == [2, 3, 4]
        assert hooks.orders() == [2]

    async def submit(hooks: Hooks, engine: AsyncEngine) -> None:
        manager, hook = hooks.manager, hooks.hook
        undone: list[Handle[int]] = []
        async with manager:
            with pytest.raises(UndoError):
                async with AsyncSession(engine) as session, session.begin():
                    await session.execute(text("INSERT INTO orders VALUES (1)"))
                    mine = await raw(session)
                    undone.append(await manager.submit("x", hook(1), key="k", connection=mine))
                    raise UndoError
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(text("INSERT INTO orders VALUES (2)"))
                mine = await raw(session)
                handles = [await manager.submit("x", hook(2), key="k", connection=mine)]
                pairs = [("k", hook(3)), ("k", hook(4))]
                handles += await manager.submit_many("x", pairs, connection=mine)
                # Another caller is served meanwhile, and sees nothing of it.
                assert (await manager.stats()).total_pending == 0
                assert hooks.ran == []
            assert [await handle for handle in handles] == [20, 30, 40]
            assert [handle.status for handle in undone] == ["pending"]

    run(test)


def test_before_its_first_statement_a_session_is_in_no_transaction(run: Any) -> None:
    async def test(hooks: Hooks) -> None:
        engine = create_async_engine(hooks.of_dialect("postgresql+asyncpg"))
        async with AsyncSession(engine) as session, session.begin():
            mine = await raw(session)
            with pytest.raises(StoreError, match=r"SQLAlchemy begins it .* execute one before"):
                await hooks.manager.submit("x", hooks.hook(1), connection=mine)
            with pytest.raises(TypeError, match=r"get_raw_connection\(\)\)\.driver_connection"):
                await hooks.manager.submit("x", hooks.hook(1), connection=session)
        await engine.dispose()
        assert (await hooks.manager.stats()).total_pending == 0

    run(test)


# The function


def test_commands_go_with_a_transaction_of_psycopg(run: Any) -> None:
    def take_orders(url: str) -> None:
        with psycopg.connect(url) as connection:
            with pytest.raises(UndoError), connection.transaction():
                connection.execute("INSERT INTO orders VALUES (1)")
                connection.execute(SUBMIT, (Jsonb(command(1)),))
                raise UndoError
            with connection.transaction():
                connection.execute("INSERT INTO orders VALUES (2)")
                for number in (2, 3, 4):
                    connection.execute(SUBMIT, (Jsonb(command(number)),))
                # A key that is there is refused in a savepoint, and the rest stands.
                once = SUBMIT.replace("append", "reject")
                with pytest.raises(errors.UniqueViolation), connection.transaction():
                    connection.execute(once, (Jsonb(command(5)),))

    async def test(hooks: Hooks) -> None:
        async with hooks.manager:
            await asyncio.to_thread(take_orders, hooks.url)
            await hooks.until_it_ran(3)
        assert hooks.ran == [2, 3, 4]
        assert hooks.orders() == [2]

    run(test)


def test_commands_go_with_an_async_transaction_of_psycopg(run: Any) -> None:
    async def test(hooks: Hooks) -> None:
        async with hooks.manager:
            async with await psycopg.AsyncConnection.connect(hooks.url) as connection:
                await connection.execute("INSERT INTO orders VALUES (1)")
                for number in (1, 2):
                    await connection.execute(SUBMIT, (Jsonb(command(number)),))
                assert hooks.ran == []
            await hooks.until_it_ran(2)
        assert hooks.ran == [1, 2]
        assert hooks.orders() == [1]

    run(test)


def test_commands_go_with_a_connection_of_sqlalchemy_on_psycopg(run: Any) -> None:
    submit = text(SUBMIT.replace("%s", "CAST(:value AS jsonb)"))

    def take_order(connection: Connection, number: int) -> None:
        connection.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        connection.execute(submit, {"value": json.dumps(command(number))})

    def take_orders(url: str) -> None:
        engine = create_engine(url)
        with pytest.raises(UndoError), engine.begin() as connection:
            take_order(connection, 1)
            raise UndoError
        with engine.begin() as connection:
            take_order(connection, 2)
            take_order(connection, 3)
        engine.dispose()

    async def test(hooks: Hooks) -> None:
        async with hooks.manager:
            await asyncio.to_thread(take_orders, hooks.of_dialect("postgresql+psycopg"))
            await hooks.until_it_ran(2)
        assert hooks.ran == [2, 3]
        assert hooks.orders() == [2, 3]

    run(test)


# The programs of the docs


@pytest.mark.parametrize("name", sorted(program.name for program in PROGRAMS.glob("*.py")))
def test_the_programs_of_the_docs_run(tmp_path: Path, name: str) -> None:
    with empty_store("postgresql", tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "-W", "error", PROGRAMS / name],
            env={**os.environ, "DATABASE_URL": url},
            capture_output=True,
            encoding="utf-8",
            timeout=100,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == "order 17 is confirmed\n"
