"""Measure the search of `explain`: a symptom must find a correct code in the first three, an unrelated phrase none.

`python -m evaluation.search.phrases [FILE]` prints the counts and every phrase with a wrong result. A line of FILE is a
phrase, a tab, and the correct codes (separated by commas) or `none`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from diagnostics.catalog import CatalogError
from diagnostics.commands.explain import find_codes

PHRASES = Path(__file__).with_name("phrases.tsv")


def search_codes(phrase: str) -> list[str]:
    """Return the first three codes that `explain PHRASE` lists."""
    try:
        return find_codes(phrase)[0][:3]
    except CatalogError:
        return []


def main() -> int:
    """Print the counts and the wrong results."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PHRASES
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    related = right = unrelated = silent = 0
    for phrase, codes in rows:
        expected, shown = set(codes.split(",")), search_codes(phrase)
        if expected == {"none"}:
            unrelated += 1
            silent += not shown
            hit = not shown
        else:
            related += 1
            hit = bool(expected & set(shown))
            right += hit
        if not hit:
            print(f"missed: {phrase}: expected {codes}, shown {' '.join(shown) or 'nothing'}")
    print(f"right entry in the first three: {right} of {related}")
    print(f"nothing shown for unrelated words: {silent} of {unrelated}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
