"""The command `explain`: codes, a line of a log, or words; and the list of all codes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnostics import catalog
from diagnostics.catalog import documents, model, offers
from diagnostics.output.findings import FINE
from diagnostics.output.formats import issue as shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_CODE = re.compile(r"[A-Za-z]{3}\d{1,4}|[A-Z]{3,5}")
_SCHEMA = "grpo-doctor.explained.v1"


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain", help="what a code means, why it happens, what helps"
    )
    parser.add_argument(
        "words", nargs="*", metavar="CODE", help="codes; or a line of a log, or words, which are looked for"
    )
    parser.add_argument("--list", action="store_true", help="all codes with their titles")
    parser.add_argument("--kind", choices=(*model.KINDS, documents.CHECK), help="of --list: these alone")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Explains, or lists; returns the exit code.

    Raises:
        CatalogueError: A code that nobody has, or words that nothing is near.
    """
    if options.list or not options.words:
        return _list(options)
    codes, told = [word.upper() for word in options.words if _CODE.fullmatch(word)], ""
    if len(codes) < len(options.words):
        codes, told = _found(" ".join(options.words))
    explained = [_one(code) for code in dict.fromkeys(codes)]
    if options.format == "json":
        every = [document for document, _ in explained]
        alone = len(options.words) == 1 and not told
        print(shown.as_json(every[0] if alone else {"schema": _SCHEMA, "found_by": told, "explained": every}))
        return FINE
    if told:
        shown.render_found(" ".join(options.words), told, explained, sys.stdout)
        return FINE
    for place, (document, remedy) in enumerate(explained):
        print("\n" * bool(place), end="")
        shown.render(document, sys.stdout, remedy)
    return FINE


def _one(code: str) -> tuple[dict[str, Any], Any]:
    """A code's document, and what is done about it; None for a check's own code."""
    if catalog.is_check(code):
        return documents.of_check(catalog.find_check(code)), None
    entry = catalog.find(code)
    remedy = offers.remedy(entry)
    return documents.of_issue(entry, remedy), remedy


def _found(text: str) -> tuple[list[str], str]:
    """The codes of a text, and how they were found: by what they print, or by words that are near."""
    # Late: who names a code needs none of it.
    from diagnostics.triage.asked import Questions
    from diagnostics.triage.command import triage
    from diagnostics.triage.reading.logs import LogSource
    from diagnostics.triage.rules import Rules

    @dataclass(frozen=True)
    class Line(LogSource):
        """A log of what was typed."""

        def blocks(self) -> Iterator[bytes]:
            """The one block of it."""
            yield text.encode("utf-8", "replace") + b"\n"

    issues = catalog.load()
    if found := [
        one.issue.code for one in triage([Line("text", None)], Rules(issues), excerpt=True).candidates
    ]:
        return found, "printed"
    near = Questions(issues).near(text)
    if not near and " " not in text:
        catalog.find(text)  # which says what codes there are
    if not near:
        raise catalog.CatalogueError(f"nothing is near {text!r}; `explain --list` has all codes")
    return near, "near"


def _list(options: argparse.Namespace) -> int:
    """All codes, of one kind or all."""
    kind, issues = options.kind, catalog.load()
    kept = [each for each in issues.values() if kind in {None, each.kind}]
    checks = list(catalog.load_checks().values()) if kind in {None, documents.CHECK} else []
    if options.format == "json":
        print(json.dumps(documents.listing(kept, checks), indent=1, ensure_ascii=False))
        return FINE
    for code, word, title in (
        *((each.code, each.kind, each.title) for each in kept),
        *((each.code, documents.CHECK, each.title) for each in checks),
    ):
        print(f"{code}  {word:<7} {title}")
    return FINE
