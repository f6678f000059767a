"""What an operator does, by hand: each action, from the button to what it says afterwards."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Site, screenshot
from tests.browser.site import LARGE

pytestmark = pytest.mark.timeout(300)
PATIENCE = 30_000


def go(page: Page, site: Site, path: str) -> None:
    page.set_default_timeout(PATIENCE)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(site.path(f"/s/site/{path}"))


def said(page: Page, words: str) -> None:
    expect(page.locator(".message:visible").first).to_contain_text(re.compile(words))


def test_a_lane_is_paused_and_resumed(page: Page, site: Site) -> None:
    go(page, site, "lanes")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="limited", exact=True))
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused").first).to_be_visible()
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()


def test_a_dead_letter_is_requeued_and_runs_again(page: Page, site: Site) -> None:
    go(page, site, "items?queue=orders&state=buried&kind=order")
    page.get_by_role("link", name=re.compile("^[0-9a-f]{8,}")).first.click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(page.get_by_text("no order -").first).to_be_visible()
    screenshot(page, "item-dead")
    page.get_by_role("link", name="Requeue").click()
    page.get_by_role("main").get_by_role("button", name=re.compile("Requeue")).click()
    said(page, "[Rr]equeue")


def test_chosen_items_are_removed(page: Page, site: Site) -> None:
    go(page, site, "items?queue=closed&key=waiting-14*")
    for number in (140, 141):
        page.get_by_role("checkbox", name=f"Choose waiting-{number}").check()
    page.get_by_role("button", name="Remove", exact=False).first.click()
    expect(page.get_by_role("main")).to_contain_text("2")
    screenshot(page, "confirm-remove")
    page.get_by_role("main").get_by_role("button", name=re.compile("Remove")).click()
    said(page, "2")
    go(page, site, "items?queue=closed&key=waiting-14*")
    expect(page.get_by_role("checkbox", name="Choose waiting-142")).to_be_visible()
    expect(page.get_by_role("checkbox", name="Choose waiting-141")).to_have_count(0)


def test_large_numbers_are_shown_as_they_are(page: Page, site: Site) -> None:
    go(page, site, "items?queue=closed&key=large")
    page.get_by_role("link", name="large", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text(str(LARGE))


def test_an_item_that_waits_is_edited(page: Page, site: Site) -> None:
    go(page, site, "items?queue=closed&key=later")
    page.get_by_role("link", name="later", exact=True).click()
    page.get_by_role("link", name="Edit").click()
    screenshot(page, "edit-item")
    page.get_by_label("Priority").fill("-5")
    page.get_by_role("button", name=re.compile("Save|Change")).click()
    expect(page.get_by_role("main")).to_contain_text("-5")


def test_what_a_command_does_right_now(page: Page, site: Site) -> None:
    go(page, site, "items?queue=slow&state=in_flight")
    page.get_by_role("link", name="runs", exact=True).click()
    page.get_by_role("link", name="What is it doing right now?").click()
    expect(page.get_by_text("wait_for_the_end").first).to_be_visible()
    screenshot(page, "stack")


def test_a_schedule_is_run_by_hand(page: Page, site: Site) -> None:
    go(page, site, "schedules")
    page.get_by_role("button", name="Run now").click()
    said(page, "nightly")


def test_a_new_command_is_checked_and_submitted(page: Page, site: Site) -> None:
    go(page, site, "new?type=order")
    screenshot(page, "new-command")
    page.get_by_label(re.compile("^customer")).fill("a browser")
    page.get_by_label(re.compile("^number")).fill("many")
    page.get_by_role("button", name=re.compile("Submit")).click()
    expect(page.get_by_role("main")).to_contain_text(re.compile("integer|number"))
    expect(page.get_by_label(re.compile("^customer"))).to_have_value("a browser")
    page.get_by_label(re.compile("^number")).fill("17")
    page.get_by_role("button", name=re.compile("Submit")).click()
    said(page, "[Ss]ubmitted")


def test_live_parts_change_and_can_be_paused(page: Page, site: Site) -> None:
    go(page, site, "")
    waiting = page.locator("time, .figure").first
    expect(waiting).to_be_visible()
    page.get_by_role("button", name=re.compile("Live")).click()
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")


def test_keys_of_the_keyboard(page: Page, site: Site) -> None:
    go(page, site, "items?queue=closed")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.closest('tr') !== null")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.matches('input')")
