"""All that doctor's static tier knows: the environment and the machine under it, as JSON and back."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diagnostics.collect import environment, machine
from diagnostics.collect.environment import Environment
from diagnostics.collect.machine import Machine
from diagnostics.collect.names import may_be_asked, names_a_package
from diagnostics.collect.plain import FactsError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "grpo-doctor.facts.v1"
_METADATA = re.compile(r"/(?!.*/\.\.?/)\S.*[.-]info", re.IGNORECASE | re.DOTALL)


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
    facts = decode(Facts, document)
    return replace(facts, environment=_named(facts.environment))


def _named(seen: Environment) -> Environment:
    """What another machine says of packages, held to what this one would have taken for a package."""
    wrong = {
        name for name, package in seen.packages.items()
        if name != package.name or not names_a_package(package.name, package.version)
        or not all(map(may_be_asked, (*package.requires, package.requires_python)))
    }  # fmt: skip
    places = {*seen.broken, *(seen.packages[name].place for name in wrong)}
    return replace(
        seen,
        python=seen.python if may_be_asked(seen.python) else "",
        packages={name: package for name, package in seen.packages.items() if name not in wrong},
        # What is printed is a command that removes them: nothing else is named by it.
        broken=tuple(sorted(place for place in places if _METADATA.fullmatch(place))),
    )


def collect(prefix: Path | None, environ: Mapping[str, str] = os.environ) -> Facts:
    """Looks at an environment, by its prefix (None: the one this Python belongs to), and at this machine.

    Raises:
        NoEnvironmentError: There is no Python environment at the prefix.
    """
    seen = environment.collect(prefix, environ)
    return Facts(seen, machine.collect(seen.prefix, environ))
