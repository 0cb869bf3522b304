"""Which known issue a verdict is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnostics.hang.judge import Judged


def named(judged: Judged) -> Judged:
    """The same, with the code of the known issue that fits it."""
    return judged


def helps(code: str) -> dict[str, Any]:
    """What the catalogue says of a code: title and mitigations."""
    return {}
