"""Our own bundle: a snapshot as JSON, without anything of the caller's person, to be judged on another machine."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from diagnostics import door
from diagnostics.hang.read import ReadError
from diagnostics.hang.snapshot import SCHEMA, Snapshot, SnapshotError
from diagnostics.output.personal import strip

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS = re.compile(r"^(\[[^\]]+\]|[\d.]+):(\d+)$")
_LOOPBACK = ("127.", "[::1]", "0.0.0.0", "[::]")  # noqa: S104 - compared with, not bound to
_TITLE = 120


def write(snapshot: Snapshot, path: Path) -> None:
    """Keeps a snapshot."""
    text = json.dumps(stripped(snapshot.to_json()), indent=0, ensure_ascii=False)
    path.write_text(door.visible(text), encoding="utf-8")


def stripped(document: dict[str, Any]) -> dict[str, Any]:
    """The document with addresses numbered, so that ends still meet, and all else that is personal taken out."""
    names: dict[str, str] = {}

    def clean(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: clean(name, item) for name, item in value.items()}
        if isinstance(value, list):
            return [clean(key, item) for item in value]
        if not isinstance(value, str):
            return value
        match = _ADDRESS.match(value)
        if key in ("local", "remote", "job") and match:
            if match[1].startswith(_LOOPBACK):
                return value
            return f"{names.setdefault(match[1], f'address-{len(names) + 1}')}:{match[2]}"
        # An argument may be anything: what the process is stands in its role.
        return strip(value[:_TITLE]) if key == "title" else strip(value)

    found: dict[str, Any] = clean("", document)
    return found


def read(document: Any, name: str) -> Snapshot:
    """Reads one.

    Raises:
        ReadError: It is none, or broken.
    """
    if isinstance(document, dict) and document.get("schema") == SCHEMA:
        try:
            return Snapshot.from_json(document)
        except SnapshotError as error:
            raise ReadError(f"{name}: {error}") from None
    raise ReadError(
        f"{name}: JSON that could not be read as a bundle of hang --save, as py-spy's, a flight recorder's or RAS's"
    )
