"""What a model's files hold, without reading more than their headers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from pathlib import Path


def stored_shapes(folder: Path, where: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a folder's safetensors files; none where there is no such file.

    Raises:
        EngineError: One of them is no safetensors file; begins with `where`.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:  # eight bytes of length, little-endian, then the header as JSON
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            shapes |= {name: tuple(entry["shape"]) for name, entry in header.items()}
        except (OSError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise EngineError(f"{where}: {path} is no safetensors file: {error}") from error
    return shapes
