"""`versions`: recommend a pair from the published table, and claim nothing without a run."""

from __future__ import annotations

import io
import json
import shlex

import pytest

from diagnostics import __main__ as command
from diagnostics import compat_table as compat
from diagnostics.output import pairs, sanitize
from tests.screen import COLUMNS, ROWS, without_escapes

PUBLISHED = compat.load()
TRIED = pairs.tried(PUBLISHED.cells)


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def screen_lines(monkeypatch):
    """The lines on a terminal of 24 lines by 80 columns."""
    monkeypatch.setenv("LINES", str(ROWS))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))

    def print_versions(vllm="", trl="", every=False):
        stream = Terminal()
        pairs.render(sanitize.console(stream), TRIED, PUBLISHED, (vllm, trl), every=every)
        return without_escapes(stream.getvalue()).rstrip("\n").split("\n")

    return print_versions


@pytest.mark.parametrize(
    ("vllm", "trl"), [("", ""), ("0.10", ""), ("", "1.16"), ("0.29.0", ""), ("0.12", "0.23.1")]
)
def test_the_answer_is_one_screen(screen_lines, vllm, trl):
    """The verdict first, the command below it, nothing wider than the terminal."""
    lines = screen_lines(vllm, trl)
    assert len(lines) < ROWS
    assert all(len(line) <= COLUMNS for line in lines)
    assert lines[0].startswith("versions: ")


def test_what_is_taken_is_a_pair_that_ran(screen_lines):
    """And the command has its releases, as they ran."""
    pair = pairs.best(TRIED)
    lines = screen_lines()
    assert f"install vLLM {pair.vllm} with TRL {pair.trl}" in " ".join(lines)
    (cell,) = [item for item in PUBLISHED.cells if item["id"] == pair.id]
    words = shlex.split("\n".join(lines).partition("$ ")[2].partition("\n\n")[0].replace("\\\n", ""))
    assert words == [
        "uv",
        "pip",
        "install",
        *(f"{name}=={cell[name]}" for name in ("vllm", "trl", "transformers", "torch")),
    ]
    executed = [
        entry
        for entry in cell["layers"].values()
        if entry["evidence"] == "executed" and entry["verdict"] == "pass"
    ]
    assert len(executed) > 3


def test_a_pair_that_failed_in_part_is_not_recommended_over_one_that_passed():
    assert any(pair.state == "ran" and pair.failed for pair in TRIED)
    assert not pairs.best(TRIED).failed
    only_failed = [pair for pair in TRIED if pair.failed]
    assert pairs.best(only_failed) in only_failed


def test_what_was_only_read_is_plainly_so(capsys):
    """It is not recommended, and the exit code shows that nothing ran."""
    assert command.main(["versions", "--vllm", "0.29.0"]) == 3
    text = capsys.readouterr().out
    assert text.startswith(
        "versions: vLLM 0.29.0: was never run\nread in source, never run: these pairs fit: vLLM 0.29.0"
    )
    assert "$ " not in text
    assert command.main(["versions", "--vllm", "0.29.0", "--format", "json"]) == 3
    result = json.loads(capsys.readouterr().out)
    assert (result["schema"], result["take"], result["pairs"]) == (pairs.SCHEMA, None, [])
    assert {entry["vllm"] for entry in result["only_read"]} == {"0.29.0"}


def test_the_matrix_alone_answers_the_same(capsys):
    """`matrix` without arguments prints the same as `versions`."""
    assert command.main(["matrix"]) == command.main(["versions"]) == 0
    text = capsys.readouterr().out
    assert text[: len(text) // 2] == text[len(text) // 2 :]


@pytest.mark.parametrize("release", ["", "newest", "0.10,0.11"])
def test_what_is_no_release_is_refused(release, capsys):
    """In a line, with what one looks like."""
    assert command.main(["versions", "--vllm", release]) == 2
    assert "expected a release, such as 0.10 or 0.10.2" in capsys.readouterr().err


def test_a_copy_without_the_table_says_so(monkeypatch, capsys):
    """And has no answer."""
    monkeypatch.setattr(
        compat, "load", lambda: compat.Compat(problem="compat.json is not shipped with this copy")
    )
    assert command.main(["versions"]) == 2
    assert capsys.readouterr().err == "grpo-doctor: versions: compat.json is not shipped with this copy\n"


def test_a_pair_that_ran_names_the_layers_that_failed(capsys):
    """The evidence of a pair that ran has the codes of its failed layers, so that `ran` is not read as `passed`."""
    assert command.main(["versions", "trl==1.16", "vllm==0.31"]) == 0
    assert "ran on a CPU; failed there: SYN011, ENV012;" in capsys.readouterr().out
