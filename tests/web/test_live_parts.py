"""The live parts of every page can be made wherever the page can, also by themselves."""

import asyncio

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.web import dashboard
from tests.web.browsers import Browser, open_page

PAGES = [
    "overview",
    "queue?queue=plain",
    "queue?queue=gone",
    "items?queue=plain",
    "lanes",
    "workers",
    "schedules",
    "dead-letters",
    "health",
]


@pytest.mark.parametrize("path", PAGES)
async def test_live_parts_of_a_store_without_lanes(path: str) -> None:
    store = MemoryStore()
    await store.queue("plain").put("k", 1)
    app = dashboard({"memory": store})
    name, _, query = path.partition("?")
    page = f"/s/memory/{'' if name == 'overview' else name}?{query}"
    async with Browser(app) as browser:
        answer = await browser.get(page)
        assert answer.status_code == 200
        if "data-live-url" not in answer.text:
            return
        async with open_page(app, browser, f"/s/memory/{name}.live?{query}") as live:
            await asyncio.sleep(10)
            assert any(event == "part" for event, _ in live.events)
            assert not live.ended
            assert live.part("trouble") == ""
