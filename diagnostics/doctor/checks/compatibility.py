"""Check the installed pair of vLLM and TRL against the compatibility table, and suggest better pairs.

A pair without a verdict in the table is looked up in the API index: declared ranges, requirements, and the names that
TRL uses. `_better_pairs` suggests the nearest pairs that ran and passed, and fit the requirements of other packages.
"""

from collections.abc import Iterator
from dataclasses import replace

from diagnostics import called_as
from diagnostics.api_index import query
from diagnostics.api_index.query import Compatibility, Release
from diagnostics.compat_table import FAILED, Cell
from diagnostics.doctor.checks.missing_names import indexed_releases, trainers_of
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, finding
from diagnostics.doctor.fix_plan.known_good_pins import choose_sets, public_version
from diagnostics.doctor.installers import install
from diagnostics.findings import EVIDENCE_LEVELS, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install, quote_command
from diagnostics.output.pair_evidence import pair_text

_FAILED_LAYERS = FAILED | {"expected_fail"}


@check("compatibility table")
def compatibility(case: CheckInput) -> Iterator[Finding]:
    """Report an installed pair of vLLM and TRL that is not known to work.

    - CMP902: the verdict of its cell is `fail` or `unresolvable`.
    - CMP905: it has no verdict, and metadata or source contradict it.
    - CMP901: it has no verdict, and nothing is known against it, or the API index cannot compare its names.

    A cell with another verdict gives no finding, even if some of its layers failed. Where another trainer wraps TRL,
    only a contradiction counts.
    """
    vllm, trl = case.environment.vllm, case.environment.packages.get("trl")
    if vllm is None or trl is None or case.compat.problem:
        missing = [name for name, package in (("vLLM", vllm), ("TRL", trl)) if not package]
        raise NotApplicableError(f"{' and '.join(missing)} not installed" if missing else case.compat.problem)
    versions = public_version(vllm.version), public_version(trl.version)
    trainers = trainers_of(indexed_releases(case.environment))
    pair = query.compatibility(Release("trl", versions[1]), Release("vllm", versions[0]), trainers)
    installed = Evidence(f"vLLM {vllm.version} with TRL {trl.version}", vllm.place)
    if pair.wrappers and not pair.contradicted:
        return
    for cell in () if pair.wrappers else case.compat.cells:
        if (cell.vllm, cell.trl) == versions and cell.verdict != "unknown":
            if cell.verdict in FAILED:
                yield _cell_finding(case, cell, pair, installed)
            return
    yield _unrun_finding(case, pair, installed)


def _unrun_finding(case: CheckInput, pair: Compatibility, installed: Evidence) -> Finding:
    """Return CMP905 for a pair whose names were compared and that the API index contradicts, else CMP901."""
    missing, text = pair.missing_in_grpo, pair_text(pair)
    known_by = "static" if pair.names else "declared"
    evidence = [installed, Evidence(text, f"API index, {known_by}")]
    detail = f"TRL {pair.user.version} with vLLM {pair.provider.version}: {text}. The table has no run of this pair"
    if pair.names is None or not (missing or pair.allowed is False or pair.conflicts):
        fix = Fix.of("Try this pair, or move to one that passed.")
        detail += ", so its result is unknown."
        return finding("CMP901", Severity.INFO, evidence, fix, detail, known_by=known_by)
    severity = Severity.ERROR if missing else Severity.WARNING
    advice, installs = _better_pairs(case, pair)
    detail += "; metadata and source were read."
    result = finding("CMP905", severity, evidence, Fix.of(advice, *installs), detail)
    if missing or pair.allowed is not False:
        return result
    ranges = " or ".join(item.partition(" ")[0] for item in pair.declared)
    title = f"vLLM {pair.provider.version} is outside the range of TRL {pair.user.version} (vllm{ranges}); not run here"
    return replace(result, title=title)


def _cell_finding(case: CheckInput, cell: Cell, pair: Compatibility, installed: Evidence) -> Finding:
    """Return CMP902 with the failed layers of the pair's cell as evidence."""
    failed = {name: layer for name, layer in cell.layers.items() if layer.verdict in _FAILED_LAYERS}
    evidence = [installed]
    for name, layer in failed.items():
        source = f"compat.json, {cell.id}, {layer.evidence or ''}"
        evidence.append(Evidence(f"{name}: {layer.verdict}: {layer.summary}", source))
    levels = [layer.evidence or "static" for layer in failed.values()]
    best = max(levels, key=[*EVIDENCE_LEVELS].index, default="static")
    text, installs = _better_pairs(case, pair)
    fix = Fix.of(text, *installs)
    detail = cell.note or f"The cell {cell.id} came out as {cell.verdict}."
    detail += f" By metadata and source: {pair_text(pair)}." if pair.names else ""
    return finding("CMP902", Severity.ERROR, evidence, fix, detail, known_by=best)


def _better_pairs(case: CheckInput, pair: Compatibility) -> tuple[str, tuple[Install, ...]]:
    """Return a text on the nearest pairs that ran, and the command that installs the first.

    Without such pairs there is no command, and the text names the nearest pair that ran, if any, and its obstacle.
    """
    sets, refused = choose_sets(case)
    if sets:
        text = f"Pairs that ran and passed: {', '.join(item.source for item in sets)}."
    else:
        text = "No pair in the table that fits the other packages is known to be better."
        for item in refused[:1]:
            text += f" Nearest that ran: {item.source}, but {item.against[0]}."
    installs = tuple(install(case.environment, *item.requirements) for item in sets[:1])
    command = quote_command((*called_as().split(), "versions", f"vllm=={pair.provider.version}", "trl"))
    return f"{text} `{command}` lists pairs that were read, not run.", installs
