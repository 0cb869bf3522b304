"""The documentation site, which `nox -s docs` builds, works in headless Chromium without a server.

Its pages are accessible on phones and desktops; navigation and search work by keyboard.
"""

import os
from pathlib import Path

import pytest

from tests import browser as chromium

SITE = os.environ.get("GRPO_DOCTOR_SITE", "")
pytestmark = [
    chromium.needs_chromium,
    pytest.mark.skipif(not SITE, reason="GRPO_DOCTOR_SITE names no built site: nox -s docs"),
]
# One page of each kind.
PAGES = (
    "README", "search", "docs/codes", "docs/codes/SCH001", "docs/reference/train", "docs/how-to/dead-run",
    "docs/results/README", "docs/matrix",
)  # fmt: skip


def address(page):
    """Return the URL of a page of the site."""
    return Path(SITE, f"{page}.html").resolve().as_uri()


@pytest.fixture(scope="module")
def browser():
    """Start one browser for all tests."""
    with chromium.start_browser() as started:
        yield started


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1300, "light")])
def test_pages_are_accessible_and_do_not_scroll_sideways(browser, page, width, scheme):
    with chromium.open_page(browser, address(page), width, scheme) as opened:
        assert chromium.serious_accessibility_findings(opened) == []
        assert opened.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("page", ["docs/codes/SCH001", "docs/matrix"])
@pytest.mark.parametrize("width", [360, 1300])
def test_tab_reaches_every_control_with_visible_focus(browser, page, width):
    """Tab reaches every visible control, also in the side tree and in scrolling boxes, and its focus is visible."""
    with chromium.open_page(browser, address(page), width) as opened:
        assert chromium.unreached_by_tab(opened) == ([], [])


def test_collapsed_navigation_opens_by_keyboard(browser):
    with chromium.open_page(browser, address("docs/matrix"), 360) as opened:
        tree = opened.locator(".sidebar-tree a").first
        assert not tree.is_visible()
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.className").startswith("skip-to-content"):
            opened.keyboard.press("Tab")
        opened.keyboard.press("Space")
        tree.wait_for()
        tree.focus()
        assert opened.evaluate("document.activeElement.closest('.sidebar-tree') !== null")


def test_search_works_without_a_server(browser):
    """The search finds a code with the keyboard alone, from the field on the first page to the result."""
    with chromium.open_page(browser, address("README"), 1300) as opened:
        opened.locator("input[name=q]").first.focus()
        opened.keyboard.type("prefill_seq_groups")
        opened.keyboard.press("Enter")
        opened.wait_for_url("**/search.html?q=prefill_seq_groups*")
        link = opened.locator("#search-results ul.search a", has_text="SCH001")
        link.first.focus()
        opened.keyboard.press("Enter")
        opened.wait_for_url("**/docs/codes/SCH001.html*")
        assert opened.locator("h1").inner_text().startswith("SCH001: ")
