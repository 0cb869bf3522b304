"""Table, page, Markdown, JUnit, JSON and compat.json: nothing not run looks passed, nothing hostile gets through."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from diagnostics.compat_table import Compat
from diagnostics.matrix import report
from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.plan.verdicts import Answer, Grid, Outcome
from diagnostics.matrix.records.events import Event
from diagnostics.matrix.report import html, junit, markdown, table, words
from diagnostics.matrix.report import json as as_json
from diagnostics.matrix.report.changes import changes
from diagnostics.matrix.report.publish import compat, verdict
from diagnostics.matrix.run.board import Question, board
from tests import hostile_pages

HOSTILE = "<script>alert(1)</script> {{ 7*7 }} | `x` [a](b) \"'&"


@pytest.fixture
def make(tmp_path, kit):
    """Makes a board of one cell from {layer: outcome or answer}; layers that aren't named weren't run."""

    def _make(outcomes, layers=None, more="", vllm="1.0"):
        layers = layers or tuple(BY_NAME)
        (tmp_path / "matrix.toml").write_text(kit.head + kit.cell(vllm, "1.0", layers, more=more))
        cell = load(tmp_path / "matrix.toml").cells[0]
        questions = [
            Question(cell, BY_NAME[layer], (("layer", layer), ("python", "3.11"))) for layer in cell.layers
        ]
        events = []
        for item in questions:
            found = outcomes.get(item.layer.name)
            if found is None:
                continue
            answer = (
                found
                if isinstance(found, Answer)
                else Answer(Outcome(found), f"{item.layer.name} seen", item.layer.evidence)
            )
            events.append(
                Event(
                    item.identity,
                    cell.id,
                    item.layer.name,
                    answer,
                    item.inputs,
                    item.command,
                    "2026-01-02T03:04:05Z",
                    1.0,
                    "r",
                )
            )
        return board(questions, events)

    return _make


class Page(HTMLParser):
    """Collects what a browser would fetch or run, ids, links and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.ids, self.links = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Collects."""
        self.tags.append(tag)
        for key, value in attrs:
            self.attributes.append((tag, key, value))
            if key == "id":
                self.ids.append(value)
            if key == "href":
                self.links.append(value)


def test_the_page_fetches_and_runs_nothing(make):
    """One script, our own, named by its hash; no outside asset, no address but links; hostile text stays text."""
    hostile = Answer(
        Outcome.FAIL,
        HOSTILE,
        BY_NAME["import"].evidence,
        codes=(HOSTILE,),
        details=(HOSTILE,),
        excerpt=HOSTILE,
        grids=(Grid(HOSTILE, (HOSTILE, "b"), ((HOSTILE, HOSTILE),)),),
        ran_with=((HOSTILE, HOSTILE),),
        log=HOSTILE,
    )
    text = html.render(
        make({"resolve": "pass", "install": "pass", "import": hostile}), "today", published=Compat()
    )
    page = Page(text)
    script = (html.PAGE / "page.js").read_text()
    named = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert page.tags.count("script") == 1
    assert f"<script>{script}</script>" in text
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{named}'" in text
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not [
        item
        for item in page.attributes
        if item[1] in {"src", "srcset", "action", "data"} or item[1].startswith("on")
    ]
    assert "url(" not in text
    assert "@import" not in text
    assert all(link.startswith("#") for link in page.links)
    assert "{{ 7*7 }}" in text
    assert "49" not in re.findall(r"\b49\b", text.replace(script, ""))


def test_no_text_at_random_gets_out_of_the_page(make):
    """No element or attribute that a page of letters lacks, and no link but within it; other words each time."""

    def page(words):
        answer = Answer(
            Outcome.FAIL, words, BY_NAME["import"].evidence, codes=(words,), details=(words, words), excerpt=3 * words,
            grids=(Grid(words, (words, "b"), ((words, words),)),), ran_with=((words, words),), log=words,
        )  # fmt: skip
        made = make(
            {"resolve": "pass", "install": "pass", "import": answer}, ("resolve", "install", "import")
        )
        return hostile_pages.elements(html.render(made, words, published=Compat()))

    numbers = random.Random(0)
    plain, _ = page("letters alone")
    for _ in range(12):
        words = hostile_pages.words(numbers)
        made, links = page(words)
        assert made <= plain, (words, made - plain)
        assert all(link.startswith("#") for link in links)


def test_every_verdict_opens(make):
    """Each verdict of the table links to a panel of its own, ids are unique, and each names its command."""
    page_text = html.render(make({"resolve": "pass", "contract": "fail", "install": "infra_error"}), "today")
    page = Page(page_text)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert (
        page_text.count("nox -s matrix -- --cells &#39;vllm-1.0+trl-1.0&#39; --layers contract --fresh") == 1
    )


def test_only_https_links_are_links(make):
    """A link from matrix.toml is followed only if it is one."""
    expect = '[CELL.expect.contract]\noutcome = "fail"\nreason = "r"\nlink = "{}"\n'
    for link, shown in (("javascript:alert(1)", False), ("https://example.org/1", True)):
        page = Page(html.render(make({"contract": "fail"}, more=expect.format(link)), "today"))
        assert (link in page.links) is shown


def test_evidence_is_told_by_shape_and_verdict_by_word(make):
    """Run, read in source, not run: three shapes; and every verdict has a symbol and a word."""
    text = table.render(make({"resolve": "pass", "contract": "fail", "install": "pass"}), colour=False)
    assert "○ ✔ pass" in text
    assert "● ✔ pass" in text
    assert "○ ✘ FAIL" in text
    assert "◌ - not run" in text
    assert set(words.WORDS) == set(words.SYMBOLS) == set(words.STYLES)


def test_what_was_not_run_counts_nowhere_as_passed(make):
    """One pass of all questions is one, in words, JSON and compat.json alike; the rest counts as not run."""
    one, asked = make({"resolve": "pass"}), len(BY_NAME)
    share = f"{100 / asked:.0f} %"
    assert words.totals(one).startswith(f"1 of {asked} questions passed ({share}); {asked - 1} not run")
    document = json.loads(as_json.render(one, "today"))
    assert document["counts"] == {"pass": 1, "not_run": asked - 1}
    layers = json.loads(compat(one, "today"))["cells"][0]["layers"]
    assert [name for name, item in layers.items() if item["verdict"] == "pass"] == ["resolve"]
    assert {item["evidence"] for name, item in layers.items() if name != "resolve"} == {"declared"}


@pytest.mark.parametrize(
    ("outcomes", "layers", "expected"),
    [
        ({}, None, "unknown"),
        ({"resolve": "pass"}, None, "partial"),
        ({"resolve": "pass", "contract": "pass"}, ("resolve", "contract"), "partial"),  # read, never run
        ({"resolve": "pass", "install": "pass"}, ("resolve", "install"), "pass"),
        ({"resolve": "pass", "install": "fail"}, ("resolve", "install"), "fail"),
        ({"resolve": "pass", "install": "infra_error"}, ("resolve", "install"), "partial"),
        ({"resolve": "unresolvable"}, None, "unresolvable"),
        (
            {"resolve": "pass", "install": "pass", "import": "pass", "scheduler": "fail"},
            ("resolve", "install", "import", "scheduler"),
            "partial",
        ),
    ],
)
def test_a_cell_s_verdict(make, outcomes, layers, expected):
    """What a cell's layers come to: pass only if all was asked, all passed and something was run."""
    assert verdict(make(outcomes, layers).rows[0]) == expected


