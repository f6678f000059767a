"""Submit a command in a transaction of psycopg: the order and its mail, both or neither.

It needs psycopg, leasedkeyq with the extra `postgres` for the worker, and DATABASE_URL.
"""

import asyncio
import os
import time

import psycopg
from psycopg.types.json import Jsonb

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder

DATABASE_URL = os.environ["DATABASE_URL"]
SUBMIT = """
    SELECT leasedkeyq.put(%(lane)s, %(key)s, %(value)s, kind => %(command)s,
                          if_present => 'append')
"""

manager = (
    QueueManagerBuilder().with_lane("mail", LaneConfig(0, 10), 0).with_storage(DATABASE_URL).build()
)


@manager.command("confirm")
async def confirm(order: int) -> None:
    """Write to whoever has ordered."""
    print(f"order {order} is confirmed")


def take(order: int) -> None:
    """Store an order, and have it confirmed. This program may know nothing of the manager."""
    with psycopg.connect(DATABASE_URL) as connection:  # it commits at the end
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id int)")
        connection.execute("INSERT INTO orders VALUES (%s)", (order,))
        submitted = {
            "lane": "mail",
            "key": f"order-{order}",
            "value": Jsonb({"payload": {"order": order}, "at": time.time()}),
            "command": "confirm",
        }
        connection.execute(SUBMIT, submitted)


async def main() -> None:
    """Take an order while a worker runs."""
    async with manager:
        await asyncio.to_thread(take, 17)
        await manager.drain()


if __name__ == "__main__":
    asyncio.run(main())
