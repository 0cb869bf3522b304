"""Open pages in headless Chromium; check requests, console messages, accessibility (by axe) and Tab navigation."""

import os
import shutil
from contextlib import contextmanager

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: install chromium")
# Number the elements that Tab should reach; return the beginning of each.
_STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
  .filter((one) => one.tabIndex >= 0 && !one.disabled && !one.closest("[inert]") && one.checkVisibility(
    {contentVisibilityAuto: true, visibilityProperty: true}) && one.getClientRects().length)
  .map((one, place) => { one.dataset.stop = place; return one.outerHTML.slice(0, 90); })"""
# Return the number and beginning of the focused element, and whether its focus is visible. A theme may scroll smoothly:
# only the final position counts.
_FOCUSED = """() => {
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
        # Chromium refuses to run as root with a sandbox.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield chromium
        chromium.close()


@contextmanager
def open_page(browser, address, width=1100, scheme="light", **settings):
    """Open a page at this width and yield it.

    The test fails if the page logs to the console, has an uncaught error, or requests other than files and data.
    """
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
    """Return (rule, element, summary) of axe's serious and critical findings on a page; skip the test without axe."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    result = axe.run(page, options={"resultTypes": ["violations"], "preload": False})
    return [
        (violation["id"], node["html"][:120], node["failureSummary"][:200])
        for violation in result.response["violations"]
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]


def unreached_by_tab(page):
    """Walk a page with Tab; return the elements that were not reached, and those whose focus was not visible.

    The walk ends when the focus leaves the page or returns to the first stop. If it does neither, the test fails.
    """
    stops = page.evaluate(_STOPS)
    before = page.evaluate(_FOCUSED)  # set if the focus is already inside an opened panel
    reached, unseen = [before[0]] if before else [], []
    for _ in range(len(stops) + 3):
        page.keyboard.press("Tab")
        focused = page.evaluate(_FOCUSED)
        if focused is None or (reached and focused[0] == reached[0]):
            break
        reached.append(focused[0])
        if not focused[1]:
            unseen.append(focused[2])
    else:
        pytest.fail(f"the focus does not leave {page.url}: at {focused}")
    return [text for place, text in enumerate(stops) if place not in reached], unseen
