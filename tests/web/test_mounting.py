"""The page under any path, in any application."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from leasedkeyq import MemoryStore, StoreClosedError, connect
from leasedkeyq.web import User, dashboard
from tests.web.browsers import SAME, TOKEN, Browser, form_token, open_page


def in_starlette(page: Any) -> Any:
    return Starlette(routes=[Mount("/admin", routes=[Mount("/queues", app=page)])])


def in_fastapi(page: Any) -> Any:
    app = FastAPI()
    app.mount("/admin/queues", page)
    return app


def cut_off(page: Any) -> Any:
    """As servers do that cut the path off and say so by the root path."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        rest = scope["path"].removeprefix("/admin/queues") or "/"
        await page({**scope, "path": rest, "root_path": "/admin/queues"}, receive, send)

    return app


def cut_off_silently(page: Any) -> Any:
    """As those do that say nothing, and put a slash at the end: it needs its `base_path`."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        rest = scope["path"].removeprefix("/admin/queues").rstrip("/") + "/"
        await page({**scope, "path": rest, "root_path": ""}, receive, send)

    return app


@pytest.mark.parametrize("mounted", [in_starlette, in_fastapi, cut_off, cut_off_silently])
async def test_all_addresses_are_below_the_place_of_the_page(mounted: Any) -> None:
    store = MemoryStore()
    await store.queue("mail").put("k", 1)
    base = "/admin/queues" if mounted is cut_off_silently else ""
    page = dashboard(store, token=TOKEN, base_path=base)
    app = mounted(page)
    async with Browser(app) as browser:
        away = await browser.get("/admin/queues/s/memory/lanes")
        assert away.headers["location"] == "/admin/queues/login?next=%2Fs%2Fmemory%2Flanes"
        assert "Path=/admin/queues/" in away.headers["set-cookie"]
        token = form_token(page, browser)
        done = await browser.http.post(
            "/admin/queues/login",
            data={"token": TOKEN, "form_token": token, "next": "/s/memory/lanes"},
            headers=SAME,
        )
        assert done.headers["location"] == "/admin/queues/s/memory/lanes"
        start = await browser.get("/admin/queues/")
        assert start.headers["location"] == "/admin/queues/s/memory/"
        text = (await browser.get(start.headers["location"])).text
        for mark in ('href="', 'src="', 'action="', 'data-live-url="'):
            for part in text.split(mark)[1:]:
                address = part.partition('"')[0]
                assert address.startswith(("/admin/queues/", "#", "?")), address
        style = text.split('rel="stylesheet" href="')[1].partition('"')[0]
        assert (await browser.get(style)).status_code == 200
        async with open_page(app, browser, "/admin/queues/s/memory/overview.live") as live:
            assert live is not None
        assert live.status == 200


async def test_the_stores_of_the_page_are_its_own_and_others_are_left_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    mine = MemoryStore()
    page = dashboard({"file": url, "mine": mine})

    opened = page.stores["file"].store
    await page.close()
    with pytest.raises(StoreClosedError):
        await opened.count()
    assert await mine.count() == {}
    assert page.stores["file"].store is not opened, "a later look opens it again"
    await page.close()


async def test_a_server_of_its_own_closes_the_stores_at_its_end(tmp_path: Path) -> None:
    page = dashboard(f"sqlite:///{tmp_path}/jobs.db")
    opened = page.stores["jobs.db"].store
    told = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Any:
        return next(told)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await page({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(StoreClosedError):
        await opened.count()


async def test_several_stores_have_names(tmp_path: Path) -> None:
    shop = connect(f"sqlite:///{tmp_path}/shop.db")
    page = dashboard([shop, "redis://user:hunter22@cache:6379/0", "memory://", "memory://"])
    assert list(page.stores) == ["sqlite", "cache-0", "memory", "memory-2"]
    async with Browser(page) as browser:
        text = (await browser.get("/")).text
        assert 'href="/s/cache-0/"' in text
        assert "hunter22" not in text
        assert (await browser.get("/s/nowhere/")).status_code == 404
    await shop.close()
    await page.close()


async def test_the_host_application_knows_its_users() -> None:
    def authenticate(request: Any) -> User | None:
        name = request.headers.get("x-user")
        return User(name=name, role="viewer") if name else None

    app = FastAPI()
    app.mount("/queues", dashboard(MemoryStore(), authenticate=authenticate))
    async with Browser(app, client="10.1.2.3") as browser:
        assert (await browser.get("/queues/s/memory/")).status_code == 401
        assert (await browser.get("/queues/s/memory/", x_user="ada")).status_code == 200
