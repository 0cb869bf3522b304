"""What came of trying: a child that failed, crashed or hung, as findings, with what triage makes of its output."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.catalog.own_codes import finding, known
from diagnostics.collect.secrets import cut
from diagnostics.doctor.checks import search_paths, surroundings
from diagnostics.doctor.installing import distribution_of, install, requirement
from diagnostics.output.findings import CheckResult, Evidence, Severity
from diagnostics.output.remedies import Explain, Install, Remedy, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.catalog.model import Issue
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Machine
    from diagnostics.doctor.probe.children import ChildEnded
    from diagnostics.output.findings import Finding
    from diagnostics.triage.rules import Rules

# Log-probs of 16-bit floats against 32-bit ones, and of 32-bit ones added up in another order.
TOLERANCES = {"cuda": 0.05, "cpu": 1e-3}
_TAIL = 6
# Of what a child says of its end, in letters.
_MOST_TOLD = 1000
_SAYS_NOTHING = (
    "<frozen ", "importlib/__init__.py", "/grpo-doctor-tried-", "_bootstrap._gcd_import", "importlib.import_module(",
    "Extension modules:",
)  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A child that ended, the code for a failure that no known issue describes, and where to install what lacks."""

    ended: ChildEnded
    code: str
    environment: Environment | None = None


def how_it_ended(ended: ChildEnded) -> str:
    """In words: the exception, the signal, the time."""
    if ended.timed_out:
        return f"did not end within its limit ({ended.seconds:.0f} s)"
    if ended.code < 0:
        try:
            return f"crashed with {signal.Signals(-ended.code).name}"
        except ValueError:
            return f"crashed with signal {-ended.code}"
    if error := ended.answer.get("error"):
        return cut(str(error), _MOST_TOLD)
    return f"ended with {ended.code} and gave no answer"


def result(tried: Tried, rules: Rules, said: dict[str, str] | None = None) -> CheckResult:
    """The outcome of one child.

    Args:
        tried: The child.
        rules: Of triage.
        said: What earlier children failed with, by how they ended; the same failure is told once.
    """
    ended = tried.ended
    if ended.ok:
        version = ended.answer.get("version")
        told = f"{version}, " if isinstance(version, str) and version else ""
        return CheckResult(ended.what, "ok", f"{told}{ended.seconds:.1f} s")
    how = how_it_ended(ended)
    step = ended.answer.get("step")
    reason = f"{how}, while {step}" if step else how
    if said is not None and how in said and not ended.timed_out:
        return CheckResult(ended.what, "findings", f"{reason} (as with {said[how]})")
    if said is not None:
        said[how] = ended.what
    return CheckResult(ended.what, "findings", reason, (_finding(tried, reason, rules),))


def _finding(tried: Tried, reason: str, rules: Rules) -> Finding:
    """The known issue in its output, or the check's own code."""
    ended = tried.ended
    where = str(ended.answer.get("where") or ended.what)
    evidence = [Evidence(reason, where)]
    if known_here := _of_the_files(tried, evidence[0]):
        return known_here
    guess = _triaged(ended, rules)
    lacking = str(ended.answer.get("lacks") or "")
    if lacking and (guess is None or guess.code == "ENV012" or guess.certainty == "hypothesis"):
        return _not_installed(tried, lacking, evidence[0], rules)
    if guess is not None and guess.certainty != "hypothesis":
        detail = f"{ended.what}: {reason}. {guess.detail}"
        return replace(
            guess, severity=Severity.ERROR, known_by="executed", certainty="established", detail=detail,
            evidence=(*evidence, *guess.evidence),
        )  # fmt: skip
    evidence += [Evidence(line, f"{ended.what}: the end of its output") for line in _tail(ended)]
    maybe = f" It may be {guess.code}: {guess.title}." if guess else ""
    return finding(
        tried.code,
        Severity.ERROR,
        known_by="executed",
        detail=f"{ended.what}: {reason}.{maybe}",
        evidence=tuple(evidence),
        remedy=Remedy.of(
            "Go by what it says, if anything; a finding of the static checks (ENV910, ENV911, ENV923, CMP904) may name "
            "the cause.",
            Explain(tried.code),
        ),
    )


def _of_the_files(tried: Tried, evidence: Evidence) -> Finding | None:
    """What the static checks know of the files that the root of the failure names: gone, hidden, or moved."""
    here, root = tried.environment, str(tried.ended.answer.get("root") or "")
    if here is None or not root:
        return None
    last = root.strip().rpartition("\n")[2]
    for package in here.packages.values():
        modules = {text.partition("/")[0].partition(".")[0] for text in package.damaged}
        gone = any(re.search(rf"\b{re.escape(module)}\b", last) for module in modules)
        if gone or any(f"{text.partition(': ')[0]}" in root for text in package.damaged):
            return _seen_again(surroundings.damaged(here, package), tried, evidence)
    for found in search_paths.shadows(here) + search_paths.lost(here):
        names = {item.place for item in found.evidence}
        modules = {shadow.module for shadow in here.shadows if shadow.place in names}
        modules |= {package.name.replace("-", "_") for package in here.packages.values() if package.lost}
        if any(name in root for name in names) or any(
            re.search(rf"['\"]{re.escape(m)}\b", last) for m in modules
        ):
            return _seen_again(found, tried, evidence)
    return None


def _seen_again(found: Finding, tried: Tried, evidence: Evidence) -> Finding:
    return replace(
        found,
        severity=Severity.ERROR,
        certainty="established",
        known_by="executed",
        detail=f"{tried.ended.what}: {evidence.text}. {found.detail}",
        evidence=(evidence, *found.evidence),
    )


