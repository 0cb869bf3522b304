"""The matrix is reported as terminal table, HTML page, Markdown and JSON; hostile text is sanitized in each.

The table has verdicts, reasons and totals; the page links verdicts to their evidence.
"""

import pytest

from diagnostics.matrix import report
from diagnostics.matrix.results import ResultsGrid
from diagnostics.matrix.verdicts import Outcome
from tests.matrix.questions import answer_event, load_questions

HOSTILE = "<script>alert(1)</script> \x1b[31m \n::error:: token hf_abcdefghijklmnopqrstuvwxyz0123456789 | `x`"


@pytest.fixture
def grid(tmp_path, kit):
    """Return a grid with passes, an expected and a hostile failure, a timeout, and blocked layers."""
    expected = '[CELL.expect.scheduler]\noutcome = "fail"\ncodes = ["SCH001"]\nreason = "known"\n'
    text = (
        kit.HEAD
        + kit.cell_table("1.0", "1.0", kit.CELL_LAYERS, more=expected)
        + kit.cell_table("2.0", "1.0", kit.CELL_LAYERS)
    )
    _, questions = load_questions(tmp_path / "matrix.toml", text)
    by_key = {(question.cell.vllm, question.layer.name): question for question in questions}
    events = []

    def add(vllm, layer, outcome, summary="fine", **more):
        events.append(answer_event(by_key[vllm, layer], outcome, summary, **more))

    for layer in kit.CELL_LAYERS[:4]:
        add("1.0", layer, Outcome.PASS)
    add("1.0", "scheduler", Outcome.FAIL, "SCH001 at a.py:1", codes=("SCH001",))
    add("2.0", "resolve", Outcome.TIMEOUT, "no answer within 1 s")
    hostile = {"details": (HOSTILE,), "excerpt": HOSTILE, "ran_with": ((HOSTILE, HOSTILE),)}
    hostile["log"] = "logs/hf_abcdefghijklmnopqrstuvwxyz0123456789/a.log"
    add("2.0", "install", Outcome.FAIL, HOSTILE, **hostile)
    return ResultsGrid(questions, events)


def test_table_has_verdicts_with_reasons_and_totals(grid):
    """The table has an expected failure with its reason, and the totals; its rows fit a narrow screen."""
    text = report.terminal_table(grid, colour=False)
    assert "● ✘ expected fail" in text
    assert (
        "4 of 10 results passed (40 %); 1 FAIL, 1 expected fail, 3 not run, 1 timeout; 3 not as expected"
        in text
    )
    assert "vllm-1.0+trl-1.0 scheduler: expected fail: SCH001 at a.py:1 (expected: known)" in text
    assert "\x1b" not in text
    narrow = report.terminal_table(grid, colour=False, width=60)
    assert max(len(line) for line in narrow.splitlines() if "●" in line and ":" not in line) <= 60


def test_reports_are_sanitized(grid, tmp_path):
    """Secrets and control characters of untrusted logs are removed or escaped, and markup in files other than JSON."""
    page = report.write_reports(tmp_path / "report", grid)
    texts = {path.name: path.read_text() for path in page.parent.iterdir()}
    assert set(texts) == {"index.html", "report.md", "report.json"}
    printed = report.terminal_table(grid, colour=False)
    assert "alert(1)" in printed
    assert "\x1b" not in printed
    assert "hf_abcdefghij" not in printed
    assert not any(line.lstrip().startswith("::") for line in printed.splitlines())
    for name, text in texts.items():
        assert "\x1b" not in text, name
        assert "hf_abcdefghij" not in text, name
        if name != "report.json":
            assert "<script>" not in text, name


def test_page_links_verdicts_to_evidence(grid, tmp_path):
    """A verdict has a link to its expectation and command; the page loads nothing from other hosts."""
    page = report.write_reports(tmp_path, grid).read_text()
    assert 'href="#vllm-1.0+trl-1.0.scheduler"' in page
    assert 'id="vllm-1.0+trl-1.0.scheduler"' in page
    assert "<b>Expected:</b> known" in page
    assert "nox -s matrix -- --cells vllm-1.0+trl-1.0 --layers scheduler --fresh" in page
    assert "http" not in page.replace("http-equiv", "")
