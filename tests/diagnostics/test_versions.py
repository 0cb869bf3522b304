"""`versions` recommends a vLLM and TRL pair that ran, from the published table, on one 80x24 screen.

The table marks what passed, failed and does not work together. `matrix` without arguments prints it, too. A pair
that never ran does not fit if vLLM lacks a name that GRPO needs.
"""

import re
import shlex

import pytest

from diagnostics import compat_table
from diagnostics.api_index import query
from diagnostics.commands import version_answers
from diagnostics.output import release_pairs, sanitize
from diagnostics.output.pair_evidence import mark_of
from tests.diagnostics.conftest import Terminal

ROWS, COLUMNS = 24, 80
PUBLISHED = compat_table.load()
PAIRS = release_pairs.published_pairs(PUBLISHED.cells)


@pytest.fixture
def screen_lines(monkeypatch):
    """Return a function that renders `versions` on an 80x24 terminal and returns its lines."""
    monkeypatch.setenv("LINES", str(ROWS))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))

    def print_versions(all_pairs=False):
        stream = Terminal()
        release_pairs.render(sanitize.console(stream), PAIRS, PUBLISHED, every=all_pairs)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).rstrip("\n").split("\n")

    return print_versions


def test_answer_fits_one_screen(screen_lines):
    """Only the command is longer than a row, because a terminal copies one line as one line."""
    lines = screen_lines()
    assert sum(max(1, -(-len(line) // COLUMNS)) for line in lines) < ROWS
    assert all(len(line) <= COLUMNS or line.lstrip().startswith("$ ") for line in lines)
    assert lines[0].startswith("versions: ")


def test_recommended_pair_ran_and_its_command_has_those_releases(screen_lines):
    pair = release_pairs.best_pair(PAIRS)
    lines = screen_lines()
    assert f"install vLLM {pair.vllm} with TRL {pair.trl}" in " ".join(lines)
    (cell,) = [item for item in PUBLISHED.cells if item.id == pair.id]
    words = shlex.split("\n".join(lines).partition("$ ")[2].partition("\n\n")[0].replace("\\\n", ""))
    ran = cell.ran_with("transformers")
    pins = [f"vllm=={pair.vllm}", f"trl=={pair.trl}", f"transformers=={ran}", f"torch=={cell.torch}"]
    assert words == ["uv", "pip", "install", "--no-config", *pins]
    results = [(entry.evidence, entry.verdict) for entry in cell.layers.values()]
    assert results.count(("executed", "pass")) > 3


def test_screen_has_the_passes_of_each_selected_pair(screen_lines):
    lines = screen_lines()
    for pair in (item for item in PAIRS if item.id in release_pairs.SELECTED_PAIRS):
        (line,) = [line for line in lines if line.startswith(f"{pair.vllm} ")]
        assert line.count("✔") == pair.answers.count("✔")


def test_partly_failed_pair_is_not_recommended_over_a_passed_one():
    """If all pairs that are left failed in part, one of these is recommended."""
    assert any(pair.state == "ran" and pair.failed for pair in PAIRS)
    assert not release_pairs.best_pair(PAIRS).failed
    only_failed = [pair for pair in PAIRS if pair.failed]
    assert release_pairs.best_pair(only_failed) in only_failed


def test_reasons_of_each_selected_failed_pair_are_printed(screen_lines):
    text = " ".join(screen_lines())
    failed = [pair for pair in PAIRS if pair.id in release_pairs.SELECTED_PAIRS and pair.failed]
    assert failed
    for reason in (reason.split(". ")[0].rstrip(".") for pair in failed for reason in pair.failed):
        assert " ".join(reason.split()) in " ".join(text.split())


def test_pair_that_does_not_work_is_marked(screen_lines):
    """A pair that does not work is marked, because a row without a mark would look untested."""
    lines = screen_lines(all_pairs=True)
    broken = [pair for pair in PAIRS if pair.state == "fails"]
    assert broken
    for pair in broken:
        words = [pair.vllm, pair.trl, "✘", "does", "not", "work", "together"]
        assert any(line.split() == words for line in lines)


def test_matrix_without_arguments_equals_versions(run_command):
    result = run_command("matrix")
    assert (result.code, result) == (0, run_command("versions"))


def test_missing_table_is_refused(monkeypatch, run_command):
    missing = compat_table.Compat(problem="compat.json is not shipped with this copy")
    monkeypatch.setattr(compat_table, "load", lambda: missing)
    message = "grpo-doctor: versions: compat.json is not shipped with this copy\n"
    assert run_command("versions") == (2, "", message)


@pytest.mark.parametrize(
    ("user", "provider", "name"),
    [
        ("trl 0.23.1", "vllm 0.13.0", "vllm.sampling_params.GuidedDecodingParams"),
        ("trl 0.14.0", "vllm 0.12.0", "vllm.LLM(device=)"),
        ("trl 1.12.0", "vllm 0.25.1", "/reset_prefix_cache(JSON)"),
        ("trl 0.19.1", "vllm 0.11.0", ""),
        ("trl 0.9.6", "transformers 4.57.6", ""),
        ("peft 0.19.0", "transformers 4.57.6", ""),
    ],
)
def test_pair_without_a_name_that_grpo_needs_does_not_fit(user, provider, name):
    """No pair was run. The last three fit: their missing names need an option, or another transformers."""
    pair = query.compatibility(*(query.Release(*text.split()) for text in (user, provider)))
    assert (pair.run, pair.contradicted) == ("", bool(name))
    assert [item.use.text for item in pair.missing_in_grpo][:1] == ([name] if name else [])


@pytest.mark.parametrize(
    ("trl", "vllm", "mark"), [("0.26.2", "0.11.0", "✔"), ("1.16.0", "0.31.0", "!"), ("1.16.0", "0.32.0", "✘")]
)
def test_mark_of_a_pair_is_about_grpo_runs(trl, vllm, mark):
    """An experimental trainer of the first lacks a name; a layer of the second failed; the third is out of range."""
    assert mark_of(query.compatibility(query.Release("trl", trl), query.Release("vllm", vllm))) == mark


def test_releases_without_grpo_are_left_out():
    questions = dict(version_answers.parse_questions(["vllm==0.8.5", "trl"]))
    assert questions["trl"][-1].version == "0.14.0"


@pytest.mark.parametrize(
    ("questions", "code", "line"),
    [
        (("easyr1",), 2, "EasyR1 is on no package index; see the requirements.txt"),
        (("easyr1==0.3.2", "vllm==0.8.5"), 2, "EasyR1 is on no package index"),
        (
            ("trl==0.17", "vllm==0.10.2"),
            1,
            "Use vllm 0.8.5:\n        $ uv pip install --no-config trl==0.17.0 vllm==0.8.5\n",
        ),
    ],
)
def test_unfit_pair_is_replaced_and_easyr1_refused(run_command, questions, code, line):
    result, output, errors = run_command("versions", *questions)
    assert (result, line in output + errors, "pip install" in output) == (code, True, code == 1)


@pytest.mark.parametrize(
    ("questions", "chosen"),
    [
        (["trl==0.19.1", "vllm"], "trl 0.19.1, vllm 0.9.2, transformers 4.53.3"),
        (["vllm==0.10.0", "ms-swift"], "ms-swift 4.5.3, vllm 0.10.0, transformers 4.57.6"),
        (["trl==1.16.0", "vllm==0.31.0"], "trl 1.16.0, vllm 0.31.0"),
        (["trl==0.17.0", "vllm==0.8.5"], "trl 0.17.0, vllm 0.8.5, transformers 4.53.3"),
    ],
)
def test_dependency_is_pinned_if_its_newest_allowed_release_does_not_fit(questions, chosen):
    """Neither requirement excludes transformers 5, with which vLLM before 0.12 fails."""
    answers = version_answers.find_answers(version_answers.parse_questions(questions))
    assert ", ".join(map(str, version_answers.choose_set(answers))) == chosen
