"""The first screen of a command on a terminal of 24 lines by 80 columns: the verdict, and what to do first."""

from __future__ import annotations

import io
import shlex
import subprocess

import pytest

from diagnostics import __main__ as command
from diagnostics.output import wording
from diagnostics.output.findings import CheckResult, Evidence, Finding, NotJudged, Report, Severity
from diagnostics.output.formats import terminal
from diagnostics.output.formats.finding import short
from diagnostics.output.paper import Paper
from diagnostics.output.remedies import Advice, Install, Remedy
from tests.golden import workbench
from tests.screen import COLUMNS, ROWS, plain, show

LONG = "Take the first of them back, then look whether the other one is still set, and if so take that back"


def finding(number=0, remedy=None, title="A title"):
    """A warning with evidence."""
    return Finding(
        f"CFG{100 + number}", title, Severity.WARNING, "supported", "static",
        evidence=(Evidence("value = 1", f"run.sh:{number}"),), remedy=remedy or Remedy((Advice(LONG),)),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def size(monkeypatch):
    """Of the terminal, for what runs in this process."""
    monkeypatch.setenv("LINES", str(ROWS))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def told(line):
    """A line without its styles."""
    return "".join(text for text, _ in line.text)


class Terminal(io.StringIO):
    """A stream that is one."""

    def isatty(self):
        """As Rich asks."""
        return True


def screen():
    """What is written on such a terminal."""
    return Paper(Terminal())


def test_what_to_do_first_is_whole_in_two_lines():
    """Within the five of a finding; the title gives way to it, and takes the line that is left over."""
    lines = [told(line) for line in short(screen(), finding(title="A title " * 12))]
    assert len(lines) == 5
    assert " ".join(" ".join(lines[2:4]).split()) == f"* {LONG}"
    assert "explain CFG100" in lines[4]
    lines = [
        told(line)
        for line in short(screen(), finding(remedy=Remedy((Advice("Stop."),)), title="Of more " * 10))
    ]
    assert "".join(lines[:2]).split()[2:] == ("Of more " * 10).split()
    assert len(lines) == 5


def test_a_command_is_folded_so_that_a_shell_joins_it():
    """Whole on 80 columns, whatever stands in its quotes; a note behind it is no part of it."""
    words = ["printf", "%s|", "--python", "/opt/" + "e" * 40, "a b  c", "it's", "numpy<2", *"xyz" * 9]
    asked = (
        f"{wording.quoted(words)}  # or wait: it's being mended in one of the next releases, said its author"
    )
    lines = wording.folded(asked, 60)
    assert all(len(line) <= 60 for line in lines)
    done = subprocess.run(["sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.split("|")[:-1] == words[2:]
    remedy = Remedy(
        (Advice("Install it."), Install(tuple(f"package-{number}==1.{number}" for number in range(12))))
    )
    shown = [told(line) for line in short(screen(), finding(remedy=remedy))]
    assert all(len(line) <= COLUMNS for line in shown)
    joined = "\n".join(shown[shown.index(next(line for line in shown if "$" in line)) :])
    assert shlex.split(joined.partition("$ ")[2].replace("\\\n", "")) == [
        "pip",
        "install",
        *remedy.actions[1].requirements,
    ]


@pytest.mark.parametrize("count", [1, 3, 4, 12])
def test_all_findings_are_on_one_screen(count):
    """The first whole; of the last ones a line each, with its place, where they would push it off."""
    unread = NotJudged("process count", "nothing that was read says how many there are " * 4, "say it: -n N")
    report = Report(
        "lint", {"files": [], "packages": {}},
        (CheckResult.of("a", map(finding, range(count)), [unread]), CheckResult.of("b", (), [unread])),
    )  # fmt: skip
    stream = io.StringIO()
    terminal.render(report, stream)
    assert stream.getvalue().count("how it is known") == count
    stream = Terminal()
    terminal.render(report, stream)
    lines = plain(stream.getvalue()).split("\n")
    assert len(lines) <= ROWS
    assert all(len(line) <= COLUMNS for line in lines)
    text = "\n".join(lines)
    assert text.startswith(f"lint: {count} warning{'s' if count > 1 else ''}; 2 of 2 not judged\n")
    assert [f"CFG{100 + number} A title" in text for number in range(count)] == [True] * count
    assert "say it: -n N" in " ".join(text.split())
    assert text.count("process count") == 1
    assert " ".join(LONG.split()) in " ".join(text.split())
    if count > 4:
        assert "[run.sh:11]" in text


@pytest.mark.parametrize("line", ["doctor --prefix env_old", "lint trl.yaml"])
def test_nothing_is_wider_than_the_terminal(line, tmp_path):
    """A command on a real terminal: the verdict first, all of it on one screen."""
    workbench.furnish(tmp_path)
    shown = show(["python", "-m", "diagnostics", *line.split()], tmp_path)
    assert shown.wide == []
    assert len(shown.lines) < ROWS
    assert shown.lines[0].startswith(f"{line.split()[0]}: ")


@pytest.mark.parametrize("line", ["audit run --timeout", "hang --seconds", "hang --busy-patience"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e7", "soon"])
def test_seconds_are_refused_alike(line, value, capsys):
    """In every command, with the bounds."""
    with pytest.raises(SystemExit) as ended:
        command._parser().parse_args([*line.split(), value])
    assert ended.value.code == 2
    assert f"{value!r}: expected a number of seconds above 0, at most 1000000" in capsys.readouterr().err


def test_an_option_that_means_nothing_alone_is_refused(capsys):
    """`--resolve` asks for the plan, and there is none."""
    assert command.main(["doctor", "--resolve"]) == 2
    assert capsys.readouterr().err == "diagnostics: doctor: --resolve is of --fix-plan: give both\n"
