"""Turn the end of a probe's child process into findings: a failure, a crash or a hang, explained by triage."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import dataclass, replace

from diagnostics import safe_io
from diagnostics.catalog.check_findings import issue_finding
from diagnostics.catalog.model import Issue
from diagnostics.collect.host import Machine
from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks import search_path
from diagnostics.doctor.checks.base import Examined, finding
from diagnostics.doctor.checks.packages import incomplete_package
from diagnostics.doctor.installers import install
from diagnostics.doctor.probe.children import ChildEnded
from diagnostics.doctor.requirements import distribution_of, requirement_of
from diagnostics.findings import CheckResult, Evidence, Finding, Severity
from diagnostics.fixes import Explain, Fix, Install, Run
from diagnostics.output.redact import mask_and_cut
from diagnostics.triage import command as triage_command
from diagnostics.triage import report as triage_report
from diagnostics.triage.rules import Rules
from diagnostics.triage.sources import LogSource

# Log-probs of 16-bit floats against 32-bit ones, and of 32-bit ones added up in another order.
TOLERANCES = {"cuda": 0.05, "cpu": 1e-3}
_TAIL = 6
# Of what a child says of its end, in letters.
_MAX_MESSAGE = 1000
_UNINFORMATIVE = (
    "<frozen ", "importlib/__init__.py", "/grpo-doctor-tried-", "_bootstrap._gcd_import", "importlib.import_module(",
    "Extension modules:",
)  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A child that ended, the code for a failure of unknown cause, and the environment to fix."""

    ended: ChildEnded
    code: str
    environment: Environment | None = None


def describe_end(ended: ChildEnded) -> str:
    """Describe the end in words: the exception, the signal, the time."""
    if ended.timed_out:
        return f"did not end within its limit ({ended.seconds:.0f} s)"
    if ended.code < 0:
        try:
            return f"crashed with {signal.Signals(-ended.code).name}"
        except ValueError:
            return f"crashed with signal {-ended.code}"
    if error := ended.answer.get("error"):
        return mask_and_cut(str(error), _MAX_MESSAGE)
    return f"ended with {ended.code} and gave no answer"


def child_result(tried: Tried, rules: Rules, failures: dict[str, str] | None = None) -> CheckResult:
    """Return the result of one child.

    Args:
        tried: The child.
        rules: Triage rules.
        failures: Earlier failures, by their description; the same failure is reported once.
    """
    ended = tried.ended
    if ended.ok:
        version = ended.answer.get("version")
        text = f"{version}, " if isinstance(version, str) and version else ""
        return CheckResult(ended.what, "ok", f"{text}{ended.seconds:.1f} s")
    how = describe_end(ended)
    step = ended.answer.get("step")
    reason = f"{how}, while {step}" if step else how
    if failures is not None and how in failures and not ended.timed_out:
        return CheckResult(ended.what, "findings", f"{reason} (as with {failures[how]})")
    if failures is not None:
        failures[how] = ended.what
    return CheckResult(ended.what, "findings", reason, (_finding(tried, reason, rules),))


def _finding(tried: Tried, reason: str, rules: Rules) -> Finding:
    """Return the known issue in its output, or the check's own code."""
    ended = tried.ended
    where = str(ended.answer.get("where") or ended.what)
    evidence = [Evidence(reason, where)]
    if known_here := _file_finding(tried, evidence[0]):
        return known_here
    guess = _triage(ended, rules)
    missing = str(ended.answer.get("lacks") or "")
    if missing and (guess is None or guess.code == "ENV012" or guess.certainty == "hypothesis"):
        return _not_installed(tried, missing, evidence[0], rules)
    if guess is not None and guess.certainty != "hypothesis":
        detail = f"{ended.what}: {reason}. {guess.detail}"
        return replace(
            guess, severity=Severity.ERROR, known_by="executed", certainty="established", detail=detail,
            evidence=(*evidence, *guess.evidence),
        )  # fmt: skip
    evidence += [Evidence(line, f"{ended.what}: the end of its output") for line in _last_lines(ended)]
    maybe = f" It may be {guess.code}: {guess.title}." if guess else ""
    return finding(
        tried.code,
        Severity.ERROR,
        known_by="executed",
        detail=f"{ended.what}: {reason}.{maybe}",
        evidence=tuple(evidence),
        fix=Fix.of(
            "Read its message; a finding of the static checks (ENV910, ENV911, ENV923, CMP904) may name "
            "the cause.",
            Explain(tried.code),
        ),
    )


def _file_finding(tried: Tried, evidence: Evidence) -> Finding | None:
    """Return the static finding about a file that the failure names: missing, hidden or moved."""
    current, root = tried.environment, str(tried.ended.answer.get("root") or "")
    if current is None or not root:
        return None
    last = root.strip().rpartition("\n")[2]
    for package in current.packages.values():
        modules = {text.partition("/")[0].partition(".")[0] for text in package.damaged}
        missing = any(re.search(rf"\b{re.escape(module)}\b", last) for module in modules)
        if missing or any(f"{text.partition(': ')[0]}" in root for text in package.damaged):
            return _confirmed(incomplete_package(current, package), tried, evidence)
    examined = Examined(current, {}, Compat())
    for found_here in (*search_path.shadows(examined), *search_path.missing_folders(examined)):
        names = {item.place for item in found_here.evidence}
        modules = {shadow.module for shadow in current.shadows if shadow.place in names}
        modules |= {package.name.replace("-", "_") for package in current.packages.values() if package.lost}
        if any(name in root for name in names) or any(
            re.search(rf"['\"]{re.escape(m)}\b", last) for m in modules
        ):
            return _confirmed(found_here, tried, evidence)
    return None


