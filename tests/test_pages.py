"""The pages that commands write, in a real browser: the matrix's, a hang's, an audit's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import browser as real
from tests.diagnostics.test_door_pages import HANGS, audit_page, hang_of, hang_page
from tests.screen import ROOT

pytestmark = [real.needed, pytest.mark.slow]
PAGES = ("matrix", "audit", *(f"hang-{path.stem}" for path in HANGS))
# What an audit that scored ids has to draw.
DRAWN = {
    "floor": 0.002,
    "difference": [0.0001 * place for place in range(1, 200)] + [0.4] * 5,
    "position": [0.001 + 0.0001 * place for place in range(60)],
    "versions": {"checkpoint-100": 0.5, "checkpoint-200-with-a-long-name": 0.003, "step_300": 0.04},
}
# The contrast of two colours as WCAG counts it, each painted first: a browser mixes colours by itself.
CONTRAST = """([front, back]) => {
  const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    context.fillStyle = style.getPropertyValue(name);
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...context.getImageData(0, 0, 1, 1).data].map((value) => value / 255)
      .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const [dark, bright] = [light(front), light(back)].sort((one, other) => one - other);
  return (bright + 0.05) / (dark + 0.05);
}"""


@pytest.fixture(scope="module")
def browser():
    """One headless browser."""
    with real.started() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Each page as its command writes it, by name."""
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "diagnostics.matrix", "report"]
    places = ["--store", str(folder / "store"), "--report", str(folder / "report")]
    subprocess.run([*command, *places], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    made = {"matrix": folder / "report" / "index.html"}
    texts = {"audit": audit_page(pictures=DRAWN)}
    texts |= {f"hang-{path.stem}": hang_page(hang_of(path)) for path in HANGS}
    for name, text in texts.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(text, encoding="utf-8")
    return {name: path.as_uri() for name, path in made.items()}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1100, "light")])
def test_nobody_is_kept_out(browser, pages, name, width, scheme):
    """Nothing serious is found by axe, on a phone in the dark and on a screen by day; the browser has no complaint."""
    with real.opened(browser, pages[name], width, scheme) as page:
        assert real.hindrances(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(browser, pages, name):
    """At no width of a screen; of a hang's picture nothing is cut off, and no letter gets too small."""
    with real.opened(browser, pages[name]) as page:
        for width in (360, 600, 800, 1100, 1500):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for box in page.locator("figure svg.wide:visible, figure svg.tall:visible").all():
                drawn, asked = box.bounding_box(), float(box.get_attribute("width"))
                assert drawn["x"] + drawn["width"] <= width
                assert drawn["width"] >= 0.74 * asked


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [360, 1100])
def test_the_tabulator_reaches_all_there_is(browser, pages, name, width):
    """Every link, field and fold, each seen when it is reached; it is held nowhere."""
    with real.opened(browser, pages[name], width) as page:
        assert real.walked(page) == ([], [])


def test_a_fold_opens_by_its_key(browser, pages):
    """The stacks of a hang, which a page keeps folded."""
    with real.opened(browser, pages[PAGES[-1]]) as page:
        page.locator("summary").focus()
        assert not page.locator("details pre").is_visible()
        page.keyboard.press("Enter")
        assert page.locator("details pre").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read(browser, pages, scheme):
    """On the paper and on what is raised from it, and the paper's on it; axe cannot tell of symbols and pictures."""
    with real.opened(browser, pages["audit"], scheme=scheme) as page:
        letters = ("ink", "dim", "pass", "fail", "known", "none", "stop", "wait")
        pairs = [(f"--{name}", back, 4.5) for name in letters for back in ("--paper", "--raised")]
        pairs += [("--edge", back, 3.0) for back in ("--paper", "--raised")]
        contrasts = [
            (front, back, page.evaluate(CONTRAST, [front, back]), least) for front, back, least in pairs
        ]
        assert [one for one in contrasts if one[2] < one[3]] == []
        assert max(one[2] for one in contrasts) > 10  # ink on paper: the colours were found
