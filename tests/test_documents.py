"""Documents agree with the code, and their links lead somewhere."""

from __future__ import annotations

import html
import re
import runpy
import subprocess
import sys
from collections import defaultdict

import pytest
from click.testing import CliRunner

from diagnostics import cli
from diagnostics.doctor.checks.base import CHECKS
from diagnostics.matrix.layers import LAYERS
from tests import documents, transcripts
from tests.cells import cell_python
from tests.documents import ROOT

RESULTS = ROOT / "docs" / "results"
SCREENSHOTS = runpy.run_path(str(ROOT / "docs" / "make_screenshots.py"))
SCREENS, DRAW = SCREENSHOTS["SCREENS"], SCREENSHOTS["draw"]
EVERY = [str(path.relative_to(ROOT)) for path in documents.documents()]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", EVERY)
def test_what_is_made_from_code_is_up_to_date(name):
    """Else: python -m tests.documents."""
    text = (ROOT / name).read_text()
    assert documents.regenerate(text) == text


def test_every_part_stands_in_a_document():
    """And every mark is of a part, closed by its own end."""
    texts = [(ROOT / name).read_text() for name in EVERY]
    marked = [match["name"] for text in texts for match in documents.MARKED.finditer(text)]
    assert sorted(marked) == sorted(documents.PARTS)
    assert sum(text.count("made by python -m tests.documents -->") for text in texts) == len(marked)


@pytest.mark.parametrize("name", EVERY)
def test_links_lead_somewhere(name):
    """Within the project: to files that are there."""
    path = ROOT / name
    targets = [target.partition("#")[0] for target in LINK.findall(path.read_text()) if "://" not in target]
    assert [target for target in targets if target and not (path.parent / target).exists()] == []


TRANSCRIPTS = [
    transcript for path in documents.documents() for transcript in transcripts.transcripts_of(path)
]


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(
            transcript,
            id=f"{transcript.document}: {transcript.command}",
            marks=[
                mark
                for mark, so in ((pytest.mark.vllm, transcript.cell), (pytest.mark.slow, transcript.trains))
                if so
            ],
        )
        for transcript in TRANSCRIPTS
    ],
)
def test_a_transcript_is_what_the_command_prints(one, tmp_path):
    """The command is run where its files are; `python -m tests.transcripts` shows what it prints."""
    if one.trains:
        pytest.importorskip("torch", reason="the trainer needs torch")
    cells = cell_python(one.cell).parents[2] if one.cell else None
    assert transcripts.differences(one.told, one.run(tmp_path, cells)) == []


def test_every_command_of_ours_in_a_console_is_run():
    """A block that shows a command and its output is a transcript, and there are some in the tour."""
    for name in EVERY:
        text = (ROOT / name).read_text()
        assert text.count("```console\n") == sum(transcript.document == name for transcript in TRANSCRIPTS), (
            name
        )
    assert "docs/tour.md" in {transcript.document for transcript in TRANSCRIPTS}


OURS = re.compile(r"python3? -m (diagnostics(?:\.matrix)?|grpo_core|repro) ([a-z]+) ([^\n`#|]*)")
PAST = {"CHANGELOG.md", "DECISIONS.md"}


def options_told():
    """Return the options that documents give to each command, and where."""
    options = defaultdict(set)
    for name in (name for name in EVERY if name not in PAST):
        for program, command, rest in OURS.findall((ROOT / name).read_text().replace("\\\n", " ")):
            own_part = re.split(r"(?:^|\s)--\s", rest)[0]
            options[f"{program} {command}"] |= {
                (word, name) for word in re.findall(r"(?<!\S)--[a-z][\w.-]*", own_part)
            }
    return {command: words for command, words in options.items() if words}


TOLD = options_told()


@pytest.mark.parametrize("command", sorted(TOLD))
def test_an_option_that_a_document_gives_is_one(command):
    """Options in documents exist in the command's help, or in the trainer's list of settings."""
    program, name = command.split()
    if program == "diagnostics":
        text = CliRunner().invoke(cli.app, [name, "--help"]).output
    else:
        text = ""
        for option in ("--help", *(("--help-settings",) if program == "grpo_core" else ())):
            words = [sys.executable, "-m", program, name, option]
            text += subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    known_options = set(re.findall(r"--[a-z][\w.-]*", text))
    assert [option for option in sorted(TOLD[command]) if option[0] not in known_options] == []


DATED = re.compile(r"\b20\d\d-\d\d-\d\d\b")
FENCE = re.compile(r"^```[^\n`]*\n.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", EVERY)
def test_what_a_command_printed_is_run_or_dated(name):
    """A block with a command and its answer is a transcript that is run; what cannot be is told with its day."""
    text = (ROOT / name).read_text()
    for block in FENCE.finditer(text):
        if block[0].startswith("```console\n") or not re.search(r"(?m)^\$ ", block[0]):
            continue
        before = text[: block.start()].rstrip().split("\n")[-6:]
        assert DATED.search("\n".join(before)), f"{name}: {block[0][:200]}"


def test_the_readme_has_the_two_setup_commands():
    """Each is one line; the command for the tests is the one that CI calls."""
    text = (ROOT / "README.md").read_text()
    setup = "python3 -m venv .venv && .venv/bin/pip install -r locks/tools/nox.txt && .venv/bin/nox -s"
    assert [line for line in text.splitlines() if line.startswith("python3 -m venv")] == [
        f"{setup} matrix",
        f"{setup} tests",
    ]
    assert re.search(r"exec .venv/bin/nox -s .*\btests\b", (ROOT / ".ci" / "run").read_text())


def test_every_document_is_in_the_list():
    """docs/README.md leads to each page."""
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages - set(LINK.findall((ROOT / "docs" / "README.md").read_text())) == set()


def test_every_result_has_its_day_and_its_command():
    """Each row of the tables of figures."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (RESULTS / "README.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| what")
    ]
    assert len(rows) > 25
    for what, result, day, command in rows:
        assert result, what
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", day), what
        assert "`" in command or command == "the same", what


@pytest.mark.parametrize("name", sorted(SCREENS))
def test_a_screenshot_shows_what_the_command_prints(name):
    """Else: python docs/make_screenshots.py."""
    drawn, printed = (
        re.sub(r"\s", "", html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "", text, flags=re.DOTALL)))
        for text in ((ROOT / "docs" / "images" / f"{name}.svg").read_text(), DRAW(name, SCREENS[name]))
    )
    assert drawn == printed


def test_every_check_and_layer_is_told_of():
    """In the table of doctor's checks, and among the questions of the matrix."""
    doctor, matrix = ((ROOT / "docs" / name).read_text() for name in ("doctor.md", "matrix.md"))
    first = " ".join(re.findall(r"^\| ([^|]+) \|", doctor, re.MULTILINE))
    assert [name for name in CHECKS if name not in first] == []
    families = {layer.name.partition(":")[0] for layer in LAYERS}
    assert [name for name in sorted(families) if f"`{name}" not in matrix] == []
