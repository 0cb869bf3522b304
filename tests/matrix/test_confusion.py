"""What doctor said against what was seen: nothing open is counted, nothing of this machine is held against a pair."""

from __future__ import annotations

import json

import pytest

from diagnostics.matrix.__main__ import main
from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.records.events import Event
from diagnostics.matrix.report import confusion, html, markdown
from diagnostics.matrix.report import json as as_json
from diagnostics.matrix.report.publish import verdict
from diagnostics.matrix.run.board import Question, board

LAYERS = ("resolve", "install", "import", "scheduler", "peer:vllm", "repro:CMP002", "doctor")
CPU = '[CELL.expect."peer:vllm"]\noutcome = "fail"\nreason = "no GPU"\nof_machine = true'


def said(*signs):
    """Doctor's answer."""
    facts = tuple(("said", *sign.split()) for sign in signs)
    return Answer(Outcome.PASS, "said", EvidenceLevel.EXECUTED, signs=signs, facts=facts)


def seen(outcome, *codes):
    """A layer's answer."""
    return Answer(Outcome(outcome), "saw <it>", EvidenceLevel.EXECUTED, codes=codes)


@pytest.fixture
def make(tmp_path, kit):
    """Makes a board of one cell from {layer: answer}."""

    def _make(answers, more="", *, without=False):
        head = kit.head.replace("disk_gb", 'without = ["x"]\ndisk_gb') if without else kit.head
        (tmp_path / "matrix.toml").write_text(head + kit.cell("1.0", "1.0", LAYERS, more=more))
        cell = load(tmp_path / "matrix.toml").cells[0]
        codes = {"scheduler": (("codes", "SCH001 SCH002"),), "repro:CMP002": (("codes", "CMP002"),)}
        items = [
            Question(cell, BY_NAME[name], (("layer", name), *codes.get(name, ()))) for name in cell.layers
        ]
        events = [
            Event(
                item.identity,
                cell.id,
                item.layer.name,
                answers[item.layer.name],
                item.inputs,
                "",
                "2026",
                1.0,
                "r",
            )
            for item in items
            if item.layer.name in answers
        ]
        return board(items, events)

    return _make


@pytest.mark.parametrize(
    ("signs", "imported", "kind"),
    [
        (("without error CMP902",), "fail", "said_and_seen"),
        (("without error CMP902",), "pass", "said_not_seen"),
        (("without warning SCH001", "with error CMP902"), "fail", "seen_not_said"),
        (("without info CMP901",), "pass", "neither"),
    ],
)
def test_a_pair_is_counted_by_what_doctor_said_before_it_knew(make, signs, imported, kind):
    """Only error and blocker predict a failure, and only what was said at that time."""
    found = confusion.confusion(make({"doctor": said(*signs), "import": seen(imported)}), confusion.WITHHELD)
    counts = confusion.counts(found.pairs)
    assert {name for name, count in counts.items() if count} == {kind}
    assert bool(confusion.disagreements(found)) is (kind in {"said_not_seen", "seen_not_said"})


@pytest.mark.parametrize(
    "answers",
    [
        {"doctor": said("without error CMP902")},
        {"doctor": said("without error CMP902"), "install": seen("pass")},
        {"doctor": said("without error CMP902"), "import": seen("timeout")},
        {"import": seen("fail")},
        {"doctor": seen("fail"), "import": seen("fail")},
    ],
)
def test_what_is_open_is_no_case(make, answers):
    """Without a prediction, or with nothing run to the end, there is nothing to compare: it is told as open."""
    found = confusion.confusion(make(answers), confusion.WITHHELD)
    assert (found.pairs, len(found.open)) == ((), 1)


def test_a_failure_that_is_this_machine_s_is_not_the_pair_s(make):
    """Neither for doctor nor in compat.json; unannounced, the same failure is the pair's."""
    answers = {"doctor": said(), "install": seen("pass"), "import": seen("pass"), "peer:vllm": seen("fail")}
    made = make(answers, CPU)
    (case,) = confusion.confusion(made, confusion.WITHHELD).pairs
    assert (case.observed, "without a GPU" in case.saw) == (False, True)
    assert verdict(made.rows[0]) == "partial"
    made = make(answers)
    assert confusion.confusion(made, confusion.WITHHELD).pairs[0].observed
    assert verdict(made.rows[0]) == "fail"


