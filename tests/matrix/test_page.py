"""The page in a real browser: filter, keys, copying, nothing asked of the outside, no error of its script."""

from __future__ import annotations

import os
import shutil

import pytest

from diagnostics.facts.compat import Compat
from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.plan.verdicts import Answer, Outcome
from diagnostics.matrix.records.events import Event
from diagnostics.matrix.report import html
from diagnostics.matrix.report.changes import changes
from diagnostics.matrix.run.board import Question, board

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: install chromium")
LAYERS = ("resolve", "contract")


@pytest.fixture(scope="module")
def browser():
    """One headless browser."""
    with playwright.sync_playwright() as started:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to run as root with one
        chromium = started.chromium.launch(executable_path=BROWSER, args=sandbox)
        yield chromium
        chromium.close()


def event(item, outcome, run, codes=()):
    """An answer of one run."""
    answer = Answer(outcome, f"{item.cell.id} {item.layer.name} seen", item.layer.evidence, codes=codes)
    when = f"2026-01-0{run}T00:00:00Z"
    return Event(
        item.identity,
        item.cell.id,
        item.layer.name,
        answer,
        item.inputs,
        item.command,
        when,
        1.0,
        f"run-{run}",
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory, kit):
    """A page of 14 pairs, two of which fail, one of them since the last run."""
    folder = tmp_path_factory.mktemp("page")
    text = kit.head + "".join(kit.cell(f"1.{minor}", "0.9", LAYERS) for minor in range(14))
    (folder / "matrix.toml").write_text(text)
    cells = load(folder / "matrix.toml").cells
    asked = [Question(cell, BY_NAME[layer], (("layer", layer),)) for cell in cells for layer in LAYERS]
    asked = [Question(item.cell, item.layer, (*item.inputs, ("vllm", item.cell.vllm))) for item in asked]
    events = [event(item, Outcome.PASS, 1) for item in asked]
    events[3] = event(asked[3], Outcome.FAIL, 1, ("CMP001",))
    later = Question(asked[5].cell, asked[5].layer, (*asked[5].inputs, ("code", "new")))
    asked[5] = later
    events.append(event(later, Outcome.FAIL, 2))
    page = folder / "index.html"
    page.write_text(html.render(board(asked, events), "today", changes(events), Compat()))
    return page.as_uri()


@pytest.fixture
def page(browser, address):
    """The page, opened; it must have asked for nothing else and raised nothing by the end of the test."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened, asked, errors = context.new_page(), [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text))
    opened.goto(address)
    yield opened
    assert ([item for item in asked if item.split("#")[0] != address], errors) == ([], [])
    context.close()


def test_the_filter_leaves_what_fits(page):
    """By words, by verdict, by what is new; the count is said, and clearing brings all back."""
    rows = page.locator("tr[data-cell]:visible")
    assert rows.count() == 14
    page.fill("#search", "vllm-1.3+ resolve")
    assert (rows.count(), page.inner_text("#found")) == (1, "1 of 28 verdicts in 1 cells")
    page.click("#clear")
    page.select_option("#verdict", "fail")
    assert page.inner_text("#found") == "2 of 28 verdicts in 2 cells"
    page.check("#changed")
    assert rows.count() == 1
    assert page.get_attribute("tr[data-cell]:visible", "data-cell") == "vllm-1.2+trl-0.9"
    page.click("#clear")
    page.fill("#search", "cmp001")
    assert page.get_attribute("tr[data-cell]:visible", "data-cell") == "vllm-1.1+trl-0.9"
    page.click("#clear")
    assert rows.count() == 14


def test_a_verdict_opens_and_its_command_is_copied(page):
    """By the mouse: the panel shows the evidence, and the clipboard then holds the command, whole."""
    page.click("tr[data-cell='vllm-1.2+trl-0.9'] td[data-layer=contract] a.chip")
    panel = page.locator("article.panel:visible")
    assert panel.count() == 1
    assert "was pass on 2026-01-01, is fail (other inputs: code)" in panel.inner_text()
    panel.locator("button.copy").click()
    panel.get_by_text("Copied").wait_for()
    expected = "nox -s matrix -- --cells 'vllm-1.2+trl-0.9' --layers contract --fresh"
    assert page.evaluate("navigator.clipboard.readText()") == expected
    page.click("article.panel:visible .close")
    assert page.locator("article.panel:visible").count() == 0


def test_the_keyboard_is_enough(page):
    """Search, walk, open, copy, go on to the next, close: and the focus is where it was left."""
    page.keyboard.press("/")
    page.keyboard.type("vllm-1.1")
    assert page.locator("tr[data-cell]:visible").count() == 5  # 1.1, 1.10 to 1.13
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowDown")
    focus = "document.activeElement.getAttribute('href')"
    assert page.evaluate(focus) == "#vllm-1.0_trl-0.9.resolve"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focus) == "#vllm-1.1_trl-0.9.contract"
    page.keyboard.press("Enter")
    page.locator("article.panel:visible").wait_for()
    page.keyboard.press("c")
    page.get_by_text("Copied").wait_for()
    assert "vllm-1.1+trl-0.9" in page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("j")
    page.locator("article[id='vllm-1.2_trl-0.9.resolve']").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_function(f"{focus} === '#vllm-1.2_trl-0.9.resolve'")


def test_the_map_leads_to_the_pair(page):
    """Fourteen pairs make a map, the newest first; what failed stands out in it, and a select tells of the pair."""
    assert page.locator(".map a.chip").count() == 14
    assert page.locator(".map a.chip.fail").count() == 2
    page.locator(".map a.chip.fail").first.click()
    assert page.evaluate("location.hash") == "#pair.1.2_0.9"
    told = page.locator("article.panel:visible").inner_text()
    assert "vLLM 1.2 + TRL 0.9" in told
    assert "contract: vllm-1.2+trl-0.9 contract seen" in told


def test_the_map_is_narrowed_to_what_somebody_has(page):
    """By release; what is left out is not there for the keyboard either, and the answer is said."""
    page.select_option("#my-vllm", "1.3")
    assert page.locator(".map a.chip:visible").count() == 1
    assert page.locator("#answer").inner_text() == "nothing of these ran"
    page.select_option("#my-vllm", "")
    assert page.locator(".map a.chip:visible").count() == 14


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1500, "dark")])
def test_it_fits_a_phone_and_the_dark(browser, address, width, scheme):
    """Nothing is wider than the screen, save what scrolls in a box of its own; the paper is dark where asked."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    opened = context.new_page()
    opened.goto(address)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    paper = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in paper.strip("rgb()").split(",")) > 384
    assert light is (scheme == "light")
    context.close()


def test_without_its_script_the_page_is_whole(browser, address):
    """Every verdict still opens by its link; what needs the script is not shown."""
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(address)
    assert not opened.locator("#tools").is_visible()
    opened.click("tr[data-cell='vllm-1.2+trl-0.9'] td[data-layer=contract] a.chip")
    assert opened.locator("article.panel:visible").count() == 1
    context.close()
