"""What is about no store: the list of stores, logging in and out."""

import asyncio
import logging
import secrets
from typing import Final

from starlette.responses import RedirectResponse, Response

from leasedkeyq.web.access.guard import client_of, too_many
from leasedkeyq.web.access.users import User, hash_password, password_matches
from leasedkeyq.web.screens import Content, Screen
from leasedkeyq.web.visit import Visit, is_own_path

_NOBODY: list[str] = []

logger = logging.getLogger("leasedkeyq.audit")


async def stores_page(visit: Visit) -> Response:
    """The stores; with one there is nothing to choose."""
    names = list(visit.dashboard.stores)
    if len(names) == 1:
        return RedirectResponse(visit.root(f"/s/{names[0]}/"), 303)
    return visit.dashboard.render(visit, _STORES, await _STORES.content(visit))


async def login_form(visit: Visit) -> Response:
    """Where people say who they are."""
    if visit.user is not None or not visit.dashboard.logs_in:
        return RedirectResponse(visit.root("/"), 303)
    return visit.dashboard.render(visit, _LOGIN, await _LOGIN.content(visit))


async def log_in(visit: Visit) -> Response:
    """Check a token or a password, and begin a new session."""
    dashboard = visit.dashboard
    if not dashboard.logs_in:
        return RedirectResponse(visit.root("/"), 303)
    limit = dashboard.guard.login_limit
    client = client_of(visit.request)
    if (seconds := limit.wait(client)) > 0:
        raise too_many(seconds)
    # Counted before it is known: many attempts at the same moment count, too.
    limit.failed(client)
    user = await _user(visit)
    if user is None:
        logger.warning("log in failed, from %s", client)
        failed = _login(visit, "That is not right. Nobody has logged in.", 401)
        return dashboard.render(visit, _LOGIN, failed)
    limit.succeeded(client)
    logger.info("log in by %r, from %s", user.name, client)
    # A new session: whatever was known of the old one is worth nothing now.
    session = dashboard.sessions.new(user.name, dashboard.credentials.credential(user))
    wanted = visit.form("next")
    response = RedirectResponse(visit.root(wanted if is_own_path(wanted) else "/"), 303)
    response.headers.append("set-cookie", dashboard.guard.set_cookie(visit.request, session))
    visit.visitor.fresh = False
    return response


async def log_out(visit: Visit) -> Response:
    """End the session, here and wherever else its cookie is."""
    if visit.visitor.session.user:
        # Others are not remembered: enough of them would let a session that has ended live again.
        visit.dashboard.sessions.end(visit.visitor.session)
    response = RedirectResponse(visit.root("/"), 303)
    session = visit.dashboard.sessions.new()
    response.headers.append("set-cookie", visit.dashboard.guard.set_cookie(visit.request, session))
    visit.visitor.fresh = False
    return response


async def _user(visit: Visit) -> User | None:
    credentials = visit.dashboard.credentials
    if token := visit.form("token"):
        return credentials.by_token(token)
    if not credentials.users:
        return None
    user = credentials.users.get(visit.form("user"))
    async with visit.dashboard.password_checks:
        if user is None and not _NOBODY:
            _NOBODY.append(await asyncio.to_thread(hash_password, secrets.token_urlsafe()))
        # A name that is not known takes as long as one that is.
        known = user.password_hash if user is not None else _NOBODY[0]
        good = await asyncio.to_thread(password_matches, visit.form("password"), known)
    return user if good else None


def _login(visit: Visit, trouble: str, status: int) -> Content:
    credentials = visit.dashboard.credentials
    wanted = visit.form("next") or visit.query("next")
    return Content(
        "Log in",
        {},
        {
            "trouble": trouble,
            "next": wanted if is_own_path(wanted) else "",
            "by_token": bool(credentials.tokens),
            "by_password": bool(credentials.users),
        },
        status,
    )


async def _stores_content(visit: Visit) -> Content:
    return Content("Stores", {"stores": list(visit.dashboard.stores)})


async def _login_content(visit: Visit) -> Content:
    return _login(visit, "", 200)


_STORES: Final = Screen("/", "stores.html", _stores_content)
_LOGIN: Final = Screen("/login", "login.html", _login_content)
