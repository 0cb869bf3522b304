"""Open pages in headless Chromium and check console messages, axe's accessibility findings and Tab navigation."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needed = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: install chromium")
# Elements that Tab should reach, and whether their focus is visible.
_STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
  .filter((one) => one.tabIndex >= 0 && !one.disabled && !one.closest("[inert]") && one.checkVisibility(
    {contentVisibilityAuto: true, visibilityProperty: true}) && one.getClientRects().length)
  .map((one, place) => { one.dataset.stop = place; return one.outerHTML.slice(0, 90); })"""
# A theme may scroll smoothly: only the final position counts.
_HERE = """() => {
  for (const moving of document.getAnimations()) moving.finish();
  document.activeElement.scrollIntoView({behavior: "instant", block: "nearest"});
  const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
  if (one === document.body || one === document.documentElement) return null;
  const seen = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
  const inside = box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
  return [Number(one.dataset.stop ?? -1), seen && inside, one.outerHTML.slice(0, 90)];
}"""


@contextmanager
def start_browser():
    """Start a headless Chromium and yield it; skip the test without Playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        sandbox = (
            ["--no-sandbox"] if os.geteuid() == 0 else []
        )  # Chromium refuses to run as root with a sandbox
        chromium = driver.chromium.launch(executable_path=BROWSER, args=sandbox)
        yield chromium
        chromium.close()


@contextmanager
def open_page(browser, address, width=1100, scheme="light", **settings):
    """Open a page at this width; fail if it logs to the console or requests anything but files."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce", **settings
    )
    context.set_default_timeout(300_000)
    page, requests, messages = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("console", lambda message: messages.append(message.text))
    page.goto(address)
    yield page
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert messages == []
    context.close()


def serious_accessibility_findings(page):
    """Return axe's serious and critical findings on a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    violations = axe.run(page, options={"resultTypes": ["violations"], "preload": False}).response[
        "violations"
    ]
    return [
        (violation["id"], node["html"][:120], node["failureSummary"][:200])
        for violation in violations
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]


def unreached_by_tab(page):
    """Walk a page with Tab; return the elements that were not reached, or whose focus was not visible.

    The walk ends when the focus leaves the page or returns to the first stop: it may not be trapped.
    """
    stops = page.evaluate(_STOPS)
    before = page.evaluate(_HERE)  # set if the focus is already inside an opened panel
    reached, unseen = [before[0]] if before else [], []
    for _ in range(len(stops) + 3):
        page.keyboard.press("Tab")
        focused = page.evaluate(_HERE)
        if focused is None or (reached and focused[0] == reached[0]):
            break
        reached.append(focused[0])
        if not focused[1]:
            unseen.append(focused[2])
    else:
        pytest.fail(f"the focus does not leave {page.url}: at {focused}")
    return [text for place, text in enumerate(stops) if place not in reached], unseen
