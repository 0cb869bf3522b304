"""What a verdict rests on, as a digest: it stands until one of these changes.

Not part of it: expectations (they judge an answer, they don't make it), time limits, where things are kept.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def digest(inputs: Mapping[str, str]) -> str:
    """Returns the identity of a question with these inputs."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def text_digest(text: str) -> str:
    """Returns a short digest of a text, for showing and comparing."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_digest(root: Path, parts: Iterable[str]) -> str:
    """Returns the digest of our own code: Python files, templates and data below the named files and folders.

    Names count as well as contents. Tests and bytecode don't.
    """
    whole = hashlib.sha256()
    for part in sorted(set(parts)):
        for path in _files(root / part):
            data = path.read_bytes()
            whole.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode())
            whole.update(data)
    return whole.hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(
        item
        for item in path.rglob("*")
        if item.is_file() and "__pycache__" not in item.parts and item.suffix != ".pyc"
    )
