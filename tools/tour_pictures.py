"""Make the pictures of the tour, with the packages of requirements/browser.txt.

The shop of `examples/shop` runs for some minutes, and Chromium looks at its page, light and dark.
So that the charts have two days to show, the minutes before the shop was opened are filled in: what
a worker would have kept of them, with days and nights, and a bank that does not answer for a while.

All pictures are written to `build/tour`. With `--commit`, those that the documents show are made
small and written to `docs/assets`.

    python tools/tour_pictures.py [--minutes 4] [--commit]
"""

import argparse
import asyncio
import math
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import msgspec
from playwright.sync_api import Browser, sync_playwright

from leasedkeyq import connect
from leasedkeyq.lanes.durable.reports.kept import keep
from leasedkeyq.lanes.durable.reports.minutes import (
    MINUTE,
    SERIES_KEPT,
    SERIES_QUEUE,
    DurationBuckets,
    LaneGauges,
    LaneMinute,
    WorkerMinute,
)

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "tour"
ASSETS = ROOT / "docs" / "assets"
SHOWN = {"overview": "light", "item": "dark", "dead-letters": "light", "queue": "dark"}
"""The pictures of the documents: which screen, and whether light or dark."""
COLOURS = 220
"""Colours of a picture in the documents: enough for text and charts, and a third of the size."""
BATCH = 200
"""Minutes that are written at a time."""
PATIENCE = 60.0

# By lane: commands in a minute at the busiest time, seconds that they run, share that fails.
LANES = {
    "payments": (70, 0.7, 0.06),
    "orders": (70, 0.55, 0.0),
    "mail": (66, 0.1, 0.012),
    "shipping": (60, 3.4, 0.0),
    "images": (17, 1.7, 0.0),
    "reports": (1, 10.5, 0.0),
}


def busy(at: float) -> float:
    """How busy the shop is at a time of the day, from 0 to 1: little at night, most at 6 p.m."""
    hour = at / 3600 % 24
    return 0.12 + 0.88 * (0.5 + 0.5 * math.cos((hour - 18) / 24 * 2 * math.pi)) ** 2


def minute(at: int, dice: random.Random, outage: float) -> WorkerMinute:
    """What a worker would have kept of a minute."""
    lanes: dict[str, LaneMinute] = {}
    for name, (most, seconds, failing) in LANES.items():
        count = max(0, round(dice.gauss(most * busy(at), 1.5 + 0.05 * most)))
        out = name == "payments" and outage <= at < outage + 25 * MINUTE
        failed = sum(dice.random() < (0.5 if out else failing) for _ in range(count))
        ran, waited = DurationBuckets(), DurationBuckets()
        ran.fresh = [seconds * dice.lognormvariate(0, 0.45) for _ in range(count)]
        slow = 12.0 if out else 0.3 + busy(at) ** 2
        waited.fresh = [slow * dice.expovariate(2.0) for _ in range(count)]
        ran_buckets, ran_total = ran.take()
        waited_buckets, waited_total = waited.take()
        lanes[name] = LaneMinute(
            submitted=count,
            started=count,
            completed=count - failed,
            failed=failed,
            dead_lettered=failed,
            retried=2 * failed,
            waited=waited_buckets,
            waited_total=waited_total,
            ran=ran_buckets,
            ran_total=ran_total,
            gauges=LaneGauges(
                waiting=round(count * (2.5 if out else 0.15)),
                in_flight=min(6, count),
                buried=failed,
            ),
        )
    return WorkerMinute(at, "tour", lanes)


