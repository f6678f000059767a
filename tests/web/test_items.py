"""The listing of items, and the page of one."""

import asyncio
import html
import json
import re
from pathlib import Path

import pytest

from leasedkeyq.model.requests import Put
from leasedkeyq.web.item_query import ItemQuery, ItemStamp, seconds_of
from leasedkeyq.web.progress_view import progress_share, progress_view
from tests.web.payloads import PAYLOADS
from tests.web.shops import BASE, LARGE, in_real_time, shop


def keys(page: str) -> list[str]:
    """The keys in a listing."""
    return [
        html.unescape(key)
        for key in re.findall(r'<th scope="row" class="key"><a [^>]*>([^<]*)', page)
    ]


@in_real_time
async def test_a_listing_has_filters_and_pages_with_addresses(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        for number in range(60):
            await place.submit(f"ann{number}", f"order-{number}")
        await place.submit("later", "later", delay=100.0)
        await place.manager.submit("reports", place.report(1), key="other")
        assert "order-0" not in await place.get("/items")  # the queues to choose from
        first = await place.get("/items?queue=mail")
        assert keys(first) == [f"order-{number}" for number in range(50)]
        [following] = re.findall(r'rel="next" href="([^"]*)"', first)
        second = (await place.browser.get(html.unescape(following))).text
        assert keys(second) == [*(f"order-{number}" for number in range(50, 60)), "later"]
        assert "First page" in second
        assert 'rel="next"' not in second
        narrowed = {
            "state=scheduled": ["later"],
            "state=waiting&limit=200": [*(f"order-{number}" for number in range(60)), "later"],
            "state=in_flight": [],
            "key=order-7": ["order-7"],
            "key=order-5*": ["order-5", *(f"order-5{number}" for number in range(10))],
            "key=order-*&order=new&limit=25": [f"order-{number}" for number in range(59, 34, -1)],
            "kind=report": [],
            "older=1h": [],
            "newer=1h&key=order-1": ["order-1"],
            "error=anything": [],
        }
        for query, wanted in narrowed.items():
            assert keys(await place.get(f"/items?queue=mail&{query}")) == wanted, query
        assert "write a span such as" in await place.get("/items?queue=mail&older=soon")
        assert "does not exist" in await place.get("/items?queue=mail&cursor=x")
        assert "empty" in await place.get("/items?queue=nothing")


@in_real_time
async def test_a_listing_as_json(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.submit("ann", "order-1", order=LARGE)
        told = await place.data("/items?queue=mail")
        [row] = told["rows"]
        assert row["item"]["key"] == "order-1"
        assert json.loads(row["item"]["raw"])["order"] == LARGE
        assert row["address"] == f"{BASE}/item?queue=mail&id={row['item']['id']}"


@in_real_time
async def test_an_item_that_waits(tmp_path: Path) -> None:
    async with shop(tmp_path, trace_url="https://trace.example/{trace_id}") as place:
        more = {"text": "line 1\nline 2", "share": 0.5, "b": 1, "a": 2}
        command = await place.submit("ann", "order-1", order=LARGE, more=more)
        await place.submit("bob", "order-1")
        page = await place.get("/item?queue=mail&key=order-1")
        assert f">{LARGE}</span>" in page
        assert ">line 1\nline 2</span>" in page
        assert page.index('class="name">b<') < page.index('class="name">a<')
        assert "Waits for a worker" in page
        assert "The line of its key" in page
        assert f">{LARGE}</span>" in await place.get(f"/item?command={command}")
        for wrong, status in {
            "command=x": 400,
            "command=99.mail.order-1": 404,
            "queue=mail&id=x": 400,
            "queue=mail&id=99": 404,
            "queue=mail&key=none": 404,
            "queue=mail": 400,
            "": 400,
        }.items():
            await place.get(f"/item?{wrong}", status)


@in_real_time
async def test_an_item_that_failed_and_one_that_is_done(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.fail("order-1")
        page = await place.get("/item?queue=mail&key=order-1")
        assert "Attempt 1 failed" in page
        assert "Attempt 2 failed for good" in page
        assert "mailbox badorder-1 of order 1 is full" in page
        assert "Traceback (most recent call last)" in page
        await place.submit("ann", "fine", order=LARGE)
        async with asyncio.timeout(30):
            while "Completed" not in (page := await place.get("/item?queue=mail&key=fine")):
                await asyncio.sleep(0.02)
        assert f">{LARGE}</span>" in page


@in_real_time
async def test_an_item_that_runs(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.manager.submit("reports", place.report(4), key="november")
        await place.manager.start()
        async with asyncio.timeout(30):
            while "25 %" not in (page := await place.get("/item?queue=reports&key=november")):
                await asyncio.sleep(0.05)
        assert '<progress max="1" value="0.25"' in page
        assert "page 1 of 4" in page
        assert "Attempt 1 runs" in page


@in_real_time
async def test_what_it_is_doing_right_now(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.submit("later", "later", delay=1000.0)
        await place.manager.submit("reports", place.report(4), key="november")
        await place.manager.start()
        async with asyncio.timeout(30):
            while "right now?" not in await place.get("/item?queue=reports&key=november"):
                await asyncio.sleep(0.05)
        page = html.unescape(await place.get("/item/stack?queue=reports&key=november"))
        assert "await self.goes_on.wait()" in page
        assert "report</strong>" in page
        assert "a task of the event loop" in page
        told = await place.data("/item/stack?queue=reports&key=november")
        assert told["stack"]["memory"] > 0
        assert "It does not run now" in await place.get("/item/stack?queue=mail&key=later")
        await place.store.queue("plain").put("k", 1)
        await place.get("/item/stack?queue=plain&key=k", 400)


@in_real_time
async def test_a_large_value_is_bounded_until_all_is_asked_for(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        numbers = {"numbers": list(range(1000, 6000))}
        await place.submit("ann", "large", more=numbers)
        page = await place.get("/item?queue=mail&key=large")
        assert page.count('class="leaf"') < 400
        assert "4\u202f900 more" in page
        [link] = set(re.findall(r'<a href="([^"]*)">show all</a>', page))
        everything = (await place.browser.get(html.unescape(link))).text
        assert ">5999</span>" in everything
        assert "show all" not in everything


@in_real_time
async def test_a_value_that_is_no_json(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.store.put([Put("plain", (("odd", b"\xff{not json"),))])
        page = await place.get("/item?queue=plain&key=odd")
        assert "\\xff{not json" in page
        assert "shown as it is stored" in page


@in_real_time
async def test_no_text_becomes_code(tmp_path: Path) -> None:
    """Keys, values, names of fields, errors and kinds."""
    async with shop(tmp_path) as place:
        for number, payload in enumerate(PAYLOADS):
            await place.submit(payload, f"{number}{payload}", more={payload: [payload]})
        await place.fail(*(f"e{number}" for number in range(3)), to=f"bad{PAYLOADS[0]}")
        pages = [await place.get("/items?queue=mail&limit=200")]
        for number, payload in list(enumerate(PAYLOADS))[::4]:  # the listing has them all
            answer = await place.browser.http.get(
                f"{BASE}/item", params={"queue": "mail", "key": f"{number}{payload}"}
            )
            pages.append(answer.text)
            fields = {"queue": payload, "key": payload, "kind": payload, "older": payload}
            answer = await place.browser.http.get(f"{BASE}/items", params=fields)
            pages.append(answer.text)
        pages.append(await place.get("/item?queue=mail&key=e1"))
        for page in pages:
            check_no_code(page)


def check_no_code(page: str) -> None:
    """No tag, no attribute and no template of a payload is in the page."""
    own = '<script defer src="/static/script.js'
    assert page.count("<script") == page.count(own) == 1
    for tag in ("<img", "<svg onload", "<svg/", "<iframe", "<embed", "<object", "<base", "<video"):
        assert tag not in page
    for tag in re.findall(r"<[a-zA-Z][^>]*>", page):
        # What is within the quotes of an attribute is text.
        bare = re.sub(r'"[^"]*"', '""', tag)
        assert not re.search(r"\son\w+\s*=|style\s*=|javascript:", bare), tag
        assert not re.search(r'(?:href|src|action)="\s*javascript:', tag), tag
    assert "{{ 7" in page or "49" not in page or "7 * 7" not in page


@in_real_time
async def test_what_is_hidden_is_on_no_page(tmp_path: Path) -> None:
    async with shop(tmp_path, redact=["to", "pin"]) as place:
        await place.submit("canary-1", "order-1", delay=1000.0, more={"pin": 31337})
        await place.fail("order-2", to="bad-canary-2")
        for path in (
            "/items?queue=mail",
            "/items?queue=mail&state=buried&error=canary",
            "/item?queue=mail&key=order-1",
            "/item?queue=mail&key=order-2",
        ):
            for told in (await place.get(path), json.dumps(await place.data(path))):
                assert "canary-" not in told.replace("error=canary", ""), path
                assert "31337" not in told, path
        assert "[hidden]" in await place.get("/item?queue=mail&key=order-1")


# The fields of addresses


def test_a_query_means_the_same_after_a_way_through_an_address() -> None:
    query = ItemQuery.of(
        {
            "queue": "q",
            "state": "in_line",
            "key": " k*",
            "older": "1.5h",
            "outcome": "failed",
            "limit": "25",
        }
    )
    assert ItemQuery.of(query.fields()) == query
    assert query.filter.states == ("in_line", "buffered")
    assert query.filter.key_prefix == " k"
    assert query.filter.older_than == 5400.0
    assert query.filter.outcome == "failed"
    assert query.narrows
    assert "keys that begin with" in query.words
    assert ItemQuery.of({"state": "nothing", "limit": "7"}).problems == {
        "state": "there is no state 'nothing'"
    }


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("15 min", 900.0),
        ("2H", 7200.0),
        ("1w", 604800.0),
        ("x", None),
        ("-1s", None),
    ],
)
def test_spans(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_stamps_of_items() -> None:
    stamp = ItemStamp(7, "available", 0, "a:b#1")
    assert ItemStamp.read(str(stamp)) == stamp
    for text in ("", "7", "x:available:0:q", "7:gone:0:q", "7:available:0:", "7:available:x:q"):
        assert ItemStamp.read(text) is None


def test_progress() -> None:
    assert progress_share(0.5) == 0.5
    assert progress_share({"done": 5, "total": 4}) == 1.0
    assert progress_share({"percent": 30}) == 0.3
    for other in (True, 7, "x", {}, {"done": "x", "total": 0}, [1], None):
        assert progress_share(other) is None
    assert progress_view(None) is None
    told = progress_view({"value": 12, "text": "rows", "at": 5.0, "attempt": 1})
    assert told is not None
    assert (told.share, told.words, told.at) == (None, "12: rows", 5.0)
    deep = progress_view({"stage": "x"})
    assert deep is not None
    assert deep.tree is not None
