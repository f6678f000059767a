"""What the tests of the web page have in common: a browser, a tool, and an open page."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from leasedkeyq.web import Dashboard

TOKEN = "a-token-that-is-long-enough"
VIEWER = "a-token-of-one-who-only-looks"
SAME = {"sec-fetch-site": "same-origin"}


class Browser:
    """A browser on this machine, with its cookies. It follows no redirect by itself."""

    def __init__(
        self, app: Any, base: str = "http://localhost:8080", client: str = "127.0.0.1"
    ) -> None:
        transport = httpx.ASGITransport(app, client=(client, 50000), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=base)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(
            path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    async def token(self, path: str) -> str:
        """The token of a form on a page; "" if it has none."""
        found = re.search(r'name="form_token" value="([^"]*)"', (await self.get(path)).text)
        return found[1] if found else ""

    async def post(
        self,
        path: str,
        fields: dict[str, Any] | None = None,
        *,
        token: str | None = None,
        page: str = "/login",
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a form with the token of a page."""
        given = await self.token(page) if token is None else token
        data = {"form_token": given, **(fields or {})}
        return await self.http.post(path, data=data, headers=SAME if headers is None else headers)

    async def log_in(self, token: str = TOKEN) -> httpx.Response:
        return await self.post("/login", {"token": token})


def form_token(app: Dashboard, browser: Browser) -> str:
    """The token of the forms of a browser, whatever its pages show."""
    for name, value in browser.http.cookies.items():
        if name.startswith("leasedkeyq_session_"):
            session = app.sessions.read(value)
            assert session is not None
            return app.sessions.form_token(session)
    raise AssertionError("the browser has no session")


class OpenPage:
    """The events of a page that is open."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.gone = asyncio.Event()
        self.ended = False

    @property
    def events(self) -> list[tuple[str, str]]:
        blocks = self.body.decode().replace("\r\n", "\n").split("\n\n")
        found: list[tuple[str, str]] = []
        for block in blocks:
            lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in lines:
                found.append((lines["event"], lines.get("data", "")))
        return found

    def part(self, name: str) -> str:
        """The newest form of a live part; "" if it was not sent."""
        html = ""
        for event, data in self.events:
            if event == "part":
                told = msgspec.json.decode(data)
                html = told["html"] if told["part"] == name else html
        return html


@asynccontextmanager
async def open_page(app: Any, browser: Browser, path: str) -> AsyncGenerator[OpenPage]:
    """Open the events of a page as a browser does, until the end of the block."""
    page = OpenPage()
    parts = urlsplit(path)
    cookies = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost:8080"), (b"cookie", cookies.encode())],
        "client": ("127.0.0.1", 50001),
        "server": ("127.0.0.1", 8080),
    }
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await page.gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            page.status = message["status"]
            page.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            page.body += message.get("body", b"")
            page.ended = not message.get("more_body", False)

    task = asyncio.create_task(app(scope, receive, send))
    try:
        yield page
    finally:
        page.gone.set()
        await task
