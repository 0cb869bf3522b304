"""Where what is found goes: lines of a log, a file of JSON lines, and at the end the document."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING

from diagnostics.audit import document
from diagnostics.output.audits import running

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diagnostics.audit.running.watcher import Change, Watcher

LOG = logging.getLogger("grpo_doctor.audit")
CHANGES, WHOLE = "audit.jsonl", "audit.json"


class Told:
    """Tells changes to the log, and to files of a folder where one is given; a full disk ends no training."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def changes(self, changes: Iterable[Change]) -> None:
        """Each as a line."""
        for change in changes:
            LOG.warning("audit: %s", running.line(change))
            if self._folder is not None:
                with (
                    contextlib.suppress(OSError),
                    (self._folder / CHANGES).open("a", encoding="utf-8") as file,
                ):
                    file.write(json.dumps(running.entry(change), ensure_ascii=False) + "\n")

    def whole(self, watcher: Watcher, subject: dict[str, str]) -> None:
        """The document, written aside and renamed: a reader never finds a half."""
        if self._folder is None:
            return
        made = json.dumps(document.document(watcher.audit(subject)), indent=1, ensure_ascii=False)
        with contextlib.suppress(OSError):
            aside = self._folder / f"{WHOLE}.part"
            aside.write_text(made, encoding="utf-8")
            aside.replace(self._folder / WHOLE)
