"""A reader who follows every link: no page fails, runs what was put in, or shows secrets."""

from urllib.parse import urldefrag, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import DESK, Site, log_in
from tests.browser.site import CANARY

MOST = 90
"""Pages that are looked at."""
ALIKE = 6
"""Of pages with the same path but for numbers and keys, how many are looked at."""


def shape(link: str) -> str:
    """Links that lead to pages of one sort have the same shape."""
    parts = urlsplit(link)
    folders = parts.path.split("/")[:4]
    names = sorted(part.partition("=")[0] for part in parts.query.split("&"))
    return "/".join(folders) + "?" + "&".join(names)


@pytest.mark.timeout(900)  # so many pages, on a machine that may be busy
def test_no_link_leads_to_a_page_that_fails(page: Page, site: Site) -> None:
    start = site.path("/s/site/")
    waiting, seen, looked = [start], {start}, dict[str, int]()
    while waiting and sum(looked.values()) < MOST:
        link = waiting.pop(0)
        if looked.get(shape(link), 0) >= ALIKE:
            continue
        looked[shape(link)] = looked.get(shape(link), 0) + 1
        answer = page.goto(link, wait_until="load")
        assert answer is not None
        assert answer.status == 200, link
        kind = answer.headers.get("content-type", "")
        assert CANARY not in answer.text(), link
        if not kind.startswith("text/html"):
            page.go_back()
            continue
        assert page.evaluate("window.hacked") is None, link
        assert not page.locator("#main script, #main style, #main iframe").count(), link
        links: list[str] = page.eval_on_selector_all("a[href]", "all => all.map(one => one.href)")
        for found in links:
            address = urldefrag(found).url
            if address.startswith(site.address) and address not in seen:
                seen.add(address)
                waiting.append(address)
    assert len(looked) >= 6


def test_a_viewer_sees_no_button_that_changes_something(browser: Browser, site: Site) -> None:
    context = browser.new_context(**DESK)
    page = context.new_page()
    log_in(page, site, f"viewer-{site.token}")
    links = page.locator("header nav a")
    paths = [str(links.nth(i).get_attribute("href")) for i in range(links.count())]
    for path in paths:
        page.goto(site.path(path))
        forms: list[str] = page.eval_on_selector_all(
            "form[method=post]", "all => all.map(one => new URL(one.action).pathname)"
        )
        assert [form for form in forms if not form.endswith("/logout")] == [], path
    context.close()


def test_a_session_that_has_ended_asks_to_log_in_again(browser: Browser, site: Site) -> None:
    context = browser.new_context(**DESK)
    page = context.new_page()
    log_in(page, site)
    other = context.new_page()
    other.goto(site.path("/s/site/lanes"))
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    other.goto(site.path("/s/site/lanes"))
    expect(other.get_by_label("Token")).to_be_visible()
    context.close()


def test_it_is_of_use_without_scripts(browser: Browser, site: Site) -> None:
    context = browser.new_context(java_script_enabled=False, **DESK)
    page = context.new_page()
    page.goto(site.path("/s/site/"))
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Log in with the token").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="orders", exact=True).first).to_be_visible()
    context.close()
