"""Merge the results grid into the published table compat.json, which `doctor` and `versions` read offline.

`make_publication` returns the new document; `command.py` writes it. A question is a layer to run for a cell. If the
store has no final answer to it, or its cell is not updated, the published answer stays. Published verdicts whose cell
or layer is gone are dropped and listed. `cell_verdict` computes the verdict of a cell from those of its layers.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostics import UserError, safe_io, version
from diagnostics.compat_table import SCHEMA, read_document
from diagnostics.matrix.cells import Cell
from diagnostics.matrix.layers import BY_NAME
from diagnostics.matrix.report import redacted_result
from diagnostics.matrix.results import CellResults, LayerResult, ResultsGrid, is_inactive
from diagnostics.output.redact import truncate

_FAILED = frozenset({"fail", "expected_fail", "flaky"})
_PASSED = frozenset({"pass", "unexpected_pass"})


@dataclass
class Publication:
    """The new document, and its differences from the published one, one line each."""

    document: dict[str, Any]
    changed: list[str] = field(default_factory=list)
    """New or different verdicts of layers, and different verdicts of cells."""
    kept_count: int = 0
    """Number of questions whose published answer stays: the store has no final one, or the cell is not updated."""
    dropped: list[str] = field(default_factory=list)
    """Published verdicts of questions that no cell has any more."""
    unanswered: list[str] = field(default_factory=list)
    """Questions without a published answer that are not updated from a final answer in the store."""


def read_published(path: Path) -> dict[str, Any]:
    """Return the published table in a file; empty if there is no file.

    Raises:
        UserError: The file cannot be read or is no such table. To replace it would lose its verdicts.
    """
    if not path.exists():
        return {}
    try:
        published: dict[str, Any] = json.loads(safe_io.read_bytes(path, safe_io.DOCUMENT_LIMIT))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if problem := read_document(published).problem:
        raise UserError(f"{path}: expected a table of the schema {SCHEMA}: {problem}")
    return published


def make_publication(
    grid: ResultsGrid, published: Mapping[str, Any], day: str, updated: Collection[str]
) -> Publication:
    """Build the new document from the store; where the store has no final answer, the published answer stays.

    Args:
        grid: Results of the cells.
        published: The published document, {} for none.
        day: Day of publishing.
        updated: Ids of the cells that are updated from the store; other cells stay as published.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "generated": day, "harness": version(), "cells": []}
    publication = Publication(document)
    before = {cell["id"]: cell for key in ("cells", "trainer_cells") for cell in published.get(key, ())}
    for row in grid.cell_rows:
        old = before.pop(row.cell.id, {"layers": {}})
        cell = _merge_cell(publication, row, old, update=row.cell.id in updated)
        key = "cells" if row.cell.trainer == "trl" else "trainer_cells"
        document.setdefault(key, []).append(cell)
        if old.get("verdict") not in {None, cell["verdict"]}:
            publication.changed.append(f"{row.cell.id}: the cell is {cell['verdict']}, was {old['verdict']}")
    publication.dropped += [
        f"{name} {layer}: {item['verdict']}"
        for name, old in before.items()
        for layer, item in _answered_layers(old).items()
    ]
    return publication


def _merge_cell(
    publication: Publication, row: CellResults, old: Mapping[str, Any], *, update: bool
) -> dict[str, Any]:
    """Return the merged entry of a cell, and add its differences to the publication."""
    cell, before, name = _cell_entry(row), _answered_layers(old), row.cell.id
    for layer, result in row.layers.items():
        new, published = cell["layers"][layer], before.pop(layer, None)
        # A layer that is blocked by another layer has that layer's answer, which may be final.
        final = (result.event and result.event.is_final) or not result.judgement.incomplete
        if update and final:
            now, was = (
                " ".join((entry["verdict"], *entry["codes"])) if entry else "not published"
                for entry in (new, published)
            )
            if now != was:
                summary = truncate(result.summary, 160)
                publication.changed.append(f"{name} {layer}: {now}, was {was}: {summary}")
        elif published is None:
            publication.unanswered.append(f"{name} {layer}: {new['verdict']}: {new['summary']}")
        else:
            publication.kept_count += 1
            cell["layers"][layer] = published
            if layer == "resolve":
                cell |= {key: old[key] for key in ("transformers", "torch")}
    publication.dropped += [f"{name} {layer}: {item['verdict']}" for layer, item in before.items()]
    cell["verdict"] = cell_verdict(row.cell, cell["layers"])
    return cell


