"""What does `doctor` say of the cell's environment, before and after it is told what was run in this very cell?

It answers; whether it is right is no matter of this layer. The confusion table (`confusion.py`) holds it against what
the cell's other layers saw.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnostics.doctor import examine as doctor
from diagnostics.collect import compat, environment
from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.ask.layer import Layer
from diagnostics.matrix.build import environments
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.records.identity import text_digest
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.collect.compat import Compat
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell
    from diagnostics.output.findings import Report

WITHHELD, TOLD = "without", "with"
_BAD = {"fail", "expected_fail"}


def _inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    return {
        **in_cell.inputs(workplace, cell),
        "table": text_digest(json.dumps(_stable(compat.load()), sort_keys=True)),
    }


def _stable(table: Compat) -> list[Any]:
    """Returns what of the table an answer here can rest on: not this layer's own answers, no dates, no words."""
    return [
        (
            cell["id"],
            cell["verdict"] in {"fail", "unresolvable"},
            {name: layer["verdict"] for name, layer in cell["layers"].items() if name != "doctor"},
        )
        for cell in table.cells
    ]


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    try:
        environments.ensure(workplace, cell)
    except environments.BuildError as error:
        outcome = Outcome.INFRA_ERROR if error.infrastructure else Outcome.FAIL
        return Answer(outcome, str(error), EvidenceLevel.EXECUTED, excerpt=error.excerpt)
    seen = environment.collect(environments.folder(workplace, cell), workplace.cell_environ(cell))
    issues, table = doctor.load_catalogue(), compat.load()
    reports = {
        WITHHELD: doctor.examine(seen, issues, withheld(table, cell.id)),
        TOLD: doctor.examine(seen, issues, table),
    }
    return read(reports)


def withheld(table: Compat, name: str) -> Compat:
    """Returns the table as if nothing had ever been run in that cell; what source and metadata say of it stays."""
    return replace(table, cells=tuple(_unrun(cell) if cell["id"] == name else cell for cell in table.cells))


def _unrun(cell: Mapping[str, Any]) -> dict[str, Any]:
    layers = {name: layer for name, layer in cell["layers"].items() if layer.get("evidence") == "static"}
    verdicts = {layer["verdict"] for layer in layers.values()}
    verdict = "unresolvable" if "unresolvable" in verdicts else "fail" if verdicts & _BAD else "partial"
    return {**cell, "layers": layers, "verdict": verdict}


def read(reports: Mapping[str, Report]) -> Answer:
    """Makes the answer: one sign a finding, as 'without error CMP902'."""
    crashed = [
        f"{check.check}: {check.reason}"
        for report in reports.values()
        for check in report.checks
        if check.outcome == "crashed"
    ]
    if crashed:
        return Answer(
            Outcome.FAIL, f"doctor failed itself: {crashed[0]}", EvidenceLevel.EXECUTED, signs=tuple(crashed)
        )
    signs, details, facts = [], [], []
    for when, report in reports.items():
        for check in report.checks:
            if check.outcome == "skipped":
                details.append(f"{when} the runs of this cell: {check.check} skipped: {check.reason}")
            for finding in check.findings:
                facts.append(("said", when, finding.severity.word, finding.code))
                signs.append(f"{when} {finding.severity.word} {finding.code}")
                details.append(
                    f"{when} the runs of this cell: {finding.severity.word} {finding.code} {finding.title}: "
                    f"{finding.detail[:300]}"
                )
    said = {when: _said(report) for when, report in reports.items()}
    summary = f"not knowing the runs of this cell: {said[WITHHELD]}; knowing them: {said[TOLD]}"
    return Answer(
        Outcome.PASS,
        summary,
        EvidenceLevel.EXECUTED,
        signs=tuple(dict.fromkeys(signs)),
        details=tuple(details),
        facts=tuple(dict.fromkeys(facts)),
    )


def _said(report: Report) -> str:
    """Returns the worst severity and the codes that have it."""
    found = [finding for check in report.checks for finding in check.findings]
    worst = max((finding.severity for finding in found), default=Severity.INFO)
    codes = dict.fromkeys(finding.code for finding in found if finding.severity is worst)
    return f"{worst.word} {' '.join(codes)}" if codes else "nothing"


LAYERS = (
    Layer(
        name="doctor",
        order=150,
        group="harness",
        question="What does doctor say of this environment, not knowing what was run in it, and knowing it?",
        evidence=EvidenceLevel.EXECUTED,
        needs=("install",),
        inputs=_inputs,
        ask=_ask,
    ),
)
