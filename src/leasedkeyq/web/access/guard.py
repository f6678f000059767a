"""What stands before every request: who asks, from where, and whether they may.

Nothing behind it is reached by a request for another host, from another site, without
authentication where it is on, with too large a body, or by a viewer who wants to change something.
"""

import hmac
import inspect
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasedkeyq.web.access.login_limit import LoginLimit
from leasedkeyq.web.access.sessions import LoginSession, Sessions
from leasedkeyq.web.access.users import User

logger = logging.getLogger("leasedkeyq.web")

Authenticate: TypeAlias = Callable[[Request], User | Awaitable[User | None] | None]
"""Tells who makes a request, or None if it is nobody who may."""

VISITOR: Final = "leasedkeyq.web.visitor"
FORM: Final = "leasedkeyq.web.form"
TOKEN_FIELD: Final = "form_token"  # the name of a field
OPERATOR_TOKEN: Final = "token"  # the names of those who have a token and no name
VIEWER_TOKEN: Final = "viewer token"
SHORTEST_TOKEN: Final = 16
MOST_FIELDS: Final = 2_000
LONGEST_ADDRESS: Final = 48 * 1024
"""Characters: an address may name 200 items that were chosen."""
MOST_HEADERS: Final = 64 * 1024
LOGIN_BODY: Final = 16 * 1024
PROXY_HEADERS: Final = frozenset({"forwarded", "via", "x-real-ip"})
LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
ERROR_STATUS: Final = 400

PAGE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": with that a browser says "null" as the origin of a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Visitor:
    """Who makes a request.

    Args:
        user: The user; None before the login.
        session: The session of the browser, for the tokens of its forms.
        fresh: Whether the browser does not have the cookie of the session yet.
        by_token: A tool that has sent a token, no browser.
    """

    def __init__(
        self, user: User | None, session: LoginSession, *, fresh: bool, by_token: bool = False
    ) -> None:
        self.user = user
        self.session = session
        self.fresh = fresh
        self.by_token = by_token


class Credentials:
    """All who may log in at the page.

    Args:
        token: Whoever has it is an operator.
        viewer_token: Whoever has it is a viewer.
        users: Who logs in by name and password.
        sessions: Makes fingerprints of these.
    """

    def __init__(
        self,
        token: str | None,
        viewer_token: str | None,
        users: Iterable[User],
        sessions: Sessions,
    ) -> None:
        self._sessions = sessions
        self.tokens: list[tuple[str, User]] = []
        for secret, user in (
            (token, User(name=OPERATOR_TOKEN, role="operator")),
            (viewer_token, User(name=VIEWER_TOKEN, role="viewer")),
        ):
            if secret is not None:
                check_token(secret)
                self.tokens.append((secret, user))
        self.users: dict[str, User] = {}
        for user in users:
            if not user.password_hash:
                raise ValueError(
                    f"user {user.name!r} has no password hash; "
                    "`leasedkeyq web --hash-password` makes one"
                )
            if user.name in self.users:
                raise ValueError(f"there are two users with the name {user.name!r}")
            if user.name in (OPERATOR_TOKEN, VIEWER_TOKEN):
                # Its sessions could not be told from those of whoever has the token.
                raise ValueError(f"{user.name!r} is what whoever has a token is called here")
            self.users[user.name] = user

    def __bool__(self) -> bool:
        return bool(self.tokens or self.users)

    def by_token(self, given: str) -> User | None:
        """The user of a token. All are compared, so that time tells nothing."""
        found = None
        raw = given.encode("utf-8", "surrogatepass")
        for secret, user in self.tokens:
            if hmac.compare_digest(secret.encode(), raw):
                found = user
        return found

    def credential(self, user: User) -> str:
        """What the session of a user remembers, so that a changed password or token ends it."""
        for secret, known in self.tokens:
            if known.name == user.name:
                return self._sessions.fingerprint(secret)
        return self._sessions.fingerprint(user.password_hash)

    def of_session(self, session: LoginSession) -> User | None:
        """The user of a session, with the role that they have now."""
        known = [*(user for _, user in self.tokens), *self.users.values()]
        for user in known:
            if user.name == session.user and hmac.compare_digest(
                self.credential(user), session.credential
            ):
                return user
        return None


def check_token(token: str) -> None:
    """Refuse a token that can be guessed.

    Raises:
        ValueError: It has fewer than 16 characters, or others than a header can carry.
    """
    if (
        not isinstance(token, str)
        or len(token) < SHORTEST_TOKEN
        or not token.isascii()
        or " " in token
    ):
        raise ValueError(
            "a token needs at least 16 characters, ASCII and without blanks; "
            'python -c "import secrets; print(secrets.token_urlsafe())" makes one'
        )


