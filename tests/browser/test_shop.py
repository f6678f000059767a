"""`make demo-web`: the shop opens, its page shows work, and Ctrl-C closes all of it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.conftest import DESK, screenshot
from tests.test_documents import ROOT

PATIENCE = 60_000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_shop_is_open_until_it_is_closed(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = [sys.executable, "examples/shop/live.py", "--port", str(port), "--folder", "data"]
    program[1] = str(ROOT / program[1])
    with subprocess.Popen(
        program, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as shop:
        assert shop.stdout is not None
        try:
            said = shop.stdout.readline()
            address = f"http://127.0.0.1:{port}/"
            assert address in said
            context = browser.new_context(**DESK)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            while True:
                try:
                    page.goto(address)
                    break
                except Exception:  # it does not listen yet
                    assert shop.poll() is None
                    page.wait_for_timeout(200)
            for lane in ("payments", "orders", "mail", "shipping", "images", "reports"):
                link = page.get_by_role("link", name=lane, exact=True).first
                expect(link).to_be_visible(timeout=PATIENCE)
            page.get_by_role("link", name="Workers").first.click()
            expect(page.get_by_text("order.place").first).to_be_visible(timeout=PATIENCE)
            screenshot(page, "shop-workers")
            context.close()
        finally:
            shop.send_signal(signal.SIGINT)
            rest, _ = shop.communicate(timeout=60)
    assert rest.splitlines()[-1] == "The shop is closed."
    assert shop.returncode == 0
