"""Report the known issues of the catalog that affect the installed releases, alone or in combination.

An issue is left out if the claims by which it affects these releases have the evidence `declared` and no upper bound.
An installed release that cannot be read is reported as not checked.
"""

from collections.abc import Iterable, Iterator

from diagnostics.catalog import model
from diagnostics.catalog.mitigation_ranking import recommended_fix
from diagnostics.catalog.model import Affected, Issue
from diagnostics.collect.python_environment import Environment, Package
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, finding
from diagnostics.findings import Evidence, Finding, NotChecked, Severity
from diagnostics.fixes import Fix
from diagnostics.frameworks import ENGINE_PACKAGES, TRAINER_PACKAGES, configuring_trainers
from diagnostics.versions import AFFECTED, CLASHES, UNREADABLE, Applicability, affects, in_range

# Issues of vLLM's V0 scheduler. V1 became the default in 0.8, and V0 was removed in 0.11.
_V0_ONLY = {"SCH001", "SCH002"}
_V1_DEFAULT = ">=0.8,<0.11"


def require_framework(environment: Environment) -> None:
    """Raise NotApplicableError if no supported package is installed."""
    supported = {*ENGINE_PACKAGES, *TRAINER_PACKAGES}
    if not supported & set(environment.packages):
        names = ", ".join(sorted(supported))
        raise NotApplicableError(f"none of {names} is installed in {environment.prefix}")


@check("known issues")
def installed_releases(case: CheckInput) -> Iterator[Finding | NotChecked]:
    """Report the known issues of the installed releases, and an installed release that cannot be read."""
    require_framework(case.environment)
    yield from known_issues(case)


def known_issues(case: CheckInput) -> Iterator[Finding | NotChecked]:
    """Yield a finding for each active issue that affects the installed releases, and for failing pairs.

    Yield NotChecked for a release that cannot be read. An issue is left out if the claims by which it affects these
    releases have the evidence `declared` and no upper bound, because newer releases would all be affected.
    """
    for issue in case.issues.values():
        if issue.status != "active":
            continue
        result = affects(issue, case.environment.releases)
        if result.answer == AFFECTED and any(map(_distinguishes_releases, result.deciding_claims)):
            yield _finding(case, issue, result)
        elif result.answer == UNREADABLE:
            advice = "install a release, or a build that names its release"
            yield NotChecked(f"{result.package} {result.release}", "its release can't be read", advice)
    yield from failing_pairs(case)


def silent_weight_faults(issues: Iterable[Issue], environment: Environment) -> list[str]:
    """Return the codes of silent faults of the weight sync that these releases have with some settings.

    Claims with the evidence `declared` do not count.
    """
    silent = [
        it for it in issues if it.code.startswith("SYN") and it.kind == "silent" and it.status == "by_setting"
    ]
    answers = [
        (issue.code, affects(issue, environment.releases, framework))
        for issue in silent
        for framework in ("", *configuring_trainers(environment.packages))
    ]
    codes = (
        code
        for code, result in answers
        if result.answer == AFFECTED and any(claim.evidence != "declared" for claim in result.deciding_claims)
    )
    return list(dict.fromkeys(codes))


def failing_pairs(case: CheckInput) -> Iterator[Finding]:
    """Report pairs of installed releases that fail together (`CLASHES`), if the pair has a known issue.

    A finding is established if the issue's claims record a run with one of the two releases, else supported.
    """
    packages = case.environment.packages
    releases = {name: item.version for name, item in packages.items()}
    for clash in CLASHES:
        code = clash.code
        if code not in case.issues or not clash.covers(releases):
            continue
        issue, installed = case.issues[code], [packages[clash.companion], packages[clash.package]]
        executed = any(package.version in claim.releases for package in installed for claim in issue.affected)
        certainty, known_by = ("established", "executed") if executed else ("supported", "static")
        evidence = [_installed(item) for item in installed]
        fix, cause = _fix(case.environment, issue), issue.cause
        yield finding(code, Severity.ERROR, evidence, fix, cause, certainty=certainty, known_by=known_by)


def _fix(environment: Environment, issue: Issue) -> Fix:
    frameworks = (*configuring_trainers(environment.packages), "vllm")
    return recommended_fix(issue, frameworks=frameworks, releases=environment.releases)


def _v1_reason(environment: Environment, issue: Issue) -> str:
    """Return the reason why an issue of the V0 engine does not occur by default in this environment, or ""."""
    vllm = environment.vllm
    if issue.code not in _V0_ONLY or vllm is None or not in_range(vllm.version, _V1_DEFAULT):
        return ""
    if environment.variables.get("VLLM_USE_V1") == "0":
        return ""
    return f"V1 is the default of vLLM {vllm.version} on CUDA"


def _distinguishes_releases(claim: Affected) -> bool:
    bounded = bool(claim.releases) or any(mark in claim.versions for mark in ("<", "==", "~="))
    return bounded or claim.evidence != "declared"


def _gpu_prevents_cmp001(case: CheckInput, issue: Issue) -> bool:
    """Return whether the issue is CMP001 and cannot occur here: vLLM sees a GPU, and no old pynvml hides it."""
    visible = case.host is not None and case.host.gpus.state == "ok"
    return issue.code == "CMP001" and visible and "pynvml" not in case.environment.packages


def _finding(case: CheckInput, issue: Issue, result: Applicability) -> Finding:
    """Return the finding: a warning if a recorded run reproduced it and packages alone cause it, else info."""
    environment = case.environment
    best = max((match.claim.evidence for match in result.matching), key=model.EVIDENCE.index)
    packages = environment.packages | ({"vllm": environment.vllm} if environment.vllm else {})
    evidence = [_installed(packages[match.package]) for match in result.matching]
    evidence += [Evidence(f"{m.package}: {m.claim.evidence}", m.claim.source) for m in result.matching]
    v1_reason = _v1_reason(environment, issue)
    if v1_reason:
        text = f"{v1_reason}; V0 runs with VLLM_USE_V1=0, on other hardware, or where V1 lacks a feature"
        evidence.append(Evidence(text, "VLLM_USE_V1"))
    # Installed packages alone cause issues of compatibility; others need a setting or an event of the run.
    causes = issue.code.startswith("CMP") and not _gpu_prevents_cmp001(case, issue)
    severity = Severity.WARNING if best == "executed" and causes else Severity.INFO
    detail = f"Only with the V0 engine. {issue.cause}" if v1_reason else issue.cause
    fix = _fix(environment, issue)
    return finding(issue.code, severity, dict.fromkeys(evidence), fix, detail, known_by=best)


def _installed(package: Package) -> Evidence:
    return Evidence(f"{package} is installed", package.place)
