"""Collect the facts about an environment (`python_environment`) and its machine (`machine`), also as a JSON document.

`collect` returns the facts, which the checks of doctor's static tier read. For a multi-node job, `collect_node` returns
a node's facts, NCCL releases and cached models; `remote` and `ray_nodes` send this module to the node and run it there.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diagnostics.collect import machine, python_environment
from diagnostics.collect.elf import system_folders
from diagnostics.collect.machine import Machine
from diagnostics.collect.python_environment import Environment, NoEnvironmentError
from diagnostics.safe_io import list_folder

SCHEMA = "grpo-doctor.facts.v1"
MAX_MODELS = 200
_NCCL = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class Facts:
    """The facts of one environment and of the machine it is on."""

    environment: Environment
    machine: Machine

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON data, with the name of the schema."""
        return {"schema": SCHEMA, **asdict(self)}


def collect(prefix: Path | None, environ: Mapping[str, str] = os.environ) -> Facts:
    """Examine this machine and the environment at a prefix; with None, the environment of this Python.

    Raises:
        NoEnvironmentError: There is no Python environment at the prefix.
    """
    environment = python_environment.collect(prefix, environ)
    return Facts(environment, machine.collect(environment.prefix, environ))


def collect_node(options: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return this node's facts, NCCL releases and cached models as JSON data; `{"error": MESSAGE}` without environment.

    Args:
        options: `prefix` of the environment to examine; without it, the environment of this Python.
        folder: The folder of our sources. It is removed from `sys.path`, which is examined if there is no prefix.
    """
    prefix = Path(options["prefix"]) if options.get("prefix") else None
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    try:
        collected = collect(prefix)
    except NoEnvironmentError as error:
        return {"error": str(error)}
    cache = collected.machine.disk("hub cache")
    models = cached_models(Path(cache.path)) if cache else []
    return {"facts": collected.to_json(), "nccl": system_nccl(), "models": models}


def system_nccl() -> list[str]:
    """Return the NCCL releases outside Python packages, by the names of the files that vLLM and the loader may find."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    libraries = [f"{folder}/libnccl.so.2" for folder in (*folders, *system_folders())]
    nccl_library = os.environ.get("VLLM_NCCL_SO_PATH", "")
    names = (os.path.realpath(library).rpartition("/")[2] for library in (nccl_library, *libraries))
    return list(dict.fromkeys(match[1] for name in names if (match := _NCCL.search(name))))


def cached_models(cache: Path) -> list[str]:
    """Return the names of models in a hub cache that have a snapshot: the first MAX_MODELS by name."""
    names = sorted(name for name in list_folder(cache) if name.startswith("models--"))
    complete = [name for name in names if any((cache / name / "snapshots").glob("*"))]
    return [name.removeprefix("models--").replace("--", "/") for name in complete[:MAX_MODELS]]