class RequestGuard:
    """The ASGI application around the pages.

    Args:
        app: The pages.
        refuse: Makes the answer to a request that is refused: status and reason are given.
        sessions: Makes and reads cookies.
        credentials: Who may log in.
        authenticate: Asks the host application instead.
        local: Who uses the page where neither is there: only from this machine.
        allowed_hosts: Names that the page is reached by.
        base_path: Where the page is mounted, if the server does not say.
        max_body: Bytes that a request may have.
        secure_cookies: Whether cookies are for HTTPS only; None: as the request came.
        login_url: Where the host application lets people log in.
        read_only: Nobody is more than a viewer.
    """

    def __init__(
        self,
        app: ASGIApp,
        refuse: Callable[[Request, int, str], Response],
        *,
        sessions: Sessions,
        credentials: Credentials,
        authenticate: Authenticate | None,
        local: User,
        allowed_hosts: Sequence[str],
        base_path: str,
        max_body: int,
        secure_cookies: bool | None,
        login_url: str,
        read_only: bool,
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._sessions = sessions
        self._credentials = credentials
        self._authenticate = authenticate
        self._local = local
        self._hosts = HostCheck(allowed_hosts)
        self._base_path = base_path
        self._max_body = max_body
        self._secure = secure_cookies
        self._login_url = login_url
        self._read_only = read_only
        self.login_limit = LoginLimit()

    @property
    def open(self) -> bool:
        """Whether nobody has to say who they are."""
        return self._authenticate is None and not self._credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = dict(scope)
        self._place(scope)
        request = Request(scope, receive)
        path = route_path(scope)
        static = path.startswith("/static/")
        try:
            self._hosts.check(request.headers)
            _check_request(request, static=static)
            away = None if static else await self._admitted(request, path)
        except HTTPException as refused:
            away = self._refuse(request, refused.status_code, refused.detail)
            away.headers.update(refused.headers or {})
        except Exception:
            # Most likely authenticate= of the host application: nobody gets in by its mistake.
            logger.exception("a request could not be checked: %s", path)
            away = self._refuse(request, 500, "The request could not be checked. The log says why.")
        outgoing = self._with_headers(send, request, static=static)
        await (away or self._app)(scope, receive, outgoing)

    async def _admitted(self, request: Request, path: str) -> Response | None:
        """Find out who asks, and whether they may; None: yes.

        Raises:
            HTTPException: No.
        """
        visitor = request.scope[VISITOR] = await self._visitor(request)
        away = self._to_login(request, path, visitor)
        if away is None and request.method == "POST":
            request.scope[FORM] = await self._checked_form(request, path, visitor)
        return away

    # Where it is

    def _place(self, scope: Scope) -> None:
        """Set the root path as ASGI has it: the path begins with it."""
        root = str(scope.get("root_path", "")).rstrip("/")
        path = str(scope.get("path", "")) or "/"
        if self._base_path and not root.endswith(self._base_path):
            root += self._base_path
        if root and path != root and not path.startswith(f"{root}/"):
            # The server has cut the root path off.
            path = root + (path if path.startswith("/") else f"/{path}")
        # A page is the same with a slash at its end: some servers put one there, some cut it off.
        rest = path[len(root) :].rstrip("/")
        scope["root_path"], scope["path"] = root, root + (rest or "/")

    # Who it is

    def cookie_name(self, request: Request) -> str:
        """One cookie per port: browsers do not tell ports apart."""
        server = scope_port(request)
        return f"leasedkeyq_session_{server}"

    async def _visitor(self, request: Request) -> Visitor:
        known = self._sessions.read(request.cookies.get(self.cookie_name(request), ""))
        session = known or self._sessions.new()
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._credentials.tokens:
            return Visitor(
                self._bearer(request, given.strip()), session, fresh=False, by_token=True
            )
        if self._authenticate is not None:
            return Visitor(await self.ask_host(request), session, fresh=known is None)
        if self._credentials:
            found = self._credentials.of_session(session)
            return Visitor(found, session, fresh=known is None)
        self._check_local(request)
        return Visitor(self._local, session, fresh=known is None)

    async def ask_host(self, request: Request) -> User | None:
        """Who makes a request, as the host application says; None: nobody who may."""
        if self._authenticate is None:
            return None
        asked = self._authenticate(request)
        user = await asked if inspect.isawaitable(asked) else asked
        if user is not None and not isinstance(user, User):
            raise TypeError(
                "authenticate= must return a leasedkeyq.web.User or None, got "
                f"{type(user).__name__}"
            )
        return msgspec.structs.replace(user, role="viewer") if user and self._read_only else user

    def _bearer(self, request: Request, given: str) -> User:
        client = client_of(request)
        if (seconds := self.login_limit.wait(client)) > 0:
            raise too_many(seconds)
        user = self._credentials.by_token(given)
        if user is None:
            self.login_limit.failed(client)
            raise HTTPException(401, "The token is not known.")
        return user

    def _check_local(self, request: Request) -> None:
        """Without authentication, the page is for people on this machine."""
        # A server behind a Unix socket names no client: what connects to it is a proxy.
        client = request.client.host if request.client else ""
        forwarded = any(
            name in PROXY_HEADERS or name.startswith("x-forwarded-") for name in request.headers
        )
        if forwarded or not is_loopback(client):
            raise HTTPException(
                403,
                "This page has no authentication, so it answers only programs on its own machine. "
                "Give it token=, users= or authenticate=, or --token or --user on the command "
                "line.",
            )

    def _to_login(self, request: Request, path: str, visitor: Visitor) -> Response | None:
        """Where somebody without a name is sent; None for those who may go on."""
        if visitor.user is not None:
            return None
        own = self._authenticate is None
        if own and path in ("/login", "/logout"):
            return None
        wants_page = request.method in ("GET", "HEAD") and not path.endswith((".json", ".live"))
        wants_page = wants_page and request.query_params.get("format") != "json"
        if wants_page and own:
            login = f"{request.scope['root_path']}/login"
            query = f"?{request.url.query}" if request.url.query else ""
            target = f"?{urlencode({'next': path + query})}" if path != "/" else ""
            return RedirectResponse(login + target, 303)
        if wants_page and self._login_url:
            return RedirectResponse(self._login_url, 303)
        challenge = {"www-authenticate": "Bearer"} if self._credentials.tokens else None
        raise HTTPException(401, "Log in first: this page is not for everybody.", challenge)

    # What it wants

    async def _checked_form(
        self, request: Request, path: str, visitor: Visitor
    ) -> Mapping[str, list[str]]:
        check_same_origin(request.headers)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise HTTPException(
                415, "A change is sent as a form: application/x-www-form-urlencoded."
            )
        signing_in = path in ("/login", "/logout")
        if not signing_in and visitor.user is not None and visitor.user.role != "operator":
            raise HTTPException(
                403, "You may look at everything here, and change nothing: your role is viewer."
            )
        limit = LOGIN_BODY if visitor.user is None else self._max_body
        body = await read_body(request, limit)
        try:
            pairs = parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                max_num_fields=MOST_FIELDS,
                errors="strict",
            )
        except ValueError:
            raise HTTPException(
                400, f"The form cannot be read, or has more than {MOST_FIELDS} fields."
            ) from None
        form: dict[str, list[str]] = {}
        for name, value in pairs:
            form.setdefault(name, []).append(value)
        given = form.pop(TOKEN_FIELD, [""])[0]
        # A tool shows its token with each request: no other site can make it do that.
        if not visitor.by_token and not self._sessions.form_token_matches(visitor.session, given):
            raise HTTPException(
                403,
                "This form is not from a page that is open now: the session has ended, or another "
                "site has sent it. Go back, load the page again, and repeat.",
            )
        return form

    # What goes out

    def _with_headers(self, send: Send, request: Request, *, static: bool) -> Send:
        """Add the headers that every answer has."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in PAGE_HEADERS.items():
                    headers[name] = value
                if not static or message["status"] >= ERROR_STATUS:
                    headers["cache-control"] = "no-store"
                visitor: Visitor | None = request.scope.get(VISITOR)
                if visitor is not None and visitor.fresh and not visitor.by_token:
                    headers.append("set-cookie", self.set_cookie(request, visitor.session))
            await send(message)

        return send_with_headers

    def set_cookie(self, request: Request, session: LoginSession) -> str:
        """The header that gives a browser its session."""
        value = self._sessions.cookie(session)
        age = int(self._sessions.lifetime)
        return self._cookie(request, self.cookie_name(request), value, age)

    def _cookie(self, request: Request, name: str, value: str, age: int) -> str:
        holder = Response()
        holder.set_cookie(
            name,
            value,
            max_age=age,
            path=f"{request.scope['root_path']}/",
            secure=self.is_secure(request),
            httponly=True,
            samesite="lax",
        )
        return holder.headers["set-cookie"]

    def is_secure(self, request: Request) -> bool:
        """Whether cookies are for HTTPS only."""
        return request.url.scheme == "https" if self._secure is None else self._secure


def _check_request(request: Request, *, static: bool) -> None:
    """Refuse what no browser of ours sends.

    Raises:
        HTTPException: 405, 414 or 431.
    """
    method = request.method
    if len(request.scope.get("query_string", b"")) + len(request.scope["path"]) > LONGEST_ADDRESS:
        raise HTTPException(
            414, f"An address may have {LONGEST_ADDRESS:,} characters here: choose fewer items."
        )
    if sum(len(name) + len(value) for name, value in request.scope["headers"]) > MOST_HEADERS:
        raise HTTPException(431, f"The headers may have {MOST_HEADERS:,} bytes here.")
    if method not in ("GET", "HEAD") and (static or method != "POST"):
        raise HTTPException(405, "Only GET, HEAD and, for changes, POST are answered here.")


class HostCheck:
    """Refuses names that somebody else may have pointed at this machine (DNS rebinding).

    An address in digits cannot be pointed elsewhere, so all of these pass.

    Args:
        allowed: Names, with ``*.example.com`` for all below one; ``*`` lets every name pass.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        if isinstance(allowed, str):
            raise TypeError("allowed_hosts is a list of names, not one name")
        self._names = {name.lower().rstrip(".") for name in allowed}
        own = socket.gethostname().lower()
        self._own = {*LOOPBACK_NAMES, own} if own else {*LOOPBACK_NAMES}

    def check(self, headers: Headers) -> None:
        """Refuse a request for a name that is not ours.

        Raises:
            HTTPException: 400.
        """
        given = headers.getlist("host")
        name = host_name(given[0]) if len(given) == 1 else ""
        if name and (self._is_address(name) or self._is_ours(name)):
            return
        raise HTTPException(
            400,
            "This page is not known by the name in the request. Whoever runs it can allow the name "
            "by allowed_hosts=, or --allowed-host on the command line.",
        )

    def _is_ours(self, name: str) -> bool:
        if "*" in self._names or name in self._own or name in self._names:
            return True
        return name.endswith(".localhost") or any(
            allowed.startswith("*.") and name.endswith(allowed[1:]) for allowed in self._names
        )

    def _is_address(self, name: str) -> bool:
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def check_same_origin(headers: Headers) -> None:
    """Refuse a change that a page of another site has sent.

    Raises:
        HTTPException: 403.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    foreign = site is not None and site != "same-origin"
    if origin is not None and not foreign:
        foreign = _origin_host(origin) != _with_port(headers.get("host", ""), origin)
    if foreign:
        raise HTTPException(403, "A change must come from this page itself, not from another site.")


def _origin_host(origin: str) -> str:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return _with_port(parts.netloc, origin) if parts.scheme in ("http", "https") else ""


def _with_port(host: str, origin: str) -> str:
    """A host with its port, also if that is the usual one of the scheme of the origin."""
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port or (443 if origin.lower().startswith("https:") else 80)
    except ValueError:
        return "?"
    return f"{(parts.hostname or '?').lower()}:{port}"


def host_name(host: str) -> str:
    """The name in a Host header, without its port; "" if it makes no sense."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    if parts.path or parts.query or parts.fragment or "@" in host:
        return ""
    return (parts.hostname or "").lower().rstrip(".")


