"""A range of releases that an entry claims to have been read is the one that was found in the wheels."""

import json

import pytest

from diagnostics.catalog import loader
from diagnostics.versions import in_range
from evaluation.catalog import edits, options, ranges

# Read in what has no wheel (source distributions), or held by a run of every release.
READ_ELSEWHERE = {("CMP001", "vllm"), ("SYN017", "deepspeed"), ("SYN020", "deepspeed")}
RANGES = json.loads(ranges.PUBLISHED.read_text())
INDEX = edits.index()


@pytest.mark.parametrize(
    ("code", "claim"),
    [pytest.param(code, claim, id=f"{code}-{claim.package}") for code, claim in ranges.claims()],
)
def test_a_range_is_where_the_wheels_have_it(code, claim):
    """Read in every release on the index: in each of the range, and in none outside of it that was looked at."""
    found = RANGES["found"][ranges.key_of(code, claim)]["in"]
    assert found
    for release in RANGES["releases"][claim.package]:
        looked = not claim.looked_to or in_range(release, f"<={claim.looked_to}")
        if looked:
            assert in_range(release, claim.versions) == (release in found), release


def test_options_are_read_from_the_releases_that_the_ranges_are():
    """One index of releases: neither is older than the other."""
    for package in set(INDEX) & set(RANGES["releases"]):
        assert INDEX[package]["releases"][-1] == RANGES["releases"][package][-1]
    assert set(INDEX) == set(options.PACKAGES)


def test_a_static_range_says_what_was_read():
    """Else it is wider or narrower than the releases that have it, and nobody sees that."""
    unread = {
        (code, claim.package)
        for code, entry in loader.load().items()
        for claim in entry.affected
        if claim.evidence == "static" and claim.versions and claim.read is None
    }
    assert unread == READ_ELSEWHERE
