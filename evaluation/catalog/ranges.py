"""Check the catalog's claims about source code in every final release, not only at the ends of their ranges.

A claim of the catalog with `read` names files of a wheel and a pattern; one of the files matches the pattern in each
release where the issue can occur. `python -m evaluation.catalog.ranges` searches every final release on the package
index, writes `diagnostics/data/ranges.json`, with which a test compares each claim, and prints the claims that disagree
with the ranges found. `--propose` searches nothing, and only prints the disagreements.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import catalog
from diagnostics.api_index import archives
from diagnostics.matrix.context import ROOT
from evaluation.wheels import WheelSources, find_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.catalog.model import Affected

PUBLISHED = ROOT / "diagnostics" / "data" / "ranges.json"
SCHEMA = "grpo-doctor.ranges.v1"
# The oldest release of each package that is searched.
SINCE = {
    "vllm": "0.6.0",
    "trl": "0.14.0",
    "verl": "0.1",
    "ms-swift": "3.0.0",
    "openrlhf": "0.5.0",
    "ray": "2.0.0",
    "transformers": "4.0.0",
    "torch": "1.0.0",
    "peft": "0.9.0",
}
# Requests run in parallel because the index has a high latency.
_PARALLEL_DOWNLOADS = 6
# Prefix of installed paths in some wheels.
_PREFIX = re.compile(r"^[\w.-]+\.data/purelib/")


def any_file_matches(wheel: WheelSources, files: Iterable[str], pattern: str) -> bool:
    """Return whether a file whose path matches one of the glob patterns in `files` contains the pattern."""
    compiled = re.compile(pattern, re.DOTALL)
    for name in sorted(wheel.names()):
        path = _PREFIX.sub("", name)
        if any(fnmatch.fnmatchcase(path, file_pattern) for file_pattern in files) and compiled.search(
            wheel.read(name)
        ):
            return True
    return False


def claim_key(code: str, claim: Affected) -> str:
    """Return the key of a claim in ranges.json."""
    assert claim.source_search is not None
    return f"{code} {claim.package} {' '.join(claim.source_search.files)} {claim.source_search.pattern}"


def searchable_claims(codes: Iterable[str] = ()) -> list[tuple[str, Affected]]:
    """Return all claims that have a search pattern, of the given entries or of all entries."""
    return [
        (code, claim)
        for code, entry in catalog.load().items()
        for claim in entry.affected
        if claim.source_search is not None and (not codes or code in codes)
    ]


def list_final_releases(package: str, since: str) -> list[str]:
    """Return the final releases of a package with a wheel, oldest first."""
    with archives.connect() as client:
        return [release.version for release in archives.list_releases(client, package, since=since)]


def search_claims(wanted: list[tuple[str, Affected]], cache: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Search each claim in each release of its package; return `known` with the results added."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    for package in dict.fromkeys(claim.package for _, claim in wanted):
        order = list_final_releases(package, SINCE[package])
        claims_of_package = [
            (claim_key(code, claim), claim) for code, claim in wanted if claim.package == package
        ]
        matching: dict[str, list[str]] = {key: [] for key, _ in claims_of_package}
        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
            looks = [
                pool.submit(_matching_claims, package, release, claims_of_package, cache) for release in order
            ]
            for release, look in zip(order, looks, strict=True):
                for key in look.result():
                    matching[key].append(release)
                print(f"{package} {release}", file=sys.stderr)
        known["releases"][package] = order
        known["found"] |= {key: {"read": day, "in": matching[key]} for key, _ in claims_of_package}
    return known


def _matching_claims(
    package: str, release: str, claims_of_package: list[tuple[str, Affected]], cache: Path
) -> list[str]:
    """Return the keys of the claims whose pattern matches in one release."""
    wheel = find_wheel(package, release, cache=cache)
    return [
        key
        for key, claim in claims_of_package
        if claim.source_search
        and any_file_matches(wheel, claim.source_search.files, claim.source_search.pattern)
    ]


def propose_range(order: list[str], found: list[str]) -> tuple[str, str]:
    """Return the range of the found releases, and the newest release if the range has no end.

    Returns ("", "") if the releases are not one range.

    >>> propose_range(["1.0", "1.1", "1.2"], ["1.0", "1.1"]), propose_range(["1.0", "1.1"], ["1.1"])
    (('>=1.0,<1.2', ''), ('>=1.1', '1.1'))
    """
    places = [order.index(release) for release in found]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return "", ""
    if places[-1] == len(order) - 1:
        return f">={found[0]}", order[-1]
    return f">={found[0]},<{order[places[-1] + 1]}", ""


def main() -> int:
    """Search the claims, write the results (not with --propose), and print the claims that disagree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("code", nargs="*", help="only these entries")
    parser.add_argument("--cache", help="folder for downloaded sources (default: .matrix/wheels)")
    parser.add_argument(
        "--propose", action="store_true", help="search nothing; print the claims that disagree"
    )
    options = parser.parse_args()
    cache = Path(options.cache) if options.cache else ROOT / ".matrix" / "wheels"
    known: dict[str, Any] = {"releases": {}, "found": {}}
    if PUBLISHED.exists():
        known = json.loads(PUBLISHED.read_text())
    selected = searchable_claims(options.code)
    packages = [] if options.propose else dict.fromkeys(claim.package for _, claim in selected)
    for package in packages:
        known = search_claims([claim for claim in selected if claim[1].package == package], cache, known)
        current = {claim_key(code, claim) for code, claim in searchable_claims()}
        known["found"] = {key: known["found"][key] for key in sorted(known["found"]) if key in current}
        document = {"schema": SCHEMA, "releases": known["releases"], "found": known["found"]}
        PUBLISHED.write_text(json.dumps(document, indent=0) + "\n")
    for code, claim in selected:
        matching = known["found"].get(claim_key(code, claim), {}).get("in", [])
        suggestion = propose_range(known["releases"].get(claim.package, []), matching)
        if suggestion != (claim.versions, claim.examined_until):
            print(
                f"{code} {claim.package}: claimed {claim.versions} {claim.examined_until}; "
                f"found {suggestion} in {matching}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
