"""What is computed of the catalogue's files, kept where Python keeps what it compiled, and for as long.

Reading 180 entries as TOML took most of a short answer. What is kept is JSON beside the bytecode, valid while names,
sizes and times of the files are as they were; where nothing can be kept there, everything is computed as before.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HERE = Path(__file__).parent / "__pycache__"


def kept(name: str, sources: Iterable[Path], make: Callable[[], Any]) -> Any:
    """What `make` gives, made once for these files.

    Args:
        name: Of what is kept.
        sources: The files that it is made of, those of code among them.
        make: Gives what JSON can hold.
    """
    path = HERE / f"{name}.{sys.implementation.cache_tag}.json"
    try:
        state = [[str(each), *_state(each)] for each in sources]
        found = json.loads(path.read_bytes())
        if found["of"] == state:
            return found["made"]
    except (OSError, ValueError, LookupError, TypeError):
        state = []
    made = make()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, TypeError, ValueError):
            _keep(path, {"of": state or [[str(each), *_state(each)] for each in sources], "made": made})
    return made


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _keep(path: Path, document: dict[str, Any]) -> None:
    """Writes it whole or not at all: others may be reading."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps(document), encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
