"""The compatibility table that is shipped with the tool: what the matrix saw when it was published."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "grpo-doctor.compat.v1"
PATH = Path(__file__).parent.parent / "data" / "compat.json"


@dataclass(frozen=True)
class Compat:
    """The table, or why there is none.

    Attributes:
        cells: As published.
        generated: The day of publishing.
        problem: Why the table can't be used, empty if it can.
    """

    cells: tuple[dict[str, Any], ...] = ()
    generated: str = ""
    problem: str = ""


def load(path: Path = PATH) -> Compat:
    """Reads the table; a missing or broken one is a fact, not an error."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            return Compat(problem=f"{path.name} has the schema {document['schema']!r}, expected {SCHEMA!r}")
        cells = tuple(
            cell for cell in document["cells"] if {"id", "vllm", "trl", "verdict", "layers"} <= set(cell)
        )
        return Compat(cells=cells, generated=str(document.get("generated", "")))
    except FileNotFoundError:
        return Compat(problem=f"{path.name} is not shipped with this copy of the tool")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Compat(problem=f"{path.name} cannot be read: {type(error).__name__}: {error}")
