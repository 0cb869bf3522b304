"""The compatibility table that is shipped with the tool: what the matrix saw when it was published."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from diagnostics import given
from diagnostics.collect.shapes import ANY, Each, problem

SCHEMA = "grpo-doctor.compat.v1"
PATH = Path(__file__).parent.parent / "data" / "compat.json"
_LAYER = {
    "verdict": str,
    "expected?": bool,
    "evidence?": (str, None),
    "codes": [str],
    "summary?": str,
    "reason?": (str, None),
    "ran_with?": Each(str),
    "command?": str,
    "date": (str, None),
}
_CELL = {
    "id": str,
    "vllm": str,
    "trl": str,
    "python?": str,
    "transformers": (str, None),
    "torch": (str, None),
    "verdict": str,
    "note?": (str, None),
    "layers": Each(_LAYER),
}
SHAPE = {
    "schema": str,
    "generated?": str,
    "harness?": ANY,
    "cells": [_CELL],
    "breadth?": {"trl": Each({"declares": str})},
}


@dataclass(frozen=True)
class Read:
    """What metadata and source say of a pair that nobody ran.

    Attributes:
        declares: The range of vLLM that this TRL declares, '' for any.
        allowed: Whether the vLLM lies in it.
        contract: `pass`, `fail`, `not_judged`, or None where it is unknown.
        missing: The first thing that TRL takes and this vLLM doesn't serve, or of which that could not be told.
        resolve: `pass`, `unresolvable`, or None where it is unknown: its requirements, at the pair's own date.
        today: The same with the packages of the day of publishing.
    """

    declares: str
    allowed: bool
    contract: str | None
    missing: str
    resolve: str | None
    today: str | None

    @property
    def broken(self) -> bool:
        """Whether one of them says that it cannot work."""
        return self.contract == "fail" or self.resolve == "unresolvable"

    @property
    def promising(self) -> bool:
        """Whether it is allowed, all that TRL takes is served, and nothing speaks against it."""
        return self.allowed and self.contract == "pass" and not self.broken


@dataclass(frozen=True)
class Compat:
    """The table, or why there is none.

    Attributes:
        cells: As published.
        generated: The day of publishing.
        problem: Why the table can't be used, empty if it can.
        breadth: By TRL: what it declares, and by layer and outcome the vLLM releases.
    """

    cells: tuple[dict[str, Any], ...] = ()
    generated: str = ""
    problem: str = ""
    breadth: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(self, vllm: str, trl: str) -> Read | None:
        """Returns what is known of a pair without a run; None if nothing is."""
        known = self.breadth.get(trl)
        if known is None:
            return None
        layers = {
            name: _outcome(known.get(name, {}), vllm) for name in ("contract", "resolve", "resolve:today")
        }
        if not any(layers.values()):
            return None
        contract, _, missing = (layers["contract"] or "").partition(" ")
        return Read(
            declares=known["declares"],
            allowed=_within(known["declares"], vllm),
            contract=contract or None,
            missing=missing,
            resolve=layers["resolve"],
            today=layers["resolve:today"],
        )

    def vouched(self, vllm: str, trl: str) -> bool:
        """Whether the contract of a pair was read and holds; what was not judged or never read vouches for nothing."""
        said = [
            cell["layers"]["contract"]["verdict"]
            for cell in self.cells
            if (cell["vllm"], cell["trl"]) == (vllm, trl) and "contract" in cell["layers"]
        ]
        known = self.read(vllm, trl)
        said += [known.contract] if known and known.contract else []
        return bool(said) and set(said) <= {"pass", "unexpected_pass"}

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the pairs, as (vllm, trl), of which metadata or source is known."""
        return [
            (vllm, trl)
            for trl, known in self.breadth.items()
            for vllm in dict.fromkeys(
                name
                for layer in known.values()
                if isinstance(layer, dict)
                for names in layer.values()
                for name in names.split()
            )
        ]


def _outcome(layer: dict[str, str], vllm: str) -> str | None:
    return next((said for said, names in layer.items() if vllm in names.split()), None)


def _within(declared: str, version: str) -> bool:
    try:
        return SpecifierSet(declared).contains(version, prereleases=True)
    except InvalidSpecifier:
        return False


def problem_of(document: Any) -> str:
    """Why something is no such table, empty if it is one."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        return f"has the schema {str(schema)[:60]!r}, expected {SCHEMA!r}"
    wrong = problem(document, SHAPE)
    for trl, known in () if wrong else document.get("breadth", {}).get("trl", {}).items():
        said = {name: layer for name, layer in known.items() if name != "declares"}
        wrong = wrong or problem(said, Each(Each(str)), f"breadth.trl.{trl[:60]}")
    return wrong


def load(path: Path = PATH) -> Compat:
    """Reads the table; a missing or broken one is a fact, not an error."""
    try:
        document = given.parsed(given.read(path, given.LIST))
        wrong = problem_of(document)
        if wrong:
            return Compat(problem=f"{path.name}: {wrong}")
        breadth = document.get("breadth", {}).get("trl", {})
        return Compat(tuple(document["cells"]), document.get("generated", ""), breadth=breadth)
    except FileNotFoundError:
        return Compat(problem=f"{path.name} is not shipped with this copy of the tool")
    except (OSError, ValueError, RecursionError) as error:
        return Compat(problem=f"{path.name} cannot be read: {type(error).__name__}: {error}")
