"""Build the JSON document that a node of a multi-node job returns: facts, NCCL releases, and models in the hub cache.

`remote` and `ray_nodes` send this module to the node and run `collect_node` there. Standard library only.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from diagnostics.collect import facts
from diagnostics.collect.elf import system_folders
from diagnostics.collect.python_environment import NoEnvironmentError
from diagnostics.safe_io import list_folder

MAX_MODELS = 200
_NCCL = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")


def collect_node(options: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the document of this node; `{"error": MESSAGE}` if it has no environment.

    Args:
        options: `prefix` of the environment to examine; without it, the environment of this Python.
        folder: The folder of our sources. It is removed from `sys.path`, which is examined if there is no prefix.
    """
    prefix = Path(options["prefix"]) if options.get("prefix") else None
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    try:
        collected = facts.collect(prefix)
    except NoEnvironmentError as error:
        return {"error": str(error)}
    cache = collected.machine.disk("hub cache")
    models = cached_models(Path(cache.path)) if cache else []
    return {"facts": collected.to_json(), "nccl": system_nccl(), "models": models}


def system_nccl() -> list[str]:
    """Return the NCCL releases outside Python packages, where vLLM and the loader search, in this order."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    libraries = [f"{folder}/libnccl.so.2" for folder in (*folders, *system_folders())]
    named = os.environ.get("VLLM_NCCL_SO_PATH", "")
    names = (os.path.realpath(library).rpartition("/")[2] for library in (named, *libraries))
    return list(dict.fromkeys(match[1] for name in names if (match := _NCCL.search(name))))


def cached_models(cache: Path) -> list[str]:
    """Return the first MAX_MODELS models in a hub cache that have a snapshot."""
    names = sorted(name for name in list_folder(cache) if name.startswith("models--"))
    complete = [name for name in names if any((cache / name / "snapshots").glob("*"))]
    return [name.removeprefix("models--").replace("--", "/") for name in complete[:MAX_MODELS]]
