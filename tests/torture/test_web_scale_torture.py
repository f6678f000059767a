"""Every page of the web page on a store with many items in 500 queues.

A short slice on Redis runs always: few items, and no look at the clock. Under ``TORTURE=1`` there
are a million items, on SQLite, PostgreSQL and Redis, and each page has to answer in below 200 ms.
"""

import asyncio
import os
import statistics
import time
from pathlib import Path

import pytest

from leasedkeyq import connect
from leasedkeyq.stores import Put, Store
from leasedkeyq.web import dashboard
from leasedkeyq.web.pages import SCREENS
from tests.servers.urls import KINDS, empty_store
from tests.web.browsers import Browser

TORTURE = os.environ.get("TORTURE") == "1"
QUEUES = 500 if TORTURE else 20
ITEMS = 1_000_000 if TORTURE else 2_000
MOST = 0.2
"""Seconds that a page may take, with nothing remembered of an earlier look."""
VALUE = b'{"order": 4711, "text": "something that people have written"}'


async def fill(store: Store) -> None:
    each = ITEMS // QUEUES
    for number in range(QUEUES):
        keys = [f"key-{place}" for place in range(each)]
        for begin in range(0, each, 5000):
            items = tuple((key, VALUE) for key in keys[begin : begin + 5000])
            await store.put([Put(f"queue-{number:03}", items)])


async def look_at_every_page(store: Store) -> dict[str, float]:
    """The median time that each page takes."""
    app = dashboard({"store": store})
    shown = app.stores["store"]
    took: dict[str, float] = {}
    async with Browser(app) as browser:
        for screen in SCREENS:
            path = f"/s/store{screen.path}?queue=queue-007&id=1"
            times: list[float] = []
            for _ in range(5 if TORTURE else 1):
                shown.poller.forget()
                began = time.perf_counter()
                answer = await browser.get(path)
                times.append(time.perf_counter() - began)
                assert answer.status_code < 500, (path, answer.text)
            took[screen.path] = statistics.median(times)
    return took


async def check(url: str) -> None:
    async with connect(url) as store:
        if not await store.count():
            await fill(store)
        took = await look_at_every_page(store)
        if TORTURE:
            slow = {path: f"{seconds * 1000:.0f} ms" for path, seconds in took.items()}
            assert max(took.values()) < MOST, slow


@pytest.mark.timeout(1800 if TORTURE else 120)
@pytest.mark.parametrize("kind", KINDS if TORTURE else ["redis"])
def test_every_page_on_many_queues(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        asyncio.run(check(url))
