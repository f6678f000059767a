"""Every screen, dark and light, on a telephone and on a desk: it fits, and it can be read."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Site, screenshot

HERE = Path(__file__).parent
SIZES = {"phone": {"width": 360, "height": 740}, "desk": {"width": 1440, "height": 900}}
LOOKS = [
    {"viewport": size, "color_scheme": scheme}
    for size in SIZES.values()
    for scheme in ("light", "dark")
]

UNREADABLE = (HERE / "unreadable.js").read_text(encoding="utf-8")

UNNAMED = (HERE / "unnamed.js").read_text(encoding="utf-8")


def screens(page: Page) -> list[str]:
    links = page.locator("header nav a")
    return [str(links.nth(i).get_attribute("href")) for i in range(links.count())]


def check(page: Page, name: str) -> None:
    screenshot(page, name)
    wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{name} is {wide} px wider than the window"
    assert page.locator("h1").count() == 1, name
    assert page.evaluate(UNREADABLE) == [], name
    assert page.evaluate(UNNAMED) == [], name


@pytest.mark.parametrize("page", LOOKS, indirect=True)
def test_every_screen_fits_and_can_be_read(page: Page, site: Site) -> None:
    page.goto(site.path("/s/site/"))
    width = page.evaluate("window.innerWidth")
    scheme = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
    found = screens(page)
    assert len(found) >= 6
    for path in found:
        page.goto(site.path(path))
        page.wait_for_timeout(300)
        check(page, f"{path.rpartition('/')[2] or 'overview'}-{width}-{scheme}")
