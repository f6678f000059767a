"""`dashboard`: the web page as an ASGI application."""

import asyncio
import contextlib
import hashlib
import logging
import mimetypes
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from leasedkeyq import __version__
from leasedkeyq.errors import LeasedKeyQError, UnstorableError
from leasedkeyq.operations.items.redaction import HideRule, Redaction
from leasedkeyq.web import words
from leasedkeyq.web.access.guard import Authenticate, Credentials, RequestGuard
from leasedkeyq.web.access.sessions import Sessions
from leasedkeyq.web.access.users import User
from leasedkeyq.web.pages import ACTIONS, SCREENS
from leasedkeyq.web.pages.entrance import log_in, log_out, login_form, stores_page
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.shown_store import Sources, shown_stores
from leasedkeyq.web.visit import Visit, json_response

STATIC: Final = Path(__file__).parent / "static"
MESSAGE_COOKIE: Final = "leasedkeyq_message"
THEME_COOKIE: Final = "leasedkeyq_theme"
LONGEST_MESSAGE: Final = 1_500
"""Bytes: a browser forgets a cookie of more than 4,096."""
MOST_OPEN_PAGES: Final = 500
LIVE: Final = "live_"
PATIENCE: Final = 20
LIVE_PATIENCE: Final = 5
"""Seconds until a page, and one that is open, says that the store does not answer."""
PING: Final = 20
RETRY: Final = 3000
"""Milliseconds until a browser asks again after a connection is lost."""

logger = logging.getLogger("leasedkeyq.web")


def dashboard(
    stores: Sources,
    *,
    token: str | None = None,
    viewer_token: str | None = None,
    users: Iterable[User] = (),
    authenticate: Authenticate | None = None,
    login_url: str = "",
    read_only: bool = False,
    allowed_hosts: Sequence[str] = (),
    redact: HideRule | Iterable[HideRule] = (),
    secret: str | bytes | None = None,
    session_time: float = 12 * 3600.0,
    secure_cookies: bool | None = None,
    base_path: str = "",
    trace_url: str = "",
    title: str = "leasedkeyq",
    interval: float = 2.0,
    max_body: int = 4 * 1024 * 1024,
    store_options: Mapping[str, Any] | None = None,
) -> "Dashboard":
    """Make the web page of some stores: an ASGI application, to be served or mounted anywhere.

    Without `token`, `users` and `authenticate` it answers only requests from the machine that it
    runs on, which do not come through a proxy.

    Args:
        stores: A URL or a `Store`, a list of them, or a mapping of names to them. A store that is
            given as a URL is opened at the first look at it, and closed with the page; a `Store`
            stays open.
        token: Whoever has it may look and change: in the form of the page, or as
            ``Authorization: Bearer ...``. At least 16 characters.
        viewer_token: Whoever has it may look.
        users: Who logs in at the page, by name and password.
        authenticate: Is given each request (of Starlette), and returns the `User` who makes it, or
            None; it may be async. For a host application that knows its users.
        login_url: Where `authenticate` sends people who are nobody yet.
        read_only: Nobody may change anything.
        allowed_hosts: The names by which people reach the page, such as ``"jobs.example.com"`` or
            ``"*.example.com"``. Addresses in digits, ``localhost`` and the name of the machine are
            allowed; ``"*"`` allows every name.
        redact: What of values is not shown: see `Redaction`.
        secret: What cookies are signed with. Without it sessions end with the process; several
            processes that serve one page need the same.
        session_time: Seconds until people have to log in again.
        secure_cookies: Whether cookies are for HTTPS only; by default as the request came.
        base_path: Where the page is mounted, such as ``"/queues"``, for servers that do not say so
            by ``root_path`` (Litestar does not).
        trace_url: The address of a trace, with ``{trace_id}`` in it.
        title: The name of the page.
        interval: Seconds between two looks at a store, however many pages are open.
        max_body: Bytes that a request may have.
        store_options: Passed to `connect` for each URL.

    Raises:
        ValueError: Something of that makes no sense, such as a token that can be guessed.
    """
    return Dashboard(
        stores,
        token=token,
        viewer_token=viewer_token,
        users=users,
        authenticate=authenticate,
        login_url=login_url,
        read_only=read_only,
        allowed_hosts=allowed_hosts,
        redact=redact,
        secret=secret,
        session_time=session_time,
        secure_cookies=secure_cookies,
        base_path=base_path,
        trace_url=trace_url,
        title=title,
        interval=interval,
        max_body=max_body,
        store_options=store_options or {},
    )


