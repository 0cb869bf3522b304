"""What is computed of the catalogue's files, kept where Python keeps what it compiled, and for as long.

Reading 180 entries as TOML, and checking every key of them, took most of a short answer. What is kept stands beside the
bytecode, a pickle that is believed as far as that is, valid while names, sizes and times of the files are as they were;
where nothing can be kept there, everything is computed as before.
"""

from __future__ import annotations

import contextlib
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
        make: Gives what pickle can hold, and never None.
    """
    paths = list(sources)
    made = found(name, paths)
    if made is None:
        made = make()
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                _keep(_path(name), packed({"of": _states(paths), "made": made}))
    return made


def found(name: str, sources: Iterable[Path]) -> Any:
    """What is kept, where these files are as they were; else None."""
    try:
        document = unpacked(_path(name).read_bytes())
        return document["made"] if document["of"] == _states(sources) else None
    except Exception:  # noqa: BLE001 - what is damaged is refused in any way there is
        return None


def packed(value: Any) -> bytes:
    """A value as it is kept."""
    # Late: many an answer needs nothing of what is kept.
    import pickle

    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Any:
    """The value again."""
    import pickle

    # Whoever can write it can write the bytecode beside it, too.
    return pickle.loads(data)  # noqa: S301 - believed as the bytecode beside it


def _path(name: str) -> Path:
    return HERE / f"{name}.{sys.implementation.cache_tag}.pickle"


def _states(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    return [(str(path), *_state(path)) for path in paths]


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _keep(path: Path, data: bytes) -> None:
    """Writes it whole or not at all: others may be reading."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
