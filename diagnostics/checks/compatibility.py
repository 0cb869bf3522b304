"""The installed pair of vLLM and TRL against what the matrix saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from diagnostics.checks.codes import finding
from diagnostics.findings import Evidence, Remedy, Severity

if TYPE_CHECKING:
    from diagnostics.facts.compat import Compat
    from diagnostics.facts.environment import Environment
    from diagnostics.findings import Finding

_BAD = {"fail", "unresolvable"}


def compatibility(environment: Environment, compat: Compat) -> list[Finding]:
    """A finding where the pair failed or was never run; none where it passed."""
    vllm, trl = environment.vllm, environment.packages.get("trl")
    assert vllm is not None
    assert trl is not None
    pair = (_public(vllm.version), _public(trl.version))
    installed = Evidence(f"vLLM {vllm.version} with TRL {trl.version}", vllm.place)
    for cell in compat.cells:
        if (cell["vllm"], cell["trl"]) == pair:
            return _seen(cell, installed, compat)
    near = ", ".join(f"{cell['id']} ({cell['verdict']})" for cell in nearest(compat, *pair)) or "none"
    return [
        finding(
            "CMP901",
            Severity.INFO,
            known_by="executed",
            detail=f"Whether these two work together is unknown. The nearest pairs that were run: {near}.",
            evidence=(installed, Evidence(f"{len(compat.cells)} cells, {compat.generated}", "compat.json")),
            remedy=Remedy("Run it, or move to a pair that was run.", ("nox -s matrix -- --list",)),
        )
    ]


def _seen(cell: dict[str, Any], installed: Evidence, compat: Compat) -> list[Finding]:
    if cell["verdict"] not in _BAD:
        return []
    bad = {
        name: layer
        for name, layer in cell["layers"].items()
        if layer["verdict"] in {"fail", "expected_fail", "unresolvable"}
    }
    evidence = [
        Evidence(
            f"{name}: {layer['verdict']}: {layer.get('summary', '')}",
            f"compat.json, {cell['id']}, {layer.get('evidence', '')}",
        )
        for name, layer in bad.items()
    ]
    best = max(
        (layer.get("evidence", "static") for layer in bad.values()),
        key=["declared", "static", "executed"].index,
    )
    return [
        finding(
            "CMP902",
            Severity.ERROR,
            known_by=best,
            detail=cell.get("note") or f"The cell {cell['id']} came out as {cell['verdict']}.",
            evidence=(installed, *evidence),
            remedy=Remedy(_working(compat, cell), (f"nox -s matrix -- --cells '{cell['id']}'",)),
        )
    ]


def _working(compat: Compat, cell: dict[str, Any]) -> str:
    near = [
        other
        for other in nearest(compat, cell["vllm"], cell["trl"], limit=99)
        if other["verdict"] not in _BAD
    ]
    if not near:
        return "No pair in the table is known to do better."
    return (
        "Nearest pairs in which more worked: "
        + ", ".join(f"{o['id']} ({o['verdict']})" for o in near[:3])
        + "."
    )


def nearest(compat: Compat, vllm: str, trl: str, limit: int = 3) -> list[dict[str, Any]]:
    """The cells whose vLLM, then TRL, is the fewest minor releases away."""
    return sorted(
        compat.cells, key=lambda c: (_distance(c["vllm"], vllm), _distance(c["trl"], trl), c["id"])
    )[:limit]


def _distance(one: str, other: str) -> float:
    try:
        a, b = Version(one), Version(other)
    except InvalidVersion:
        return float("inf")
    return abs((a.major - b.major) * 100 + a.minor - b.minor) + abs(a.micro - b.micro) / 100


def _public(version: str) -> str:
    try:
        return str(Version(version).public)
    except InvalidVersion:
        return version
