"""What pages say of how much there is, and how good it is, is what is there, and what the results say."""

from __future__ import annotations

import json
import re

import pytest

from diagnostics import catalog
from tests.documents import ROOT

DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
_COUNT = r"(\d+(?:,\d{3})*)"
SHARE = re.compile(rf"\b{_COUNT} of (?:the )?{_COUNT}\b")


def page(name):
    """A page as one line."""
    return " ".join((DOCS / name).read_text().split())


def one(pattern, text):
    """The figures of the one place that a pattern finds."""
    (found,) = re.findall(pattern, text)
    return tuple(int(figure.replace(",", "")) for figure in ([found] if isinstance(found, str) else found))


def linked():
    """Parts of evidence.md, rows and paragraphs, each with the results that it names."""
    parts = re.split(r"\n(?=\n|\|)|(?<=\)\.)\s", (DOCS / "evidence.md").read_text())
    for part in parts:
        if names := set(re.findall(r"\(results/([\w-]+\.md)\)", part)):
            yield part, names


@pytest.mark.parametrize(("part", "names"), list(linked()))
def test_a_share_stands_in_the_results_that_are_named_with_it(part, names):
    """As "3 of 4" or "3/4"."""
    text = " ".join("".join((RESULTS / name).read_text() for name in names).split())
    there = set(re.findall(rf"{_COUNT}(?: of | of the |/){_COUNT}", text))
    assert [share for share in SHARE.findall(part) if share not in there] == []


def test_entries_are_counted():
    """Those of the catalogue, and those with a run."""
    issues = catalog.load().values()
    executed = sum(any(claim.evidence == "executed" for claim in issue.affected) for issue in issues)
    assert one(r"Of the (\d+) entries (\d+) are `executed`", page("evidence.md")) == (len(issues), executed)


def test_dumps_of_others_are_added_up():
    """81 came before there were tables of them."""
    every, unseen = one(r"on (\d+) dumps of other people, (\d+) of them never seen", page("hang.md"))
    rows = sum(len(path.read_text().splitlines()) - 1 for path in RESULTS.glob("hang-dumps-*.tsv"))
    assert (every, unseen) == (81 + rows, 56 + rows)
    named = re.search(r"named at first sight, set by set: (.*?) in the last one", page("hang.md"))[1]
    shares = [tuple(map(int, share)) for share in SHARE.findall(named)]
    total = one(r"it named (\d+) of (\d+) confirmed causes at first sight", page("evidence.md"))
    assert tuple(map(sum, zip(*shares, strict=True))) == total


def test_combinations_are_added_up():
    """Those of the table, ms-swift's recorded answers apart."""
    rows = re.findall(
        r"^\| (.+?) \| .+? \| ([\d,]+)( each)? \| [\d,]+(?: each)? \| 0 \|$",
        (DOCS / "lint.md").read_text(),
        re.MULTILINE,
    )
    counted = sum(int(count.replace(",", "")) * (1 + bool(each)) for _what, count, each in rows)
    assert (counted,) == one(r"([\d,]+) combinations of settings", page("evidence.md"))


def test_labelled_logs_are_counted():
    """As the table of the session that judged them says."""
    told = one(r"all (\d+) logs of our own, (\d+) codes.*?no false alarm on (\d+) clean", page("evidence.md"))
    assert told == one(
        r"(\d+) logs of (\d+) codes, (\d+) clean or unrelated, \d+ of failures without an entry\. Macro recall 0\.99",
        page("results/triage.md"),
    )


def test_releases_of_options_are_counted():
    """Of which lint knows the names."""
    lists = (
        json.loads(path.read_text())["releases"]
        for path in (ROOT / "diagnostics/lint/options").glob("*.json")
    )
    assert one(r"options of (\d+) releases", page("lint.md")) == (sum(map(len, lists)),)
