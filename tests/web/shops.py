"""A small shop for the tests of pages: lanes with commands that wait, run, fail and are done."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from leasedkeyq import SqliteStore, connect
from leasedkeyq.lanes import (
    EventEmitter,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    current_command,
)
from leasedkeyq.model.requests import STATES, StoredItem
from leasedkeyq.stores import Store
from leasedkeyq.web import Dashboard, dashboard
from tests.web.browsers import Browser, form_token

LARGE = 123456789012345678901234567890
BASE = "/s/shop"


def in_real_time(
    test: Callable[[Path], Coroutine[Any, Any, None]],
) -> Callable[[Path], None]:
    """Run a test on a store that has threads, which virtual time would not wait for."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class Shop:
    """A shop and its page.

    Attributes:
        store: Its store.
        manager: Its manager, which runs commands when it is started.
        app: Its page.
        browser: Somebody who looks at it.
    """

    def __init__(self, store: Store, app: Dashboard, browser: Browser) -> None:
        self.store = store
        self.app = app
        self.browser = browser
        self.goes_on = asyncio.Event()
        retry = RetryPolicy.fixed(1, 0.0)
        self.manager: QueueManager = (
            QueueManagerBuilder(EventEmitter())
            .with_lane("mail", LaneConfig(0, 2).with_retry_policy(retry), 1)
            .with_lane("reports", LaneConfig(0, 2), 2)
            .with_storage(store)
            .build()
        )

        @self.manager.command("send")
        async def send(
            to: str,
            order: int = 1,
            size: Literal["S", "M"] = "S",
            more: dict[str, Any] = {},  # noqa: B006
        ) -> dict[str, Any]:
            del size, more
            if to.startswith("bad"):
                raise ConnectionError(f"mailbox {to} of order {order} is full")
            return {"sent": True, "order": order}

        @self.manager.command("report")
        async def report(month: int) -> int:
            current_command().progress(0.25, "page 1 of 4")
            await self.goes_on.wait()
            return month

        self.send = send
        self.report = report

    async def get(self, path: str, status: int = 200) -> str:
        """A page of the shop."""
        answer = await self.browser.get(f"{BASE}{path}")
        assert answer.status_code == status, answer.text
        return answer.text

    async def data(self, path: str) -> Any:
        """A page of the shop as JSON."""
        mark = "&" if "?" in path else "?"
        answer = await self.browser.get(f"{BASE}{path}{mark}format=json")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, fields: dict[str, Any], status: int = 303) -> str:
        """Send a form; returns the page that it leads to, or that it answers with."""
        if not self.browser.http.cookies:
            await self.browser.get(f"{BASE}/help")
        token = form_token(self.app, self.browser)
        answer = await self.browser.post(f"{BASE}{path}", fields, token=token)
        assert answer.status_code == status, answer.text
        if status == 303:
            return (await self.browser.get(answer.headers["location"])).text
        return answer.text

    async def submit(self, to: str, key: str, **more: Any) -> str:
        """Submit a command to the lane of mails; returns its id."""
        options = {name: more.pop(name) for name in ("delay", "priority") if name in more}
        handle = await self.manager.submit("mail", self.send(to, **more), key=key, **options)
        return handle.id

    async def fail(self, *keys: str, to: str = "bad") -> None:
        """Let commands fail for good."""
        handles = [
            await self.manager.submit("mail", self.send(f"{to}{key}"), key=key) for key in keys
        ]
        await self.manager.start()
        for handle in handles:
            async with asyncio.timeout(30):
                await asyncio.gather(handle, return_exceptions=True)

    async def shown_types(self) -> list[str]:
        """The command types that workers have told of."""
        return [one["name"] for one in (await self.data("/new"))["types"]]

    async def queue(self, name: str) -> list[StoredItem]:
        """All that a queue holds."""
        return [*(await self.store.browse(name, states=STATES, limit=1000)).items]


@asynccontextmanager
async def shop(folder: Path, **options: Any) -> AsyncGenerator[Shop]:
    """A shop on SQLite, with nobody at work yet."""
    store = connect(f"sqlite:///{folder}/shop.db", durability="normal")
    assert isinstance(store, SqliteStore)
    app = dashboard({"shop": store}, interval=0.05, **options)
    async with Browser(app) as browser:
        made = Shop(store, app, browser)
        try:
            yield made
        finally:
            made.goes_on.set()
            await made.manager.close()
            await app.close()
            await store.close()