class StaticFile:
    """The style, the script or the icon, read once."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.mark = hashlib.sha256(self.content).hexdigest()[:12]


class LiveResponse(EventSourceResponse):
    """Events that end properly when the server does, too: it would log an error for each."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        open_ended = False

        async def send_and_note(message: Message) -> None:
            nonlocal open_ended
            open_ended = bool(message.get("more_body", True))
            await send(message)

        await super().__call__(scope, receive, send_and_note)
        if open_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Dashboard:
    """The web page: an ASGI application. Made by `dashboard`, which explains the arguments."""

    def __init__(
        self,
        stores: Sources,
        *,
        token: str | None,
        viewer_token: str | None,
        users: Iterable[User],
        authenticate: Authenticate | None,
        login_url: str,
        read_only: bool,
        allowed_hosts: Sequence[str],
        redact: HideRule | Iterable[HideRule],
        secret: str | bytes | None,
        session_time: float,
        secure_cookies: bool | None,
        base_path: str,
        trace_url: str,
        title: str,
        interval: float,
        max_body: int,
        store_options: Mapping[str, Any],
    ) -> None:
        if base_path and (not base_path.startswith("/") or base_path.endswith("/")):
            raise ValueError(f"base_path looks like /queues, got {base_path!r}")
        if interval <= 0 or session_time <= 0 or max_body <= 0:
            raise ValueError("interval, session_time and max_body are above 0")
        if trace_url and "{trace_id}" not in trace_url:
            raise ValueError(f"trace_url needs {{trace_id}} in it, got {trace_url!r}")
        self.title = title
        self.trace_url = trace_url
        self.redaction = Redaction(redact)
        self.stores = shown_stores(stores, store_options, interval, self.redaction)
        self.sessions = Sessions(_secret_bytes(secret), session_time)
        if read_only:
            users = [_as_viewer(user) for user in users]
            token, viewer_token = None, viewer_token or token
        self.credentials = Credentials(token, viewer_token, users, self.sessions)
        if authenticate is not None and self.credentials:
            raise ValueError(
                "authenticate= replaces the login of the page: give it, or token= and users="
            )
        self._authenticate = authenticate
        # One password at a time: each check takes 32 MiB and a tenth of a second.
        self.password_checks = asyncio.Semaphore(1)
        self._open_pages = 0
        self._files = _static_files()
        self._templates = _environment()
        # Stands for the token of a form in parts that are made once for several browsers.
        self._token_mark = f"@{secrets.token_urlsafe(16)}@"
        self._app = Starlette(
            routes=self._routes(),
            exception_handlers={
                HTTPException: self._on_refusal,
                LeasedKeyQError: self._on_store_error,
                Exception: self._on_failure,
            },
        )
        self._app.router.redirect_slashes = False
        self.guard = RequestGuard(
            self._answer,
            self._refusal,
            sessions=self.sessions,
            credentials=self.credentials,
            authenticate=authenticate,
            local=User(name="(local)", role="viewer" if read_only else "operator"),
            allowed_hosts=allowed_hosts,
            base_path=base_path,
            max_body=max_body,
            secure_cookies=secure_cookies,
            login_url=login_url,
            read_only=read_only,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the ASGI interface."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        await self.guard(scope, receive, send)

    async def close(self) -> None:
        """Close the stores that were opened for the page, and stop looking at all of them.

        A server that serves the page by itself does that at its end. A host application that
        mounts it calls this at its own.
        """
        for shown in self.stores.values():
            await shown.close()

    @property
    def logs_in(self) -> bool:
        """Whether people log in here."""
        return bool(self.credentials)

    # Routes

    def _routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = [
            Route("/static/{name}", self._static, methods=["GET"]),
            Route("/", self._plain(stores_page), methods=["GET"]),
            Route("/login", self._plain(login_form), methods=["GET"]),
            Route("/login", self._plain(log_in), methods=["POST"]),
            Route("/logout", self._plain(log_out), methods=["POST"]),
        ]
        for screen in SCREENS:
            # A server may have cut a slash off, or put one there: the guard takes it away.
            path = f"/s/{{store}}{screen.path.rstrip('/')}"
            routes.append(Route(path, self._page(screen), methods=["GET"]))
            dotted = f"/s/{{store}}{screen.path if screen.path != '/' else '/overview'}"
            routes.append(Route(f"{dotted}.json", self._page(screen), methods=["GET"]))
            routes.append(Route(f"{dotted}.live", self._live(screen), methods=["GET"]))
        routes.extend(
            Route(f"/s/{{store}}{action.path}", self._action(action), methods=["POST"])
            for action in ACTIONS
        )
        return routes

    def _visit(self, request: Request) -> Visit:
        name = request.path_params.get("store")
        if name is None:
            return Visit(self, request)
        shown = self.stores.get(name)
        if shown is None:
            raise HTTPException(404, "There is no such store here.")
        return Visit(self, request, shown)

    def _plain(
        self, answer: Callable[[Visit], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await answer(self._visit(request))

        return endpoint

    def _action(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        return self._plain(action.act)

    def _page(self, screen: Screen) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            visit = self._visit(request)
            try:
                async with asyncio.timeout(PATIENCE):
                    content = await screen.content(visit)
            except TimeoutError:
                raise HTTPException(503, _silence(PATIENCE)) from None
            if visit.wants_json:
                return json_response(content.data, content.status)
            return self.render(visit, screen, content)

        return endpoint

    def _live(self, screen: Screen) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            visit = self._visit(request)
            if self._open_pages >= MOST_OPEN_PAGES:
                raise HTTPException(
                    503,
                    f"{MOST_OPEN_PAGES} pages are open already. This one does not update itself.",
                    {"retry-after": "30"},
                )
            return LiveResponse(self._events(visit, screen), ping=PING, send_timeout=30)

        return endpoint

    async def _events(self, visit: Visit, screen: Screen) -> AsyncIterator[dict[str, Any]]:
        """The live parts of a page whenever they have changed."""
        sent: dict[str, str] = {}
        self._open_pages += 1
        try:
            yield {"event": "open", "data": "", "retry": RETRY}
            async with contextlib.aclosing(visit.shown.poller.ticks()) as ticks:
                async for _ in ticks:
                    if not await self._still_allowed(visit):
                        yield {"event": "ended", "data": ""}
                        return
                    try:
                        async with asyncio.timeout(LIVE_PATIENCE):
                            parts = await self._parts(visit, screen)
                    except TimeoutError:
                        # The look goes on; the pages that wait for it say so meanwhile.
                        parts = {"trouble": _silence(LIVE_PATIENCE)}
                    for name, html in parts.items():
                        if sent.get(name) != html:
                            sent[name] = html
                            own = html.replace(self._token_mark, visit.form_token)
                            part = msgspec.json.encode({"part": name, "html": own})
                            yield {"event": "part", "data": part.decode()}
        finally:
            self._open_pages -= 1

    async def _still_allowed(self, visit: Visit) -> bool:
        if visit.visitor.by_token or self.guard.open:
            return True
        if self._authenticate is not None:
            return await self.guard.ask_host(visit.request) is not None
        return self.sessions.is_live(visit.visitor.session)

    async def _parts(self, visit: Visit, screen: Screen) -> dict[str, str]:
        """The live parts of a page, made once for all who see the same."""

        async def make() -> dict[str, str]:
            try:
                content = await screen.content(visit)
            except (HTTPException, LeasedKeyQError) as error:
                detail = error.detail if isinstance(error, HTTPException) else str(error)
                return {"trouble": str(Markup.escape(detail))}
            context = {**self._context(visit, screen, content), "form_token": self._token_mark}
            template = self._templates.get_template(screen.template)
            # A block that is rendered by itself does not see what its template imports.
            for name in _macros():
                module = self._templates.get_template(name).make_module(context)
                context[name.removesuffix(".html")] = module
            parts = {"trouble": ""}
            for name, block in template.blocks.items():
                if name.startswith(LIVE):
                    made = "".join(block(template.new_context(context)))
                    parts[name.removeprefix(LIVE)] = made
            return parts

        role = visit.user.role if visit.user else ""
        return await visit.look((screen.path, str(visit.request.url.query), role), make)

    # Answers

    def render(self, visit: Visit, screen: Screen, content: Content) -> Response:
        """A page as HTML."""
        context = self._context(visit, screen, content)
        html = self._templates.get_template(screen.template).render(context)
        response = HTMLResponse(html, content.status)
        if context["message"] is not None:
            self._set_message(visit, response, "", 0)
        return response

    def _context(self, visit: Visit, screen: Screen, content: Content) -> dict[str, Any]:
        theme = visit.request.cookies.get(THEME_COOKIE, "")
        message = self._message(visit)
        return {
            "visit": visit,
            "page_title": content.title,
            "site_title": self.title,
            "screens": [screen for screen in SCREENS if screen.nav],
            "screen": screen,
            "theme": theme if theme in ("dark", "light") else "",
            "version": __version__,
            "interval": visit.shown.poller.interval if visit.has_store else 0,
            "form_token": visit.form_token if visit.user or self.logs_in else "",
            "message": message,
            "has_live": visit.has_store and content.status == 200,  # noqa: PLR2004
            **content.data,
            **content.extra,
        }

    def static_path(self, name: str) -> str:
        """The path of a static file, with a mark that changes when the file does."""
        return f"/static/{name}?v={self._files[name].mark}"

    async def _static(self, request: Request) -> Response:
        """A static file, from memory."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "There is no such file.")
        fixed = request.query_params.get("v") == file.mark
        cached = "public, max-age=31536000, immutable" if fixed else "no-cache"
        return Response(file.content, media_type=file.kind, headers={"cache-control": cached})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the guard lets pass."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            # Starlette has answered, unless the answer had begun. The text of an error may quote a
            # value of which a part is to be hidden.
            if self.redaction.active:
                logger.error("a page failed: %s: %s", scope["path"], type(error).__name__)  # noqa: TRY400
            else:
                logger.exception("a page failed: %s", scope["path"])

    def _refusal(self, request: Request, status: int, reason: str) -> Response:
        """The answer to a request that is refused, or that has failed."""
        visit = Visit(self, request)
        if visit.wants_json or request.scope["path"].endswith(".live"):
            return json_response({"error": reason}, status)
        template = self._templates.get_template("refusal.html")
        context = {
            "visit": visit,
            "page_title": _STATUS_WORDS.get(status, "This did not work"),
            "site_title": self.title,
            "status": status,
            "reason": reason,
            "theme": "",
            "version": __version__,
        }
        return HTMLResponse(template.render(context), status)

    async def _on_refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = self._refusal(request, error.status_code, error.detail)
        response.headers.update(error.headers or {})
        return response

    async def _on_store_error(self, request: Request, error: Exception) -> Response:
        if isinstance(error, UnstorableError):
            return self._refusal(request, 400, str(error))  # no key or queue can have such a name
        logger.warning("a page could not be made: %s: %s", request.scope["path"], error)
        return self._refusal(request, 503, str(error))

    async def _on_failure(self, request: Request, error: Exception) -> Response:
        del error  # it is logged where it arrives
        return self._refusal(request, 500, "This is a mistake of the page. Its log says more.")

    # Messages that are shown once

    def remember_message(
        self, visit: Visit, response: Response, message: str, *, good: bool
    ) -> None:
        """Show a message on the next page of this browser."""
        raw = message.encode(errors="backslashreplace")
        cut = raw[:LONGEST_MESSAGE].decode(errors="ignore")
        text = f"{cut}…" if len(raw) > LONGEST_MESSAGE else cut
        signed = self.sessions.sign(
            "message", msgspec.json.encode((visit.visitor.session.nonce, good, text))
        )
        self._set_message(visit, response, signed, 120)

    def _set_message(self, visit: Visit, response: Response, value: str, age: int) -> None:
        response.set_cookie(
            MESSAGE_COOKIE,
            value,
            max_age=age,
            path=f"{visit.request.scope['root_path']}/",
            secure=self.guard.is_secure(visit.request),
            httponly=True,
            samesite="lax",
        )

    def _message(self, visit: Visit) -> tuple[bool, str] | None:
        cookie = visit.request.cookies.get(MESSAGE_COOKIE, "")
        signed = self.sessions.verified("message", cookie) if cookie else None
        if signed is None:
            return None
        nonce, good, text = msgspec.json.decode(signed, type=tuple[str, bool, str])
        return (good, text) if nonce == visit.visitor.session.nonce else None

    # Small things

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})


_STATUS_WORDS: Final = {
    400: "This request makes no sense",
    401: "Log in first",
    403: "This is not allowed",
    404: "There is nothing here",
    405: "This is not how it is asked",
    413: "This is too large",
    415: "This is no form",
    429: "Too many attempts",
    500: "This page has failed",
    503: "The store does not answer",
}


@cache
def _environment() -> Environment:
    """The templates, compiled once for all pages of a process."""
    environment = Environment(
        loader=PackageLoader("leasedkeyq.web", "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("count", "short_count", "span", "size", "share", "rate", "moment", "iso"):
        environment.filters[name] = getattr(words, name)
    return environment


@cache
def _macros() -> list[str]:
    """The templates that are imported by others."""
    return _environment().list_templates(filter_func=lambda name: name.endswith("parts.html"))


@cache
def _static_files() -> dict[str, StaticFile]:
    return {path.name: StaticFile(path) for path in STATIC.iterdir() if path.is_file()}


def _silence(seconds: int) -> str:
    return f"The store has not answered for {seconds} s. What was shown before may be out of date."


def _as_viewer(user: User) -> User:
    return msgspec.structs.replace(user, role="viewer")


def _secret_bytes(secret: str | bytes | None) -> bytes:
    if secret is None:
        return secrets.token_bytes(32)
    raw = secret.encode() if isinstance(secret, str) else secret
    if len(raw) < 16:  # noqa: PLR2004
        raise ValueError("secret needs at least 16 bytes that nobody can guess")
    return raw