async def fill(url: str) -> None:
    """Keep the two days before now, up to ten minutes ago."""
    dice = random.Random(7)
    now = int(time.time()) // MINUTE * MINUTE
    outage = now - 9 * 3600
    begin = now - int(SERIES_KEPT) + 5 * MINUTE
    moments = list(range(begin, now - MINUTE, MINUTE))
    async with connect(url) as store:
        for first in range(0, len(moments), BATCH):
            results = {
                f"tour:{at}": msgspec.json.encode(minute(at, dice, outage))
                for at in moments[first : first + BATCH]
            }
            await keep(store, SERIES_QUEUE, results, SERIES_KEPT)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Photographer:
    """Looks at the screens of the page, and keeps pictures of them."""

    def __init__(self, browser: Browser, address: str, scheme: str) -> None:
        self._scheme = scheme
        self._context = browser.new_context(
            viewport={"width": 1440, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            timezone_id="Europe/Berlin",
        )
        self._page = self._context.new_page()
        self._page.set_default_timeout(PATIENCE * 1000)
        self._page.goto(address)
        self._page.get_by_role("link", name="Overview").wait_for()
        self._start = self._page.url.rstrip("/")

    def close(self) -> None:
        self._context.close()

    def visit(self, path: str) -> None:
        answer = self._page.goto(f"{self._start}{path}")
        if answer is None or not answer.ok:
            raise RuntimeError(f"{path} is not there")
        self._page.wait_for_timeout(500)

    def keep(self, name: str) -> None:
        file = OUT / f"{name}-{self._scheme}.png"
        self._page.screenshot(path=file, full_page=True, animations="disabled")
        print(file.relative_to(ROOT), flush=True)

    def walk(self) -> None:
        """All screens of the tour."""
        self.visit("/?range=two-days")
        self.keep("overview")
        for path in ("lanes", "workers", "schedules", "dead-letters", "health"):
            self.visit(f"/{path}")
            self.keep(path)
        self.visit("/queue?queue=payments&range=two-days")
        self.keep("queue")
        self.visit("/items?queue=orders")
        self.keep("items")
        self.item("payments", "buried")
        self.keep("item")
        while True:
            self.item("shipping", "in_flight")
            ask = self._page.get_by_role("link", name="What is it doing right now?")
            if ask.count():  # it may have ended meanwhile
                self.keep("running")
                ask.click()
                self._page.wait_for_timeout(500)
                if self._page.locator("ol.stack").count():
                    break
        self.keep("stack")

    def item(self, queue: str, state: str) -> None:
        """Look at the first item of a queue in a state, as soon as there is one."""
        links = self._page.locator("table tbody a[href*='/item?']")
        ends = time.monotonic() + PATIENCE
        while True:
            self.visit(f"/items?queue={queue}&state={state}")
            if links.count():
                break
            if time.monotonic() > ends:
                raise RuntimeError(f"no item of {queue} is {state}")
        links.first.click()
        self._page.wait_for_timeout(500)


def open_shop(folder: Path, port: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, str(ROOT / "examples/shop/live.py")]
    return subprocess.Popen([*program, "--port", str(port), "--folder", str(folder)])


def small(source: Path, target: Path) -> None:
    """The same picture with few colours, as small as it gets."""
    # Only the pictures of the documents need it.
    from PIL import Image  # noqa: PLC0415

    with Image.open(source) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1024} KB")


def end(*_: object) -> NoReturn:
    sys.exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the pictures of the tour.")
    parser.add_argument("--minutes", type=float, default=4, help="for how long the shop runs first")
    parser.add_argument("--folder", type=Path, help="where the shop is; a new one by default")
    parser.add_argument("--commit", action="store_true", help="write those of the documents, too")
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium: apt install chromium", file=sys.stderr)
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    # The shop is closed then, too.
    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(exist_ok=True)
        asyncio.run(fill(f"sqlite:///{folder / 'shop.db'}"))
        port = free_port()
        shop = open_shop(folder, port)
        try:
            time.sleep(options.minutes * 60)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                )
                for scheme in ("light", "dark"):
                    photographer = Photographer(browser, f"http://127.0.0.1:{port}", scheme)
                    photographer.walk()
                    photographer.close()
        finally:
            shop.send_signal(signal.SIGINT)
            shop.wait(PATIENCE)
    if options.commit:
        for screen, scheme in SHOWN.items():
            small(OUT / f"{screen}-{scheme}.png", ASSETS / f"tour-{screen}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
