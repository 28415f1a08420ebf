"""The dashboard in a real browser: the bad day of docs/operating.md played by clicks, five questions, the pictures.

`PILLARBOX_PICTURES=docs/images/dashboard` writes the pictures of the documentation anew (`make pictures`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.dashboard.browser import (
    AXE,
    TIMEOUT,
    Shop,
    open_browser,
    open_page,
    serve_calm_story,
    serve_empty_story,
    serve_long_story,
    serve_story,
)
from tests.support.dashboard.story import CORRELATION

pytestmark = pytest.mark.timeout(600)
expect.set_options(timeout=TIMEOUT)
PAGES = {
    "overview": "", "messages": "messages?state=failed", "message": "messages/{failed}", "failures": "failures",
    "destination": "destinations/billing", "chain": f"chains?id={CORRELATION}", "inbox": "inbox", "relays": "relays",
    "phases": "messages?state=pending&phase=parked", "sequence": f"chains?id={CORRELATION}&view=sequence",
    "activity": "activity", "destinations": "destinations", "chains": "chains", "system": "system",
    "confirm": "redrive?state=failed&destination=billing",
}  # fmt: skip
STORES = {"overview-calm": serve_calm_story, "overview-empty": serve_empty_story}
PICTURES = ("overview", "failures", "message", "destination", "chain", "sequence")
LIMIT = 150 * 1024
"""Bytes of a picture."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def story() -> Iterator[str]:
    with serve_story() as address:
        yield address


def settle(page: Page) -> None:
    """Wait until the page is live and its charts are drawn."""
    page.wait_for_selector("#live[data-state=streaming]")
    if page.query_selector("[data-charts]"):
        page.wait_for_selector("[data-charts][data-drawn]")


def find_failed(page: Page, address: str) -> str:
    page.goto(f"{address}messages?state=failed&destination=billing")
    return page.locator("tr[data-row] td.num a").first.inner_text()


# --- the bad day ---


def test_the_bad_day_is_played_by_clicks(browser: Browser) -> None:
    with Shop() as shop, open_page(browser) as page:
        shop.order(1)
        page.goto(shop.address)
        expect(page.get_by_text("All is well.")).to_be_visible()
        row = page.locator("#destinations tr", has_text="billing")

        # The service behind billing goes down. The page says so by itself.
        shop.call(shop.billing.go_down)
        shop.order(2)
        expect(row.locator(".chip")).to_have_text("outage")
        row.get_by_role("link", name="billing").first.click()
        expect(page.locator(".card", has_text="breaker")).to_contain_text("open")

        # It comes back, and rejects one order for good.
        shop.call(lambda: shop.billing.reject_next(error="answered 422: no account for this customer"))
        shop.call(shop.billing.come_back)
        shop.order(3)
        expect(page.locator("#failed-badge")).to_have_text("1")
        page.get_by_role("link", name="Failures").click()
        page.get_by_role("link", name=re.compile("answered 422")).click()
        page.locator("section", has_text="Messages").locator("tr[data-row] a").first.click()
        expect(page.locator(".headline .chip")).to_have_text("failed")
        page.get_by_role("link", name="Show the payload").click()
        expect(page.locator("#payload-text")).to_contain_text('"total": "12.50"')
        message = page.url

        pause_redrive_and_resume(page, message)
        page.get_by_role("link", name="Activity").click()
        journal = page.locator("main")
        for text in ("paused", "resumed", "they open the account"):
            expect(journal).to_contain_text(text)
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_text("All is well.")).to_be_visible()


def pause_redrive_and_resume(page: Page, message: str) -> None:
    page.locator(".headline").get_by_role("link", name="billing").click()
    page.get_by_role("link", name="Pause…").click()
    page.get_by_label("Reason").fill("they open the account")
    page.get_by_role("button", name="Pause billing").click()
    expect(page.locator(".pause-line")).to_contain_text("Paused by ann")
    page.get_by_role("link", name="Redrive failed…").click()
    expect(page.get_by_role("heading", name="Redrive 1 message")).to_be_visible()
    page.get_by_label("Reason").fill("the account is there")
    page.get_by_role("button", name="Redrive 1 message").click()
    expect(page.locator(".result")).to_have_text("1 message redriven.")
    page.goto(message)
    expect(page.locator(".headline .chip")).to_have_text("pending")
    page.locator(".headline").get_by_role("link", name="billing").click()
    page.get_by_role("button", name="Resume").click()
    page.goto(message)
    expect(page.locator(".headline .chip")).to_have_text("delivered")


def test_live_updates_wait_while_rows_are_chosen(browser: Browser) -> None:
    with Shop() as shop, open_page(browser) as page:
        shop.call(shop.billing.go_down)
        shop.order(1, destinations=("billing",))
        page.goto(f"{shop.address}messages?state=pending")
        settle(page)
        tick = page.locator("[data-tick]").first
        tick.check()
        shop.order(2, destinations=("billing",))
        expect(page.locator("#live")).to_have_attribute("data-state", "paused")
        expect(tick).to_be_checked()
        expect(page.locator("#tabs")).to_contain_text("pending 1")
        tick.uncheck()  # what was held back is shown
        expect(page.locator("#tabs")).to_contain_text("pending 2")


