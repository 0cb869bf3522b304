"""`versions` recommends a vLLM and TRL pair that ran, from the published table, on one 80x24 screen."""

from __future__ import annotations

import io
import re
import shlex

import pytest

from diagnostics import __main__ as command
from diagnostics import compat_table as compat
from diagnostics.output import release_pairs, sanitize

ROWS, COLUMNS = 24, 80
PUBLISHED = compat.load()
TRIED = release_pairs.published_pairs(PUBLISHED.cells)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def screen_lines(monkeypatch):
    """Return a function that renders `versions` on an 80x24 terminal and returns its lines."""
    monkeypatch.setenv("LINES", str(ROWS))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))

    def print_versions(all_pairs=False):
        stream = Terminal()
        release_pairs.render(sanitize.console(stream), TRIED, PUBLISHED, every=all_pairs)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).rstrip("\n").split("\n")

    return print_versions


def test_answer_fits_one_screen(screen_lines):
    """Only the command is longer than a row, because a terminal copies one line as one line."""
    lines = screen_lines()
    assert sum(max(1, -(-len(line) // COLUMNS)) for line in lines) < ROWS
    assert all(len(line) <= COLUMNS or line.lstrip().startswith("$ ") for line in lines)
    assert lines[0].startswith("versions: ")


def test_recommended_pair_ran_and_its_command_has_those_releases(screen_lines):
    pair = release_pairs.best_pair(TRIED)
    lines = screen_lines()
    assert f"install vLLM {pair.vllm} with TRL {pair.trl}" in " ".join(lines)
    (cell,) = [item for item in PUBLISHED.cells if item["id"] == pair.id]
    words = shlex.split("\n".join(lines).partition("$ ")[2].partition("\n\n")[0].replace("\\\n", ""))
    pins = [f"{name}=={cell[name]}" for name in ("vllm", "trl", "transformers", "torch")]
    assert words == ["uv", "pip", "install", *pins]
    results = [(entry["evidence"], entry["verdict"]) for entry in cell["layers"].values()]
    assert results.count(("executed", "pass")) > 3


def test_screen_has_the_marks_of_each_pair(screen_lines):
    lines = screen_lines()
    for pair in (item for item in TRIED if item.id in release_pairs.SELECTED_PAIRS):
        (line,) = [line for line in lines if line.startswith(f"{pair.vllm} ")]
        assert line.count("✔") == pair.answers.count("✔")


def test_partly_failed_pair_is_not_recommended_over_a_passed_one():
    assert any(pair.state == "ran" and pair.failed for pair in TRIED)
    assert not release_pairs.best_pair(TRIED).failed
    only_failed = [pair for pair in TRIED if pair.failed]
    assert release_pairs.best_pair(only_failed) in only_failed


def test_reason_of_each_failed_pair_is_printed(screen_lines):
    text = " ".join(screen_lines())
    failed = [pair for pair in TRIED if pair.id in release_pairs.SELECTED_PAIRS and pair.failed]
    assert failed
    for reason in (reason.split(". ")[0].rstrip(".") for pair in failed for reason in pair.failed):
        assert " ".join(reason.split()) in " ".join(text.split())


def test_pair_that_does_not_work_is_marked(screen_lines):
    """A pair that does not work is marked, because a row without a mark would look untested."""
    lines = screen_lines(all_pairs=True)
    broken = [pair for pair in TRIED if pair.state == "fails"]
    assert broken
    for pair in broken:
        assert any(
            line.split() == [pair.vllm, pair.trl, *["✘", "does", "not", "work", "together"]] for line in lines
        )


def test_matrix_without_arguments_equals_versions(capsys):
    assert command.main(["matrix"]) == command.main(["versions"]) == 0
    text = capsys.readouterr().out
    assert text[: len(text) // 2] == text[len(text) // 2 :]


def test_missing_table_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(
        compat, "load", lambda: compat.Compat(problem="compat.json is not shipped with this copy")
    )
    assert command.main(["versions"]) == 2
    assert capsys.readouterr().err == "grpo-doctor: versions: compat.json is not shipped with this copy\n"


def test_pair_that_ran_names_its_failed_layers(capsys):
    """A pair that ran names its failed layers, so that "ran" is not read as "passed"."""
    assert command.main(["versions", "trl==1.16", "vllm==0.31"]) == 0
    assert "ran on a CPU; failed there: SYN011, ENV012;" in capsys.readouterr().out
