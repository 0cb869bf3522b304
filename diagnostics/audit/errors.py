"""What ends an audit before it has an answer."""

from __future__ import annotations


class AuditError(Exception):
    """Raised when what was given can't be used; one line that names it and what is missing."""


class NotAskedError(AuditError):
    """Raised when a server is there and may not be asked now, or something that was needed broke off."""
