"""Commands on PostgreSQL that are submitted in a transaction of their caller."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from leasedkeyq import KeyAlreadyPresentError
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import CommandFunction, Handle, LaneConfig, QueueManager, QueueManagerBuilder
from tests.servers.urls import empty_store


class UndoError(Exception):
    pass


class Hooks:
    """A manager on a database of its own, and a connection of its caller."""

    def __init__(self, url: str) -> None:
        builder = QueueManagerBuilder().with_storage(url).with_drain_timeout(30)
        self.manager: QueueManager = builder.with_lane("x", LaneConfig(0, 4), 0).build()
        self.ran: list[int] = []

        @self.manager.command("hook")
        async def hook(number: int) -> int:
            self.ran.append(number)
            return number * 10

        self.hook: CommandFunction[[int], int] = hook


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def run(test: Callable[[Hooks, Any], Awaitable[None]]) -> None:
        async def main(url: str) -> None:
            connection = await asyncpg.connect(url)
            hooks = Hooks(url)
            await connection.execute("CREATE TABLE orders (id int)")
            try:
                async with asyncio.timeout(60):
                    await test(hooks, connection)
            finally:
                await connection.close()
                await hooks.manager.close()

        with empty_store("postgresql", tmp_path) as url:
            asyncio.run(main(url))

    return run


def test_commands_are_committed_and_rolled_back_with_the_callers_data(run: Any) -> None:
    async def test(hooks: Hooks, connection: Any) -> None:
        manager, hook = hooks.manager, hooks.hook
        undone: list[Handle[int]] = []
        async with manager:
            with pytest.raises(UndoError):
                async with connection.transaction():
                    await connection.execute("INSERT INTO orders VALUES (1)")
                    undone.append(
                        await manager.submit("x", hook(1), key="k", connection=connection)
                    )
                    raise UndoError
            async with connection.transaction():
                await connection.execute("INSERT INTO orders VALUES (2)")
                handles = [
                    await manager.submit("x", hook(number), key="k", connection=connection)
                    for number in (2, 3)
                ]
                pairs = [("k", hook(4)), ("other", hook(5)), ("k", hook(6))]
                handles += await manager.submit_many("x", pairs, connection=connection)
                handles.append(await manager.submit("x", hook(7), connection=connection))
                await asyncio.sleep(1)
                assert hooks.ran == []
                assert {handle.status for handle in handles} == {"pending"}
            assert [await handle for handle in handles] == [20, 30, 40, 50, 60, 70]
            mine = [number for number in hooks.ran if number not in (5, 7)]
            assert mine == [2, 3, 4, 6]
            assert await connection.fetchval("SELECT sum(id) FROM orders") == 2
            assert [handle.status for handle in undone] == ["pending"]

    run(test)


def test_an_open_transaction_holds_up_nobody(run: Any) -> None:
    async def test(hooks: Hooks, connection: Any) -> None:
        manager, hook = hooks.manager, hooks.hook
        async with manager:
            async with connection.transaction():
                inside = await manager.submit("x", hook(1), key="k", connection=connection)
                async with asyncio.timeout(10):
                    outside = await manager.submit_many("x", [("k", hook(2)), ("k", hook(3))])
                    assert [await handle for handle in outside] == [20, 30]
                    behind = await manager.submit("x", hook(4), key="k", delay=1)
                    await manager.stats()
            assert await inside == 10
            assert await behind == 40
        assert sorted(hooks.ran) == [1, 2, 3, 4]

    run(test)


def test_what_is_there_counts_in_a_transaction(run: Any) -> None:
    async def test(hooks: Hooks, connection: Any) -> None:
        manager, hook = hooks.manager, hooks.hook
        first = await manager.submit("x", hook(1), key="k")
        async with connection.transaction():
            same = await manager.submit(
                "x", hook(2), key="k", if_present="skip", unique_for=60, connection=connection
            )
            assert same.id == first.id
        with pytest.raises(KeyAlreadyPresentError, match="lane 'x': a command of key 'k'"):
            async with connection.transaction():
                await manager.submit(
                    "x", hook(3), key="k", if_present="reject", connection=connection
                )
        async with manager:
            assert [await first, await same] == [10, 10]
        assert hooks.ran == [1]

    run(test)


def test_commands_by_the_function_for_other_drivers(run: Any) -> None:
    async def test(hooks: Hooks, connection: Any) -> None:
        async with hooks.manager:
            async with connection.transaction():
                for number in range(4):
                    await connection.execute(
                        """
                        SELECT leasedkeyq.put('x', 'acme',
                            jsonb_build_object('payload', jsonb_build_object('number', $1::int),
                                               'at', extract(epoch FROM now())),
                            kind => 'hook', if_present => 'append')
                        """,
                        number,
                    )
            while len(hooks.ran) < 4:
                await asyncio.sleep(0.01)
        assert hooks.ran == [0, 1, 2, 3]

    run(test)


def test_a_connection_that_cannot_do_it_is_refused(run: Any) -> None:
    async def test(hooks: Hooks, connection: Any) -> None:
        manager, hook = hooks.manager, hooks.hook
        with pytest.raises(StoreError, match="the connection is in no transaction"):
            await manager.submit("x", hook(1), connection=connection)
        with pytest.raises(TypeError, match="connection must be one of asyncpg, got object"):
            await manager.submit("x", hook(1), connection=object())
        async with connection.transaction():
            with pytest.raises(ValueError, match="deadline and connection exclude each other"):
                await manager.submit("x", hook(1), deadline=5, connection=connection)
        assert (await manager.stats()).total_pending == 0

    run(test)
