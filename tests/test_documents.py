"""The documentation agrees with the code in its generated tables, console output, options, links and screenshots.

Output that no test runs has a date, results have a date and a command, and pages, checks and layers are listed.
"""

import html
import re
import runpy
from collections import defaultdict

import pytest

from diagnostics.doctor.checks.registry import CHECKS
from diagnostics.matrix.layers import LAYERS
from tests import documents, transcripts
from tests.cells import cell_python
from tests.documents import ROOT

RESULTS = ROOT / "docs" / "results"
SCREENSHOTS = runpy.run_path(str(ROOT / "docs" / "make_screenshots.py"))
SCREENS, DRAW = SCREENSHOTS["SCREENS"], SCREENSHOTS["draw"]
DOCUMENTS = [str(path.relative_to(ROOT)) for path in documents.documents()]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_generated_tables_are_up_to_date(name):
    """Each generated table equals the output of its generator; `python -m tests.documents` rewrites them."""
    text = (ROOT / name).read_text()
    assert documents.regenerate(text) == text


def test_every_generated_table_is_in_one_document():
    texts = [(ROOT / name).read_text() for name in DOCUMENTS]
    marked = [match["name"] for text in texts for match in documents.MARKED.finditer(text)]
    assert sorted(marked) == sorted(documents.PARTS)
    assert sum(text.count("made by python -m tests.documents -->") for text in texts) == len(marked)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_have_targets(name):
    path = ROOT / name
    targets = [target.partition("#")[0] for target in LINK.findall(path.read_text()) if "://" not in target]
    assert [target for target in targets if target and not (path.parent / target).exists()] == []


TRANSCRIPTS = [item for path in documents.documents() for item in transcripts.transcripts_of(path)]


def transcript_case(transcript):
    """Return a transcript as a named test case, which runs on the xdist worker that has its fork server."""
    server = "trainer" if transcript.trains else "commands"
    marks = [pytest.mark.vllm] * bool(transcript.cell) + [pytest.mark.slow] * transcript.trains
    marks.append(pytest.mark.xdist_group(server))
    return pytest.param(transcript, server, id=f"{transcript.document}: {transcript.command}", marks=marks)


@pytest.mark.parametrize(("transcript", "server"), [*map(transcript_case, TRANSCRIPTS)])
def test_console_block_is_what_the_command_prints(transcript, server, tmp_path, request):
    """Each documented command prints its block; `python -m tests.update_transcripts` rewrites most blocks."""
    if transcript.trains:
        pytest.importorskip("torch", reason="the trainer needs torch")
    cells = cell_python(transcript.cell).parents[2] if transcript.cell else None
    printed = transcript.run(tmp_path, cells, request.getfixturevalue(server))
    assert transcripts.differences(transcript.expected, printed) == []


def test_every_console_block_is_run():
    for name in DOCUMENTS:
        blocks = (ROOT / name).read_text().count("```console\n")
        assert blocks == sum(transcript.document == name for transcript in TRANSCRIPTS), name
    assert "docs/tour.md" in {transcript.document for transcript in TRANSCRIPTS}


COMMAND = re.compile(r"python3? -m (diagnostics(?:\.matrix)?|grpo_core|repro) ([a-z]+) ([^\n`#|]*)")
HISTORY = {"CHANGELOG.md", "DECISIONS.md"}


def documented_options():
    """Return, for each command, the options that documents use with it and the document."""
    options = defaultdict(set)
    for name in (name for name in DOCUMENTS if name not in HISTORY):
        for program, command, rest in COMMAND.findall((ROOT / name).read_text().replace("\\\n", " ")):
            own_part = re.split(r"(?:^|\s)--\s", rest)[0]
            words = re.findall(r"(?<!\S)--[a-z][\w.-]*", own_part)
            options[f"{program} {command}"] |= {(word, name) for word in words}
    return options


DOCUMENTED_OPTIONS = documented_options()


@pytest.mark.parametrize("command", sorted(DOCUMENTED_OPTIONS))
def test_documented_commands_and_options_exist(command, commands):
    """Each documented command has a help, with each documented option; the trainer lists its settings separately."""
    program, name = command.split()
    text = ""
    for option in ("--help", *(("--help-settings",) if program == "grpo_core" else ())):
        done = commands.run([program, name, option])
        assert done.returncode == 0, done.stderr
        text += done.stdout.decode()
    known_options = set(re.findall(r"--[a-z][\w.-]*", text))
    assert [option for option in sorted(DOCUMENTED_OPTIONS[command]) if option[0] not in known_options] == []


DATED = re.compile(r"\b20\d\d-\d\d-\d\d\b")
FENCE = re.compile(r"^```[^\n`]*\n.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_output_that_is_not_run_has_a_date(name):
    """A command with output is in a console block, which is run, or the text before it has a date."""
    text = (ROOT / name).read_text()
    for block in FENCE.finditer(text):
        if block[0].startswith("```console\n") or not re.search(r"(?m)^\$ ", block[0]):
            continue
        before = text[: block.start()].rstrip().split("\n")[-6:]
        assert DATED.search("\n".join(before)), f"{name}: {block[0][:200]}"


def test_docs_readme_links_the_pages_next_to_it():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages - set(LINK.findall((ROOT / "docs" / "README.md").read_text())) == set()


def test_every_result_has_a_date_and_a_command():
    """The table of docs/results/README.md has more than 25 rows, each with result, date and command or "the same"."""
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
def test_screenshot_shows_what_the_command_prints(name):
    """The text of each screenshot is the command's output; `python docs/make_screenshots.py` redraws them."""
    screenshot, printed = (
        re.sub(r"\s", "", html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "", text, flags=re.DOTALL)))
        for text in ((ROOT / "docs" / "images" / f"{name}.svg").read_text(), DRAW(name, SCREENS[name]))
    )
    assert screenshot == printed


def test_checks_and_layers_are_documented():
    """docs/doctor.md lists the checks, and docs/matrix.md the layers or their families."""
    doctor, matrix = ((ROOT / "docs" / name).read_text() for name in ("doctor.md", "matrix.md"))
    first = " ".join(re.findall(r"^\| ([^|]+) \|", doctor, re.MULTILINE))
    assert [name for name in CHECKS if name not in first] == []
    families = {layer.name.partition(":")[0] for layer in LAYERS}
    assert [name for name in sorted(families) if f"`{name}" not in matrix] == []
