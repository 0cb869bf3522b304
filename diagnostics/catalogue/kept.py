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
        make: Gives what pickle can hold.
    """
    import pickle

    path = HERE / f"{name}.{sys.implementation.cache_tag}.pickle"
    try:
        state = [[str(each), *_state(each)] for each in sources]
        # Whoever can write there can write the bytecode, too.
        found = pickle.loads(path.read_bytes())  # noqa: S301
        if found["of"] == state:
            return found["made"]
    except Exception:  # noqa: BLE001 - what is damaged is refused in any way there is
        state = []
    made = make()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            _keep(path, {"of": state or [[str(each), *_state(each)] for each in sources], "made": made})
    return made


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _keep(path: Path, document: dict[str, Any]) -> None:
    """Writes it whole or not at all: others may be reading."""
    import pickle

    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(pickle.dumps(document, pickle.HIGHEST_PROTOCOL))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
