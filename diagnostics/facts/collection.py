"""All that doctor's static tier knows: the environment and the machine under it, as JSON and back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnostics.facts import environment, machine
from diagnostics.facts.environment import Environment  # noqa: TC001 - `plain.decode` reads the types
from diagnostics.facts.machine import Machine  # noqa: TC001 - `plain.decode` reads the types
from diagnostics.facts.plain import FactsError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "grpo-doctor.facts.v1"


@dataclass(frozen=True)
class Facts:
    """An environment, and the machine it is on."""

    environment: Environment
    machine: Machine

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {"schema": SCHEMA, **encode(self)}


def from_json(document: Any) -> Facts:
    """The facts of a document, whichever machine wrote it.

    Raises:
        FactsError: It is no such document.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise FactsError(f"facts: expected the schema {SCHEMA!r}, found {schema!r}")
    return decode(Facts, document)


def collect(prefix: Path | None, environ: Mapping[str, str] = os.environ) -> Facts:
    """Looks at an environment, by its prefix (None: the one this Python belongs to), and at this machine.

    Raises:
        NoEnvironmentError: There is no Python environment at the prefix.
    """
    seen = environment.collect(prefix, environ)
    return Facts(seen, machine.collect(seen.prefix, environ))