def _not_installed(tried: Tried, module: str, evidence: Evidence, rules: Rules) -> Finding:
    """ENV012: the one failure that says by itself what is to be done."""
    here = tried.environment
    name = requirement(here, distribution_of(module)) if here else distribution_of(module)
    return known(
        rules.issues["ENV012"],
        Severity.ERROR,
        certainty="established",
        known_by="executed",
        detail=f"{tried.ended.what}: there is no module {module}.",
        evidence=(evidence,),
        remedy=Remedy.of(
            "Install it; where several lack, install the package that needs them again, with its requirements.",
            install(here, name) if here else Install((name,)),
        ),
    )


def _triaged(ended: ChildEnded, rules: Rules) -> Finding | None:
    """What triage makes of the root of the failure; of all of the output where that alone says nothing."""
    from diagnostics.triage import command, report
    from diagnostics.triage.sources import LogSource

    logs = [ended.log]
    if root := str(ended.answer.get("root") or ""):
        logs.insert(0, ended.log.with_name("root"))
        logs[0].write_text(root, encoding="utf-8")
    for log in logs:
        verdict = command.triage([LogSource(ended.what, log)], rules)
        if found := report.report(verdict, [ended.what]).findings:
            return found[0]
    return None


def _tail(ended: ChildEnded) -> list[str]:
    try:
        text = given.tail(ended.log, 16384).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [cut(line.rstrip(), 300) for line in text.splitlines() if _says_something(line)]
    fatal = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    # Python's own last words name the place at their top; what follows them is a list of modules.
    return lines[-_TAIL:] if fatal is None else lines[fatal : fatal + _TAIL]


def _says_something(line: str) -> bool:
    """Neither the machinery of importing, nor our own program, nor a list of modules."""
    return bool(line.strip()) and not any(name in line for name in _SAYS_NOTHING)


def platforms(
    torch: ChildEnded | None,
    vllm: ChildEnded | None,
    environment: Environment,
    machine: Machine,
    issues: dict[str, Issue],
) -> list[Finding]:
    """ENV922 and ENG004: what PyTorch and vLLM found to run on, against what is there."""
    found = []
    gpus = machine.gpus.devices if machine.gpus.state == "ok" else ()
    if torch is not None and torch.ok and gpus:
        seen = torch.answer
        hidden = environment.variables.get("CUDA_VISIBLE_DEVICES") == ""
        if seen.get("cuda") and not seen.get("available") and not hidden:
            text = f"{len(gpus)} GPUs are there; torch.cuda.is_available() is False"
            advice = "Compare the driver's CUDA with that of PyTorch, and look at CUDA_VISIBLE_DEVICES."
            found.append(_platform(text, advice, torch))
    if vllm is not None and vllm.ok:
        device = vllm.answer.get("device", "")
        if not device or "Unspecified" in str(vllm.answer.get("platform")):
            found.append(
                known(
                    issues["ENG004"],
                    Severity.ERROR,
                    certainty="established",
                    known_by="executed",
                    detail="Asked in a process of its own, vLLM names no platform: no engine starts here.",
                    evidence=(Evidence(f"current_platform is {vllm.answer.get('platform')}", vllm.what),),
                    remedy=Remedy.of(
                        "Without a GPU of NVIDIA's install vLLM's build for what is there, as the CPU's; with one, "
                        "mend its driver first.",
                        Explain("ENG004"),
                    ),
                )
            )
        elif gpus and device == "cpu":
            text = f"{len(gpus)} GPUs are there; vLLM would run on the CPU"
            advice = (
                "A CPU build of vLLM uses no GPU: install one for CUDA in its place, unless that is meant."
            )
            found.append(_platform(text, advice, vllm))
    return found


def _platform(text: str, advice: str, ended: ChildEnded) -> Finding:
    return finding(
        "ENV922",
        Severity.ERROR,
        known_by="executed",
        detail="",
        evidence=(Evidence(text, ended.what), *(Evidence(line, "its output") for line in _tail(ended)[-2:])),
        remedy=Remedy.of(advice, Run(("nvidia-smi",)), Explain("ENV006")),
    )


def parity(ended: ChildEnded) -> list[Finding]:
    """NUM901 where the engine's log-probs are not those of transformers."""
    told, device = ended.answer.get("largest"), str(ended.answer.get("device"))
    tolerance = TOLERANCES.get(device, TOLERANCES["cpu"])
    largest = float(told) if isinstance(told, int | float) else math.nan
    counted = not math.isnan(largest)
    if largest <= tolerance:
        return []
    return [
        finding(
            "NUM901",
            Severity.ERROR,
            known_by="executed",
            detail=f"By {told} at most; up to {tolerance:g} is taken for rounding here."
            if counted
            else f"The largest difference is no number: {told}.",
            evidence=(
                Evidence(f"{ended.answer.get('tokens')} sampled tokens on {device}", ended.what),
                Evidence(
                    f"vLLM {ended.answer.get('version')}, engine {ended.answer.get('engine')}", ended.what
                ),
            ),
            remedy=Remedy.of(
                "Do not train with it as it is: take another release of vLLM"
                # A ratio that is nought or infinite corrects nothing.
                + (
                    ", or correct by importance sampling, if these are the log-probs that it samples by."
                    if math.isfinite(largest)
                    else "."
                ),
                Explain("NUM001"),
            ),
        )
    ]


def not_looked_at(checks: Sequence[CheckResult]) -> bool:
    """Whether a tier that was asked for looked at nothing at all."""
    return bool(checks) and all(check.outcome == "skipped" for check in checks)
