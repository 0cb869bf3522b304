"""What is collected on a node, by the standard library alone: doctor's facts, and what only matters between nodes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from diagnostics.collect import collection
from diagnostics.collect.names import NoEnvironmentError

SCHEMA = "grpo-doctor.node.v1"
MOST_MODELS = 200
_NCCL = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
)


def look(options: dict[str, Any], folder: str) -> dict[str, Any]:
    """The document of this node, or why there is none.

    Args:
        options: `prefix` of the environment to be examined, empty for the one of this Python.
        folder: Where this program itself was unpacked; no place of the user's.
    """
    prefix = Path(options["prefix"]) if options.get("prefix") else None
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    try:
        facts = collection.collect(prefix)
    except NoEnvironmentError as error:
        return {"schema": SCHEMA, "error": str(error)}
    hub = facts.machine.disk("hub cache")
    return {
        "schema": SCHEMA,
        "facts": facts.to_json(),
        "nccl": system_nccl(),
        "models": models(Path(hub.path)) if hub else [],
    }


def system_nccl() -> list[str]:
    """Releases of NCCL's library outside Python's packages, where the loader and vLLM would look first."""
    named = os.environ.get("VLLM_NCCL_SO_PATH", "")
    found = [_release(Path(named))] if named else []
    places = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_PLACES]
    for place in filter(None, places):
        library = Path(place) / "libnccl.so.2"
        if library.exists():
            found.append(_release(library))
    return list(dict.fromkeys(filter(None, found)))


def _release(path: Path) -> str:
    try:
        match = _NCCL.search(path.resolve().name)
    except (OSError, RuntimeError):
        return ""
    return match[1] if match else ""


def models(cache: Path) -> list[str]:
    """The models in a hub cache that have a snapshot."""
    try:
        names = sorted(entry.name for entry in os.scandir(cache) if entry.name.startswith("models--"))
    except OSError:
        return []
    whole = [name for name in names if any((cache / name / "snapshots").glob("*"))]
    return [name.removeprefix("models--").replace("--", "/") for name in whole[:MOST_MODELS]]
