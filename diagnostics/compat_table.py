"""Load and validate the compatibility table (data/compat.json): published matrix results of vLLM with trainers.

`load` returns a `Compat`: the results of the cells, and for pairs of vLLM and TRL also static results, which were read
in metadata and source. For a missing or invalid file it returns a table with a `problem`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import safe_io
from diagnostics.output.redact import mask_and_cut
from diagnostics.versions import in_range

SCHEMA = "grpo-doctor.compat.v1"
PATH = Path(__file__).parent / "data" / "compat.json"


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


class _Breadth(msgspec.Struct):
    """Static results in compat.json: by TRL release `declares`, and by layer {outcome: "vllm-release …"}."""

    trl: dict[str, dict[str, str | dict[str, str]]]


class _Document(msgspec.Struct):
    """The whole of compat.json."""

    schema: str
    cells: list[_Cell]
    generated: str = ""
    harness: Any = None
    breadth: _Breadth | None = None
    trainer_cells: list[_TrainerCell] = []


@dataclass(frozen=True)
class StaticResult:
    """Result for a pair of vLLM and TRL from package metadata and source, which was not run.

    Attributes:
        declares: The range of vLLM that this TRL declares; empty for any.
        allowed: Whether this vLLM is in the declared range.
        contract: Whether this vLLM has the names that TRL's source uses: `pass`, `fail`, `not_judged`; None if unknown.
        missing: The first name that this vLLM lacks, or that could not be checked; empty if there is none.
        resolve: Whether the requirements of both have a solution with the packages available at the pair's date:
            `pass`, `unresolvable`; None if unknown.
        today: Like `resolve`, with the packages available on the day of publishing.
    """

    declares: str
    allowed: bool
    contract: str | None
    missing: str
    resolve: str | None
    today: str | None

    @property
    def broken(self) -> bool:
        """Whether a name is missing, or the requirements have no solution."""
        return self.contract == "fail" or self.resolve == "unresolvable"

    @property
    def promising(self) -> bool:
        """Whether vLLM is in the declared range and has the names that TRL uses, and `broken` is false."""
        return self.allowed and self.contract == "pass" and not self.broken


@dataclass(frozen=True)
class Compat:
    """The compatibility table, or the reason why it cannot be used.

    Attributes:
        cells: Published results of the cells, as in the file.
        generated: The day of publishing.
        problem: Why the table cannot be used; empty if it can.
        breadth: Static results by TRL release: the vLLM range that it declares, and for each layer the vLLM releases by
            outcome.
        trainer_cells: Published results of the cells of other trainers than TRL, as in the file.
    """

    cells: tuple[dict[str, Any], ...] = ()
    generated: str = ""
    problem: str = ""
    breadth: dict[str, dict[str, Any]] = field(default_factory=dict)
    trainer_cells: tuple[dict[str, Any], ...] = ()

    def static_result(self, vllm: str, trl: str) -> StaticResult | None:
        """Return the static result of a pair; None if the table has none."""
        results = self.breadth.get(trl, {})
        layers = ("contract", "resolve", "resolve:today")
        outcomes = {layer: _outcome(results.get(layer, {}), vllm) for layer in layers}
        if not any(outcomes.values()):
            return None
        contract, _, missing = (outcomes["contract"] or "").partition(" ")
        return StaticResult(
            declares=results["declares"],
            allowed=in_range(vllm, results["declares"]),
            contract=contract or None,
            missing=missing,
            resolve=outcomes["resolve"],
            today=outcomes["resolve:today"],
        )

    def contract_holds(self, vllm: str, trl: str) -> bool:
        """Return whether vLLM was found to have the names that TRL's source uses, and no result contradicts."""
        verdicts = [
            cell["layers"]["contract"]["verdict"]
            for cell in self.cells
            if (cell["vllm"], cell["trl"]) == (vllm, trl) and "contract" in cell["layers"]
        ]
        static = self.static_result(vllm, trl)
        verdicts += [static.contract] if static and static.contract else []
        return bool(verdicts) and set(verdicts) <= {"pass", "unexpected_pass"}

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs (vllm, trl) with a static result."""
        pairs: dict[tuple[str, str], None] = {}
        for trl, results in self.breadth.items():
            outcomes = [layer for name, layer in results.items() if name != "declares"]
            releases = " ".join(names for layer in outcomes for names in layer.values()).split()
            pairs |= dict.fromkeys((vllm, trl) for vllm in releases)
        return list(pairs)


def _outcome(layer: dict[str, str], vllm: str) -> str | None:
    """Return the outcome under which a layer lists a vLLM release; None if it does not list it."""
    return next((result for result, names in layer.items() if vllm in names.split()), None)


def problem_of(document: Any) -> str:
    """Return why a document is not a valid compatibility table; empty if it is."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        return f"has the schema {mask_and_cut(str(schema), 60)!r}, expected {SCHEMA!r}"
    try:
        checked = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        return mask_and_cut(str(error), 300)
    for trl, known in checked.breadth.trl.items() if checked.breadth else ():
        if not isinstance(known.get("declares"), str):
            return f"breadth.trl.{mask_and_cut(trl, 60)}: expected declares as a text"
        if not all(isinstance(layer, dict) for name, layer in known.items() if name != "declares"):
            return f"breadth.trl.{mask_and_cut(trl, 60)}: expected the releases of each result"
    return ""


def load(path: Path = PATH) -> Compat:
    """Read the table; for a missing or broken file, the result has the `problem` instead of cells."""
    try:
        document = safe_io.parse_json(safe_io.read_bytes(path, safe_io.DOCUMENT_LIMIT))
        if wrong := problem_of(document):
            return Compat(problem=f"{path.name}: {wrong}")
        breadth = (document.get("breadth") or {}).get("trl", {})
        cells, others = tuple(document["cells"]), tuple(document.get("trainer_cells", ()))
        return Compat(cells, document.get("generated", ""), breadth=breadth, trainer_cells=others)
    except FileNotFoundError:
        return Compat(problem=f"{path.name} is not shipped with this copy of the tool")
    except (OSError, ValueError) as error:
        return Compat(problem=f"{path.name} cannot be read: {type(error).__name__}: {error}")
