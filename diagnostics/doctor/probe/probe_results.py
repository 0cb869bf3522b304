"""Turn the result of a probe's child process into a check result; a new failure gives a finding with its likely cause.

`check_result_of` returns the check result. The cause is a damaged package, a missing module, or what `triage` finds in
the child's output. `platform_findings` and `parity_findings` check what successful probes report: the platforms and the
log-probs.
"""

import math
import re
from dataclasses import replace
from typing import Any

from diagnostics import process
from diagnostics.collect.machine import Machine
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.checks.metadata_and_requirements import incomplete_package
from diagnostics.doctor.checks.registry import finding
from diagnostics.doctor.installers import install
from diagnostics.doctor.probe.child_processes import ChildResult
from diagnostics.doctor.requirements import distribution_of, requirement_of
from diagnostics.findings import CheckResult, Evidence, Finding, Severity
from diagnostics.fixes import Explain, Fix, Run
from diagnostics.output.redact import truncate
from diagnostics.triage import command as triage_command
from diagnostics.triage import report as triage_report
from diagnostics.triage.rules import Rules
from diagnostics.triage.sources import LogSource

# Largest differences of log-probs by rounding: on a GPU 16-bit against 32-bit floats, on a CPU another order of sums.
TOLERANCES = {"cuda": 0.05, "cpu": 1e-3}
# Levels of a finding that the child's failure confirms.
_CONFIRMED: dict[str, Any] = {"certainty": "established", "known_by": "executed"}
_TAIL_LINES = 6
_MAX_MESSAGE = 1000
# Lines of the import machinery, of our own program, or lists of modules.
_UNINFORMATIVE = (
    "<frozen ", "importlib/__init__.py", "/grpo-doctor-tried-", "_bootstrap._gcd_import", "importlib.import_module(",
    "Extension modules:",
)  # fmt: skip


def check_result_of(
    ended: ChildResult, code: str, environment: Environment, rules: Rules, failures: dict[str, str]
) -> CheckResult:
    """Return the check result for the result of a child process.

    Args:
        ended: The child's result.
        code: The code for a failure of unknown cause.
        environment: The environment to fix.
        rules: Triage rules.
        failures: The probe that first had each failure, by the failure's description; new failures are added. A failure
            that another probe had before gives no second finding, unless it is a timeout.
    """
    if ended.ok:
        version = ended.answer.get("version")
        release = version if isinstance(version, str) else ""
        texts = (release, _platform_text(ended.answer), f"{ended.seconds:.1f} s")
        return CheckResult(ended.name, "ok", ", ".join(filter(None, texts)))
    how = describe_end(ended)
    step = ended.answer.get("step")
    reason = f"{how}, while {step}" if step else how
    if how in failures and not ended.timed_out:
        return CheckResult(ended.name, "findings", f"{reason} (as with {failures[how]})")
    failures[how] = ended.name
    return CheckResult(ended.name, "findings", reason, (_explain(ended, code, environment, reason, rules),))


def _platform_text(answer: dict[str, Any]) -> str:
    """Describe the platform that PyTorch or vLLM reported, if any."""
    if "platform" in answer:
        return f"{answer['platform']}, device {answer['device'] or 'none'}"
    if "cuda" not in answer:
        return ""
    cuda = f"CUDA {answer['cuda']}" if answer["cuda"] else "built without CUDA"
    return f"{cuda}, {answer.get('devices')} devices"


def describe_end(ended: ChildResult) -> str:
    """Describe how a child process ended: by its exception, a signal, the time limit or its exit code."""
    if ended.timed_out:
        return f"did not end within its limit ({ended.seconds:.0f} s)"
    if ended.code < 0:
        return f"crashed with {process.signal_name(ended.code)}"
    if error := ended.answer.get("error"):
        return truncate(str(error), _MAX_MESSAGE)
    return f"ended with {ended.code} and gave no answer"


def _explain(ended: ChildResult, code: str, environment: Environment, reason: str, rules: Rules) -> Finding:
    """Return the cause of a failure: a damaged file, a missing module or a known issue; else a finding under `code`."""
    text = f"{ended.name}: {reason}."
    evidence = Evidence(reason, str(ended.answer.get("where") or ended.name))
    guess = _triage(ended, rules)
    certain = guess is not None and guess.certainty != "hypothesis"
    missing = str(ended.answer.get("lacks") or "")
    cause = _damaged_package(ended, environment)
    package = environment.packages.get(distribution_of(missing))
    is_lost = package is not None and package.lost  # ENV926 of the static checks has its fix
    if cause is None and missing and not is_lost and (not certain or (guess and guess.code == "ENV012")):
        return _not_installed(ended, environment, missing, evidence)
    cause = cause or (guess if certain else None)
    if cause is not None:
        detail, places = f"{text} {cause.detail}", (evidence, *cause.evidence)
        return replace(cause, severity=Severity.ERROR, detail=detail, evidence=places, **_CONFIRMED)
    output = (Evidence(line, f"{ended.name}: the end of its output") for line in _last_lines(ended))
    advice = "Read its message; a static finding (ENV910, ENV911, ENV923, ENV925, ENV926, CMP904) may name the cause."
    fix = Fix.of(advice, Explain(code))
    text += f" It may be {guess.code}: {guess.title}." if guess else ""
    return finding(code, Severity.ERROR, [evidence, *output], fix, text, known_by="executed")