def _confirmed(found: Finding, tried: Tried, evidence: Evidence) -> Finding:
    return replace(
        found,
        severity=Severity.ERROR,
        certainty="established",
        known_by="executed",
        detail=f"{tried.ended.what}: {evidence.text}. {found.detail}",
        evidence=(evidence, *found.evidence),
    )


def _not_installed(tried: Tried, module: str, evidence: Evidence, rules: Rules) -> Finding:
    """Return ENV012 for a missing module."""
    current = tried.environment
    name = requirement_of(current, distribution_of(module)) if current else distribution_of(module)
    return issue_finding(
        rules.issues["ENV012"],
        Severity.ERROR,
        certainty="established",
        known_by="executed",
        detail=f"{tried.ended.what}: there is no module {module}.",
        evidence=(evidence,),
        remedy=Fix.of(
            "Install it; where several lack, install the package that needs them again, with its requirements.",
            install(current, name) if current else Install((name,)),
        ),
    )


def _triage(ended: ChildEnded, rules: Rules) -> Finding | None:
    """Return what triage finds in the root exception, or else in the whole output."""
    logs = [ended.log]
    if root := str(ended.answer.get("root") or ""):
        logs.insert(0, ended.log.with_name("root"))
        logs[0].write_text(root, encoding="utf-8")
    for log in logs:
        verdict = triage_command.triage([LogSource(ended.what, log)], rules)
        if results := triage_report.report(verdict, [ended.what]).findings:
            return results[0]
    return None


def _last_lines(ended: ChildEnded) -> list[str]:
    try:
        text = safe_io.read_tail(ended.log, 16384).decode("utf-8", "replace")
    except OSError:
        return []
    lines = [mask_and_cut(line.rstrip(), 300) for line in text.splitlines() if _is_informative(line)]
    fatal = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    # A fatal error names its place in its first lines; a list of modules follows.
    return lines[-_TAIL:] if fatal is None else lines[fatal : fatal + _TAIL]


def _is_informative(line: str) -> bool:
    """Return whether a line is not part of the import machinery, our program or a list of modules."""
    return bool(line.strip()) and not any(name in line for name in _UNINFORMATIVE)


def platform_findings(
    torch: ChildEnded | None,
    vllm: ChildEnded | None,
    environment: Environment,
    machine: Machine,
    issues: dict[str, Issue],
) -> list[Finding]:
    """ENV922 and ENG004: compare the platforms of PyTorch and vLLM with the machine."""
    results = []
    gpus = machine.gpus.devices if machine.gpus.state == "ok" else ()
    if torch is not None and torch.ok and gpus:
        answer = torch.answer
        hidden = environment.variables.get("CUDA_VISIBLE_DEVICES") == ""
        if answer.get("cuda") and not answer.get("available") and not hidden:
            text = f"{len(gpus)} GPUs exist; torch.cuda.is_available() is False"
            advice = "Compare the driver's CUDA with that of PyTorch, and look at CUDA_VISIBLE_DEVICES."
            results.append(_platform_finding(text, advice, torch))
    if vllm is not None and vllm.ok:
        device = vllm.answer.get("device", "")
        if not device or "Unspecified" in str(vllm.answer.get("platform")):
            results.append(
                issue_finding(
                    issues["ENG004"],
                    Severity.ERROR,
                    certainty="established",
                    known_by="executed",
                    detail="In a process of its own vLLM reports no platform: no engine starts here.",
                    evidence=(Evidence(f"current_platform is {vllm.answer.get('platform')}", vllm.what),),
                    remedy=Fix.of(
                        "Without an NVIDIA GPU install vLLM's build for this hardware, such as the CPU build; with "
                        "one, repair its driver first.",
                        Explain("ENG004"),
                    ),
                )
            )
        elif gpus and device == "cpu":
            text = f"{len(gpus)} GPUs exist; vLLM would run on the CPU"
            advice = (
                "A CPU build of vLLM uses no GPU: install one for CUDA in its place, unless that is meant."
            )
            results.append(_platform_finding(text, advice, vllm))
    return results


def _platform_finding(text: str, advice: str, ended: ChildEnded) -> Finding:
    return finding(
        "ENV922",
        Severity.ERROR,
        known_by="executed",
        detail="",
        evidence=(
            Evidence(text, ended.what),
            *(Evidence(line, "its output") for line in _last_lines(ended)[-2:]),
        ),
        fix=Fix.of(advice, Run(("nvidia-smi",)), Explain("ENV006")),
    )


def parity_findings(ended: ChildEnded) -> list[Finding]:
    """NUM901 if the engine's log-probs differ from those of transformers."""
    value, device = ended.answer.get("largest"), str(ended.answer.get("device"))
    tolerance = TOLERANCES.get(device, TOLERANCES["cpu"])
    largest = float(value) if isinstance(value, int | float) else math.nan
    counted = not math.isnan(largest)
    if largest <= tolerance:
        return []
    return [
        finding(
            "NUM901",
            Severity.ERROR,
            known_by="executed",
            detail=f"By {value} at most; up to {tolerance:g} is taken for rounding here."
            if counted
            else f"The largest difference is no number: {value}.",
            evidence=(
                Evidence(f"{ended.answer.get('tokens')} sampled tokens on {device}", ended.what),
                Evidence(
                    f"vLLM {ended.answer.get('version')}, engine {ended.answer.get('engine')}", ended.what
                ),
            ),
            fix=Fix.of(
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
