"""A webhook service: every event of a customer is delivered, in order, one at a time.

The service takes events and stores them in PostgreSQL together with the command that delivers
them, in one transaction. Workers deliver them. Start the service and as many workers as you like,
with DATABASE_URL set to an empty database:

    uvicorn webhooks:app
    leasedkeyq worker webhooks:manager
    leasedkeyq worker webhooks:manager

They need fastapi, uvicorn and httpx, and leasedkeyq with the extra `postgres`.
"""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
import httpx
from fastapi import Body, FastAPI, HTTPException

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder, RetryPolicy

DATABASE_URL = os.environ["DATABASE_URL"]
RETRIES = RetryPolicy(max_retries=5, initial_delay=0.2, max_delay=60, jitter=0.2)

manager = (
    QueueManagerBuilder()
    .with_lane("webhooks", LaneConfig(0, 50, timeout=10, retry_policy=RETRIES), 0)
    .with_storage(DATABASE_URL)
    .build()
)


@manager.command("deliver")
async def deliver(url: str, event: dict[str, Any]) -> int:
    """Deliver one event. What it raises is tried again, and the customer's next events wait."""
    async with httpx.AsyncClient(timeout=5) as client:
        answer = await client.post(url, json=event)
        answer.raise_for_status()
        return answer.status_code


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Open a pool for the service's own tables; close it, and the manager, at the end."""
    driver: Any = asyncpg  # it says little about its types
    async with driver.create_pool(DATABASE_URL, min_size=1, max_size=5) as pool:
        await pool.execute(
            "CREATE TABLE IF NOT EXISTS customers (name text PRIMARY KEY, url text NOT NULL)"
        )
        await pool.execute(
            "CREATE TABLE IF NOT EXISTS events (id bigserial PRIMARY KEY, customer text NOT NULL, "
            "event jsonb NOT NULL)"
        )
        app.state.pool = pool
        yield
    await manager.close()


app = FastAPI(lifespan=lifespan)


@app.put("/customers/{name}")
async def set_customer(name: str, url: Annotated[str, Body(embed=True)]) -> None:
    """Say where the events of a customer go."""
    statement = "INSERT INTO customers VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET url = $2"
    await app.state.pool.execute(statement, name, url)


@app.post("/customers/{name}/events", status_code=202)
async def take_event(name: str, event: dict[str, Any]) -> dict[str, str]:
    """Store an event, and have it delivered: both, or neither."""
    async with app.state.pool.acquire() as connection, connection.transaction():
        url = await connection.fetchval("SELECT url FROM customers WHERE name = $1", name)
        if url is None:
            raise HTTPException(404, f"there is no customer {name!r}")
        await connection.execute(
            "INSERT INTO events (customer, event) VALUES ($1, $2)", name, json.dumps(event)
        )
        handle = await manager.submit(
            "webhooks", deliver(url, event), key=name, connection=connection
        )
    return {"id": handle.id}


@app.get("/dead-letters")
async def dead_letters() -> list[dict[str, Any]]:
    """The events that could not be delivered."""
    return [
        {"id": letter.id, "customer": letter.key, "error": letter.error, "event": letter.payload}
        for letter in await manager.dlq.list()
    ]


@app.post("/dead-letters/{number}/requeue", status_code=202)
async def requeue(number: str) -> None:
    """Try one of them again, after the customer's events that wait by now."""
    for letter in await manager.dlq.list():
        if letter.id == number:
            await manager.dlq.requeue(letter)
            return
    raise HTTPException(404, f"there is no dead letter {number}")
