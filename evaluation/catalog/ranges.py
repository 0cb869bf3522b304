"""Check each catalog claim in the source of every release, not only at the ends of its range.

A claim of the catalogue that is `static` says in `read` what was looked for: files of the wheel, and a pattern that one
of them has where the issue can occur. `python -m evaluation.catalog.ranges` looks for it in every final release
on the index and writes `diagnostics/data/ranges.json`, with which a test compares each claim. `--propose` prints, for
those that disagree, the range that was found.
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

from diagnostics.api_index import archives
from diagnostics.api_index.surface import Sources
from diagnostics.catalog import loader
from diagnostics.matrix import wheels
from diagnostics.matrix.context import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.catalog.model import Affected

PUBLISHED = ROOT / "diagnostics" / "data" / "ranges.json"
SCHEMA = "grpo-doctor.ranges.v1"
# The oldest release of each package that is read.
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
# An index is slow to answer, not to send.
_AT_ONCE = 6
# Prefix of installed paths in some wheels.
_PREFIX = re.compile(r"^[\w.-]+\.data/purelib/")


def any_file_matches(wheel: Sources, files: Iterable[str], pattern: str) -> bool:
    """Whether one of the files, given as patterns for paths, has a match."""
    compiled = re.compile(pattern, re.DOTALL)
    for name in sorted(wheel.names()):
        path = _PREFIX.sub("", name)
        if any(fnmatch.fnmatchcase(path, file_pattern) for file_pattern in files) and compiled.search(
            wheel.read(name)
        ):
            return True
    return False


def key_of(code: str, claim: Affected) -> str:
    """Return the key that distinguishes a claim from the others of its entry."""
    assert claim.read is not None
    return f"{code} {claim.package} {' '.join(claim.read.files)} {claim.read.pattern}"


def claims(codes: Iterable[str] = ()) -> list[tuple[str, Affected]]:
    """Return all claims with a search pattern, of these entries or of all."""
    return [
        (code, claim)
        for code, entry in loader.load().items()
        for claim in entry.affected
        if claim.read is not None and (not codes or code in codes)
    ]


def releases(package: str, since: str) -> list[str]:
    """Return the final releases of a package with a wheel, oldest first."""
    with archives.connect() as client:
        return [release.version for release in archives.list_releases(client, package, since=since)]


def search_claims(wanted: list[tuple[str, Affected]], cache: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Search each claim in each release of its package; keep known results."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    for package in dict.fromkeys(claim.package for _, claim in wanted):
        order = releases(package, SINCE[package])
        mine = [(key_of(code, claim), claim) for code, claim in wanted if claim.package == package]
        matching: dict[str, list[str]] = {key: [] for key, _ in mine}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            looks = [pool.submit(_in_one, package, release, mine, cache) for release in order]
            for release, look in zip(order, looks, strict=True):
                for key in look.result():
                    matching[key].append(release)
                print(f"{package} {release}", file=sys.stderr)
        known["releases"][package] = order
        known["found"] |= {key: {"read": day, "in": matching[key]} for key, _ in mine}
    return known


def _in_one(package: str, release: str, mine: list[tuple[str, Affected]], cache: Path) -> list[str]:
    """The keys of the claims that hold in one release."""
    wheel = wheels.find_wheel(package, release, cache=cache)
    return [
        key
        for key, claim in mine
        if claim.read and any_file_matches(wheel, claim.read.files, claim.read.pattern)
    ]


def proposed(order: list[str], found: list[str]) -> tuple[str, str]:
    """The range that was found, and how far was looked where it has no end: ("", "") where it is not one range.

    >>> proposed(["1.0", "1.1", "1.2"], ["1.0", "1.1"]), proposed(["1.0", "1.1"], ["1.1"])
    (('>=1.0,<1.2', ''), ('>=1.1', '1.1'))
    """
    places = [order.index(release) for release in found]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return "", ""
    if places[-1] == len(order) - 1:
        return f">={found[0]}", order[-1]
    return f">={found[0]},<{order[places[-1] + 1]}", ""


def main() -> int:
    """Search and write the results; with --propose print them next to the claims."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("code", nargs="*", help="only these entries")
    parser.add_argument("--cache", help="where what was read is kept (default: the store's)")
    parser.add_argument("--propose", action="store_true", help="read nothing, print what disagrees")
    options = parser.parse_args()
    cache = Path(options.cache) if options.cache else ROOT / ".matrix" / "wheels"
    known: dict[str, Any] = {"releases": {}, "found": {}}
    if PUBLISHED.exists():
        known = json.loads(PUBLISHED.read_text())
    selected = claims(options.code)
    packages = [] if options.propose else dict.fromkeys(claim.package for _, claim in selected)
    for package in packages:
        known = search_claims([claim for claim in selected if claim[1].package == package], cache, known)
        current = {key_of(code, claim) for code, claim in claims()}
        known["found"] = {key: known["found"][key] for key in sorted(known["found"]) if key in current}
        document = {"schema": SCHEMA, "releases": known["releases"], "found": known["found"]}
        PUBLISHED.write_text(json.dumps(document, indent=0) + "\n")
    for code, claim in selected:
        matching = known["found"].get(key_of(code, claim), {}).get("in", [])
        suggestion = proposed(known["releases"].get(claim.package, []), matching)
        if suggestion != (claim.versions, claim.looked_to):
            print(
                f"{code} {claim.package}: claimed {claim.versions} {claim.looked_to}; found {suggestion} in {matching}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
