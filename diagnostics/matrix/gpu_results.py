"""Import the results of `evaluation/gpu/run.sh`: checked against their schema, and kept next to the store."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from diagnostics import safe_io
from diagnostics.matrix.store import StoreError

LARGEST = 64 * safe_io.MIB
_OUTCOMES = ("ok", "failed", "skipped")


class Step(Struct, omit_defaults=True):
    """One step of the GPU checks: what it measured, or why it failed."""

    step: str
    outcome: Literal["ok", "failed", "skipped"]
    seconds: float
    result: dict[str, Any] = {}
    reason: str = ""


class GpuResults(Struct, tag_field="schema", tag="grpo-doctor.gpu.v2"):
    """The document `gpu.json`."""

    made: Annotated[str, Meta(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")]
    device: str
    steps: Annotated[list[Step], Meta(min_length=1)]

    def summary(self) -> str:
        """Return one line: how many steps ended how, and on which GPU."""
        counts = Counter[str](step.outcome for step in self.steps)
        listed = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])
        return f"{len(self.steps)} steps on {self.device}: {listed}"


def read_gpu_results(path: Path) -> GpuResults:
    """Read a `gpu.json`.

    Raises:
        StoreError: It cannot be read, or differs from the schema.
    """
    try:
        return msgspec.json.decode(safe_io.read_bytes(path, LARGEST), type=GpuResults)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: {error}") from None


def keep_gpu_results(folder: Path, results: GpuResults) -> bool:
    """Write the document into the folder of a store; return False if it is there already."""
    text = msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"
    digest = hashlib.sha256(text).hexdigest()[:12]
    path = folder / "gpu" / f"{results.made.replace(':', '')}-{digest}.json"
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    safe_io.write_atomically(path, text)
    return True
