"""Check the installed pair of vLLM and TRL against the compatibility table, and suggest better pairs.

The table has results of runs and of reading metadata and source. `better_pairs` suggests the nearest pairs in the table
that do not violate the requirements of other packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diagnostics.compat_table import Compat, StaticResult
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, finding
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet, choose_sets, public_version
from diagnostics.doctor.installers import install
from diagnostics.findings import EVIDENCE_LEVELS, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install
from diagnostics.frameworks import configuring_trainers

_BAD_CELLS = {"fail", "unresolvable"}
_FAILED_LAYERS = {"fail", "expected_fail", "unresolvable"}


@check("compatibility table")
def compatibility(case: CheckInput) -> Iterator[Finding]:
    """Report an installed pair of vLLM and TRL that is not known to work.

    - CMP902: in the matrix it failed, or its requirements have no solution.
    - CMP905: it was not run, and by metadata or source it cannot work.
    - CMP901: it was not run, and nothing is known against it.
    """
    vllm, trl = case.environment.vllm, case.environment.packages.get("trl")
    if vllm is None or trl is None or case.compat.problem:
        missing = [name for name, package in (("vLLM", vllm), ("TRL", trl)) if not package]
        raise NotApplicableError(f"{' and '.join(missing)} not installed" if missing else case.compat.problem)
    pair = (public_version(vllm.version), public_version(trl.version))
    evidence = Evidence(f"vLLM {vllm.version} with TRL {trl.version}", vllm.place)
    static = case.compat.static_result(*pair)
    for cell in case.compat.cells:
        if (cell["vllm"], cell["trl"]) == pair and cell["verdict"] != "unknown":
            if cell["verdict"] in _BAD_CELLS:
                yield _cell_finding(case, cell, static, evidence)
            return
    yield _static_finding(case, static, evidence, pair) if static else _unknown_finding(case.compat, evidence)


def _unknown_finding(compat: Compat, installed: Evidence) -> Finding:
    """Return CMP901 for a pair that the table does not have."""
    evidence = [installed, Evidence(f"{len(compat.cells)} cells, {compat.generated}", "compat.json")]
    detail = "The result of this pair is unknown: the table has no run of it, and its source was not read."
    fix = Fix.of("Move to a pair that passed, or try this one.")
    return finding("CMP901", Severity.INFO, evidence, fix, detail, known_by="declared")


def _static_finding(
    case: CheckInput, static: StaticResult, installed: Evidence, pair: tuple[str, str]
) -> Finding:
    """Return CMP905 if metadata or source shows a break of the pair, else CMP901."""
    contract = f"{(static.contract or 'unknown').replace('_', ' ')} {static.missing}".strip()
    read = (
        f"declares: vllm{static.declares or ', any'}; contract: {contract}; requirements, at the pair's own date: "
        f"{static.resolve or 'unknown'}, on the table's day: {static.today or 'unknown'}"
    )
    evidence = [installed, Evidence(read, f"compat.json, breadth of TRL {pair[1]}, static")]
    sentence = _pair_sentence(static, pair)
    if not static.broken:
        advice = "Try this pair, or move to one that passed."
        detail = f"{sentence} The pair was never run, so its result is unknown."
        return finding("CMP901", Severity.INFO, evidence, Fix.of(advice), detail)
    severity = Severity.ERROR if static.contract == "fail" else Severity.WARNING
    # The range is that of an extra, which another trainer does not install.
    if static.contract != "fail" and "trl" not in configuring_trainers(case.environment.packages):
        severity = Severity.INFO
    text, installs = better_pairs(case)
    detail = f"{sentence} The table has no run of this pair; metadata and source were read."
    return finding("CMP905", severity, evidence, Fix.of(text, *installs), detail)


def _pair_sentence(static: StaticResult, pair: tuple[str, str]) -> str:
    """Return a sentence on what metadata and source show about a pair."""
    verb = "allows" if static.allowed else "does not allow"
    allowed = f"TRL {pair[1]} {verb} vLLM {pair[0]} in its metadata"
    if static.contract == "fail":
        joined = "but" if static.allowed else "and"
        return f"{allowed}, {joined} its source relies on {static.missing}, which that vLLM does not have."
    if static.contract == "not_judged":
        return f"{allowed}; whether it has {static.missing}, on which TRL's source relies, could not be read."
    if static.resolve == "unresolvable":
        return f"{allowed}, and the requirements of both have no solution together."
    if static.contract == "pass":
        return f"{allowed}, and it has everything that TRL's source uses."
    return f"{allowed}; nothing else of the pair is known."


def _cell_finding(
    case: CheckInput, cell: dict[str, Any], static: StaticResult | None, installed: Evidence
) -> Finding:
    """Return CMP902 with the failed layers of the pair's cell as evidence."""
    failed = {name: layer for name, layer in cell["layers"].items() if layer["verdict"] in _FAILED_LAYERS}
    evidence = [installed]
    for name, layer in failed.items():
        source = f"compat.json, {cell['id']}, {layer.get('evidence', '')}"
        evidence.append(Evidence(f"{name}: {layer['verdict']}: {layer.get('summary', '')}", source))
    levels = [layer.get("evidence", "static") for layer in failed.values()]
    best = max(levels, key=[*EVIDENCE_LEVELS].index, default="static")
    text, installs = better_pairs(case)
    fix = Fix.of(text, *installs)
    detail = cell.get("note") or f"The cell {cell['id']} came out as {cell['verdict']}."
    detail += f" {_pair_sentence(static, (cell['vllm'], cell['trl']))}" if static else ""
    return finding("CMP902", Severity.ERROR, evidence, fix, detail, known_by=best)


def better_pairs(case: CheckInput) -> tuple[str, tuple[Install, ...]]:
    """Return a text on the nearest pairs with a better result, and the command that installs the first.

    Without such pairs, the text says so, and there is no command.
    """
    sets, refused = choose_sets(case.environment, case.compat, case.issues)
    ran = ", ".join(_cell_name(item) for item in sets if item.evidence == "executed")
    read = ", ".join(_cell_name(item) for item in sets if item.evidence == "static")
    sentences = [f"Pairs that ran and passed: {ran}."] if ran else []
    if read:
        sentences.append(f"Pairs that are allowed and have everything TRL uses, read but not run: {read}.")
    installs = tuple(install(case.environment, *item.requirements) for item in sets[:1])
    if not sentences:
        sentences = ["No pair in the table that fits the other packages is known to be better."]
        sentences += [f"Nearest that ran: {_cell_name(item)}, but {item.against[0]}." for item in refused[:1]]
    return " ".join(sentences), installs


def _cell_name(item: PinnedSet) -> str:
    vllm, trl = item.pins[:2]
    return f"vllm-{vllm.version}+trl-{trl.version}"
