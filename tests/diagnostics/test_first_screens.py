"""First screens of hang, audit, the fix plan, the matrix and the program itself: all on 24 lines by 80 columns."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from diagnostics import __main__ as program
from diagnostics import usage
from diagnostics.audit import command, document
from diagnostics.audit.model import FAULT, NOT_DECIDED, Audit, Estimate, Fact, ProbeAnswer
from diagnostics.hang.diagnosis import diagnose
from diagnostics.hang.known_issues import with_issue
from diagnostics.hang.parsers.files import read_files
from diagnostics.hang.report import build_report, document_of
from diagnostics.output import terminal as output_terminal
from diagnostics.output.audits import terminal as audit_terminal
from tests.diagnostics.audit.test_audit_document import ALONE, HOT, LATER, RIGHT, audit
from tests.documents import ROOT
from tests.screen import COLUMNS, ROWS, plain, show

SEEN = sorted((ROOT / "examples" / "hangs").glob("*.json")) + sorted(
    (Path(__file__).parent / "hang" / "snapshots").glob("*-0.json")
)
CUT = ProbeAnswer(
    "sampling/top_p", FAULT, "P5", code="NUM002", values={"value": 0.9, "expected": 1.0},
    estimates=(Estimate("top_p", 0.9, 0.89, 0.91, 1.0),),
)  # fmt: skip
OPEN = ProbeAnswer("weights", NOT_DECIDED, "P1", wanted=(Fact("want_server"),))


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def size(monkeypatch):
    """Of that terminal."""
    monkeypatch.setenv("LINES", str(ROWS))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def hang_shown(path, **how):
    """What `hang --from` shows of a job, and its document."""
    diagnosis = with_issue(diagnose(read_files([str(path)])))
    stream = Terminal()
    output_terminal.render(build_report([diagnosis]), stream, **how)
    return plain(stream.getvalue()).split("\n"), document_of(diagnosis)


def audit_shown(*answers, **how):
    """What `audit` shows of these answers."""
    made, stream = document.document(audit(*answers)), Terminal()
    audit_terminal.render(made, stream, document.findings(made), **how)
    return plain(stream.getvalue()).split("\n")


@pytest.mark.parametrize("path", SEEN, ids=lambda path: path.stem)
def test_a_hang_is_one_screen(path):
    """The verdict, its sentence, the fix, who is blocked where."""
    lines, made = hang_shown(path)
    assert all(len(line) <= COLUMNS for line in lines)
    text = " ".join(" ".join(lines).split())
    assert text.find(made["sentence"]) > 0
    assert f"explain {made['code']}" in text
    assert lines[-2].endswith("--verbose shows everything")


def test_verbose_shows_everything():
    lines, made = hang_shown(SEEN[0], verbose=True)
    text = " ".join(" ".join(lines).split())
    for line in (*made["evidence"], *made["excluded"]):
        assert " ".join(line.split()) in text


@pytest.mark.parametrize(
    "answers", [(RIGHT, ALONE), (RIGHT, HOT, LATER), (CUT, OPEN), (CUT,) * 9 + (OPEN,) * 9]
)
def test_an_audit_is_one_screen(answers):
    """The verdict, each fault in five lines or in one, and what could not be told."""
    lines = audit_shown(*answers)
    assert len(lines) <= ROWS
    assert all(len(line) <= COLUMNS for line in lines)
    assert lines[0].startswith("audit: ")
    assert sum(line.startswith("error   ") for line in lines) == sum(one.outcome == FAULT for one in answers)
    assert "--verbose shows everything" in lines[-2]


def test_an_audit_says_what_to_do_first_and_what_would_decide():
    """Of the known fault its mitigation, of what is open the one number or file."""
    text = " ".join(" ".join(audit_shown(CUT, OPEN)).split())
    assert "audit: the engine samples within top_p 0.9; the trainer computes with 1" in text
    assert "* neutral_sampling (shown by a run):" in text
    assert "to decide it: audit --server URL --checkpoint DIR" in text
    assert "1 fault, 1 not decided" in text


def test_many_open_answers_are_counted():
    """None of them is lost without a word."""
    assert "8 more could not be told" in " ".join(audit_shown(*(CUT,) * 9, *(OPEN,) * 9))


def test_a_pipe_gets_whole_lines(capsys):
    """And every fault in full: a program that looks for a word finds it."""
    command.write(Audit("live", {}, (CUT,) * 9, 0, 0, 1.0), "terminal")
    assert capsys.readouterr().out.count("how it is known") == 9


def test_who_asks_for_nothing_is_asked_what_they_have(capsys):
    """A line each, of commands that are taken; wrong usage all the same."""
    assert program.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) < ROWS
    for _, line in usage._SITUATIONS:
        assert f"{line}\n" in said.err
        words = line.split()
        if words[0] not in program.programs.PROGRAMS:
            assert program._parser(words).parse_args(words).command
    assert all(len(line) <= COLUMNS for line in usage.situations("python -m diagnostics").splitlines())


def test_the_help_is_one_screen(monkeypatch, capsys):
    """A line each command, whatever its name's length."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    with pytest.raises(SystemExit, match="0"):
        program.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < ROWS
    commands = [*program.COMMANDS, *program.programs.PROGRAMS]
    assert [line.split()[0] for line in lines if line.startswith("    ")] == commands


def test_a_fix_plan_is_one_screen():
    """Its steps with their commands whole; why each stands is there on demand."""
    line = "doctor --prefix examples/environments/mixed --fix-plan --select CMP9"
    shown = show(["python", "-m", "diagnostics", *line.split()], ROOT)
    assert shown.wide == []
    assert len(shown.lines) < ROWS
    assert shown.lines[0].startswith("fix plan: ")
    text = "\n".join(shown.lines).replace("\\\n", "")
    assert "$ uv pip install --python examples/environments/mixed vllm==0.11.0 trl==0.26.2" in " ".join(
        text.split()
    )
    assert "why: " not in text
    whole = show(["python", "-m", "diagnostics", *line.split(), "--verbose"], ROOT)
    assert "why: " in "\n".join(whole.lines)
    assert len(whole.lines) > len(shown.lines)


def test_what_is_being_asked_is_seen_whatever_the_table_s_length(tmp_path):
    """The status stands above the table, of which a terminal shows no more than it has lines."""
    from diagnostics.matrix.ask.registry import load
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.records.store import Store
    from diagnostics.matrix.report.progress import Live
    from diagnostics.matrix.run.board import board, question

    workplace = Workplace(load(ROOT / "matrix.toml"), Store(tmp_path))
    asked = [question(workplace, cell, layer) for cell in workplace.matrix.cells for layer in cell.layers[:3]]
    live = Live(Terminal())
    live.started(asked[0], board(asked, {}))
    first, table = live.__rich__().renderables
    assert f"{asked[0].cell.id} {asked[0].layer.name}: asking" in first.plain
    assert table.row_count > ROWS - 6
