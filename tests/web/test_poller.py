"""However many pages are open, a store is looked at once."""

import asyncio
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.web import dashboard
from leasedkeyq.web.poller import MOST_LOOKS, Poller
from tests.web.browsers import Browser, OpenPage, open_page

LIVE = "/s/memory/overview.live"


class CountingStore(MemoryStore):
    """Counts the calls that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("do_") and name != "do_put":
            self.calls += 1
        return super().__getattribute__(name)


async def cost(pages: int, path: str = LIVE) -> int:
    """How many calls so many open pages cost in a minute."""
    store = CountingStore()
    for number in range(3):
        await store.queue(f"q{number}").put("k", 1)
    app = dashboard({"memory": store})
    async with Browser(app) as browser:
        await browser.get("/s/memory/")
        store.calls = 0
        async with asyncio.TaskGroup() as group:
            done = asyncio.Event()

            async def look() -> None:
                async with open_page(app, browser, path) as page:
                    await done.wait()
                    assert page.part("totals") or page.part("lanes"), path

            for _ in range(pages):
                group.create_task(look())
            await asyncio.sleep(60)
            calls = store.calls
            done.set()
        assert not app.stores["memory"].poller.running
        await asyncio.sleep(60)
        assert store.calls <= calls + 20, "it looks on though no page is open"
    return calls


async def test_fifty_open_pages_cost_no_more_than_one() -> None:
    one = await cost(1)
    assert one > 20
    assert await cost(50) <= one + 10


async def test_other_pages_share_the_same_look() -> None:
    """An open page of lanes beside one of the overview costs nothing more for the counts."""
    store = CountingStore()
    app = dashboard({"memory": store})
    async with Browser(app) as browser:
        for _ in range(50):
            for path in ("/", "/lanes", "/workers", "/queue?queue=q"):
                assert (await browser.get(f"/s/memory{path}")).status_code == 200
    assert store.calls < 40


async def test_what_has_changed_is_sent_and_nothing_else() -> None:
    store = MemoryStore()
    app = dashboard({"memory": store})
    async with Browser(app) as browser, open_page(app, browser, LIVE) as page:
        await asyncio.sleep(5)
        first = len(page.events)
        assert page.headers["cache-control"] == "no-store"
        await asyncio.sleep(10)
        assert len(page.events) == first, "nothing has changed"
        await store.queue("mail").put("k", 1)
        await asyncio.sleep(5)
        assert "mail" in page.part("rows")
        assert len(page.events) > first


async def test_a_live_part_has_the_token_of_its_own_browser() -> None:
    """Parts are made once for all; the tokens of their forms are not shared."""
    store = MemoryStore()
    app = dashboard({"memory": store})
    async with Browser(app) as one, Browser(app) as other:
        await one.get("/s/memory/")
        await other.get("/s/memory/")
        async with open_page(app, one, LIVE) as first, open_page(app, other, LIVE) as second:
            await asyncio.sleep(5)
            assert app._token_mark not in (first.body + second.body).decode()


async def test_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.web.app.MOST_OPEN_PAGES", 2)
    app = dashboard(MemoryStore())

    async def statuses(pages: list[OpenPage]) -> list[int]:
        await asyncio.sleep(1)
        return [page.status for page in pages]

    async with Browser(app) as browser:
        await browser.get("/s/memory/")
        async with open_page(app, browser, LIVE) as one, open_page(app, browser, LIVE) as two:
            await asyncio.sleep(1)
            async with open_page(app, browser, LIVE) as three:
                assert await statuses([one, two, three]) == [200, 200, 503]
        async with open_page(app, browser, LIVE) as again:
            assert await statuses([again]) == [200]


# The poller itself


async def test_callers_wait_for_the_same_look() -> None:
    looks = 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        await asyncio.sleep(1)
        return looks

    poller = Poller(2.0)
    first = asyncio.create_task(poller.look("a", look))
    await asyncio.sleep(0.5)
    second = asyncio.create_task(poller.look("a", look))
    first.cancel()
    assert await second == 1, "a caller that gives up leaves the look to the others"
    assert await poller.look("b", look) == 2
    poller.forget()
    assert await poller.look("a", look) == 3


async def test_a_slow_store_is_asked_more_rarely() -> None:
    began: list[float] = []
    loop = asyncio.get_running_loop()
    poller = Poller(2.0)

    async def look() -> None:
        began.append(loop.time())
        await asyncio.sleep(3)

    ends = loop.time() + 100
    while loop.time() < ends:
        await poller.look("a", look)
        await asyncio.sleep(0.5)
    assert len(began) <= 4


async def test_a_failure_is_shared_and_not_repeated_at_once() -> None:
    looks = 0
    poller = Poller(2.0)

    async def look() -> None:
        nonlocal looks
        looks += 1
        raise OSError("out of reach")

    for _ in range(10):
        with pytest.raises(OSError, match="out of reach"):
            await poller.look("a", look)
    assert looks == 1


async def test_a_store_that_is_back_is_seen_soon() -> None:
    poller = Poller(2.0)

    async def time_out() -> None:
        await asyncio.sleep(30)
        raise OSError("out of reach")

    async def look() -> str:
        return "back"

    with pytest.raises(OSError, match="out of reach"):
        await poller.look("a", time_out)
    await asyncio.sleep(2)
    assert await poller.look("a", look) == "back"


async def test_looks_are_bounded() -> None:
    poller = Poller(2.0)

    async def look() -> None:
        pass

    for number in range(3 * MOST_LOOKS):
        await poller.look(number, look)
    assert len(poller._looks) <= MOST_LOOKS
