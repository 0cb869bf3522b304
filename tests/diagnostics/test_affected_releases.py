"""Whether an issue affects a release: an unexamined release is neither affected nor unaffected."""

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


def claim(package, versions="", releases=(), **more):
    """A claim with what does not matter here filled in."""
    evidence = "executed" if releases else "static"
    return Affected(
        package=package, versions=versions, releases=tuple(releases), evidence=evidence, source="here", **more
    )


@pytest.fixture
def issue():
    """Make an issue in vLLM with some claims."""
    plain = replace(catalog.find("SCH001"), components=("vllm", "trl"))
    return lambda *claims: replace(plain, affected=claims)


@pytest.mark.parametrize(
    ("release", "answer"),
    [
        ("0.5.9", NOT_AFFECTED), ("0.6.0", AFFECTED), ("0.8.5.post1", AFFECTED), ("0.8.5+cpu", AFFECTED),
        ("0.10.2rc1", AFFECTED), ("0.11.0", NOT_AFFECTED), ("dev", UNREADABLE), (None, UNKNOWN),
    ],
)  # fmt: skip
def test_a_range_with_an_end(issue, release, answer):
    """Inside, outside, unreadable and unknown are four answers."""
    releases = {} if release is None else {"vllm": release}
    assert affects(issue(claim("vllm", ">=0.6,<0.11")), releases).answer == answer


@pytest.mark.parametrize(
    ("release", "answer", "looked_to"),
    [
        ("0.31.0", AFFECTED, ""),
        ("0.31.0+cpu", AFFECTED, ""),
        ("0.31.1", NOT_EXAMINED, "0.31.0"),
        ("0.5", NOT_AFFECTED, ""),
    ],
)
def test_a_range_that_was_looked_at_up_to_a_release(issue, release, answer, looked_to):
    """A newer release is neither affected nor unaffected, and the answer has the last examined release."""
    result = affects(issue(claim("vllm", ">=0.6", looked_to="0.31.0")), {"vllm": release})
    assert (result.answer, result.examined_to) == (answer, looked_to)


def test_one_claim_that_goes_further_is_enough(issue):
    """Each claim has its own last checked release: one that reaches this release is enough."""
    claims = (claim("vllm", ">=0.6", looked_to="0.9"), claim("vllm", releases=["0.33.0"]))
    assert affects(issue(*claims), {"vllm": "0.33.0"}).answer == AFFECTED
    assert affects(issue(*claims), {"vllm": "0.32.0"}).answer == NOT_EXAMINED


def test_single_releases_say_nothing_of_others(issue):
    """That it was run in one release does not free another."""
    ran = issue(claim("vllm", releases=["0.8.5"]))
    assert affects(ran, {"vllm": "0.8.5"}).answer == AFFECTED
    assert affects(ran, {"vllm": "0.8.4"}).answer == NOT_EXAMINED


def test_the_package_it_is_in_decides(issue):
    """Claims about the package with the fault decide; one about another package alone does not."""
    both = issue(claim("vllm", ">=0.6,<0.11"), claim("trl", "<0.16"))
    result = affects(both, {"vllm": "0.8.5", "trl": "0.20"})
    assert (result.answer, result.package, len(result.matching)) == (AFFECTED, "vllm", 1)
    assert affects(both, {"vllm": "0.12", "trl": "0.15"}).answer == NOT_AFFECTED
    assert affects(both, {"trl": "0.15"}).answer == UNKNOWN


def test_a_claim_that_is_needed_decides_too(issue):
    """Two packages that only together have it: one of the two elsewhere and it does not occur."""
    both = issue(claim("vllm", ">=0.6,<0.11"), claim("transformers", ">=5", needed=True))
    assert affects(both, {"vllm": "0.8.5", "transformers": "5.1"}).answer == AFFECTED
    assert affects(both, {"vllm": "0.8.5", "transformers": "4.53"}).answer == NOT_AFFECTED
    assert affects(both, {"vllm": "0.8.5", "transformers": "main"}).answer == UNREADABLE
    assert affects(both, {"vllm": "0.8.5"}).answer == AFFECTED


def test_how_far_was_looked_is_a_field_of_every_shipped_entry():
    """No range ends with a release that is merely the last one looked at."""
    issues = catalog.load()
    assert not [code for code, entry in issues.items() for item in entry.affected if "<=" in item.versions]
    assert sum(bool(item.looked_to) for entry in issues.values() for item in entry.affected) > 60
    assert all(issue_package(entry) for entry in issues.values())