def _damaged_package(ended: ChildResult, environment: Environment) -> Finding | None:
    """Return ENV923 for the package with a damaged file that the failure names; None if there is none."""
    root = str(ended.answer.get("root") or "")
    last_line = root.strip().rpartition("\n")[2]
    for package in environment.packages.values():
        modules = {text.partition("/")[0].partition(".")[0] for text in package.damaged}
        missing = any(re.search(rf"\b{re.escape(module)}\b", last_line) for module in modules)
        if missing or any(text.partition(": ")[0] in root for text in package.damaged):
            return incomplete_package(environment, package)
    return None


def _not_installed(ended: ChildResult, environment: Environment, module: str, evidence: Evidence) -> Finding:
    """Return ENV012 for a module that is not installed, with the command that installs it."""
    name = distribution_of(module)
    advice = (
        "Install it; if several are missing, reinstall the package that needs them, with its requirements."
    )
    command = install(environment, requirement_of(environment, name))
    detail = f"{ended.name}: there is no module {module}."
    return finding("ENV012", Severity.ERROR, [evidence], Fix.of(advice, command), detail, **_CONFIRMED)


def _triage(ended: ChildResult, rules: Rules) -> Finding | None:
    """Return triage's first finding in the root exception, or else in the whole output; None if there is none."""
    logs = [ended.log]
    if root := str(ended.answer.get("root") or ""):
        logs.insert(0, ended.log.with_name("root"))
        logs[0].write_text(root, encoding="utf-8")
    for log in logs:
        verdict = triage_command.triage([LogSource(ended.name, log)], rules)
        if results := triage_report.report(verdict, [ended.name]).findings:
            return results[0]
    return None


def _last_lines(ended: ChildResult) -> list[str]:
    """Return the last informative lines of a child's output, or the first lines of a fatal error in it."""
    lines = [
        truncate(line.rstrip(), 300)
        for line in process.read_end(ended.log, 16384).splitlines()
        if line.strip() and not any(name in line for name in _UNINFORMATIVE)
    ]
    fatal = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    # The first lines of a fatal error say where it happened; a list of modules follows.
    return lines[-_TAIL_LINES:] if fatal is None else lines[fatal : fatal + _TAIL_LINES]


def platform_findings(
    torch: ChildResult | None, vllm: ChildResult | None, environment: Environment, machine: Machine
) -> list[Finding]:
    """Compare the platforms that PyTorch and vLLM report with the machine (ENV922, ENG004)."""
    results = []
    gpus = machine.gpus.devices if machine.gpus.state == "ok" else ()
    hidden = environment.variables.get("CUDA_VISIBLE_DEVICES") == ""
    if torch and torch.ok and torch.answer.get("cuda") and not torch.answer.get("available"):
        text = f"{len(gpus)} GPUs exist; torch.cuda.is_available() is False"
        advice = "Compare the driver's CUDA with that of PyTorch, and look at CUDA_VISIBLE_DEVICES."
        results += [_platform_finding(text, advice, torch)] if gpus and not hidden else []
    if vllm is None or "platform" not in vllm.answer:
        return results
    device, platform = vllm.answer.get("device", ""), str(vllm.answer.get("platform"))
    if not device or "Unspecified" in platform:
        advice = "Install vLLM's build for this hardware, such as the CPU build; with an NVIDIA GPU repair its driver."
        detail = "In a separate process vLLM reports no platform: no engine starts here."
        evidence = [Evidence(f"current_platform is {platform}", vllm.name)]
        fix = Fix.of(advice, Explain("ENG004"))
        results.append(finding("ENG004", Severity.ERROR, evidence, fix, detail, **_CONFIRMED))
    elif gpus and device == "cpu":
        text = f"{len(gpus)} GPUs exist; vLLM would run on the CPU"
        advice = "A CPU build of vLLM uses no GPU: install a build for CUDA instead, unless that is intended."
        results.append(_platform_finding(text, advice, vllm))
    return results


def _platform_finding(text: str, advice: str, ended: ChildResult) -> Finding:
    output = (Evidence(line, "its output") for line in _last_lines(ended)[-2:])
    fix = Fix.of(advice, Run(("nvidia-smi",)), Explain("ENV006"))
    return finding("ENV922", Severity.ERROR, [Evidence(text, ended.name), *output], fix, known_by="executed")


def parity_findings(ended: ChildResult) -> list[Finding]:
    """Report log-probs of the engine that differ from those of transformers by more than rounding (NUM901).

    A difference that is no number is reported, too.
    """
    answer = ended.answer
    value, device = answer.get("largest"), str(answer.get("device"))
    tolerance = tolerance_of(device)
    largest = float(value) if isinstance(value, int | float) else math.nan
    if largest <= tolerance:
        return []
    detail = f"The log-probs differ by up to {value}; up to {tolerance:g} is rounding here."
    if math.isnan(largest):
        detail = f"The largest difference is no number: {value}."
    advice = "Do not train with it as it is: use another release of vLLM"
    # With an infinite difference, an importance ratio of 0 or infinity corrects nothing.
    if math.isfinite(largest):
        advice += ", or correct by importance sampling, if these are the log-probs that it samples by"
    evidence = [
        Evidence(f"{answer.get('tokens')} sampled tokens on {device}", ended.name),
        Evidence(f"vLLM {answer.get('version')}, engine {answer.get('engine')}", ended.name),
    ]
    fix = Fix.of(f"{advice}.", Explain("NUM001"))
    return [finding("NUM901", Severity.ERROR, evidence, fix, detail, known_by="executed")]


def tolerance_of(device: str) -> float:
    """Return the largest log-prob difference that counts as rounding on a device."""
    return TOLERANCES.get(device, TOLERANCES["cpu"])
