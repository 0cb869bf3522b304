"""A line that an entry names is of the statement that it names, in the release that it names.

`GRPO_DOCTOR_CELLS=.matrix/environments python -m pytest -q evaluation/catalog/source_lines.py`
"""

import ast
import functools
import os
import re
from pathlib import Path

import pytest

from diagnostics import catalog

# `ValueError in PATH:LINE[, LINE][ and LINE] of RELEASE[, LINE of RELEASE ...]`, as the sources of ranges have it.
FILE = re.compile(r"(?P<path>[\w./-]+\.py):")
LINES = re.compile(r"(?<![\w.])(?P<lines>\d+(?:(?:, | and )\d+)*) of (?P<release>\d[\w.]*\w)")
KIND = re.compile(r"\b(?P<kind>\w+(?:Error|Exception)|[Aa]ssert\w*)s? in $")


def claimed():
    """Each line of an exception or assertion that a range rests on: code, kind, path, line, release."""
    for issue in catalog.load().values():
        for claim in issue.affected:
            yield from lines_of(issue.code, claim.source)


def lines_of(code, source):
    """The lines that one source names: a path goes for all that follow, a bare name is a file beside the last."""
    kind, path = "", Path()
    for file_match in FILE.finditer(source):
        kind_match = KIND.search(source[: file_match.start()])
        kind = kind_match["kind"] if kind_match else kind
        path = Path(file_match["path"]) if "/" in file_match["path"] else path.parent / file_match["path"]
        for line_match in LINES.finditer(FILE.split(source[file_match.end() :])[0]) if kind else ():
            for line in re.findall(r"\d+", line_match["lines"]):
                yield code, kind, str(path), int(line), line_match["release"]


def is_of(text, kind, line):
    """Whether a line is of a statement that raises, of the text that it raises, or begins the exception's class."""
    asserts = kind.lower().startswith("assert")
    for node in ast.walk(tree_of(text)):
        if isinstance(node, ast.ClassDef):
            matches = node.name == kind and node.lineno == line
        elif isinstance(node, (ast.Assert if asserts else ast.Raise, ast.JoinedStr)):
            matches = node.lineno <= line <= node.end_lineno
        else:
            matches = False
        if matches:
            return True
    return False


@functools.cache
def tree_of(text):
    """Parsed once: a file may hold several lines."""
    return ast.parse(text)


def candidate_paths(path, release):
    """Yield the paths at which cells may have a file of a release."""
    package = path.partition("/")[0]
    folder = os.environ.get("GRPO_DOCTOR_CELLS")
    for site in sorted(Path(folder).glob("*/lib/python3*/site-packages")) if folder else ():
        versions = [place.name.removesuffix(".dist-info") for place in site.glob(f"{package}-*.dist-info")]
        if any(version.partition("+")[0] == f"{package}-{release}" for version in versions):
            yield site / path


def test_every_number_of_a_source_is_read():
    """Line numbers of one or several releases are distinguished from other digits."""
    source = "ValueError in a/b.py:470 and 504 of 5.17.0, 9 of 0.6.6.post1, c/d.py:7 of 1.0; the rest is 12 of them"
    assert list(lines_of("X", source)) == [
        ("X", "ValueError", "a/b.py", 470, "5.17.0"),
        ("X", "ValueError", "a/b.py", 504, "5.17.0"),
        ("X", "ValueError", "a/b.py", 9, "0.6.6.post1"),
        ("X", "ValueError", "c/d.py", 7, "1.0"),
    ]
    assert is_of("if 1:\n    raise ValueError(\n        'x'\n    )\n", "ValueError", 3)
    assert not is_of("if 1:\n    return 2\nraise ValueError\n", "ValueError", 2)


@pytest.mark.parametrize(("code", "kind", "path", "line", "release"), sorted(set(claimed())))
def test_a_line_is_of_its_statement(code, kind, path, line, release):
    """Looked up in a cell that has the release."""
    existing = [place for place in candidate_paths(path, release) if place.exists()]
    if not existing:
        pytest.skip(f"no cell has {path} of {release}")
    assert is_of(existing[0].read_text(encoding="utf-8"), kind, line), f"{code}: {existing[0]}:{line}"