def _answered_layers(cell: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the published layers of a cell that have an answer."""
    return {name: layer for name, layer in cell["layers"].items() if layer["date"]}


def _cell_entry(row: CellResults) -> dict[str, Any]:
    """Return the entry of a cell by the store alone, without secrets and local names."""
    layers = {name: redacted_result(result) for name, result in row.layers.items()}
    resolved = layers.get("resolve")
    packages = resolved.event.answer.packages if resolved and resolved.event else {}
    versions = {"trl": row.cell.version}
    if row.cell.trainer != "trl":
        versions = {"trainer": row.cell.trainer, "version": row.cell.version}
    return {
        "id": row.cell.id,
        "vllm": row.cell.vllm,
        **versions,
        "python": row.cell.python,
        "transformers": packages.get("transformers"),
        "torch": packages.get("torch"),
        "verdict": "unknown",
        "note": row.cell.note or None,
        "layers": {name: _layer_entry(result) for name, result in layers.items()},
    }


def _layer_entry(result: LayerResult) -> dict[str, Any]:
    """Return the entry of a layer by the store alone."""
    event = result.event
    return {
        "verdict": result.judgement.verdict.value,
        "expected": result.judgement.expected,
        "evidence": result.evidence.value,
        "codes": list(result.codes),
        "summary": result.summary,
        "reason": result.judgement.remark or None,
        "ran_with": dict(event.answer.ran_with) if event else {},
        "command": result.question.command,
        "date": event.started[:10] if event else None,
    }


def cell_verdict(cell: Cell, layers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the verdict of a cell from its published layers; the first that applies.

    - `unknown`: no layer has an answer.
    - `unresolvable`: the requirements have no solution, and no layer about the pair ran and passed. Layers about the
      pair are all but those that reproduce known issues; `install` and `doctor` do not count here.
    - `fail`: a layer about the pair failed or is flaky, except failures that `matrix.toml` expects of the CPU
      substitute (`of_machine`).
    - `pass`: a layer was executed, and each layer passed, was not run as expected, or reproduced only issues that
      are not active.
    - `partial`: otherwise.
    """
    answered = {name: layer for name, layer in layers.items() if layer["date"]}
    if not answered:
        return "unknown"
    about_pair = {name: layer for name, layer in answered.items() if not _reproduces_issues(name)}
    works = any(
        layer["verdict"] in _PASSED and layer["evidence"] == "executed" and name not in {"install", "doctor"}
        for name, layer in about_pair.items()
    )
    if any(layer["verdict"] == "unresolvable" for layer in answered.values()) and not works:
        return "unresolvable"
    of_machine = {name for name, item in cell.expect.items() if item.of_machine}
    if any(
        layer["verdict"] in _FAILED and not (name in of_machine and layer["expected"])
        for name, layer in about_pair.items()
    ):
        return "fail"
    executed = any(layer["evidence"] == "executed" for layer in layers.values())
    complete = all(_is_settled(name, layer) for name, layer in layers.items())
    return "pass" if complete and executed else "partial"


def _reproduces_issues(name: str) -> bool:
    return name in BY_NAME and BY_NAME[name].codes is not None


def _is_settled(name: str, layer: Mapping[str, Any]) -> bool:
    """Return whether a layer passed, was not run as expected, or reproduced only issues that are not active."""
    not_applicable = layer["date"] and layer["verdict"] == "not_run" and layer["expected"]
    issue_codes = layer["codes"] if layer["verdict"] == "expected_fail" and _reproduces_issues(name) else ()
    by_setting = bool(issue_codes) and all(map(is_inactive, issue_codes))
    return layer["verdict"] == "pass" or bool(not_applicable) or by_setting