def test_an_empty_list_shows_what_comes_and_an_emptied_one_says_so(browser: Browser) -> None:
    with Shop() as shop, open_page(browser) as page:
        shop.call(shop.billing.go_down)
        page.goto(f"{shop.address}messages?state=pending")
        settle(page)
        expect(page.locator("#empty")).to_have_text("Nothing waits")
        shop.order(1, destinations=("billing",))
        expect(page.locator("[data-tick]").first).to_be_visible()
        shop.call(shop.billing.come_back)
        expect(page.locator("#empty")).to_have_text("Nothing waits")


def test_the_keyboard_goes_everywhere(browser: Browser, story: str) -> None:
    with open_page(browser) as page:
        page.goto(story)
        settle(page)
        page.keyboard.press("g")
        page.keyboard.press("m")
        page.wait_for_url("**/messages")
        settle(page)
        page.keyboard.press("j")
        page.keyboard.press("x")
        expect(page.locator("#chosen")).to_have_text("1 chosen")
        page.keyboard.press("x")
        page.keyboard.press("Enter")
        page.wait_for_url("**/messages/*")
        settle(page)
        page.keyboard.press("/")
        page.keyboard.type("customer-42")
        page.keyboard.press("Enter")
        page.wait_for_url("**/messages?key=customer-42")
        settle(page)
        page.keyboard.press("?")
        expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()


# --- a first-time operator ---


