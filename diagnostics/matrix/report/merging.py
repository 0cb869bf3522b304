"""What is published, brought up to date from a store that need not know all of it: no verdict is lost unasked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from diagnostics.matrix.report.publish import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from diagnostics.matrix.run.board import Board, Square

    # (TRL, layer) -> vLLM -> what is said
    Pairs = dict[tuple[str, str], dict[str, str]]


@dataclass
class Merged:
    """The document, and how it came about; each line is of one question."""

    document: dict[str, Any]
    changed: list[str] = field(default_factory=list)
    """Verdicts that are other ones, or new."""
    kept: int = 0
    """Questions that stand as published: the store has no answer to them."""
    lost: list[str] = field(default_factory=list)
    """Published verdicts of questions that nobody asks any more."""
    open: list[str] = field(default_factory=list)
    """Questions with no answer, neither here nor published."""


def merge(
    made: dict[str, Any],
    published: Mapping[str, Any],
    board: Board,
    wide: Board,
    named: Callable[[str], bool],
) -> Merged:
    """Returns what is made of the store, and where the store knows nothing what is published.

    Args:
        made: The document from the store alone.
        published: The one that is there, {} for none.
        board: The written cells.
        wide: The generated ones.
        named: Tells whether a cell is to be brought up to date at all; the others stay as they are.
    """
    merged = Merged(made)
    known = {cell["id"]: cell for cell in published.get("cells", ())}
    squares = {row.cell.id: {item.question.layer.name: item for item in row.squares} for row in board.rows}
    cells = {row.cell.id: row.cell for row in board.rows}
    for cell in made["cells"]:
        name = cell["id"]
        old = known.pop(name, {"layers": {}})
        _cell(merged, cell, old, squares[name], of_store=named(name))
        cell["verdict"] = verdict_of(cells[name], cell["layers"])
        if old.get("verdict") not in {None, cell["verdict"]}:
            merged.changed.append(f"{name}: the cell is {cell['verdict']}, was {old['verdict']}")
    merged.lost += [
        f"{name} {layer}: {item['verdict']}" for name, old in known.items() for layer, item in _told(old)
    ]
    _breadth(merged, published.get("breadth"), wide, named)
    return merged


def _told(cell: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Returns the layers of a published cell that have an answer."""
    return [(name, layer) for name, layer in cell["layers"].items() if layer["date"]]


def _cell(
    merged: Merged,
    cell: dict[str, Any],
    old: Mapping[str, Any],
    squares: Mapping[str, Square],
    *,
    of_store: bool,
) -> None:
    """Takes the published layers of one cell where the store has no answer."""
    before = dict(_told(old))
    for name, square in squares.items():
        layer, was = cell["layers"][name], before.pop(name, None)
        answered = of_store and _answered(square)
        if was is not None and not answered:
            cell["layers"][name] = was
            merged.kept += 1
            if name == "resolve":
                cell |= {key: old[key] for key in ("transformers", "torch")}
            continue
        if not answered:
            merged.open.append(f"{cell['id']} {name}: {layer['verdict']}: {layer['summary']}")
        elif was is None or _verdict(was) != _verdict(layer):
            then = " ".join(_verdict(was)) if was else "not published"
            now = " ".join(_verdict(layer))
            merged.changed.append(f"{cell['id']} {name}: {now}, was {then}: {layer['summary'][:160]}")
    merged.lost += [f"{cell['id']} {name}: {layer['verdict']}" for name, layer in before.items()]


def _answered(square: Square) -> bool:
    """Tells whether a question has an answer that lasts: its own, or that of what it needs."""
    return bool(square.event and square.event.finished) or not square.judged.incomplete


def _verdict(layer: Mapping[str, Any]) -> tuple[str, ...]:
    return (layer["verdict"], *layer["codes"])


def _breadth(
    merged: Merged, published: Mapping[str, Any] | None, wide: Board, named: Callable[[str], bool]
) -> None:
    """Takes what is published of the generated pairs where the store has no answer."""
    own = merged.document.get("breadth") or {"trl": {}}
    mine, before = _pairs(own["trl"]), _pairs(published["trl"] if published else {})
    declares = {
        trl: known["declares"] for trl, known in (*(published or own)["trl"].items(), *own["trl"].items())
    }
    found: Pairs = {}
    answered = 0
    for row in wide.rows:
        cell = row.cell
        declares[cell.trl] = cell.declares or ""
        for square in row.squares:
            key = (cell.trl, square.question.layer.name)
            was = before.get(key, {}).pop(cell.vllm, None)
            now = mine.get(key, {}).get(cell.vllm) if named(cell.id) else None
            merged.kept += was is not None and now is None
            if now is not None and now != was:
                merged.changed.append(f"{cell.id} {key[1]}: {now}, was {was or 'not published'}")
            said = now or was
            if said is not None:
                answered += 1
                found.setdefault(key, {})[cell.vllm] = said
    merged.lost += [
        f"vllm-{vllm}+trl-{trl} {layer}: {said}"
        for (trl, layer), told in before.items()
        for vllm, said in told.items()
    ]
    merged.document.pop("breadth", None)
    if found:
        merged.document["breadth"] = {
            "evidence": "static",
            "questions": len(wide.squares),
            "answered": answered,
            "trl": _joined(found, declares),
        }


def _pairs(trl: Mapping[str, Any]) -> Pairs:
    """Returns what a breadth says, pair by pair."""
    return {
        (name, layer): {vllm: said for said, names in told.items() for vllm in names.split()}
        for name, known in trl.items()
        for layer, told in known.items()
        if layer != "declares"
    }


def _joined(pairs: Pairs, declares: Mapping[str, str]) -> dict[str, Any]:
    """Returns it as it is written: by TRL and layer, what is said of which vLLM."""
    made: dict[str, Any] = {}
    for (trl, layer), told in pairs.items():
        said: dict[str, list[str]] = {}
        for vllm in sorted(told, key=Version):
            said.setdefault(told[vllm], []).append(vllm)
        known = made.setdefault(trl, {"declares": declares[trl]})
        known[layer] = {text: " ".join(names) for text, names in said.items()}
    return made
