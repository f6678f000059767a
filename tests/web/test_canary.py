"""What `redact=` hides is nowhere: no page, no JSON, no event, no title, no log, no search."""

import asyncio
import logging

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.stores import Ack, Put, Release
from leasedkeyq.web import dashboard
from leasedkeyq.web.pages import SCREENS
from tests.web.browsers import Browser, open_page

CANARY = "canary-4711-xyz"


async def test_a_hidden_field_is_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    plain = store.queue("plain", default_lease_timeout=1e6)
    await plain.put("waits", {"secret": CANARY, "deep": [{"secret": {"a": CANARY}}]})
    await plain.put("dead", {"secret": CANARY})
    _, _, lease = await plain.take("dead")
    await store.settle([Release("plain", "dead", lease.token, error=f"first try: {CANARY}")])
    _, _, lease = await plain.take("dead")
    await plain.bury(lease, error=f"ValueError: {CANARY} is wrong")
    await plain.put("runs", {"secret": CANARY})
    await plain.take("runs")
    await plain.put("done", {"secret": CANARY})
    _, _, lease = await plain.take("done")
    await store.settle([Release("plain", "done", lease.token, error=f"first try: {CANARY}")])
    _, _, lease = await plain.take("done")
    await store.settle([Ack("plain", "done", lease.token, result=b"1", keep=1e6)])
    await store.put([Put("bytes", (("k", f"\xff secret={CANARY}".encode("latin-1")),))])
    manager = (
        QueueManagerBuilder().with_lane("mail", LaneConfig(0, 1), 0).with_storage(store).build()
    )

    @manager.command("send")
    async def send(to: str, secret: str) -> None:
        """Never run here."""

    await manager.submit("mail", send(to="ada", secret=CANARY))
    app = dashboard(store, redact=["secret"])
    caplog.set_level(logging.DEBUG)
    queries = [
        "queue=plain&state=buried&error=canary",
        *(f"queue=plain&id={number}" for number in range(1, 5)),
        "queue=mail&id=1",
        "queue=bytes&id=1",
    ]
    async with Browser(app) as browser:
        for screen in SCREENS:
            path = screen.path if screen.path != "/" else "/overview"
            asked = queries if screen.path == "/item" else [queries[0], "queue=plain"]
            for query in asked:
                for way in (screen.path, f"{path}.json"):
                    answer = await browser.get(f"/s/memory{way}?{query}")
                    assert CANARY not in answer.text, (way, query)
                    assert CANARY not in str(answer.headers)
                    assert answer.status_code < 500, (way, query, answer.text)
            for query in asked[1:3]:
                async with open_page(app, browser, f"/s/memory{path}.live?{query}") as page:
                    await asyncio.sleep(5)
                assert CANARY.encode() not in page.body, (path, query)
        found = (await browser.get("/s/memory/items.json?queue=plain&error=canary-47")).json()
        assert found["rows"] == [], "a search would tell it letter by letter"
        found = (await browser.get("/s/memory/items.json?queue=plain&error=is+wrong")).json()
        assert "dead" in str(found["rows"])
    assert CANARY not in caplog.text
    await manager.close()
