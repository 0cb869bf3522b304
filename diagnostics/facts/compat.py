"""The compatibility table that is shipped with the tool: what the matrix saw when it was published."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

SCHEMA = "grpo-doctor.compat.v1"
PATH = Path(__file__).parent.parent / "data" / "compat.json"


@dataclass(frozen=True)
class Read:
    """What metadata and source say of a pair that nobody ran.

    Attributes:
        declares: The range of vLLM that this TRL declares, '' for any.
        allowed: Whether the vLLM lies in it.
        contract: `pass`, `fail`, or None where it is unknown.
        missing: The first name that TRL takes and this vLLM doesn't have, '' if there is none.
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
        """Whether it is allowed, all names are there, and nothing speaks against it."""
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


def load(path: Path = PATH) -> Compat:
    """Reads the table; a missing or broken one is a fact, not an error."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            return Compat(problem=f"{path.name} has the schema {document['schema']!r}, expected {SCHEMA!r}")
        cells = tuple(
            cell for cell in document["cells"] if {"id", "vllm", "trl", "verdict", "layers"} <= set(cell)
        )
        breadth = dict(document.get("breadth", {}).get("trl", {}))
        if not all(isinstance(known, dict) and "declares" in known for known in breadth.values()):
            return Compat(problem=f"{path.name}: breadth: each TRL needs the range of vLLM that it declares")
        return Compat(cells=cells, generated=str(document.get("generated", "")), breadth=breadth)
    except FileNotFoundError:
        return Compat(problem=f"{path.name} is not shipped with this copy of the tool")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Compat(problem=f"{path.name} cannot be read: {type(error).__name__}: {error}")