def test_what_the_recipe_departs_in_is_no_prediction(make):
    """Set aside and told, where the recipe leaves something out; with an environment as declared it counts."""
    answers = {"doctor": said("without error CMP904"), "import": seen("pass")}
    (case,) = confusion.confusion(make(answers), confusion.WITHHELD).pairs
    assert case.predicted
    made = make(answers, without=True)
    found = confusion.confusion(made, confusion.WITHHELD)
    assert (found.pairs[0].predicted, len(found.aside)) == (False, 1)
    assert "set aside: vllm-1.0+trl-1.0: error CMP904" in confusion.text(confusion.of(made))


def test_known_issues_are_counted_by_code_where_they_were_asked(make):
    """Made to happen, asked and not there, asked and not run: the last is no case. They are no failure of the pair."""
    answers = {
        "doctor": said("without warning SCH001", "without warning SCH002"),
        "import": seen("pass"),
        "scheduler": seen("fail", "SCH001"),
        "repro:CMP002": seen("not_run"),
    }
    made = make(answers, '[CELL.expect.scheduler]\noutcome = "fail"\ncodes = ["SCH001"]\nreason = "known"')
    found = confusion.confusion(made, confusion.WITHHELD)
    assert [(case.about, case.predicted, case.observed) for case in found.issues] == [
        ("SCH001", True, True),
        ("SCH002", True, False),
    ]
    assert not found.pairs[0].observed
    assert verdict(made.rows[0]) == "partial"
    expected = '[CELL.expect.scheduler]\noutcome = "not_run"\nreason = "it has no scheduler"'
    found = confusion.confusion(
        make({**answers, "doctor": said(), "scheduler": seen("not_run")}, expected), confusion.WITHHELD
    )
    assert ("SCH001", False, False) in [(case.about, case.predicted, case.observed) for case in found.issues]


def test_what_a_setting_decides_is_left_to_lint(make):
    """Doctor sees no settings: an issue of these that was seen is listed, and is no miss; nor is it a hit."""
    answers = {"doctor": said(), "import": seen("pass"), "repro:CMP002": seen("fail", "CMP002")}
    made = make(
        answers, '[CELL.expect."repro:CMP002"]\noutcome = "fail"\ncodes = ["CMP002"]\nreason = "known"'
    )
    found = confusion.confusion(made, confusion.WITHHELD)
    assert found.issues == ()
    assert found.by_setting == (("CMP002", "vllm-1.0+trl-1.0"),)
    assert "since a setting decides: CMP002, seen in 1" in confusion.text(confusion.of(made))


def test_every_report_has_the_table_and_its_disagreements(make):
    """Text, Markdown, JSON and page, with what came from logs made harmless; without doctor there is none."""
    made = make({"doctor": said("without error CMP902"), "import": seen("pass")})
    line = "vllm-1.0+trl-1.0, the pair: doctor: error CMP902; seen: import passed"
    assert line in confusion.text(confusion.of(made))
    found = json.loads(as_json.render(made, "now"))["doctor"]["without"]
    assert (found["pairs"]["said_not_seen"], found["disagreements"][0]["about"]) == (1, "the pair")
    assert "| pair fails: doctor says so | 0 | 1 |" in markdown.render(made, "now")
    page = html.render(make({"doctor": said(), "import": seen("fail")}), "now")
    assert "not knowing what was run in the cell" in page
    assert "saw &lt;it&gt;" in page
    nothing = make({})
    assert confusion.text(confusion.of(nothing)) == ""


def test_the_command_says_when_there_is_nothing_to_show(tmp_path, kit, capsys):
    """One line with the remedy, and the exit code of what is open."""
    (tmp_path / "matrix.toml").write_text(kit.head + kit.cell("1.0", "1.0", LAYERS))
    assert main(["confusion", "--file", str(tmp_path / "matrix.toml")]) == 3
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "none of these 1 cells: `nox -s matrix -- --profile full --layers doctor`" in shown.err


def test_a_pair_that_nobody_allows_and_that_runs_is_not_called_unresolvable(make):
    """What it declares has no solution, and its trainer is imported: neither a pass nor a failure."""
    nothing = {"resolve": seen("unresolvable"), "install": seen("pass"), "doctor": said()}
    assert verdict(make(nothing).rows[0]) == "unresolvable"
    assert verdict(make({**nothing, "import": seen("pass")}).rows[0]) == "partial"
    assert verdict(make({**nothing, "import": seen("fail")}).rows[0]) == "unresolvable"
