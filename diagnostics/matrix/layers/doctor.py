"""Layer `doctor`: run `grpo-doctor doctor` on the environment of the cell.

Findings do not fail the layer, but a crashed check of doctor does. Without a report, the outcome is an
infrastructure fault. The page shows the findings next to the results of the cell's other layers.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from diagnostics import compat_table
from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import ROOT, Context
from diagnostics.matrix.environments import python_of
from diagnostics.matrix.layers import cell_run
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.locks import pins_digest
from diagnostics.matrix.verdicts import Answer, Outcome
from diagnostics.output.redact import redact_tail, truncate

TIMEOUT_S = 300.0
_SCHEMA = "grpo-doctor.report.v1"
_ORDER = ("info", "warning", "error", "blocker")


def _inputs(context: Context, cell: Cell) -> Mapping[str, str]:
    """Return the inputs of the answer: the environment, and the published verdicts that doctor reads."""
    verdicts = [
        (item.id, {name: layer.verdict for name, layer in item.layers.items() if name != "doctor"})
        for item in compat_table.load().cells
    ]
    table = pins_digest([json.dumps(verdicts, sort_keys=True)])
    return {**cell_run.program_inputs(context, cell), "table": table}


def _check(context: Context, cell: Cell) -> Answer:
    """Run doctor on the cell's interpreter, and turn its report into an answer."""
    cell_run.built_environment(context, cell)
    command = ["-m", "diagnostics", "doctor", "--python", str(python_of(context, cell)), "--format", "json"]
    result = context.run_command([sys.executable, *command], timeout_s=TIMEOUT_S, cwd=ROOT)
    try:
        document = json.loads(result.output)
    except ValueError:
        document = {}
    if document.get("schema") != _SCHEMA:
        errors = redact_tail(result.errors[-64_000:], 4000)
        summary = f"doctor ended with {result.code}: {' '.join(errors.split())[-200:]}"
        return Answer(Outcome.INFRA_ERROR, summary, excerpt=errors)
    return doctor_answer(document)


def doctor_answer(document: Mapping[str, Any]) -> Answer:
    """Return the answer for doctor's report; its signs are crashed checks, or findings such as 'error CMP902'."""
    checks, findings = document.get("checks", []), document.get("findings", [])
    crashed = [f"{item['check']}: {item['reason']}" for item in checks if item["outcome"] == "crashed"]
    if crashed:
        return Answer(Outcome.FAIL, f"a check of doctor crashed: {crashed[0]}", signs=tuple(crashed))
    codes = {(item["severity"], item["code"]): None for item in findings}
    worst = max((severity for severity, _code in codes), key=_ORDER.index, default="")
    worst_codes = [code for severity, code in codes if severity == worst]
    skipped = [
        f"{item['check']} skipped: {item['reason']}" for item in checks if item["outcome"] == "skipped"
    ]
    lines = [
        f"{item['severity']} {item['code']} {item['title']}: {truncate(item.get('detail', ''), 300)}"
        for item in findings
    ]
    return Answer(
        Outcome.PASS,
        f"{worst} {' '.join(worst_codes)}" if worst_codes else "no findings",
        signs=tuple(f"{severity} {code}" for severity, code in codes),
        details=(*lines, *skipped),
    )


LAYERS = (
    Layer(
        name="doctor", question="What does doctor report for this environment?",
        check=_check, needs=("install",), inputs=_inputs,
        code=(__name__, "diagnostics.doctor", "diagnostics.collect", "diagnostics.catalog"),
    ),
)  # fmt: skip