def test_a_question_that_does_not_apply_does_not_spoil_a_cell(make):
    """No V0 scheduler, as expected: the rest decides. Unexpected, or behind a failure, it stays open."""
    layers = ("resolve", "install", "import", "scheduler")
    rest = {"resolve": "pass", "install": "pass", "import": "pass"}
    known = '[CELL.expect.scheduler]\noutcome = "not_run"\nreason = "gone"\n'
    assert verdict(make({**rest, "scheduler": "not_run"}, layers, known).rows[0]) == "pass"
    assert verdict(make({**rest, "scheduler": "not_run"}, layers).rows[0]) == "partial"
    assert verdict(make(rest, layers, known).rows[0]) == "partial"


def test_markdown_keeps_its_table(make):
    """Every row has as many columns as the head; hostile text is escaped."""
    fail = Answer(Outcome.FAIL, HOSTILE, BY_NAME["contract"].evidence)
    text = markdown.render(make({"resolve": "pass", "contract": fail}), "today")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {len(BY_NAME) + 2}
    assert "<script>" not in text


def test_the_json_report_holds_the_evidence(make):
    """What the answer rests on, how to ask again, when it was asked."""
    document = json.loads(as_json.render(make({"resolve": "pass"}), "today"))
    layer = document["cells"][0]["layers"]["resolve"]
    assert document["schema"] == "grpo-doctor.matrix-report.v1"
    assert (layer["inputs"], layer["started"], layer["evidence"]) == (
        {"layer": "resolve", "python": "3.11"},
        "2026-01-02T03:04:05Z",
        "static",
    )
    assert layer["command"].endswith("--layers resolve --fresh")


