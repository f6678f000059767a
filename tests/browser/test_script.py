"""What the script of the page does: times, keys, light and dark, live parts."""

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Site

HOME = "/s/site/"


def test_times_are_told_from_now_with_the_moment_on_hover(page: Page, site: Site) -> None:
    page.goto(site.path("/s/site/workers"))
    time = page.locator("time").first
    expect(time).to_have_text(re.compile(r"ago$|^now$"))
    assert re.search(r"20\d\d.*\(20\d\d-\d\d-\d\dT", str(time.get_attribute("title")))


def test_keys(page: Page, site: Site) -> None:
    page.goto(site.path(HOME))
    page.keyboard.press("j")
    expect(page.locator("tr.chosen")).to_have_count(1)
    first = page.locator("tr.chosen th").inner_text()
    page.keyboard.press("j")
    second = page.locator("tr.chosen th").inner_text()
    assert first != second
    page.keyboard.press("k")
    assert page.locator("tr.chosen th").inner_text() == first
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type(second[:4])
    expect(page.locator("#rows tr[data-row]:visible").first).to_contain_text(second[:4])
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_url("**/help")


def test_light_and_dark_are_kept(page: Page, site: Site) -> None:
    page.goto(site.path(HOME))
    page.click("#theme")
    chosen = page.evaluate("document.documentElement.dataset.theme")
    assert chosen in ("dark", "light")
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.goto(site.path("/s/site/help"))
    assert page.evaluate("document.documentElement.dataset.theme") == chosen
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == ground


def test_live_parts_come_and_can_be_paused(page: Page, site: Site) -> None:
    page.goto(site.path(HOME))
    expect(page.locator("#pause .word")).to_have_text("Live", timeout=30_000)
    page.keyboard.press("p")
    expect(page.locator("#pause .word")).to_have_text("Paused")
    page.evaluate("document.querySelector('[data-live=totals]').innerHTML = 'old'")
    page.wait_for_timeout(3000)
    assert page.inner_text("[data-live=totals]") == "old"
    # What was sent before is not sent again: another connection brings all parts.
    page.keyboard.press("p")
    expect(page.locator("[data-live=totals]")).to_contain_text("Waiting", timeout=30_000)


def test_nothing_moves_under_the_pointer(page: Page, site: Site) -> None:
    page.goto(site.path(HOME))
    page.keyboard.press("p")
    page.evaluate("document.querySelector('[data-live=totals]').innerHTML = '<p>old</p>'")
    page.hover("[data-live=totals]")
    with page.expect_request("**/overview.live"):
        page.keyboard.press("p")
    page.wait_for_timeout(4000)
    assert page.inner_text("[data-live=totals]") == "old"
    page.mouse.move(5, 5)
    expect(page.locator("[data-live=totals]")).to_contain_text("Waiting", timeout=30_000)


def test_the_page_is_useful_without_scripts(page: Page, site: Site) -> None:
    assert page.context.browser is not None
    cookies = page.context.cookies()
    page.goto(site.path(HOME))
    name = page.locator("#rows tr[data-row] th a").first.inner_text()
    with page.context.browser.new_context(java_script_enabled=False) as context:
        context.add_cookies(
            [
                {
                    "name": str(cookie.get("name")),
                    "value": str(cookie.get("value")),
                    "url": site.address,
                }
                for cookie in cookies
            ]
        )
        plain = context.new_page()
        plain.goto(site.path(HOME))
        plain.fill("#find", name)
        plain.click("form[role=search] button")
        expect(plain.locator("#rows tr[data-row] th a").first).to_have_text(name)
        assert plain.locator("#pause").is_hidden()
        plain.goto(site.path("/s/site/workers"))
        expect(plain.locator("time").first).to_have_text(re.compile(r"UTC$"))
