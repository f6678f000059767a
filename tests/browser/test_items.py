"""Items in a browser: found, copied, chosen by keys, changed, with scripts and without."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Site
from tests.browser.site import LARGE
from tests.browser.test_screens import check

PATIENCE = 30_000
SMALL_SCREENS = (
    "/item?queue=closed&key=large",
    "/item?queue=slow&key=runs",
    "/item/stack?queue=slow&key=runs",
    "/item/edit?queue=closed&key=later",
    "/items?queue=orders&state=buried",
    "/items/confirm?action=remove&queue=closed",
    "/new?type=order",
)
NO_SCRIPTS = {"java_script_enabled": False}


@pytest.mark.parametrize(
    "page",
    [
        {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"},
        {"viewport": {"width": 3840, "height": 2160}, "color_scheme": "light"},
    ],
    indirect=True,
)
def test_screens_below_the_navigation_fit_and_can_be_read(page: Page, site: Site) -> None:
    width = page.evaluate("window.innerWidth")
    for number, path in enumerate(SMALL_SCREENS):
        page.goto(site.path(f"/s/site{path}"))
        page.wait_for_timeout(200)
        check(page, f"items-{number}-{width}")


@pytest.mark.parametrize(
    "page", [{"permissions": ["clipboard-read", "clipboard-write"]}], indirect=True
)
def test_a_large_number_is_copied_to_its_last_digit(page: Page, site: Site) -> None:
    page.goto(site.path("/s/site/item?queue=closed&key=large"))
    page.get_by_role("button", name="Copy number").click()
    expect(page.get_by_text("Copied")).to_be_visible(timeout=PATIENCE)
    assert page.evaluate("navigator.clipboard.readText()") == str(LARGE)
    page.get_by_role("button", name="Copy as JSON").click()
    page.wait_for_function(
        "async () => (await navigator.clipboard.readText()).startsWith('{')", timeout=PATIENCE
    )
    assert f'"number": {LARGE}' in re.sub(
        r'":(?=\S)', '": ', page.evaluate("navigator.clipboard.readText()")
    )


def test_rows_are_chosen_by_keys_and_changed_after_a_question(page: Page, site: Site) -> None:
    page.goto(site.path("/s/site/items?queue=closed&key=waiting-14*"))
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("input[name=item]:checked").count() == 2
    page.keyboard.press("k")
    expect(page.locator("tr.chosen th")).to_contain_text("waiting-140")
    page.locator(".bar").get_by_role("button", name="Set priority").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("2 items of closed")
    page.get_by_label("Priority").fill("42")
    page.locator("main").get_by_role("button", name="Set priority").click()
    expect(page.get_by_role("status")).to_contain_text("priority: 2 done", timeout=PATIENCE)
    page.wait_for_load_state()  # the script, which listens to keys, runs last
    page.keyboard.press("/")
    expect(page.get_by_label("Key")).to_be_focused()


@pytest.mark.parametrize("page", [NO_SCRIPTS], indirect=True)
def test_all_of_it_works_without_scripts(page: Page, site: Site) -> None:
    page.goto(site.path("/s/site/items?queue=closed"))
    page.get_by_label("Key").fill("waiting-13*")
    page.get_by_role("button", name="Show").click()
    assert page.locator("tbody tr").count() == 10
    page.get_by_label("Choose waiting-131").check()
    page.locator(".bar").get_by_role("button", name="Remove").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Remove 1 item of closed?")
    page.get_by_role("button", name="Remove 1").click()
    expect(page.get_by_role("status")).to_contain_text("remove: 1 done", timeout=PATIENCE)
    assert page.locator("tbody tr").count() == 9
    page.get_by_role("link", name="waiting-132").click()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Priority").fill("high")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("must be a whole number")).to_be_visible()
    page.get_by_label("Priority").fill("7")
    page.get_by_role("button", name="Save").click()
    # It has a hidden field: only the rest of it can be edited.
    expect(page.get_by_role("status")).to_contain_text("Saved", timeout=PATIENCE)
    page.goto(site.path("/s/site/new?type=order"))
    page.get_by_label("customer").fill("by hand")
    page.get_by_label("number").fill(str(LARGE))
    page.get_by_label("Lane").select_option("closed")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_text("Submitted.")).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text(str(LARGE)).first).to_be_visible()
