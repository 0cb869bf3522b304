"""Search the codes of known issues and checks that fit a text of the user, for the command `explain`.

The text is triaged like a log. If no signature matches, the catalog's entries are searched for similar words.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from diagnostics import catalog
from diagnostics.catalog.search import CatalogSearch
from diagnostics.triage.command import triage
from diagnostics.triage.rules import Rules
from diagnostics.triage.sources import LogSource


@dataclass(frozen=True)
class _CommandLineText(LogSource):
    """A log source that consists of the text on the command line."""

    text: str = ""

    def blocks(self) -> Iterator[bytes]:
        """Yield the text."""
        yield self.text.encode("utf-8", "replace") + b"\n"


def search_codes(text: str) -> tuple[list[str], list[str]]:
    """Return the codes whose signature matches a text; and, only if there are none, the codes with similar words."""
    issues = catalog.load()
    verdict = triage([_CommandLineText("text", None, text=text)], Rules(issues), excerpt=True)
    matching = [entry.issue.code for entry in verdict.candidates]
    return matching, [] if matching else CatalogSearch({**issues, **catalog.load_checks()}).search(text)
