"""The page of schedules, and the form for a new command."""

import asyncio
import html
import json
from pathlib import Path

from leasedkeyq.lanes.durable.envelope import decode_envelope
from tests.web.payloads import PAYLOADS
from tests.web.shops import LARGE, Shop, in_real_time, shop
from tests.web.test_items import check_no_code


async def with_types(place: Shop) -> None:
    await place.manager.start()
    async with asyncio.timeout(30):
        while not await place.shown_types():
            await asyncio.sleep(0.05)


@in_real_time
async def test_schedules_in_words_with_what_can_be_done(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        manager = place.manager
        manager.schedule(
            "nightly", "0 3 * * 1-5", place.send("ann"), lane="mail", tz="Europe/Berlin"
        )
        manager.schedule("often", place.send("bob"), lane="mail", every=3600)
        await manager.start()
        async with asyncio.timeout(30):
            while "nightly" not in (page := await place.get("/schedules")):
                await asyncio.sleep(0.05)
        assert "weekdays at 3:00, Europe/Berlin" in page
        assert "every hour" in page
        told = await place.post("/schedules/pause", {"name": "often"})
        assert "pause: 1 done" in told
        assert (await place.data("/schedules"))["schedules"][1]["paused"]
        await place.post("/schedules/resume", {"name": "often"})
        assert not (await place.data("/schedules"))["schedules"][1]["paused"]
        await place.post("/schedules/run", {"name": "often"})
        async with asyncio.timeout(30):
            while not (await place.data("/schedules"))["runs"].get("often"):
                await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            while "1 of 1 fine" not in (page := await place.get("/schedules")):
                await asyncio.sleep(0.05)
        assert '<svg class="spark' not in page, "one run makes no line"
        assert "there is no schedule" in html.unescape(
            await place.post("/schedules/run", {"name": "nothing"})
        )


@in_real_time
async def test_a_new_command_by_a_form_of_its_types(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await with_types(place)
        assert "send" in await place.get("/new")
        page = await place.get("/new?type=send&lane=mail")
        for name in ("arg.to", "arg.order", "arg.size", "arg.more", "key", "priority", "delay"):
            assert f'name="{name}"' in page
        fields = {
            "type": "send",
            "lane": "mail",
            "key": "by-hand",
            "delay": "2h",
            "arg.to": "line 1\r\nline 2",
            "arg.order": str(LARGE),
            "arg.size": '"M"',
        }
        told = await place.post("/new/submit", fields)
        assert "Submitted." in told
        assert str(LARGE) in told
        [item] = await place.queue("mail")
        assert (item.key, item.state, item.kind) == ("by-hand", "scheduled", "send")
        kept = json.loads(bytes(decode_envelope(item.value).payload))
        assert kept == {"to": "line 1\nline 2", "order": LARGE, "size": "M"}
        assert "send in lane mail" in await place.get("/changes")


@in_real_time
async def test_a_wrong_form_comes_back_as_it_was_typed(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await with_types(place)
        fields = {
            "type": "send",
            "lane": "",
            "priority": "first",
            "delay": "soon",
            "arg.order": "7x",
            "arg.more": "{",
            "key": "a key",
        }
        page = html.unescape(await place.post("/new/submit", fields, 200))
        for told in (
            "to is missing",
            "order must be a whole number",
            "more not JSON",
            "choose a lane",
            "must be a whole number",
            "write a span",
        ):
            assert told in page, told
        for typed in ("7x", "first", "soon", "a key"):
            assert f'value="{typed}"' in page
        assert await place.queue("mail") == []


@in_real_time
async def test_a_type_that_no_worker_has_told_of(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await with_types(place)
        page = await place.get("/new?type=unknown&lane=mail")
        assert "are not known here" in page
        fields = {"type": "unknown", "lane": "mail", "arguments": '{"b": 1.50}', "delay": "1h"}
        await place.post("/new/submit", fields)
        [item] = await place.queue("mail")
        assert item.kind == "unknown"
        assert b"1.50" in item.value


@in_real_time
async def test_no_text_of_a_form_becomes_code(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        for payload in PAYLOADS[::3]:
            fields = {"type": payload, "lane": payload, "key": payload, "delay": payload}
            check_no_code(await place.post("/new/submit", fields | {"arguments": payload}, 200))
