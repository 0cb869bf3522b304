"""The codes of findings that are not known issues: what a check may say on its own. 9xx in each family."""

from __future__ import annotations

from diagnostics.findings import Evidence, Finding, Remedy, Severity

CODES = {
    "CMP901": (
        "This pair of vLLM and TRL was never run",
        "The compatibility table that is shipped with the tool has no cell with exactly these two versions. That is "
        "not a fault: it means that nobody here knows. What metadata and source say is told where it was read, else "
        "the nearest pairs that were run are named.",
    ),
    "CMP902": (
        "This pair of vLLM and TRL is known to fail",
        "The compatibility table has a cell with exactly these versions, and a layer of it failed or its requirements "
        "have no solution. The finding says which layer, what it saw, and whether that was run or read in source.",
    ),
    "CMP903": (
        "vLLM is outside the range that this TRL declares",
        "The installed TRL names the vLLM releases it supports in its own metadata (the extra `vllm`). The installed "
        "vLLM is not among them. Declared ranges can be too narrow and too wide; a run says more.",
    ),
    "CMP904": (
        "A declared requirement is not met",
        "vLLM's or TRL's own metadata asks for a version of a package, and another one is installed, or none.",
    ),
    "CMP905": (
        "This pair of vLLM and TRL was never run, and what can be read says that it fails",
        "Nobody ran the pair, but the compatibility table holds what its metadata and source say: names that this TRL "
        "takes from vLLM are missing there, or the requirements of both have no solution together. Reading is weaker "
        "than running; the finding says what was read.",
    ),
    "ENV901": (
        "Package metadata is broken or there twice",
        "A metadata folder has no name or version, or a package is there more than once. It is what an interrupted or "
        "mixed installation leaves behind; which files are really imported is then a matter of luck.",
    ),
    "ENV902": (
        "RAY_ADDRESS holds a web address",
        "RAY_ADDRESS is set to the address of Ray's dashboard or job server (http://...). A process that calls "
        "ray.init() with it fails. It belongs to `ray job submit` alone.",
    ),
    "ENV903": (
        "VLLM_USE_V1=0 asks for an engine that is not there",
        "The V0 engine was removed in vLLM 0.11.0 (its scheduler is not in that wheel). The variable is ignored there, "
        "so a work-around that relies on it does nothing.",
    ),
}


def finding(
    code: str,
    severity: Severity,
    *,
    known_by: str,
    detail: str,
    evidence: tuple[Evidence, ...],
    remedy: Remedy,
) -> Finding:
    """A finding under one of these codes; established, since it was read off the environment itself."""
    return Finding(
        code=code,
        title=CODES[code][0],
        severity=severity,
        certainty="established",
        known_by=known_by,
        detail=detail,
        evidence=evidence,
        remedy=remedy,
    )
