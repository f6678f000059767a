"""Submit a command in a transaction of SQLAlchemy: the order and its mail, both or neither.

It needs sqlalchemy[asyncio], leasedkeyq with the extra `postgres`, and DATABASE_URL.
"""

import asyncio
import os

from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder

DATABASE_URL = os.environ["DATABASE_URL"]

manager = (
    QueueManagerBuilder().with_lane("mail", LaneConfig(0, 10), 0).with_storage(DATABASE_URL).build()
)


@manager.command("confirm")
async def confirm(order: int) -> str:
    """Write to whoever has ordered."""
    return f"order {order} is confirmed"


async def main() -> None:
    """Store an order, and have it confirmed."""
    engine = create_async_engine(make_url(DATABASE_URL).set(drivername="postgresql+asyncpg"))
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id int)"))

    async with AsyncSession(engine) as session, session.begin():
        # The first statement begins the transaction on the server: it comes before the submit.
        await session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": 17})
        raw = await (await session.connection()).get_raw_connection()
        handle = await manager.submit(
            "mail", confirm(17), key="order-17", connection=raw.driver_connection
        )

    async with manager:
        print(await handle)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
