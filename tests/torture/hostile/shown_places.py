"""What people see of payloads: the command line, `top`, and the web page."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Final

from leasedkeyq.__main__ import main
from leasedkeyq.checks import storable
from leasedkeyq.cli.commands.tail import line as tail_line
from leasedkeyq.cli.exit_codes import BUG
from leasedkeyq.cli.top.app import item_lines
from leasedkeyq.cli.top.poller import TopPoller
from leasedkeyq.cli.top.screen import ScreenStyle, draw
from leasedkeyq.cli.top.state import FailureRow, TopState
from leasedkeyq.operations import FeedEvent, Operator
from leasedkeyq.stores import Bury, Claim, Extend, Purge, Put
from leasedkeyq.web import Dashboard, dashboard
from tests.torture.hostile.opened import OpenedStore
from tests.torture.hostile.payloads import CANARY
from tests.torture.hostile.verdicts import SpoiledError, Verdict, shown, unprintable
from tests.web.browsers import Browser

LONGEST: Final = 512
LONGEST_ERROR: Final = 2000
"""Characters: a page of a megabyte takes long to be looked at, and shows nothing else."""
DANGEROUS: Final = frozenset("<>\"'&`{")
SCREEN: Final = (100, 40)
SERVER_ERROR: Final = 500
LINKS: Final = ("href", "src", "action", "formaction")


class ShownDoor:
    """A store with payloads in it, as people see it."""

    def __init__(self, target: OpenedStore, page: Dashboard, browser: Browser) -> None:
        self._target = target
        self._operator = Operator(target.store)
        self._page = page
        self._browser = browser
        self._dangerous = True
        """Whether the payload has characters that mean something on a page."""

    async def show(self, seed: int, text: str) -> Verdict:
        """Put a payload wherever something is shown, and look at all of it.

        Raises:
            SpoiledError: A payload is more than text on the terminal or on the page.
        """
        store = self._target.store
        name = storable(text)[:LONGEST] or f"shown {seed}"
        error = storable(text[:LONGEST_ERROR])
        value = json.dumps({"in": error, error: [error]}).encode()
        self._dangerous = not DANGEROUS.isdisjoint(text)
        await self._fill(name, value, error)
        try:
            await self._look_at_page(name)
            await self._look_at_top(name, error)
            if self._target.kind != "memory":
                await self._look_at_commands(name)
            await self._ask_for(text)
        finally:
            await store.settle([Purge(name)])
        return "shown"

    async def _fill(self, name: str, value: bytes, error: str) -> None:
        """One item that is buried, one that is leased, and one that waits."""
        store = self._target.store
        for key in ("buried", "leased", name):
            await store.put([Put(name, ((key, value),), kind=name)])
        queues = ((name, 1),)
        claims = [
            Claim(queues, 1, key, 600.0, holder=name[:200]) for key in ("buried", "leased") if key
        ]
        for key, leased in zip(("buried", "leased"), await store.claim(claims), strict=True):
            for claimed in leased:
                change = Bury(name, key, claimed.token, error)
                if key == "leased":
                    await store.settle([Extend(name, key, claimed.token, 600.0, value)])
                else:
                    await store.settle([change])

    # The web page

    async def _look_at_page(self, name: str) -> None:
        items = (await self._operator.items(name)).items
        base = "/s/shown"
        await self._page_of(f"{base}/")
        for path in ("/queue", "/items", "/dead-letters"):
            await self._page_of(f"{base}{path}", queue=name)
        await self._page_of(f"{base}/items", queue=name, key=name, error=name, state="buried")
        for item in items:
            await self._page_of(f"{base}/item", queue=name, id=str(item.id))
        await self._page_of(f"{base}/item", queue=name, key=name)

    async def _page_of(self, path: str, **query: str) -> None:
        answer = await self._browser.http.get(path, params=query)
        if answer.status_code >= SERVER_ERROR:
            raise SpoiledError(f"the page {path} answered {answer.status_code}")
        if self._dangerous and "html" in answer.headers.get("content-type", ""):
            check_page(answer.text)

    async def _ask_for(self, text: str) -> None:
        """Payloads in addresses, for pages that there are not."""
        sent = text.encode("utf-8", "replace").decode()[:2000]
        for path in ("/item", "/items", "/queue", "/item/edit", "/item/stack", "/new", "/lanes"):
            names = ("queue", "id", "key", "state", "cursor", "type", "lane", "order", "find")
            await self._page_of(f"/s/shown{path}", **dict.fromkeys(names, sent))

    # The terminal

    async def _look_at_top(self, name: str, error: str) -> None:
        state = TopState(store=name)
        poller = TopPoller(self._operator, state, lambda: None)
        await poller.look()
        state.add_failure(
            FailureRow(at=1.0, lane=name, key=name, kind=name, outcome="failed", error=error)
        )
        state.message = state.trouble = error
        for detail in (None, ["a detail"]):
            state.detail, state.detail_title = detail, error
            for text in draw(state, *SCREEN, ScreenStyle(colours=False)):
                check_terminal("top", _without_styles(text))
        for item in (await self._operator.items(name)).items:
            for text in item_lines(item, state.now):
                check_terminal("top, of an item", text)
        for outcome in ("failed", "dropped"):
            event = FeedEvent(
                at=1.0, outcome=outcome, queue=name, key=name, kind=name, error=error, worker=name
            )
            check_terminal("tail", tail_line(event, None))

    async def _look_at_commands(self, name: str) -> None:
        for words in (("list",), ("show", name), ("show", "buried"), ("queues",)):
            command, *rest = words
            queue = [] if command == "queues" else ["--", name, *rest]
            said = await self._call(command, *queue)
            check_terminal(command, said)
        said = await self._call("list", "--json", "--state", "buried", "--", name)
        check_terminal("list --json", said)
        for text in said.splitlines():
            if text.startswith("{") and json.loads(text)["queue"] != name:
                raise SpoiledError("list --json has another name of the queue")
        check_terminal("remove", await self._call("remove", "--yes", "--", name, name))

    async def _call(self, command: str, *words: str) -> str:
        """What a command prints; in a thread, as it has an event loop of its own."""
        out = io.StringIO()

        def call() -> int:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                return main([command, self._target.url, *words])

        code = await asyncio.to_thread(call)
        said = out.getvalue()
        if code == BUG or "Traceback (most recent" in said.partition("error:")[0]:
            raise SpoiledError(f"{command} ended with {code}: {said[:500]}")
        return said


def check_terminal(what: str, text: str) -> None:
    """Nothing of a payload reaches the terminal but what can be printed."""
    if found := unprintable(text):
        raise SpoiledError(f"{what} prints {found}")


def _without_styles(text: str) -> str:
    """A line of `top` without its own styles: which are digits between ESC [ and m."""
    first, *rest = text.split("\x1b[")
    return first + "".join(part.partition("m")[2] for part in rest)


class _Page(HTMLParser):
    """Finds elements and attributes that the templates do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if CANARY in tag or tag in ("base", "iframe", "object", "embed", "style"):
            self.found.append(f"<{tag}>")
        if tag == "script" and not given.get("src"):
            self.found.append("a script")
        if tag == "meta" and "http-equiv" in given:
            self.found.append("a meta that acts")
        for name, value in attrs:
            if name.startswith("on") or CANARY in name:
                self.found.append(f"the attribute {name}")
            if name in LINKS and (value or "").strip().lower().startswith(("javascript:", "//")):
                self.found.append(f"{name}={value}")


def check_page(text: str) -> None:
    """A page has no element and no attribute that comes from a payload."""
    page = _Page()
    page.feed(text)
    if page.found:
        raise SpoiledError(f"a page has {', '.join(map(shown, page.found[:5]))}")


@asynccontextmanager
async def shown_door(target: OpenedStore) -> AsyncGenerator[ShownDoor]:
    """The page of a store, and a browser, until the end of the block."""
    page = dashboard({"shown": target.store})
    async with Browser(page) as browser:
        try:
            yield ShownDoor(target, page, browser)
        finally:
            await page.close()
