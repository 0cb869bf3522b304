"""The page in a real browser: filter, keys, copying, nothing asked of the outside, no error of its script."""

from __future__ import annotations

import pytest

from diagnostics.compat_table import Compat
from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.plan.verdicts import Answer, Outcome
from diagnostics.matrix.records.events import Event
from diagnostics.matrix.report import html
from diagnostics.matrix.report.changes import changes
from diagnostics.matrix.run.board import Question, board
from tests import browser as real

pytestmark = real.needed
LAYERS = ("resolve", "contract")


@pytest.fixture(scope="module")
def browser():
    """One headless browser."""
    with real.started() as chromium:
        yield chromium


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
    with real.opened(browser, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        yield page


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
    read = "; only read, and all that TRL takes is there: vLLM 1.3 with TRL 0.9"
    assert page.locator("#answer").inner_text() == f"nothing of these ran{read}"
    page.select_option("#my-vllm", "")
    assert page.locator(".map a.chip:visible").count() == 14


def test_each_table_is_one_stop_and_the_arrows_go_on(page):
    """However many pairs there are; the focus is where the arrows led when the tabulator comes back."""
    for table in (".map", ".board"):
        assert page.locator(f"{table} a.chip[tabindex='0']").count() == 1
    page.locator(".map a.chip[tabindex='0']").focus()
    focus = "document.activeElement.getAttribute('href')"
    assert page.evaluate(focus) == "#pair.1.13_0.9"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focus) == "#pair.1.12_0.9"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(focus) == "#pair.1.12_0.9"
    page.select_option("#my-vllm", "1.3")
    assert page.locator(".map a.chip[tabindex='0']").get_attribute("href") == "#pair.1.3_0.9"


def test_what_lies_below_an_open_panel_is_out_of_the_way(page):
    """The tabulator stays in it, the pointer beside it closes it, and the focus goes back to where it came from."""
    page.locator(".map a.chip[tabindex='0']").focus()
    page.keyboard.press("Enter")
    page.locator("article.panel:visible .close:focus").wait_for()
    assert (
        page.locator("article.panel:visible pre.command")
        .first.inner_text()
        .startswith("uv pip install vllm==1.13 ")
    )
    unreached, unseen = real.walked(page)
    assert (unreached, unseen) == ([], [])
    assert page.evaluate("document.querySelector('main').inert")
    page.mouse.click(5, 400)
    page.locator("article.panel:visible").wait_for(state="detached")
    page.wait_for_function("document.activeElement.getAttribute('href') === '#pair.1.13_0.9'")
    assert not page.evaluate("document.querySelector('main').inert")


def test_the_pairs_that_ran_are_told_with_what_ran(page, browser, kit, tmp_path):
    """Green, each with a command to copy; narrowed as the map is, and the answer names them."""
    seen = {"ran_with": {"vllm": "the community CPU build"}}
    engine = {
        "verdict": "pass",
        "evidence": "executed",
        "codes": [],
        "summary": "",
        "date": "2026-01-01",
    } | seen
    names = {"id": "vllm-1.3+trl-0.9", "vllm": "1.3", "trl": "0.9", "transformers": "5.1", "torch": None}
    ran = {**names, "verdict": "pass", "layers": {"engine": engine}}
    (tmp_path / "matrix.toml").write_text(kit.head + kit.cell("1.4", "0.9", LAYERS))
    (cell,) = load(tmp_path / "matrix.toml").cells
    asked = [Question(cell, BY_NAME[layer], (("layer", layer),)) for layer in LAYERS]
    made = tmp_path / "index.html"
    made.write_text(html.render(board(asked, []), "today", published=Compat((ran,), "today")))
    page.goto(made.as_uri())
    (row,) = page.locator(".ran tr[data-vllm]").all()
    assert "the engine sampled" in row.inner_text()
    row.locator("button.copy").click()
    page.get_by_text("Copied").wait_for()
    assert (
        page.evaluate("navigator.clipboard.readText()")
        == "uv pip install vllm==1.3 trl==0.9 transformers==5.1"
    )
    page.select_option("#my-device", "gpu")
    assert not row.is_visible()
    assert page.locator("#answer").inner_text() == "nothing of these ran"
    page.select_option("#my-device", "")
    page.select_option("#my-trl", "0.9")
    assert page.locator("#answer").inner_text() == "ran: vLLM 1.3 with TRL 0.9"
    shown = {one.inner_text().strip() for one in page.locator(".legend.states .chip").all()}
    assert {one.inner_text().strip() for one in page.locator(".map a.chip").all()} <= shown


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1500, "dark")])
def test_it_fits_a_phone_and_the_dark(browser, address, width, scheme):
    """Nothing is wider than the screen, save what scrolls in a box of its own; the paper is dark where asked."""
    with real.opened(browser, address, width, scheme) as opened:
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        paper = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(part) for part in paper.strip("rgb()").split(",")) > 384
        assert light is (scheme == "light")


def test_without_its_script_the_page_is_whole(browser, address):
    """Every verdict still opens by its link; what needs the script is not shown."""
    with real.opened(browser, address, java_script_enabled=False) as opened:
        assert not opened.locator("#tools").is_visible()
        opened.click("tr[data-cell='vllm-1.2+trl-0.9'] td[data-layer=contract] a.chip")
        assert opened.locator("article.panel:visible").count() == 1
