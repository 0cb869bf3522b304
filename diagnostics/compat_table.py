"""Load and validate the compatibility table (data/compat.json): published matrix results of vLLM with trainers.

`load` returns a `Compat` with the results of the cells. For a missing or invalid file it returns a table with a
`problem`. Keys that are not named here are ignored, so that files of older versions are read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import safe_io
from diagnostics.output.redact import truncate

SCHEMA = "grpo-doctor.compat.v1"
PATH = Path(__file__).parent / "data" / "compat.json"
PASSED, FAILED = {"pass", "unexpected_pass"}, {"fail", "unresolvable"}
"""Verdicts of a layer that passed, and of a cell that does not work."""


RUN_LAYERS = (
    "peer:alone", "peer:vllm", "engine", "logprobs", "train:colocate", "train:async", "train:server", "serve:vllm",
    "serve:trl",
)  # fmt: skip
"""Layers in which TRL, vLLM or our trainer runs, in the order in which `versions` shows them."""
_WITH_ENGINE = {*RUN_LAYERS} - {"peer:alone", "logprobs"}


class Layer(msgspec.Struct):
    """Result of one layer."""

    verdict: str
    codes: list[str]
    date: str | None
    expected: bool | None = None
    evidence: str | None = None
    summary: str = ""
    reason: str | None = None
    ran_with: dict[str, str] = {}
    command: str = ""

    @property
    def has_run(self) -> bool:
        """Whether the layer ran."""
        return self.evidence == "executed" and self.verdict != "not_run"


class Cell(msgspec.Struct):
    """Results of one cell: vLLM with TRL, whose release is `trl`, or with another trainer and its `version`."""

    id: str
    vllm: str
    verdict: str
    layers: dict[str, Layer]
    trl: str = ""
    trainer: str = "trl"
    version: str = ""
    transformers: str | None = None
    torch: str | None = None
    python: str = ""
    note: str | None = None

    @property
    def passed_layers(self) -> list[str]:
        """Names of the layers that ran and passed."""
        return [name for name, layer in self.layers.items() if layer.has_run and layer.verdict in PASSED]

    @property
    def outcome(self) -> str:
        """`ran`, `fails`, `part`, or '' if nothing ran.

        With TRL, `ran` is a run with vLLM or of our trainer that passed; one of TRL alone is `part`. With another
        trainer it is that import, config, rollout and loss passed. A loss that differs from the reference trainer's
        says nothing about the pair.
        """
        passed = set(self.passed_layers)
        if self.trl:
            return "ran" if passed & _WITH_ENGINE else "fails" if self.verdict in FAILED else "part"
        failed = {name for name, layer in self.layers.items() if layer.verdict in {"fail", "expected_fail"}}
        if self.verdict in FAILED and failed - {"loss"}:
            return "fails"
        if {"import", "config", "rollout", "loss"} <= passed:
            return "ran"
        return "part" if passed & {"import", "rollout"} else ""

    def failed_layers(self, names: Iterable[str] = RUN_LAYERS) -> list[Layer]:
        """Return those of the named layers that ran and did not pass."""
        layers = (self.layers[name] for name in names if name in self.layers)
        return [layer for layer in layers if layer.has_run and layer.verdict != "pass"]

    def ran_with(self, package: str, names: Iterable[str] | None = None) -> str:
        """Return the release of a package with which layers ran, by default those that passed; empty if unknown."""
        names = self.passed_layers if names is None else names
        texts = [self.layers[name].ran_with.get(package, "") for name in names]
        return next((text.partition(":")[0] for text in reversed(texts) if text), "")


class _Document(msgspec.Struct):
    """The whole of compat.json."""

    schema: str
    cells: list[Cell]
    generated: str = ""
    trainer_cells: list[Cell] = []


@dataclass(frozen=True)
class Compat:
    """The compatibility table, or the reason why it cannot be used.

    Attributes:
        cells: Published results of the cells with TRL.
        generated: The day of publishing.
        problem: Why the table cannot be used; empty if it can.
        trainer_cells: Published results of the cells with other trainers.
    """

    cells: tuple[Cell, ...] = ()
    generated: str = ""
    problem: str = ""
    trainer_cells: tuple[Cell, ...] = ()


def read_document(document: Any) -> Compat:
    """Convert the document of a compatibility table; one that is none gives a `problem`."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        return Compat(problem=f"has the schema {truncate(str(schema), 60)!r}, expected {SCHEMA!r}")
    try:
        table = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        return Compat(problem=truncate(str(error), 300))
    return Compat(tuple(table.cells), table.generated, trainer_cells=tuple(table.trainer_cells))


def load(path: Path = PATH) -> Compat:
    """Read the table; for a missing or broken file, the result has the `problem` instead of cells."""
    try:
        table = read_document(safe_io.parse_json(safe_io.read_bytes(path, safe_io.DOCUMENT_LIMIT)))
        return replace(table, problem=f"{path.name}: {table.problem}") if table.problem else table
    except FileNotFoundError:
        return Compat(problem=f"{path.name} is not shipped with this copy of the tool")
    except (OSError, ValueError) as error:
        return Compat(problem=f"{path.name} cannot be read: {type(error).__name__}: {error}")
