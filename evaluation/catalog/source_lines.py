"""Check that each FILE:LINE cited in the catalog points to the cited raise or assert statement in its release.

`GRPO_DOCTOR_CELLS=.matrix/environments python -m pytest -q evaluation/catalog/source_lines.py`
"""

import ast
import functools
import os
import re
from pathlib import Path

import pytest

from diagnostics import catalog

# Format of a claim's `source`: `ValueError in PATH:LINE[, LINE][ and LINE] of RELEASE[, LINE of RELEASE ...]`.
FILE = re.compile(r"(?P<path>[\w./-]+\.py):")
LINES = re.compile(r"(?<![\w.])(?P<lines>\d+(?:(?:, | and )\d+)*) of (?P<release>\d[\w.]*\w)")
KIND = re.compile(r"\b(?P<kind>\w+(?:Error|Exception)|[Aa]ssert\w*)s? in $")


def cited_lines():
    """Yield (code, exception, path, line, release) of each line that is cited as evidence of an affected range."""
    for issue in catalog.load().values():
        for claim in issue.affected:
            yield from parse_source_lines(issue.code, claim.source)


def parse_source_lines(code, source):
    """Yield the lines that one source cites; a file name without a folder is in the folder of the path before it."""
    kind, path = "", Path()
    for file_match in FILE.finditer(source):
        kind_match = KIND.search(source[: file_match.start()])
        kind = kind_match["kind"] if kind_match else kind
        path = Path(file_match["path"]) if "/" in file_match["path"] else path.parent / file_match["path"]
        for line_match in LINES.finditer(FILE.split(source[file_match.end() :])[0]) if kind else ():
            for line in re.findall(r"\d+", line_match["lines"]):
                yield code, kind, str(path), int(line), line_match["release"]


def is_line_of_statement(text, kind, line):
    """Return whether a line is in a raise or assert statement or an f-string, or begins the class of the exception."""
    asserts = kind.lower().startswith("assert")
    for node in ast.walk(parse_cached(text)):
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
def parse_cached(text):
    """Parse a file's text; cached, because a file may have several cited lines."""
    return ast.parse(text)


def candidate_paths(path, release):
    """Yield the paths of a file in all matrix cells that have the release of its package."""
    package = path.partition("/")[0]
    folder = os.environ.get("GRPO_DOCTOR_CELLS")
    for site in sorted(Path(folder).glob("*/lib/python3*/site-packages")) if folder else ():
        versions = [place.name.removesuffix(".dist-info") for place in site.glob(f"{package}-*.dist-info")]
        if any(version.partition("+")[0] == f"{package}-{release}" for version in versions):
            yield site / path


def test_all_lines_of_a_source_are_parsed():
    """Line numbers of one or several releases are parsed, and other digits are ignored."""
    source = "ValueError in a/b.py:470 and 504 of 5.17.0, 9 of 0.6.6.post1, c/d.py:7 of 1.0; the rest is 12 of them"
    assert list(parse_source_lines("X", source)) == [
        ("X", "ValueError", "a/b.py", 470, "5.17.0"),
        ("X", "ValueError", "a/b.py", 504, "5.17.0"),
        ("X", "ValueError", "a/b.py", 9, "0.6.6.post1"),
        ("X", "ValueError", "c/d.py", 7, "1.0"),
    ]
    assert is_line_of_statement("if 1:\n    raise ValueError(\n        'x'\n    )\n", "ValueError", 3)
    assert not is_line_of_statement("if 1:\n    return 2\nraise ValueError\n", "ValueError", 2)


@pytest.mark.parametrize(("code", "kind", "path", "line", "release"), sorted(set(cited_lines())))
def test_cited_line_is_in_its_statement(code, kind, path, line, release):
    """The cited line is in a statement of the cited kind, in a matrix cell that has the release."""
    existing = [place for place in candidate_paths(path, release) if place.exists()]
    if not existing:
        pytest.skip(f"no cell has {path} of {release}")
    assert is_line_of_statement(existing[0].read_text(encoding="utf-8"), kind, line), (
        f"{code}: {existing[0]}:{line}"
    )