def test_a_blocked_layer_names_its_obstacle(make):
    """Not run, because; and the exit code knows whether that was expected."""
    item = make({"install": "fail"}).rows[0].square("import")
    assert (item.judged.verdict.value, item.summary) == ("not_run", "install: fail")


def test_many_layers_make_several_tables(make):
    """Each fits; together they have every layer once, and every row each time."""
    text = table.render(make({"resolve": "pass"}), colour=False)
    heads = " ".join(line for line in text.splitlines() if line.lstrip().startswith("cell"))
    assert all(heads.split().count(name) == 1 for name in ("resolve", "logprobs", "doctor"))
    assert text.count("vllm-1.0") == heads.split().count("cell") > 1


def test_a_narrow_terminal_still_shows_every_word(make):
    """At 80 columns nothing is cut off: the table wraps."""
    text = table.render(
        make({"resolve": "pass"}, layers=("resolve", "contract", "install", "import", "scheduler")),
        colour=False,
        width=80,
    )
    assert all(len(line) <= 80 for line in text.splitlines() if "✔" in line)
    assert "…" not in text


def test_an_answer_to_another_question_is_said_to_be_stale(make):
    """If inputs changed since, the answer no longer counts, and the reader learns which inputs."""
    now = make({"resolve": "pass"})
    square = now.rows[0].square("resolve")
    older = Event(
        "another", square.question.cell.id, "resolve", square.event.answer, (("layer", "resolve"), ("python", "3.10")),
        "…", "2025-12-31T00:00:00Z", 1.0, "r",
    )  # fmt: skip
    found = board([square.question], [older]).rows[0].square("resolve")
    assert (found.event, found.judged.incomplete) == (None, True)
    assert found.summary == "answered on 2025-12-31 (pass), but since then changed: python"


def test_the_live_table_fills_in(make):
    """While a run goes on, what has no answer waits, and what is being asked is marked; no word says not run."""
    import io

    from rich.console import Console

    now = make({"resolve": "pass"}, layers=("resolve", "contract", "install"))
    stream = io.StringIO()
    asking = now.rows[0].square("contract").question
    Console(file=stream, width=100).print(table.table(now, asking, live=True))
    text = stream.getvalue()
    assert ("✔ pass" in text, "… asking" in text, "· waiting" in text, "not run" in text) == (
        True,
        True,
        True,
        False,
    )


def test_junit_passes_nothing_that_did_not_pass(make):
    """A pass has no mark; what was not run or failed as expected is skipped; surprises fail, faults are errors."""
    known = '[CELL.expect.contract]\noutcome = "fail"\nreason = "gone"\n'
    hostile = Answer(Outcome.FAIL, HOSTILE + "\x1b[31m", BY_NAME["import"].evidence, excerpt="\x00")
    outcomes = {"resolve": "pass", "contract": "fail", "install": "pass", "import": hostile}
    layers = ("resolve", "contract", "install", "import", "scheduler")
    root = ET.fromstring(junit.render(make(outcomes, layers, known), "today"))
    marks = {case.get("name"): [mark.tag for mark in case] for case in root.iter("testcase")}
    assert marks == {
        "resolve": [],
        "contract": ["skipped"],
        "install": [],
        "import": ["failure"],
        "scheduler": ["skipped"],
    }
    assert {kind: root.get(kind) for kind in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "1", "errors": "0", "skipped": "2",
    }  # fmt: skip
    fault = ET.fromstring(junit.render(make({"resolve": "infra_error"}, ("resolve",)), "today"))
    assert [mark.tag for mark in fault.iter("testcase").__next__()] == ["error"]


