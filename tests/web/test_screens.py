"""The screens about queues, lanes, workers and health."""

import asyncio
import re
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder, RateLimitConfig
from leasedkeyq.lanes.durable.reports.minutes import SERIES_QUEUE
from leasedkeyq.stores import Bury, Claim, Put
from leasedkeyq.web import dashboard
from leasedkeyq.web.pages import SCREENS
from tests.web.browsers import Browser, open_page


async def filled() -> MemoryStore:
    """Two queues: one with 2 that wait and a dead letter, one with one that runs."""
    store = MemoryStore()
    await store.put([Put("mail", (("a", b"1"), ("b", b"2"), ("c", b"3")))])
    await store.put([Put("print", (("p", b"1"),))])
    for queue, key in (("mail", "a"), ("print", "p")):
        ((claimed,),) = await store.claim([Claim(((queue, 1),), key=key, lease_time=1e6)])
        if queue == "mail":
            await store.settle([Bury(queue, key, claimed.token, "ValueError: no such address")])
    return store


def names(text: str) -> list[str]:
    return re.findall(r'<th scope="row" class="name"><a [^>]*>([^<]*)', text)


async def test_the_overview_has_all_queues_and_what_they_hold() -> None:
    async with Browser(dashboard(await filled())) as browser:
        text = (await browser.get("/s/memory/")).text
        assert names(text) == ["mail", "print"]
        assert 'href="/s/memory/items?queue=mail&amp;state=buried"' in text
        told = (await browser.get("/s/memory/overview.json")).json()
        assert told["totals"]["available"] == 2
        rows = {row["name"]: row for row in told["rows"]}
        assert (rows["mail"]["available"], rows["mail"]["buried"]) == (2, 1)
        assert rows["print"]["in_flight"] == 1
        for order, first in (
            ("waiting", "mail"),
            ("dead", "mail"),
            ("name", "mail"),
            ("x", "mail"),
        ):
            assert names((await browser.get(f"/s/memory/?order={order}")).text)[0] == first
        assert names((await browser.get("/s/memory/?find=PRI")).text) == ["print"]
        nothing = (await browser.get("/s/memory/?find=%3Cb%3E")).text
        assert "has “&lt;b&gt;” in its name" in nothing


async def test_a_store_with_many_queues_shows_some_of_them(monkeypatch: Any) -> None:
    monkeypatch.setattr("leasedkeyq.web.pages.overview.MOST_ROWS", 3)
    store = MemoryStore()
    for number in range(5):
        await store.put([Put(f"q{number}", (("k", b"1"),))])
    async with Browser(dashboard(store)) as browser:
        text = (await browser.get("/s/memory/")).text
        assert len(names(text)) == 3
        assert "2 more are not shown" in text
        assert len((await browser.get("/s/memory/overview.json")).json()["rows"]) == 5


async def test_a_queue_and_one_that_is_empty() -> None:
    async with Browser(dashboard(await filled())) as browser:
        text = (await browser.get("/s/memory/queue?queue=mail")).text
        assert "Dead letters by error" in text
        assert "<button>Pause" not in text, "a plain queue has nobody who would heed it"
        empty = (await browser.get("/s/memory/queue.json?queue=nothing")).json()
        assert empty["counts"]["available"] == 0
        assert (await browser.get("/s/memory/queue")).status_code == 400


async def test_lanes_workers_and_their_history() -> None:
    """A worker runs in this process, in virtual time, for some minutes."""
    store = MemoryStore()
    manager = (
        QueueManagerBuilder()
        .with_lane("mail", LaneConfig(1, 3, rate_limit=RateLimitConfig.per_second(50)), 2)
        .with_storage(store)
        .build()
    )

    @manager.command("send")
    async def send(number: int) -> None:
        if number == 7:
            raise ValueError("no such address")
        await asyncio.sleep(0.5 if number else 10_000)

    await manager.start()
    for number in range(10):
        await manager.submit("mail", send(number))
    await asyncio.sleep(300)
    assert (await store.count([SERIES_QUEUE]))[SERIES_QUEUE].done
    app = dashboard(store)
    async with Browser(app) as browser:
        told = (await browser.get("/s/memory/lanes.json")).json()
        (lane,) = told["lanes"]
        assert (lane["name"], lane["priority"], lane["max_concurrency"]) == ("mail", 2, 3)
        assert lane["limits"]
        ((runner,),) = told["concurrency"].values()
        assert runner["max_concurrency"] == 3
        text = (await browser.get("/s/memory/lanes")).text
        assert "of 3</li>" in text
        assert lane["limits"][0] in text
        (worker,) = (await browser.get("/s/memory/workers.json")).json()["workers"]
        assert worker["alive"]
        text = (await browser.get("/s/memory/workers")).text
        assert f"process {worker['pid']}" in text
        text = (await browser.get("/s/memory/queue?queue=mail")).text
        assert "Lane <span" in text
        assert text.count("<figure") in (0, 4)
    await manager.shutdown()
    await manager.close()


async def test_health_says_what_doctor_says(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    app = dashboard(store)
    async with Browser(app) as browser:
        told = (await browser.get("/s/memory/health.json")).json()
        text = (await browser.get("/s/memory/health")).text
        for finding in told["findings"]:
            assert finding["code"] in text
        assert told["worst"] in (None, "note", "warning", "error")


async def test_a_long_examination_comes_by_the_live_part(monkeypatch: pytest.MonkeyPatch) -> None:
    examinations = 0

    async def examine(store: Any) -> list[Any]:
        nonlocal examinations
        examinations += 1
        await asyncio.sleep(3)
        return []

    monkeypatch.setattr("leasedkeyq.web.pages.health.examine", examine)
    app = dashboard(MemoryStore())
    async with Browser(app) as browser:
        assert "is being examined" in (await browser.get("/s/memory/health")).text
        async with open_page(app, browser, "/s/memory/health.live") as page:
            await asyncio.sleep(10)
            assert "Nothing is wrong" in page.part("health")
        assert examinations == 1


async def test_every_page_has_its_landmarks() -> None:
    app = dashboard(await filled())
    async with Browser(app) as browser:
        for screen in SCREENS:
            answer = await browser.get(f"/s/memory{screen.path}?queue=mail&id=2")
            if answer.status_code != 200:
                continue
            text = answer.text
            for part in ("<main", "<header", "<nav", 'class="skip"', "<h1", '<html lang="en"'):
                assert part in text, (screen.path, part)
            assert text.count("<h1") == 1, screen.path
