"""The installed pair of vLLM and TRL against what the matrix saw, and against what it read of pairs never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from diagnostics.catalog.own_codes import finding
from diagnostics.doctor.checks.registered import check
from diagnostics.doctor.installing import install
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run

if TYPE_CHECKING:
    from diagnostics.collect.compat import Compat, Read
    from diagnostics.collect.environment import Environment
    from diagnostics.output.findings import Finding
    from diagnostics.output.plans import PinnedSet
    from diagnostics.output.remedies import Install

_BAD = {"fail", "unresolvable"}
_FAILED = {"fail", "expected_fail", "unresolvable"}
# Of vLLM and TRL, with which locks/releases.json begins.
_FIRST = ("0.6.3", "0.14.0")


def _nothing_to_look_up(environment: Environment, compat: Compat) -> str:
    missing = [
        name
        for name, there in (("vLLM", environment.vllm), ("TRL", environment.packages.get("trl")))
        if not there
    ]
    return f"{' and '.join(missing)} not installed" if missing else compat.problem


@check("compatibility table", skip=_nothing_to_look_up)
def compatibility(environment: Environment, compat: Compat) -> list[Finding]:
    """A finding where the pair failed, was only read, or is unknown; none where a run passed."""
    vllm, trl = environment.vllm, environment.packages.get("trl")
    assert vllm is not None
    assert trl is not None
    pair = (_public(vllm.version), _public(trl.version))
    installed = Evidence(f"vLLM {vllm.version} with TRL {trl.version}", vllm.place)
    for cell in compat.cells:
        if (cell["vllm"], cell["trl"]) == pair and cell["verdict"] != "unknown":
            return _seen(environment, cell, installed, compat)
    known = compat.read(*pair)
    return [
        _unknown(installed, compat, pair)
        if known is None
        else _read(environment, known, installed, compat, pair)
    ]


def _unknown(installed: Evidence, compat: Compat, pair: tuple[str, str]) -> Finding:
    near = ", ".join(f"{cell['id']} ({cell['verdict']})" for cell in _nearest(compat, *pair)) or "none"
    return finding(
        "CMP901",
        Severity.INFO,
        known_by="declared",
        detail=f"Whether these two work together is unknown. The nearest pairs in the table: {near}.",
        evidence=(installed, Evidence(f"{len(compat.cells)} cells, {compat.generated}", "compat.json")),
        remedy=Remedy.of(
            "Move to a pair that passed, or try this one; the command reads it, and runs nothing.",
            _matrix("add", f"vllm=={pair[0]}", "--trl", pair[1]),
        )
        if all(map(_listed, pair, _FIRST))
        else Remedy.of(
            "Move to a pair that passed, or try this one; there is no list of such builds or releases to read it from."
        ),
    )


def _listed(version: str, first: str) -> bool:
    """Tells whether it is a release of the kind that the matrix reads, or newer than its list, which it then says."""
    try:
        return not Version(version).is_prerelease and Version(version) >= Version(first)
    except InvalidVersion:
        return False


def _read(
    environment: Environment, known: Read, installed: Evidence, compat: Compat, pair: tuple[str, str]
) -> Finding:
    """Says what metadata and source say; neither is a run, whatever they say."""
    said = (installed, Evidence("; ".join(_words(known)), f"compat.json, breadth of TRL {pair[1]}, static"))
    again = _matrix("--profile", "breadth", "--cells", f"vllm-{pair[0]}+trl-{pair[1]}")
    if known.broken:
        text, installs = ways_out(environment, compat)
        return finding(
            "CMP905",
            Severity.ERROR if known.contract == "fail" else Severity.WARNING,
            known_by="static",
            detail=f"{_sentence(known, pair)} The table has no run of this pair: it is read in metadata and source.",
            evidence=said,
            remedy=Remedy.of(text, *installs, again),
        )
    return finding(
        "CMP901",
        Severity.INFO,
        known_by="static",
        detail=f"{_sentence(known, pair)} That is no run: whether it works is unknown.",
        evidence=said,
        remedy=Remedy.of(
            "Try it, or move to a pair that passed; the command reads it again, and runs nothing.", again
        ),
    )


def _words(known: Read) -> list[str]:
    """Returns what each source says, in the table's words; what is unknown says so."""
    contract = {
        "pass": "contract holds",
        "fail": f"contract fails: {known.missing}",
        "not_judged": f"contract not judged: {known.missing}",
    }
    solved = {"pass": "have a solution", "unresolvable": "have none"}
    return [
        f"{'allowed' if known.allowed else 'not allowed'} by metadata (vllm{known.declares or ', any'})",
        contract.get(known.contract or "", "contract unknown"),
        f"its requirements {solved.get(known.resolve or '', 'were not resolved')} at its own date",
        f"{solved.get(known.today or '', 'were not resolved')} with the packages of the table's day",
    ]


