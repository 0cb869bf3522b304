"""Layers `scheduler` and `repro:CODE`: try to reproduce known issues in the cell, with and without mitigations.

An issue that is reproduced without a mitigation gives FAIL with its code, which `matrix.toml` can expect. Modified
upstream files or a failed repro give an infrastructure fault. An attempt that does not end gives TIMEOUT. If no repro
applies to the release, the outcome is NOT_RUN. REPRO_MODULES is read from the source of `repro/issues`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import ROOT
from diagnostics.matrix.layers.cell_run import NEEDED_LAYERS, CellRun, program_layer, versions_that_ran
from diagnostics.matrix.verdicts import Answer, Outcome

SCHEMA = "grpo-doctor.repro.v1"
UNMITIGATED = "unmitigated"
ATTEMPT_S = 240.0
# Issues that consist in modules that cannot be imported; their layers do not need the layer `import`.
_IMPORT_ISSUES = frozenset({"CMP002", "CMP003"})
_REGISTERED = re.compile(r"(?:repro|register)\(\s*\"([A-Z]{3}[0-9]{3})\"")


def _repro_modules() -> dict[str, str]:
    """Return code -> module of its repro, by the calls of `repro` or `register` in the modules' source."""
    modules = {}
    for path in sorted((ROOT / "repro" / "issues").glob("[a-z]*.py")):
        for code in _REGISTERED.findall(path.read_text(encoding="utf-8")):
            modules[code] = f"repro.issues.{path.stem}"
    return dict(sorted(modules.items()))


REPRO_MODULES = _repro_modules()


def repro_program(codes: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of `python -m` that try to reproduce known issues, with and without mitigations."""
    return ("repro", "run", *codes, "--mitigation", "all", "--timeout", f"{ATTEMPT_S:g}")


def repro_answer(completed: CellRun, cell: Cell) -> Answer:
    """Return the answer for the document that `python -m repro run` prints."""
    issues: Mapping[str, Any] = completed.document.get("codes", {})
    attempts = [(code, attempt) for code, item in issues.items() for attempt in item.get("attempts", [])]
    upstream: Mapping[str, Any] = completed.document.get("upstream") or {}
    outcome, codes, summary = _conclusion(issues, attempts, upstream)
    hashed = (
        f"{upstream.get('files_checked', 0)} Python files of {upstream.get('distribution', 'vllm')} hashed "
        f"against the wheel's own record, {len(upstream.get('modified') or [])} modified"
    )
    return Answer(
        outcome,
        summary,
        codes=codes,
        signs=tuple(_sign(code, attempt) for code, attempt in attempts),
        details=(
            hashed,
            *(line for code, item in issues.items() for line in _mitigation_lines(code, item)),
            *(_detail(code, attempt) for code, attempt in attempts),
        ),
        ran_with=versions_that_ran(cell, completed.document.get("versions")),
        excerpt=completed.excerpt if outcome is not Outcome.PASS else "",
        log=completed.log,
    )


def _conclusion(
    issues: Mapping[str, Any], attempts: list[tuple[str, Any]], upstream: Mapping[str, Any]
) -> tuple[Outcome, tuple[str, ...], str]:
    """Return (outcome, codes of reproduced issues, summary)."""
    if upstream.get("modified"):
        modified = ", ".join(map(str, upstream["modified"][:3]))
        return Outcome.INFRA_ERROR, (), f"the installed files differ from the wheel's: {modified}"
    unmitigated = [(code, attempt) for code, attempt in attempts if not attempt.get("mitigation")]
    # If the release does not have the code, there are no attempts, and the issue has one outcome.
    outcomes = {attempt.get("outcome") for _code, attempt in unmitigated}
    outcomes = outcomes or {item.get("outcome") for item in issues.values()}
    every_outcome = outcomes | {attempt.get("outcome") for _code, attempt in attempts}
    if "error" in every_outcome or not outcomes - {None}:
        details = (attempt.get("detail") for _code, attempt in attempts if attempt.get("outcome") == "error")
        return Outcome.INFRA_ERROR, (), f"a repro failed itself: {next(details, 'it tried nothing')}"
    if "timeout" in every_outcome:
        return Outcome.TIMEOUT, (), "a repro did not end in time"
    reproduced = [(code, attempt) for code, attempt in unmitigated if attempt.get("outcome") == "reproduced"]
    if reproduced:
        codes = tuple(dict.fromkeys(code for code, _attempt in reproduced))
        return Outcome.FAIL, codes, "; ".join(_locations(code, reproduced) for code in codes)
    if outcomes == {"inapplicable"}:
        details = (attempt.get("detail") for _code, attempt in attempts if attempt.get("detail"))
        summary = next(details, "the code of these known issues is not in this release")
        return Outcome.NOT_RUN, (), str(summary)
    return Outcome.PASS, (), f"{', '.join(issues)}: not reproduced"


def _locations(code: str, reproduced: Iterable[tuple[str, Any]]) -> str:
    """Return 'SCH001 at vllm/core/scheduler.py:1278 (lost_step, two_owners)'."""
    triggers: dict[str, dict[str, None]] = {}
    for name, attempt in reproduced:
        if name == code:
            location = f"at {attempt['where']}" if attempt.get("where") else "silently"
            triggers.setdefault(location, {})[str(attempt.get("trigger"))] = None
    parts = [f"{location} ({', '.join(names)})" for location, names in triggers.items()]
    return f"{code} {', '.join(parts)}"


def _mitigation_lines(code: str, issue: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per mitigation: the triggers that it helps against, and those that it does not."""
    for mitigation, result in issue.get("mitigations", {}).items():
        lists = {"helped against": result["helped"], "did not help against": result["did_not_help"]}
        parts = [f"{effect} {', '.join(triggers)}" for effect, triggers in lists.items() if triggers]
        if parts:
            yield f"{code}: {mitigation} {', '.join(parts)}"


def _sign(code: str, attempt: Mapping[str, Any]) -> str:
    """Return an attempt as a short line that expectations can name."""
    location = f" {attempt['where']}" if attempt.get("where") else ""
    mitigation = attempt.get("mitigation") or UNMITIGATED
    return f"{code} {attempt.get('trigger')} {mitigation} {attempt.get('outcome')}{location}"


def _detail(code: str, attempt: Mapping[str, Any]) -> str:
    """Return an attempt as a line for the HTML page."""
    with_mitigation = f"with {attempt['mitigation']}" if attempt.get("mitigation") else UNMITIGATED
    line = f"{code} by {attempt.get('trigger')}, {with_mitigation}: {attempt.get('outcome')}"
    if attempt.get("where"):
        line += f" at {attempt['where']} in {attempt.get('function')}: {attempt.get('assertion')}"
    if attempt.get("detail"):
        line += f" ({attempt['detail']})"
    simulated = attempt.get("simulated") or []
    return line + (f" [simulated: {', '.join(map(str, simulated))}]" if simulated else "")


_repro_layer = partial(program_layer, schema=SCHEMA, answer=repro_answer, code=(__name__, "repro"))
SCHEDULER = _repro_layer(
    "scheduler",
    "Do the known crashes of vLLM's scheduler happen on its own code, and which mitigations help?",
    lambda settings, _cell: repro_program(settings.codes),
    codes=lambda settings: settings.codes,
)
LAYERS = tuple(
    _repro_layer(
        f"repro:{code}",
        f"Does {code} happen with the cell's own packages, and which mitigations help?",
        repro_program((code,)),
        needs=("install",) if code in _IMPORT_ISSUES else NEEDED_LAYERS,
        codes=lambda _settings, code=code: (code,),
    )
    for code in REPRO_MODULES
)
