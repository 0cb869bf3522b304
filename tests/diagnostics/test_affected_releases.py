"""`affects` decides whether an issue affects a package release, and reports releases that nobody examined.

The shipped entries state the last examined release apart from their ranges.
"""

import pytest
from msgspec.structs import replace

from diagnostics import catalog
from diagnostics.catalog.model import Affected
from diagnostics.versions import (
    AFFECTED,
    NOT_AFFECTED,
    NOT_EXAMINED,
    UNKNOWN,
    UNREADABLE,
    affects,
    issue_package,
)


def claim(package, versions="", releases=(), **fields):
    """Return an `affected` claim with the remaining fields filled in."""
    fields |= {"evidence": "executed" if releases else "static", "source": "here"}
    return Affected(package=package, versions=versions, releases=tuple(releases), **fields)


@pytest.fixture
def issue():
    """Return a function that makes a vLLM issue with these claims."""
    plain = replace(catalog.find("SCH001"), components=("vllm", "trl"))
    return lambda *claims: replace(plain, affected=claims)


@pytest.mark.parametrize(
    ("release", "answer"),
    [
        ("0.5.9", NOT_AFFECTED), ("0.6.0", AFFECTED), ("0.8.5.post1", AFFECTED), ("0.8.5+cpu", AFFECTED),
        ("0.10.2rc1", AFFECTED), ("0.11.0", NOT_AFFECTED), ("dev", UNREADABLE), (None, UNKNOWN),
    ],
)  # fmt: skip
def test_bounded_range_decides_every_readable_release(issue, release, answer):
    """A bounded range decides every readable release; an unreadable one and a missing package have other answers."""
    releases = {} if release is None else {"vllm": release}
    assert affects(issue(claim("vllm", ">=0.6,<0.11")), releases).answer == answer


@pytest.mark.parametrize(
    ("release", "answer", "examined_to"),
    [
        ("0.31.0", AFFECTED, ""),
        ("0.31.0+cpu", AFFECTED, ""),
        ("0.31.1", NOT_EXAMINED, "0.31.0"),
        ("0.5", NOT_AFFECTED, ""),
    ],
)
def test_open_range_reaches_to_the_last_examined_release(issue, release, answer, examined_to):
    """An open range affects releases up to the last examined one; for a newer one the answer names it."""
    result = affects(issue(claim("vllm", ">=0.6", examined_until="0.31.0")), {"vllm": release})
    assert (result.answer, result.examined_to) == (answer, examined_to)


def test_one_claim_that_covers_the_release_is_enough(issue):
    """A claim that lists the release decides, although the range of another claim was examined only up to 0.9."""
    claims = (claim("vllm", ">=0.6", examined_until="0.9"), claim("vllm", releases=["0.33.0"]))
    assert affects(issue(*claims), {"vllm": "0.33.0"}).answer == AFFECTED
    assert affects(issue(*claims), {"vllm": "0.32.0"}).answer == NOT_EXAMINED


def test_claim_of_single_releases_leaves_others_unexamined(issue):
    ran = issue(claim("vllm", releases=["0.8.5"]))
    assert affects(ran, {"vllm": "0.8.5"}).answer == AFFECTED
    assert affects(ran, {"vllm": "0.8.4"}).answer == NOT_EXAMINED


def test_claims_about_the_issues_own_package_decide(issue):
    """A claim about another package that is not `needed` does not decide."""
    both = issue(claim("vllm", ">=0.6,<0.11"), claim("trl", "<0.16"))
    result = affects(both, {"vllm": "0.8.5", "trl": "0.20"})
    assert (result.answer, result.package, len(result.matching)) == (AFFECTED, "vllm", 1)
    assert affects(both, {"vllm": "0.12", "trl": "0.15"}).answer == NOT_AFFECTED
    assert affects(both, {"trl": "0.15"}).answer == UNKNOWN


def test_needed_claim_of_another_package_must_match_too(issue):
    """If a needed claim does not match the release of its package, the issue does not affect the environment.

    Without that package the claim is ignored.
    """
    both = issue(claim("vllm", ">=0.6,<0.11"), claim("transformers", ">=5", needed=True))
    assert affects(both, {"vllm": "0.8.5", "transformers": "5.1"}).answer == AFFECTED
    assert affects(both, {"vllm": "0.8.5", "transformers": "4.53"}).answer == NOT_AFFECTED
    assert affects(both, {"vllm": "0.8.5", "transformers": "main"}).answer == UNREADABLE
    assert affects(both, {"vllm": "0.8.5"}).answer == AFFECTED


def test_shipped_entries_state_the_last_examined_release():
    """No range ends with `<=`, because the last examined release is stated apart from it.

    More than 60 claims state one; each entry has a package.
    """
    issues = catalog.load()
    assert not [code for code, entry in issues.items() for item in entry.affected if "<=" in item.versions]
    assert sum(bool(item.examined_until) for entry in issues.values() for item in entry.affected) > 60
    assert all(issue_package(entry) for entry in issues.values())