def _sentence(known: Read, pair: tuple[str, str]) -> str:
    allowed = (
        f"TRL {pair[1]} {'allows' if known.allowed else 'does not allow'} vLLM {pair[0]} in its metadata"
    )
    if known.contract == "fail":
        joined = "but" if known.allowed else "and"
        return f"{allowed}, {joined} its source relies on {known.missing}, which that vLLM does not serve."
    if known.contract == "not_judged":
        return (
            f"{allowed}; whether it serves {known.missing}, on which TRL's source relies, could not be read."
        )
    if known.resolve == "unresolvable":
        return f"{allowed}, and the requirements of both have no solution together."
    if known.contract == "pass":
        return f"{allowed}, and all that its source takes from vLLM is served."
    return f"{allowed}; nothing else of the pair is known."


def _seen(
    environment: Environment, cell: dict[str, Any], installed: Evidence, compat: Compat
) -> list[Finding]:
    if cell["verdict"] not in _BAD:
        return []
    bad = {name: layer for name, layer in cell["layers"].items() if layer["verdict"] in _FAILED}
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
        default="static",
    )
    pair = (cell["vllm"], cell["trl"])
    known = compat.read(*pair)
    text, installs = ways_out(environment, compat)
    note = cell.get("note") or f"The cell {cell['id']} came out as {cell['verdict']}."
    return [
        finding(
            "CMP902",
            Severity.ERROR,
            known_by=best,
            detail=f"{note} In short: {'; '.join(_words(known)[:2])}." if known else note,
            evidence=(installed, *evidence),
            remedy=Remedy.of(text, *installs, _matrix("--cells", cell["id"])),
        )
    ]


def _matrix(*words: str) -> Run:
    return Run(("nox", "-s", "matrix", "--", *words))


def ways_out(environment: Environment, compat: Compat) -> tuple[str, tuple[Install, ...]]:
    """Returns the nearest pairs that do better, in words, and how to install the first: that of the fix plan.

    Args:
        environment: whose pair is left, whose installer is named, and whose other packages the pair has to suit.
        compat: the table.
    """
    # Late: most environments have no such pair.
    from diagnostics.doctor.fixplan.demands import on
    from diagnostics.doctor.fixplan.sets import PINNED, known_sets, refused

    demands = list(on(environment, PINNED))
    sets = known_sets(environment, compat, compat.breadth, demands)
    ran, read = (
        ", ".join(_pair(item) for item in sets if item.evidence == evidence)
        for evidence in ("executed", "static")
    )
    told = [f"Pairs of which something ran and passed: {ran}."] if ran else []
    if read:
        told.append(f"Pairs that are allowed and serve all that TRL takes, read and not run: {read}.")
    installs = tuple(
        install(environment, *(f"{pin.name}=={pin.version}" for pin in item.pins)) for item in sets[:1]
    )
    if not told:
        told = ["No pair that the table has fits what else is installed, and is known to do better."]
        told += [
            f"Nearest that ran: {_pair(item)}, but {item.against[0]}."
            for item in refused(environment, compat, demands)[:1]
        ]
    return " ".join(told), installs


def _pair(item: PinnedSet) -> str:
    vllm, trl = item.pins[:2]
    return f"vllm-{vllm.version}+trl-{trl.version}"


def _nearest(compat: Compat, vllm: str, trl: str) -> list[dict[str, Any]]:
    """The three cells whose vLLM, then TRL, is the fewest minor releases away."""
    return sorted(
        compat.cells, key=lambda c: (_distance(c["vllm"], vllm), _distance(c["trl"], trl), c["id"])
    )[:3]


def _distance(one: str, other: str) -> float:
    try:
        a, b = Version(one), Version(other)
    except InvalidVersion:
        return float("inf")
    # 0.11.2 is nearer to 0.12.0 than 0.11.0 is.
    return abs((a.major - b.major) * 100 + a.minor - b.minor + (a.micro - b.micro) / 100)


def _public(version: str) -> str:
    try:
        return str(Version(version).public)
    except InvalidVersion:
        return version
