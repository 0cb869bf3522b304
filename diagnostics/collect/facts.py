"""Combine the facts about an environment (`python_environment`) and its machine (`machine`), also as a JSON document.

The checks of doctor's static tier read them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diagnostics.collect import machine, python_environment
from diagnostics.collect.machine import Machine
from diagnostics.collect.python_environment import Environment

SCHEMA = "grpo-doctor.facts.v1"


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
