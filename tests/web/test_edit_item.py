"""Changing one item: its value, priority and time, and what happens if it changes meanwhile."""

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any

from leasedkeyq.lanes.durable.envelope import decode_envelope
from tests.web.shops import LARGE, Shop, in_real_time, shop


async def form(place: Shop, query: str) -> dict[str, Any]:
    """What the form of the page would send."""
    page = await place.get(f"/item/edit?{query}")
    fields = {
        name: html.unescape(value)
        for name, value in re.findall(
            r'name="(queue|id|digest|priority|due)"[^>]*value="([^"]*)"', page
        )
    }
    [text] = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    return fields | {"value": html.unescape(text)}


async def arguments(place: Shop, key: str) -> str:
    [item] = [item for item in await place.queue("mail") if item.key == key]
    return bytes(decode_envelope(item.value).payload).decode()


@in_real_time
async def test_the_value_the_priority_and_the_time(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.submit("ann", "order-1", order=LARGE, delay=1000.0)
        fields = await form(place, "queue=mail&key=order-1")
        assert f'"order": {LARGE}' in fields["value"]
        assert "Nothing was changed" in await place.post("/item/edit/save", fields)
        text = fields["value"].replace("ann", "bob\\nand ann").replace(str(LARGE), str(LARGE + 1))
        told = await place.post(
            "/item/edit/save", fields | {"value": text, "priority": "7", "due": "now"}
        )
        assert "Saved." in told
        [item] = await place.queue("mail")
        assert (item.state, item.priority) == ("available", 7)
        kept = json.loads(await arguments(place, "order-1"))
        assert (kept["to"], kept["order"]) == ("bob\nand ann", LARGE + 1)
        assert str(LARGE + 1) in await arguments(place, "order-1")
        assert "value, priority, delay" in await place.get("/changes")


@in_real_time
async def test_what_is_wrong_stands_beside_the_field_and_all_is_kept(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.submit("ann", "order-1")
        await place.submit("later", "later", delay=1000.0)
        await place.manager.start()  # its worker tells of the types
        async with asyncio.timeout(30):
            while not await place.shown_types():
                await asyncio.sleep(0.05)
        fields = await form(place, "queue=mail&key=later")
        wrong = {"value": '{"to": 5}', "priority": "high", "due": "soon"}
        page = html.unescape(await place.post("/item/edit/save", fields | wrong, 200))
        assert "to: must be a text, got 5" in page
        assert "must be a whole number" in page
        assert "write a span" in page
        assert '{"to": 5}' in page
        assert 'value="high"' in page
        page = await place.post("/item/edit/save", fields | {"value": "{'to'"}, 200)
        assert "not JSON" in page
        assert json.loads(await arguments(place, "later"))["to"] == "later"


@in_real_time
async def test_an_item_that_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.submit("ann", "order-1", delay=1000.0)
        fields = await form(place, "queue=mail&key=order-1")
        mine = fields | {"value": fields["value"].replace("ann", "mine")}
        theirs = fields | {"value": fields["value"].replace("ann", "theirs")}
        await place.post("/item/edit/save", theirs)
        page = await place.post("/item/edit/save", mine, 200)
        assert "changed by somebody else" in page
        assert "mine" in page  # what was typed is kept
        assert "theirs" in page  # and what it is now is shown
        assert "theirs" in await arguments(place, "order-1")
        await place.manager.start()
        again = await form(place, "queue=mail&key=order-1")
        await place.post("/item/edit/save", again | {"due": "now"})
        async with asyncio.timeout(30):
            while [item for item in await place.queue("mail") if item.state != "done"]:
                await asyncio.sleep(0.02)
        page = await place.post("/item/edit/save", again, 200)
        assert "does not wait any more" in page
        await place.post("/item/edit/save", again | {"id": "99"}, 404)


@in_real_time
async def test_a_value_with_hidden_fields_is_not_edited(tmp_path: Path) -> None:
    async with shop(tmp_path, redact="to") as place:
        await place.submit("canary-1", "order-1", delay=1000.0)
        page = await place.get("/item/edit?queue=mail&key=order-1")
        assert "would be lost" in page
        assert "<textarea" not in page
        fields = {
            name: html.unescape(value)
            for name, value in re.findall(r'name="(queue|id|digest)"[^>]*value="([^"]*)"', page)
        }
        told = await place.post("/item/edit/save", fields | {"value": "{}", "priority": "3"})
        assert "Saved." in told
        assert "canary-1" in await arguments(place, "order-1")
        assert (await place.queue("mail"))[0].priority == 3


@in_real_time
async def test_bury_and_release(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.submit("ann", "order-1")
        [item] = await place.queue("mail")
        told = await place.post("/item/bury", {"queue": "mail", "id": str(item.id)})
        assert "bury: 1 done" in told
        assert "buried by (local)" in html.unescape(await place.get("/item?queue=mail&key=order-1"))
        queue = place.store.queue("plain")
        await queue.put("k", 1)
        await queue.get()
        told = await place.post("/item/release", {"queue": "plain", "key": "k"})
        assert "release: 1 done" in told
        [item] = await place.queue("plain")
        assert item.state == "available"
        await place.post("/item/bury", {"queue": "mail", "id": "x"}, 400)
