"""A page that is served, and a browser that looks at it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from tests.test_documents import ROOT

TOKEN = "a-token-for-the-tests-only"
DESK: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}
PATIENCE = 60_000
"""Milliseconds that anything may take on a busy machine."""
expect.set_options(timeout=PATIENCE)
SCREENSHOTS = ROOT / "build" / "screenshots"


@dataclass
class Site:
    """A page that is served."""

    address: str
    token: str = TOKEN

    def path(self, path: str = "/") -> str:
        return f"{self.address}{path}"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "tests.browser.site", str(folder), TOKEN]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the site did not start"
            yield Site(f"http://127.0.0.1:{port}")
            process.terminate()
            process.wait(20)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "no chromium: apt install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(site: Site, browser: Browser, request: pytest.FixtureRequest) -> Generator[Page]:
    """A page of somebody who has logged in.

    At the end, nothing must have gone wrong: no error in the console, no request to another host.
    """
    options: dict[str, Any] = getattr(request, "param", {})
    context = browser.new_context(**(DESK | options))
    trouble: list[str] = []

    def elsewhere(route: Route, asked: Request) -> None:
        if asked.url.startswith(site.address):
            route.continue_()
        else:
            trouble.append(f"asked {asked.url}")
            route.abort()

    context.route("**/*", elsewhere)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda said: trouble.append(said.text) if is_trouble(said) else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    log_in(page, site)
    yield page
    hacked = page.evaluate("window.hacked")
    context.close()
    assert trouble == []
    assert hacked is None


def is_trouble(said: ConsoleMessage) -> bool:
    """Whether a message is an error. A form that was filled in wrongly is none of the page."""
    return said.type == "error" and "status of 422" not in said.text


def log_in(page: Page, site: Site, token: str = TOKEN) -> None:
    page.goto(site.path("/s/site/"))
    page.fill("input[name=token]", token)
    page.click("main button[type=submit], main button:not([type])")
    page.wait_for_selector("header nav")


def screenshot(page: Page, name: str) -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    file = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=file, full_page=True, animations="disabled")
    return file