def is_loopback(address: str) -> bool:
    """Whether an address, or a name, is of this machine only."""
    if address.lower() in LOOPBACK_NAMES:
        return True
    try:
        found = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def client_of(request: Request) -> str:
    """The address that a request comes from, as the server tells it."""
    return request.client.host if request.client else "unknown"


def scope_port(request: Request) -> int:
    """The port of the server, by the Host header."""
    return request.url.port or (443 if request.url.scheme == "https" else 80)


def too_many(seconds: float) -> HTTPException:
    """Refuse further attempts to log in."""
    wait = max(1, round(seconds))
    return HTTPException(
        429,
        f"Too many attempts to log in have failed. Try again in {wait} s.",
        {"retry-after": str(wait)},
    )


def route_path(scope: MutableMapping[str, Any]) -> str:
    """The path below the place where the page is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] or "/" if path.startswith(root) else path


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request, if it is not larger than `limit`.

    Raises:
        HTTPException: 413, or 400 if the client has gone meanwhile.
    """
    refused = HTTPException(413, f"A request may have {limit:,} bytes here, and this has more.")
    length = request.headers.get("content-length", "")
    if length and (not length.isascii() or not length.isdigit() or int(length) > limit):
        raise refused
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise refused
            parts.append(part)
    except ClientDisconnect:
        # Anybody can do that, as often as they like: it is nothing for the log.
        raise HTTPException(400, "The form has ended before its end.") from None
    return b"".join(parts)
