"""Who may see and do what on the web page."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.routing import Route

from leasedkeyq import MemoryStore
from leasedkeyq.web import Dashboard, User, dashboard, hash_password
from leasedkeyq.web.access.guard import LOGIN_BODY, MOST_FIELDS
from leasedkeyq.web.access.login_limit import LoginLimit
from leasedkeyq.web.access.sessions import Sessions
from leasedkeyq.web.access.users import password_matches
from leasedkeyq.web.pages import ACTIONS, SCREENS
from tests.web.browsers import SAME, TOKEN, VIEWER, Browser, form_token, open_page

OVERVIEW = "/s/memory/"
HASH = f"scrypt$32768$8$1$c2FsdA${'A' * 43}"  # of no password


def page(**options: Any) -> Dashboard:
    return dashboard(MemoryStore(), **options)


def all_paths() -> list[str]:
    paths = ["/"]
    for screen in SCREENS:
        name = screen.path if screen.path != "/" else "/overview"
        ways = (f"{name}.json", f"{name}.live", screen.path)
        paths += [f"/s/memory{way}?queue=q&id=1&name=n" for way in ways]
    return paths


# Authentication


async def test_no_path_shows_anything_before_the_login() -> None:
    """Every route that there is, as a page, as JSON and live; those of changes, too."""
    store = MemoryStore()
    await store.queue("a-queue-that-nobody-sees").put("key", 1)
    app = dashboard(store, token=TOKEN)
    known = {route.path for route in app._app.routes if isinstance(route, Route)}
    assert all(isinstance(route, Route) for route in app._app.routes)
    async with Browser(app) as browser:
        for path in [*all_paths(), "/nothing", "/s/other/"]:
            answer = await browser.get(path)
            assert answer.status_code in (303, 401), path
            assert "nobody-sees" not in answer.text
            if answer.status_code == 303:
                assert answer.headers["location"].startswith("/login"), path
            plain = path.partition("?")[0].rstrip("/") or "/"
            known.discard(plain.replace("/s/memory", "/s/{store}"))
        for action in ACTIONS:
            answer = await browser.post(f"/s/memory{action.path}", {"queue": "q"})
            assert answer.status_code == 401, action.path
            known.discard(f"/s/{{store}}{action.path}")
        assert known == {"/static/{name}", "/login", "/logout"}, "not walked here"
        assert "memory" not in (await browser.get("/login")).text


async def test_the_static_files_hold_no_data_and_cannot_be_left() -> None:
    async with Browser(page(token=TOKEN)) as browser:
        assert (await browser.get("/static/style.css")).status_code == 200
        for path in ("/static/../dashboard.py", "/static/%2e%2e/dashboard.py", "/static/"):
            assert (await browser.get(path)).status_code in (303, 401, 404)


async def test_a_token_logs_in_and_the_page_that_was_asked_for_follows() -> None:
    async with Browser(page(token=TOKEN)) as browser:
        away = await browser.get("/s/memory/queue?queue=a%26b")
        login = away.headers["location"]
        assert login == "/login?next=%2Fs%2Fmemory%2Fqueue%3Fqueue%3Da%2526b"
        assert 'value="/s/memory/queue?queue=a%26b"' in (await browser.get(login)).text
        done = await browser.post("/login", {"token": TOKEN, "next": "/s/memory/queue?queue=a%26b"})
        assert done.headers["location"] == "/s/memory/queue?queue=a%26b"
        assert "Queue a&amp;b" in (await browser.get(done.headers["location"])).text


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb"]
)
async def test_the_login_leads_to_no_other_site(target: str) -> None:
    async with Browser(page(token=TOKEN)) as browser:
        done = await browser.post("/login", {"token": TOKEN, "next": target})
        assert done.headers["location"] == "/"


def test_passwords_are_kept_as_scrypt_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = hash_password("correct horse")
    assert made.startswith("scrypt$32768$8$1$")
    assert "horse" not in made
    monkeypatch.setattr("leasedkeyq.web.access.users.COST", 16)
    made = hash_password("correct horse")
    assert made != hash_password("correct horse"), "each has its own salt"
    assert password_matches("correct horse", made)
    assert not password_matches("correct horse ", made)
    assert not password_matches("x" * 5000, made)
    assert made not in repr(User(name="ada", password_hash=made))
    for wrong in ("", "x" * 1025):
        with pytest.raises(ValueError, match="1 to 1024"):
            hash_password(wrong)
    for bad in ("secret", "scrypt$1$1$1$x", "scrypt$1099511627776$8$1$AAAA$AAAA", "md5$1$1$1$a$b"):
        with pytest.raises(ValueError, match="password hash of user 'ada'"):
            User(name="ada", password_hash=bad)


def test_users_log_in_by_name_and_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """In real time: the check runs in a thread. Hashes are cheap here."""
    monkeypatch.setattr("leasedkeyq.web.access.users.COST", 16)
    ada = User(name="ada", password_hash=hash_password("correct horse"))

    async def main() -> None:
        async with Browser(page(users=[ada])) as browser:
            for name, password in (("ada", "wrong"), ("eve", "correct horse"), ("ada", "")):
                refused = await browser.post("/login", {"user": name, "password": password})
                assert refused.status_code == 401
                assert "That is not right" in refused.text
                assert (await browser.get(OVERVIEW)).status_code == 303
            done = await browser.post("/login", {"user": "ada", "password": "correct horse"})
            assert done.status_code == 303
            assert "ada" in (await browser.get(OVERVIEW)).text

    asyncio.run(main())


async def test_a_tool_shows_its_token_with_each_request() -> None:
    async with Browser(page(token=TOKEN, viewer_token=VIEWER)) as browser:
        answer = await browser.get("/s/memory/overview.json", authorization=f"Bearer {TOKEN}")
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        wrong = await browser.get("/s/memory/overview.json", authorization="Bearer nonsense")
        assert wrong.status_code == 401
        assert wrong.json() == {"error": "The token is not known."}
        none = await browser.get("/s/memory/overview.json")
        assert none.headers["www-authenticate"] == "Bearer"


async def test_guessing_is_slowed_down() -> None:
    async with Browser(page(token=TOKEN)) as browser:
        for _ in range(5):
            assert (await browser.log_in("not-the-right-token")).status_code == 401
        refused = await browser.log_in()
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        by_header = await browser.get("/s/memory/overview.json", authorization=f"Bearer {TOKEN}")
        assert by_header.status_code == 429
    # Others can still log in.


def test_attempts_are_forgiven_in_time_and_bounded() -> None:
    now = 0.0
    limit = LoginLimit(5, 60.0, lambda: now)
    for _ in range(5):
        assert limit.wait("eve") == 0
        limit.failed("eve")
    assert 0 < limit.wait("eve") <= 12
    assert limit.wait("ada") == 0
    now += 13
    assert limit.wait("eve") == 0
    limit.failed("eve")
    limit.succeeded("eve")
    limit.failed("eve")
    assert limit.wait("eve") > 0, "a login of one's own lets nobody guess on"
    limit.failed("ada")
    limit.succeeded("ada")
    assert "ada" not in limit._failures
    for number in range(5):
        limit.failed(f"2001:db8::{number}")
    assert limit.wait("2001:db8::ffff:1") > 0, "a network of one client"
    assert limit.wait("2001:db8:1::1") == 0
    assert limit.wait("::ffff:192.0.2.1") == limit.wait("192.0.2.1") == 0
    for number in range(20_000):
        limit.failed(str(number))
    assert len(limit._failures) == 10_000


@pytest.mark.parametrize(
    "token", ["short", "with blanks in it, and long", "ünïcödé-ünïcödé-ünïcödé"]
)
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="a token needs at least 16 characters"):
        page(token=token)


def test_what_makes_no_sense_is_refused() -> None:
    misuses: list[tuple[dict[str, Any], str]] = [
        ({"users": [User(name="ada")]}, "no password hash"),
        ({"token": TOKEN, "users": [User(name="token", password_hash=HASH)]}, "has a token"),
        ({"token": TOKEN, "authenticate": lambda request: None}, "replaces the login"),
        ({"secret": "short"}, "at least 16 bytes"),
        ({"base_path": "queues/"}, "looks like /queues"),
        ({"trace_url": "https://traces/"}, "trace_id"),
        ({"interval": 0}, "above 0"),
        ({"redact": ["a..b"]}, "redact takes"),
    ]
    for options, words in misuses:
        with pytest.raises(ValueError, match=words):
            page(**options)
    with pytest.raises(ValueError, match="role of user"):
        User(name="ada", role=cast("Any", "admin"))
    with pytest.raises(ValueError, match="needs a store"):
        dashboard([])
    with pytest.raises(ValueError, match="name of a store"):
        dashboard({"a/b": MemoryStore()})


# Sessions


async def test_the_cookie_of_a_session() -> None:
    for base, secure in (("http://localhost:8080", False), ("https://localhost:8443", True)):
        async with Browser(page(token=TOKEN), base) as browser:
            done = await browser.log_in()
            cookie = done.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=lax" in cookie
            assert "Path=/" in cookie
            assert ("Secure" in cookie) == secure
            assert TOKEN not in cookie


async def test_a_session_ends_by_logging_out_wherever_its_cookie_is() -> None:
    app = page(token=TOKEN)
    async with Browser(app) as browser, Browser(app) as thief:
        await browser.log_in()
        thief.http.cookies = browser.http.cookies
        assert (await thief.get(OVERVIEW)).status_code == 200
        thief.http.cookies = httpx.Cookies(browser.http.cookies)
        done = await browser.post("/logout", page=OVERVIEW)
        assert done.status_code == 303
        for who in (browser, thief):
            assert (await who.get(OVERVIEW)).status_code == 303


async def test_whoever_has_not_logged_in_ends_no_session() -> None:
    app = page(token=TOKEN)
    async with Browser(app) as browser:
        await browser.post("/logout")
        assert not app.sessions._ended, "enough of these would push out the sessions that ended"


async def test_a_login_begins_a_new_session() -> None:
    app = page(token=TOKEN)
    async with Browser(app) as browser:
        await browser.get("/login")
        before = form_token(app, browser)
        await browser.log_in()
        assert form_token(app, browser) != before


def test_sessions_expire_and_cannot_be_forged() -> None:
    now = 1000.0
    sessions = Sessions(b"s" * 32, 60, lambda: now)
    session = sessions.new("ada", "x")
    cookie = sessions.cookie(session)
    assert sessions.read(cookie) == session
    assert Sessions(b"t" * 32, 60, lambda: now).read(cookie) is None
    body, _, signature = cookie.partition(".")
    for forged in ("", "x", body, f"{body}.", f"{body}.{signature[:-1]}", f"A{cookie}", "é.é"):
        assert sessions.read(forged) is None
    assert sessions.read(sessions.sign("message", b"[]")) is None, "signed for something else"
    now += 61
    assert sessions.read(cookie) is None
    for _ in range(10):
        sessions.end(session)
    assert not sessions._ended, "what has expired is not remembered"


async def test_another_password_or_token_ends_the_sessions() -> None:
    old, new = (page(token=f"{TOKEN}-{number}", secret="s" * 32) for number in (1, 2))
    async with Browser(old) as browser, Browser(new) as other:
        await browser.log_in(f"{TOKEN}-1")
        assert (await browser.get(OVERVIEW)).status_code == 200
        other.http.cookies = browser.http.cookies
        assert (await other.get(OVERVIEW)).status_code == 303


async def test_an_open_page_ends_with_its_session() -> None:
    app = page(token=TOKEN)
    async with Browser(app) as browser:
        await browser.log_in()
        async with open_page(app, browser, "/s/memory/overview.live") as live:
            await asyncio.sleep(5)
            assert live.part("totals")
            await browser.post("/logout", page=OVERVIEW)
            await asyncio.sleep(5)
            assert live.events[-1][0] == "ended"
            assert live.ended


# Changes


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost"},
        {"origin": "null"},
        {"sec-fetch-site": "same-origin", "origin": "http://evil.example:8080"},
        {"sec-fetch-site": "cross-site", "origin": "http://localhost:8080"},
    ],
)
async def test_a_change_from_another_site_is_refused(headers: dict[str, str]) -> None:
    app = page(token=TOKEN)
    async with Browser(app) as browser:
        await browser.log_in()
        refused = await browser.post("/logout", page=OVERVIEW, headers=headers)
        assert refused.status_code == 403
        assert (await browser.get(OVERVIEW)).status_code == 200
        good = await browser.post(
            "/logout", page=OVERVIEW, headers={"origin": "http://localhost:8080"}
        )
        assert good.status_code == 303


async def test_a_change_needs_the_token_of_its_own_session() -> None:
    app = page(token=TOKEN)
    async with Browser(app) as browser, Browser(app) as other:
        await browser.log_in()
        await other.log_in()
        for token in ("", "x", form_token(app, other), "\udcff"):
            refused = await browser.http.post(
                "/logout",
                content=f"form_token={token}".encode("utf-8", "surrogatepass"),
                headers={**SAME, "content-type": "application/x-www-form-urlencoded"},
            )
            assert refused.status_code in (400, 403)
        assert (await browser.get(OVERVIEW)).status_code == 200


async def test_the_login_itself_needs_a_token_of_its_page() -> None:
    async with Browser(page(token=TOKEN)) as browser:
        refused = await browser.post("/login", {"token": TOKEN}, token="")
        assert refused.status_code == 403


async def test_only_forms_change_something() -> None:
    app = page()
    async with Browser(app) as browser:
        await browser.get(OVERVIEW)
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json", ""):
            answer = await browser.http.post(
                "/logout", content=b"form_token=x", headers={**SAME, "content-type": kind}
            )
            assert answer.status_code == 415, kind
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = await browser.http.request(method, OVERVIEW, headers=SAME)
            assert answer.status_code == 405, method
        for action in ACTIONS:
            assert (await browser.get(f"/s/memory{action.path}")).status_code in (200, 405)


async def test_requests_are_bounded() -> None:
    app = page(max_body=1000)
    form = {**SAME, "content-type": "application/x-www-form-urlencoded"}

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"a" * 100

    async with Browser(app) as browser:
        await browser.get(OVERVIEW)
        post = browser.http.post
        assert (await post("/logout", content=b"a" * 1001, headers=form)).status_code == 413
        assert (await post("/logout", content=endless(), headers=form)).status_code == 413
        many = "&".join(f"f{number}=" for number in range(300)).encode()
        assert (await post("/logout", content=many, headers=form)).status_code in (403, 413)
    big = page(token=TOKEN)
    async with Browser(big) as browser:
        await browser.get("/login")
        post = browser.http.post
        too_long = b"a" * (LOGIN_BODY + 1)
        assert (await post("/login", content=too_long, headers=form)).status_code == 413
        await browser.log_in()
        many = "&".join("f=" for _ in range(MOST_FIELDS + 1)).encode()
        assert (await post("/logout", content=many, headers=form)).status_code == 400
        assert (await browser.get("/s/memory/?" + "a" * 50_000)).status_code == 414
        assert (await browser.get("/s/memory/", x_long="a" * 70_000)).status_code == 431


async def test_a_form_that_is_cut_off_is_nothing_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent: list[Any] = []
    headers = [(b"host", b"localhost"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/login",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await page(token=TOKEN)(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not caplog.text


async def test_a_name_that_no_store_takes_is_the_fault_of_the_address() -> None:
    async with Browser(page()) as browser:
        answer = await browser.get("/s/memory/item.json?queue=q&key=%00")
        assert answer.status_code == 400
        assert "NUL" in answer.json()["error"]


async def test_a_viewer_changes_nothing() -> None:
    """Each change is refused, and no page has a form for one."""
    store = MemoryStore()
    await store.queue("q").put("k", 1)
    app = dashboard(store, token=TOKEN, viewer_token=VIEWER)
    async with Browser(app) as browser:
        await browser.log_in(VIEWER)
        for action in ACTIONS:
            answer = await browser.post(
                f"/s/memory{action.path}", {"queue": "q", "id": "1"}, page=OVERVIEW
            )
            assert answer.status_code == 403, action.path
            assert "viewer" in answer.text
        for screen in SCREENS:
            text = (await browser.get(f"/s/memory{screen.path}?queue=q&id=1")).text
            assert text.count('method="post"') <= 1, screen.path  # to log out
        for action in ACTIONS:
            answer = await browser.http.post(
                f"/s/memory{action.path}",
                data={"queue": "q"},
                headers={"authorization": f"Bearer {VIEWER}"},
            )
            assert answer.status_code == 403


async def test_read_only_makes_viewers_of_all() -> None:
    for app in (
        page(read_only=True),
        page(read_only=True, token=TOKEN),
        page(read_only=True, authenticate=lambda request: User(name="ada")),
    ):
        async with Browser(app) as browser:
            if app.logs_in:
                await browser.log_in()
            assert '<span class="tag">viewer</span>' in (await browser.get(OVERVIEW)).text


# Where requests come from


@pytest.mark.parametrize(
    "host, allowed",
    [
        ("localhost:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("jobs.localhost", True),
        ("192.168.1.7:8080", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example@localhost", False),
        ("localhost/evil", False),
        ("localhost:port", False),
        ("", False),
        ("jobs.example.com", True),
        ("JOBS.example.com.", True),
        ("a.teams.example.com:81", True),
        ("teams.example.com", False),
        ("ateams.example.com", False),
    ],
)
async def test_only_names_that_are_ours_are_answered(host: str, allowed: bool) -> None:
    """Against DNS rebinding: a page of somebody else whose name points here."""
    app = page(allowed_hosts=["jobs.example.com", "*.teams.example.com"])
    async with Browser(app) as browser:
        answer = await browser.get("/static/style.css", host=host)
        assert (answer.status_code == 200) == allowed
        if not allowed:
            assert answer.status_code == 400
            assert "allowed_hosts" in answer.text


async def test_without_authentication_only_this_machine_is_answered() -> None:
    for client, headers, status in [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("::ffff:127.0.0.1", {}, 200),
        ("192.168.1.7", {}, 403),
        ("127.0.0.1", {"x_forwarded_for": "192.168.1.7"}, 403),
        ("127.0.0.1", {"forwarded": "for=192.168.1.7"}, 403),
        ("127.0.0.1", {"x_forwarded_host": "jobs.example.com"}, 403),
        ("127.0.0.1", {"via": "1.1 proxy"}, 403),
        ("", {}, 403),  # behind a Unix socket there is a proxy
    ]:
        async with Browser(page(), client=client) as browser:
            answer = await browser.get(OVERVIEW, **headers)
            assert answer.status_code == status, (client, headers)


async def test_a_websocket_is_refused() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await page()({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


# The host application


async def test_the_host_application_says_who_it_is() -> None:
    async def authenticate(request: Request) -> User | None:
        name = request.headers.get("x-user")
        return User(name=name, role="viewer" if name == "eve" else "operator") if name else None

    app = page(authenticate=authenticate, login_url="/account/login")
    async with Browser(app, client="10.0.0.1") as browser:
        away = await browser.get(OVERVIEW)
        assert away.headers["location"] == "/account/login"
        assert (await browser.get("/s/memory/overview.json")).status_code == 401
        assert (await browser.get("/login")).status_code == 303, "there is no login of ours"
        text = (await browser.get(OVERVIEW, x_user="eve")).text
        assert "eve" in text
        assert "Log out" not in text
        refused = await browser.post("/logout", token="x", headers={**SAME, "x-user": "eve"})
        assert refused.status_code == 403


async def test_a_mistake_of_the_host_application_shows_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(request: Request) -> User | None:
        raise KeyError("the user of a session that is gone")

    for authenticate in (fails, cast("Any", lambda request: "ada")):
        async with Browser(page(authenticate=authenticate)) as browser:
            answer = await browser.get(OVERVIEW)
            assert answer.status_code == 500
            assert "of a session" not in answer.text
            assert answer.headers["cache-control"] == "no-store"
    assert "of a session that is gone" in caplog.text
    assert "must return a leasedkeyq.web.User" in caplog.text


# Headers


async def test_every_answer_has_strict_headers() -> None:
    app = page(token=TOKEN)
    async with Browser(app) as browser:
        answers = [
            await browser.get(path) for path in ("/", "/login", "/nothing", "/static/nothing")
        ]
        answers.append(await browser.get("/login", host="evil.example"))
        await browser.log_in()
        answers += [await browser.get(path) for path in (OVERVIEW, "/s/memory/overview.json")]
        for answer in answers:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert answer.headers["cache-control"] == "no-store"
        style = await browser.get(app.static_path("style.css"))
        assert "immutable" in style.headers["cache-control"]
        assert "content-security-policy" in style.headers


async def test_no_page_has_code_or_styles_in_it() -> None:
    """The policy would refuse them; the page must not need them."""
    async with Browser(page()) as browser:
        for screen in SCREENS:
            text = (await browser.get(f"/s/memory{screen.path}?queue=q&id=1")).text
            for forbidden in (" style=", "<style", " onclick=", "javascript:", "<script>"):
                assert forbidden not in text, screen.path
            assert text.count("<script") == 1


# Mistakes


async def test_a_page_that_fails_says_nothing_of_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    app = dashboard(store, redact=["secret"])

    async def fail(*arguments: Any) -> Any:
        raise RuntimeError("canary-4711")

    monkeypatch.setattr(store, "count", fail)
    async with Browser(app) as browser:
        with caplog.at_level(logging.DEBUG):
            answer = await browser.get(OVERVIEW)
        assert answer.status_code == 500
        assert "canary" not in answer.text
        assert "canary" not in caplog.text
        assert "RuntimeError" in caplog.text
        assert answer.headers["cache-control"] == "no-store"


async def test_a_store_that_does_not_answer_is_told() -> None:
    store = MemoryStore()
    app = dashboard(store)
    await store.close()
    async with Browser(app) as browser:
        answer = await browser.get(OVERVIEW)
        assert answer.status_code == 503
        assert "closed" in answer.text
        assert (await browser.get("/s/memory/overview.json")).status_code == 503
        async with open_page(app, browser, "/s/memory/overview.live") as live:
            await asyncio.sleep(5)
            assert "closed" in live.part("trouble")


async def test_a_store_that_hangs_is_told_and_the_page_goes_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    app = dashboard(store)
    goes_on = asyncio.Event()
    count = store.count

    async def hang(*given: Any, **named: Any) -> Any:
        await goes_on.wait()
        return await count(*given, **named)

    monkeypatch.setattr(store, "count", hang)
    path = "/s/memory/overview.live"
    async with Browser(app) as browser, open_page(app, browser, path) as live:
        answer = await browser.get(OVERVIEW)
        assert answer.status_code == 503
        assert "has not answered for 20 s" in answer.text
        assert "has not answered for 5 s" in live.part("trouble")
        goes_on.set()
        await asyncio.sleep(70)
        assert live.part("trouble") == ""
        assert live.part("totals")
        await store.queue("new").put("k", 1)
        await asyncio.sleep(70)
        assert "queue=new" in live.part("rows")
