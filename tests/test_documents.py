"""What documents say of the code, and what they point at, is so."""

from __future__ import annotations

import re

import pytest

from diagnostics.doctor.checks.registered import CHECKS
from diagnostics.matrix.ask.registry import ALL
from tests import documents
from tests.documents import ROOT

RESULTS = ROOT / "docs" / "results"
EVERY = [str(path.relative_to(ROOT)) for path in documents.documents()]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", EVERY)
def test_what_is_made_from_code_is_up_to_date(name):
    """Else: python -m tests.documents."""
    text = (ROOT / name).read_text()
    assert documents.made(text) == text


def test_every_part_stands_in_a_document():
    """And every mark is of a part, closed by its own end."""
    texts = [(ROOT / name).read_text() for name in EVERY]
    there = [match["name"] for text in texts for match in documents.MARKED.finditer(text)]
    assert sorted(there) == sorted(documents.PARTS)
    assert sum(text.count("made by python -m tests.documents -->") for text in texts) == len(there)


@pytest.mark.parametrize("name", EVERY)
def test_links_lead_somewhere(name):
    """Within the project: to files that are there."""
    path = ROOT / name
    targets = [target.partition("#")[0] for target in LINK.findall(path.read_text()) if "://" not in target]
    assert [target for target in targets if target and not (path.parent / target).exists()] == []


def test_every_result_says_when_and_how():
    """The list of results has each file, with the day of its run and the command that makes it again."""
    rows = {}
    for line in (RESULTS / "README.md").read_text().splitlines():
        if line.startswith("| ["):
            name, what, day, command = (cell.strip() for cell in line.strip("|").split("|"))
            rows[LINK.findall(name)[0]] = (what, day, command)
    assert set(rows) == {path.name for path in RESULTS.iterdir()} - {"README.md"}
    for name, (what, day, command) in rows.items():
        assert what, name
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", day), name
        assert re.search(r"`[^`]+`", command), name


def test_every_check_and_layer_is_told_of():
    """In the table of doctor's checks, and among the questions of the matrix."""
    doctor, matrix = ((ROOT / "docs" / name).read_text() for name in ("doctor.md", "matrix.md"))
    first = " ".join(re.findall(r"^\| ([^|]+) \|", doctor, re.MULTILINE))
    assert [name for name in CHECKS if name not in first] == []
    families = {layer.name.partition(":")[0] for layer in ALL}
    assert [name for name in sorted(families) if f"`{name}" not in matrix] == []
