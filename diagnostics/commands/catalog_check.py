"""Find errors in the catalog, also those that involve several entries: a sample that two entries match, for example."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diagnostics.catalog import signatures
from diagnostics.catalog.loader import FOLDER
from diagnostics.catalog.model import CheckCode, Issue
from diagnostics.lint import rules

ROOT = Path(__file__).resolve().parents[2]


def problems(issues: Mapping[str, Issue], checks: Mapping[str, CheckCode]) -> list[str]:
    """Return the errors that involve several entries, one line each with its location.

    Raises:
        CatalogueError: The first entry whose own patterns do not match its samples as declared.
    """
    for issue in issues.values():
        signatures.check(issue)
    messages = signatures.ambiguous_samples(issues.values())
    for issue in issues.values():
        for code in issue.signature.confirms if issue.signature else ():
            if code not in issues or issues[code].signature is None:
                expected = f"expected codes of known issues with a signature, not {code}"
                messages.append(f"{FOLDER / issue.code}.toml: signature.confirms: {expected}")
    messages += rules.find_registration_errors({*issues, *checks}, issues.values())
    return [message.replace(f"{ROOT}/", "") for message in messages]