class Clicks:
    """Follows links, and counts."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.count = 0
        page.goto(address)

    def link(self, name: str | re.Pattern[str], *, inside: str = "body") -> None:
        self.count += 1
        self.page.locator(inside).get_by_role("link", name=name).first.click()

    def search(self, text: str) -> None:
        self.count += 1
        self.page.get_by_label("Search messages").fill(text)
        self.page.keyboard.press("Enter")

    def sees(self, *texts: str) -> None:
        for text in texts:
            expect(self.page.locator("main")).to_contain_text(text)
        assert self.count <= 3


def test_five_questions_are_answered_within_three_clicks(browser: Browser, story: str) -> None:
    with open_page(browser) as page:
        failing = Clicks(page, story)
        failing.link("Failures")
        failing.sees("billing", "answered 422", "no account")

        blocked = Clicks(page, story)
        blocked.link("mail", inside="#destinations")
        blocked.sees("customer-42", "held", "mailbox unavailable")

        paused = Clicks(page, story)
        paused.link("billing", inside="#destinations")
        paused.sees("Paused by ann", "2026-01-31 19:0", "they open the missing accounts")

        where = Clicks(page, story)
        where.search("customer-42")
        where.link(re.compile(r"^\d+$"), inside="tbody")
        where.sees("customer-42", "What happened")

        who = Clicks(page, story)
        who.link("Activity")
        who.sees("ann", "redriven", "messages", "their limit is higher now")


# --- how it looks, and for whom ---


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_is_accessible(
    scheme: str, width: int, browser: Browser, story: str, tmp_path: Path
) -> None:
    with open_page(browser, width=width, scheme=scheme) as page:
        failed = find_failed(page, story)
        for name, path in PAGES.items():
            page.goto(story + path.format(failed=failed))
            check_looks(page, name)
            if name in (PICTURES if width > 400 else PICTURES[:1]):
                take_picture(page, f"{name}-{scheme}-{width}", tmp_path)


@pytest.mark.parametrize("width", [1024, 600])
def test_no_table_is_cut_between_a_desk_and_a_phone(width: int, browser: Browser, story: str) -> None:
    with open_page(browser, width=width) as page:
        failed = find_failed(page, story)
        for name, path in PAGES.items():
            page.goto(story + path.format(failed=failed))
            assert page.evaluate(_CUT) == [], name


LONG = "customer-data-platform-events-production-eu"


def test_no_table_is_cut_where_names_are_long(browser: Browser) -> None:
    paths = ("", "messages?state=failed", "failures", "destinations", f"destinations/{LONG}", "relays", "activity",
             f"redrive?state=failed&destination={LONG}")  # fmt: skip
    with serve_long_story() as address:
        for width in (1580, 1440, 1280, 1270, 1024, 375):
            with open_page(browser, width=width) as page:
                for path in paths:
                    page.goto(address + path)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
                    assert page.evaluate(_CUT) == [], (path, width)
                page.goto(address)
                expect(page.locator(f'.line-name[title="{LONG}"]')).to_have_text(LONG)


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STORES)
def test_the_overview_fits_on_a_calm_day_and_before_the_first_message(
    name: str, scheme: str, width: int, browser: Browser, tmp_path: Path
) -> None:
    with STORES[name]() as address, open_page(browser, width=width, scheme=scheme) as page:
        page.goto(address)
        check_looks(page, name)
        take_picture(page, f"{name}-{scheme}-{width}", tmp_path)


_CUT = """() => [...document.querySelectorAll(".scroll:not(.sequence), .tabs")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.ariaLabel)"""
"""Tables that are wider than their place: their last columns, which have the buttons, cannot be seen."""


def check_looks(page: Page, name: str) -> None:
    """Check that a page is not wider than its window, that no table is cut, and that axe finds nothing serious."""
    settle(page)
    width = page.viewport_size["width"]  # type: ignore[index]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert page.evaluate(_CUT) == [], name
    page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (name, one["id"], [node["html"][:200] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert not serious, serious


def take_picture(page: Page, name: str, folder: Path) -> None:
    folder = Path(os.environ.get("PILLARBOX_PICTURES", folder))
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{name}.png"
    page.screenshot(path=picture, animations="disabled")
    assert 1_000 < picture.stat().st_size <= LIMIT, (name, picture.stat().st_size)


def test_a_bad_day_fits_on_the_first_screen(browser: Browser, story: str) -> None:
    with open_page(browser) as page:
        page.goto(story)
        settle(page)
        rows = page.locator(".lines tr")
        assert [one.inner_text() for one in rows.locator(".chip").all()] == ["failed", "outage", "failed", "ok"]
        for row in rows.all():
            assert row.bounding_box()["height"] < 45  # type: ignore[index]
        assert page.locator("#alerts-fold").bounding_box()["y"] < 450  # type: ignore[index]
        expect(page.locator("#alerts")).not_to_be_visible()
        page.locator("#alerts-fold summary").click()
        expect(page.locator("#alerts")).to_contain_text("pillarbox messages redrive --destination billing")


@pytest.mark.parametrize("width", [1280, 375])
def test_rows_of_blocked_keys_are_no_taller_than_they_need(width: int, browser: Browser, story: str) -> None:
    with open_page(browser, width=width) as page:
        page.goto(f"{story}destinations/mail")
        settle(page)
        rows = page.locator("#blocked tbody tr")
        assert rows.count() == 4
        # On a phone a row is a block of at most seven lines of 22 pixels: fonts differ in where the error breaks.
        limit = 45 if width > 400 else 7 * 22
        for row in rows.all():
            assert row.bounding_box()["height"] <= limit  # type: ignore[index]


def test_legends_show_the_latest_values(browser: Browser, story: str) -> None:
    with open_page(browser) as page:
        page.goto(story)
        settle(page)
        backlog = page.locator("[data-chart=backlog] .u-legend")
        expect(backlog).to_contain_text(re.compile(r"crm[1-9]"))
        latest = backlog.text_content() or ""
        page.locator("[data-chart=backlog] .u-over").hover(position={"x": 20, "y": 60})
        expect(backlog).to_contain_text(re.compile(r"crm0"))
        page.mouse.move(1, 1)
        expect(backlog).to_have_text(latest)


def test_counts_end_with_the_last_whole_minute(browser: Browser, story: str) -> None:
    with open_page(browser) as page:
        page.goto(story)
        settle(page)
        # The story ends 15 s after 19:18, when one message was delivered.
        expect(page.locator("[data-chart=counts] .u-legend")).to_have_text(re.compile(r"at19:17delivered80"))


_SHADED = """(kind) => {
    const canvas = document.querySelector(`[data-chart=${kind}] canvas`);
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let shaded = 0;
    let all = 0;
    for (let x = Math.floor(canvas.width * 0.15); x < canvas.width * 0.25; x += 1) {
        for (let y = 0; y < canvas.height - 40; y += 1) {
            shaded += data[4 * (y * canvas.width + x) + 3] === 0 ? 0 : 1;
            all += 1;
        }
    }
    return shaded / all;
}"""
"""The share of a chart that is drawn on, some minutes after its beginning."""


def test_a_pause_shades_the_line_of_its_destination_and_not_the_whole_chart(browser: Browser, story: str) -> None:
    with open_page(browser) as page:
        page.goto(f"{story}?window=15m")
        settle(page)
        # Billing is paused all the time, and little waits for it yet.
        assert 0.05 < page.evaluate(_SHADED, "backlog") < 0.5
        page.goto(f"{story}destinations/billing?window=15m")
        settle(page)
        assert page.evaluate(_SHADED, "backlog") > 0.8
        assert page.evaluate(_SHADED, "counts") > 0.8


def test_a_chosen_theme_stays(browser: Browser, story: str) -> None:
    with open_page(browser, scheme="light") as page:
        page.goto(story)
        page.get_by_label("Light or dark").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.goto(f"{story}messages")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_pages_work_without_scripts(browser: Browser, story: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.goto(f"{story}failures")
        page.get_by_role("link", name=re.compile("answered 422")).click()
        page.get_by_role("link", name="Redrive the group…").click()
        expect(page.get_by_role("button", name=re.compile("Redrive .* messages"))).to_be_visible()
    finally:
        context.close()
