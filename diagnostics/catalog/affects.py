"""Old name of `diagnostics.versions`; to be removed."""

from __future__ import annotations

from diagnostics import versions
from diagnostics.versions import Applicability as Concern
from diagnostics.versions import MatchingClaim as Held
from diagnostics.versions import affects, claims_of

CONCERNED, FREE, NOT_LOOKED, UNREADABLE, UNKNOWN = (
    versions.AFFECTED, versions.NOT_AFFECTED, versions.NOT_EXAMINED, versions.UNREADABLE, versions.UNKNOWN,
)  # fmt: skip
subject = versions.issue_package
of_package = versions.check_claims
free_from = versions.fixed_in
__all__ = [
    "CONCERNED", "FREE", "NOT_LOOKED", "UNKNOWN", "UNREADABLE", "Concern", "Held", "affects", "claims_of", "free_from",
    "of_package", "subject",
]  # fmt: skip
