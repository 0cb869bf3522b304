"""What a server is asked, in which order, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.audit.errors import NotAskedError

if TYPE_CHECKING:
    from pathlib import Path

    from diagnostics.audit.model import Audit


@dataclass(frozen=True)
class Asked:
    """What a live audit is given.

    Attributes:
        server: Its address.
        checkpoint: The folder whose weights it should hold.
        against: Other folders that it may hold.
        trainer: What the trainer samples and computes with, as JSON; None: nothing is known.
        replicas: Addresses of servers that should be the same.
        tokens: At most so many, prompts and samples together.
        timeout_s: Of one call.
    """

    server: str
    checkpoint: Path
    against: tuple[Path, ...] = ()
    trainer: Path | None = None
    replicas: tuple[str, ...] = ()
    tokens: int = 4000
    timeout_s: float = 60.0


def audit_server(asked: Asked) -> Audit:
    """Asks a server.

    Raises:
        AuditError: What was given can't be used.
        NotAskedError: It may not be asked now.
    """
    raise NotAskedError(f"{asked.server}: asking a server is not built yet")
