"""Load and validate the compatibility table (data/compat.json): published matrix results of vLLM with trainers.

`load` returns a `Compat` with the results of the cells. For a missing or invalid file it returns a table with a
`problem`. Keys that are not named here are ignored, so that files of older versions are read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import safe_io
from diagnostics.output.redact import truncate

SCHEMA = "grpo-doctor.compat.v1"
PATH = Path(__file__).parent / "data" / "compat.json"
PASSED, FAILED = {"pass", "unexpected_pass"}, {"fail", "unresolvable"}
"""Verdicts of a layer that passed, and of a cell that does not work."""


class _Layer(msgspec.Struct):
    """Result of one layer in compat.json; the structs here are only used to check the file."""

    verdict: str
    codes: list[str]
    date: str | None
    expected: bool | None = None
    evidence: str | None = None
    summary: str = ""
    reason: str | None = None
    ran_with: dict[str, str] = {}
    command: str = ""


class _AnyCell(msgspec.Struct):
    """Results of one cell in compat.json."""

    id: str
    vllm: str
    verdict: str
    layers: dict[str, _Layer]


class _Cell(_AnyCell):
    """Results of one cell with TRL."""

    trl: str
    transformers: str | None
    torch: str | None
    python: str = ""
    note: str | None = None


class _TrainerCell(_AnyCell):
    """Results of one cell with another trainer."""

    trainer: str
    version: str


class _Document(msgspec.Struct):
    """The whole of compat.json."""

    schema: str
    cells: list[_Cell]
    generated: str = ""
    trainer_cells: list[_TrainerCell] = []


@dataclass(frozen=True)
class Compat:
    """The compatibility table, or the reason why it cannot be used.

    Attributes:
        cells: Published results of the cells with TRL, as in the file.
        generated: The day of publishing.
        problem: Why the table cannot be used; empty if it can.
        trainer_cells: Published results of the cells with other trainers, as in the file.
    """

    cells: tuple[dict[str, Any], ...] = ()
    generated: str = ""
    problem: str = ""
    trainer_cells: tuple[dict[str, Any], ...] = ()


def problem_of(document: Any) -> str:
    """Return why a document is not a valid compatibility table; empty if it is."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        return f"has the schema {truncate(str(schema), 60)!r}, expected {SCHEMA!r}"
    try:
        msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        return truncate(str(error), 300)
    return ""


def load(path: Path = PATH) -> Compat:
    """Read the table; for a missing or broken file, the result has the `problem` instead of cells."""
    try:
        document = safe_io.parse_json(safe_io.read_bytes(path, safe_io.DOCUMENT_LIMIT))
        if wrong := problem_of(document):
            return Compat(problem=f"{path.name}: {wrong}")
        cells, trainer_cells = tuple(document["cells"]), tuple(document.get("trainer_cells", ()))
        return Compat(cells, document.get("generated", ""), trainer_cells=trainer_cells)
    except FileNotFoundError:
        return Compat(problem=f"{path.name} is not shipped with this copy of the tool")
    except (OSError, ValueError) as error:
        return Compat(problem=f"{path.name} cannot be read: {type(error).__name__}: {error}")


def ran_with(cell: Mapping[str, Any], layers: Iterable[str], package: str) -> str:
    """Return the release of a package with which layers of a cell ran; empty if unknown."""
    texts = [cell["layers"][name].get("ran_with", {}).get(package, "") for name in layers]
    return next((text.partition(":")[0] for text in reversed(texts) if text), "")


def passed_layers(cell: Mapping[str, Any]) -> list[str]:
    """Return the names of the layers of a cell that ran and passed."""
    results = {name: (layer["verdict"], layer.get("evidence")) for name, layer in cell["layers"].items()}
    return [name for name, (verdict, level) in results.items() if verdict in PASSED and level == "executed"]
