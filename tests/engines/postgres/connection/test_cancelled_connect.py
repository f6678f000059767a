"""A caller that is cancelled while a connection is made leaves nothing behind."""

import asyncio
import gc
from pathlib import Path
from typing import Any

from leasedkeyq.engines.postgres.store import PostgresStore
from tests.servers.urls import empty_store


def test_no_error_is_left_behind_wherever_it_is_cancelled(tmp_path: Path) -> None:
    reported: list[dict[str, Any]] = []
    open_sockets = 0

    async def answer_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_sockets
        open_sockets += 1
        await reader.read(8)
        writer.close()
        await writer.wait_closed()
        open_sockets -= 1

    async def main(store: PostgresStore) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )
        server = await asyncio.start_server(answer_nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store._url = f"postgresql://somebody@127.0.0.1:{port}/somewhere"
        for steps in range(1, 20):
            connecting = asyncio.create_task(store._connect())
            for _ in range(steps):
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.wait([connecting])
            gc.collect()
        async with asyncio.timeout(30):
            while open_sockets:
                await asyncio.sleep(0.01)
        gc.collect()
        server.close()

    with empty_store("postgresql", tmp_path) as url:
        asyncio.run(main(PostgresStore(url)))
    assert reported == []