def test_changes_are_those_of_the_last_run(make):
    """Another outcome or other codes; the same again is none, and neither is what the last run did not ask."""
    squares = make({"resolve": "pass", "contract": "fail", "install": "pass"}).squares
    first = [square.event for square in squares if square.event]
    again = [replace(event, run="s", started="2026-01-03T00:00:00Z") for event in first[:2]]
    assert changes(first).found == ()
    assert changes([*first, *again]).found == ()
    other = replace(again[1], answer=replace(again[1].answer, codes=("CMP001",)))
    (found,) = changes([*first, again[0], other]).found
    assert (found.layer, found.words) == (
        "contract",
        "was fail on 2026-01-02, is fail CMP001 (with the same inputs)",
    )
    (new,) = changes([*first[:2], *again, replace(first[2], run="s")]).found
    assert (new.layer, new.words) == ("install", "first answer: pass")
    timeout = replace(again[1], answer=replace(again[1].answer, outcome=Outcome.TIMEOUT))
    assert changes([*first, again[0], timeout]).found == ()


def test_what_is_written_acts_on_nothing_and_gives_nobody_away(make, tmp_path):
    """A store's texts are upstream's words: CI shows the Markdown and keeps the rest, and people paste both."""
    secret, user = "hf_" + "aB3dE5gH7jK9mN1pQ4rS6tU8vW0x", "qzoltan"
    acting = "\x1b]52;c;x\x07\x9b31m\u202e\n::error::x\n##vso[a]b @someone #3 <img src=x>"
    text = f"{acting} https://github.com/a/b/issues/1 {secret} /home/{user}/x.py"
    answer = Answer(
        Outcome.FAIL,
        text,
        BY_NAME["import"].evidence,
        signs=(text,),
        details=(text,),
        excerpt=text,
        grids=(Grid(text, (text, "b"), ((text, text),)),),
        ran_with=((text, text),),
    )
    report.write(tmp_path / "report", make({"resolve": "pass", "install": "pass", "import": answer}))
    written = {path.name: path.read_text() for path in (tmp_path / "report").iterdir()}
    assert set(written) == {"index.html", "report.md", "junit.xml", "report.json"}
    for told in written.values():
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]|##vso", told)
        assert secret not in told
        assert user not in told
    json.loads(written["report.json"])
    ET.fromstring(written["junit.xml"])
    assert not re.search(r"@someone|#3|(?<!\\)<img|https://|^::", written["report.md"], re.MULTILINE)


def test_a_board_that_does_not_fit_is_told_on_one_screen(make):
    """The figures first, then what is not as expected, and that there is more; nothing acts, nothing is wider."""
    failing = {
        layer: Answer(Outcome.FAIL, f"{HOSTILE} \x1b[2J" * 9, BY_NAME[layer].evidence) for layer in BY_NAME
    }
    made = make(failing)
    wrong = sum(not square.judged.expected for square in made.squares)
    lines = table.short(made, 80, 24).rstrip("\n").split("\n")
    assert len(lines) < 24
    assert all(len(line) <= 80 + len("\\u001b") for line in lines)
    assert " ".join(lines).startswith(f"matrix: {words.totals(made)}"[:70])
    assert "\x1b" not in "".join(lines)
    (left,) = [line for line in lines if line.endswith("more that are not as expected")]
    named = sum(line.startswith("vllm-1.0+trl-1.0 ") for line in lines)
    assert 0 < named == wrong - int(left.split()[1])
    assert any("--only-failed" in line for line in lines)
    assert lines[-1] == "--verbose shows the table"


def test_a_board_as_expected_asks_for_nothing(make):
    """There is nothing to do."""
    told = table.short(make(dict.fromkeys(BY_NAME, "pass")), 80, 24)
    assert "not as expected" in told
    assert "0 not as expected" in " ".join(told.split())
    assert "--only-failed" not in told
