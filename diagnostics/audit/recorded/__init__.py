"""What a run left behind: dumps, logs, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.audit.model import NOT_ASKED, RECORDED, Audit, Fact, ProbeAnswer

if TYPE_CHECKING:
    from pathlib import Path


def audit_run(path: Path, *, checkpoint: Path | None = None, tokens: int = 4096) -> Audit:
    """Judges what lies in a folder or file of a run.

    Args:
        path: A folder of a run, or one file of it.
        checkpoint: The weights that the text is judged by; None: those that lie in the folder.
        tokens: At most so many tokens of the text are run through the model.

    Raises:
        AuditError: There is nothing there that it can read.
    """
    del checkpoint, tokens
    wanted = (Fact("recorded_not_built", {"path": str(path)}),)
    return Audit(
        RECORDED,
        {"run": str(path)},
        (ProbeAnswer("recorded", NOT_ASKED, "P7", wanted=wanted, decisive=True),),
    )
