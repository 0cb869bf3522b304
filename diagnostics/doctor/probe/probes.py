"""The probes of the tiers `probe` and `live`: what is started, in which order, and why a probe is skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.catalog.model import Issue
from diagnostics.collect.host import Machine
from diagnostics.collect.packages import Environment
from diagnostics.doctor.probe import probe_results
from diagnostics.doctor.probe.children import ChildEnded, Children
from diagnostics.doctor.probe.probe_results import Tried
from diagnostics.findings import CheckResult
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.triage.rules import Rules

IMPORT_S, PLATFORM_S, ENGINE_S, COLLECTIVE_S = 180.0, 120.0, 400.0, 120.0
# (distribution, import): a name after a colon makes lazy packages import what a run uses.
MODULES = (
    ("torch", "torch"), ("transformers", "transformers"), ("ray", "ray"), ("deepspeed", "deepspeed"),
    ("flash-attn", "flash_attn"), ("xformers", "xformers.ops"),
    *(
        (framework.packages[0], module)
        for framework in FRAMEWORKS.values() for module in dict.fromkeys((*framework.modules, *framework.entries))
    ),
)  # fmt: skip


@dataclass
class Probe:
    """Everything a probe needs.

    Attributes:
        report_progress: Called with what is being probed.
        failures: The first probe with each failure; the same failure is reported once.
    """

    children: Children
    environment: Environment
    machine: Machine
    issues: dict[str, Issue]
    rules: Rules
    report_progress: Callable[[str], None]
    failures: dict[str, str] = field(default_factory=dict)

    def run(
        self, what: str, program: str, *arguments: str, limit_s: float, offline: bool = False
    ) -> ChildEnded:
        """Run a program in a child process."""
        if program != "imports" or arguments != ("sys",):
            self.report_progress(f"{what} (at most {limit_s:.0f} s)")
        return self.children.run_program(what, program, *arguments, limit_s=limit_s, offline=offline)

    def result(self, ended: ChildEnded, code: str = "ENV921") -> CheckResult:
        """Return the result of a child; `code` is for a failure that no known issue describes."""
        return probe_results.child_result(Tried(ended, code, self.environment), self.rules, self.failures)


def run_probes(probe: Probe) -> list[CheckResult]:
    """Import what is installed and query its platform, each in a process of its own."""
    started = probe.run("interpreter", "imports", "sys", limit_s=PLATFORM_S)
    results = [probe.result(started)]
    if not started.ok:
        return [*results, CheckResult("imports, platforms", "skipped", "the interpreter does not start")]
    probe.failures.clear()
    for module in _modules_to_import(probe.environment):
        ended = probe.run(f"import {module.replace(':', ': ')}", "imports", module, limit_s=IMPORT_S)
        results.append(probe.result(ended))
        if ended.timed_out and module == "torch":
            # Everything else imports it and would wait as long.
            reason = "import torch did not end"
            return [*results, CheckResult("other imports, platforms", "skipped", reason)]
    if len(results) == 1:
        results.append(CheckResult("imports", "skipped", "no supported package is installed"))
    return [*results, *_probe_platforms(probe)]


def _probe_platforms(probe: Probe) -> list[CheckResult]:
    results: list[CheckResult] = []
    answers: dict[str, ChildEnded] = {}
    for name in ("torch", "vllm"):
        installed = probe.environment.vllm if name == "vllm" else probe.environment.packages.get(name)
        what = f"platform of {name}"
        if installed is None:
            results.append(CheckResult(what, "skipped", f"{name} is not installed"))
            continue
        answers[name] = probe.run(what, "platforms", name, limit_s=PLATFORM_S)
        results.append(_platform_result(probe, answers[name]))
    compared = "platforms against the machine"
    if not any(ended.ok for ended in answers.values()):
        return [*results, CheckResult(compared, "skipped", "neither reported one")]
    found_here = probe_results.platform_findings(
        answers.get("torch"), answers.get("vllm"), probe.environment, probe.machine, probe.issues
    )
    return [*results, CheckResult.of(compared, found_here)]


def _modules_to_import(environment: Environment) -> list[str]:
    compiled = {
        Path(item.path).name.partition(".")[0] for item in environment.extensions if "/vllm/" in item.path
    }
    results = []
    for distribution, module in MODULES:
        installed = environment.vllm if distribution == "vllm" else environment.packages.get(distribution)
        # TRL's server needs vLLM.
        usable = distribution == "vllm" or "vllm" not in module or environment.vllm is not None
        if installed is not None and usable and (module != "vllm._C" or "_C" in compiled):
            results.append(module)
    return results


def _platform_result(probe: Probe, ended: ChildEnded) -> CheckResult:
    result, answer = probe.result(ended), ended.answer
    if not ended.ok:
        return result
    if "platform" in answer:
        text = f"{answer['platform']}, device {answer['device'] or 'none'}"
    else:
        cuda = f"CUDA {answer.get('cuda')}" if answer.get("cuda") else "built without CUDA"
        nccl = f", NCCL {answer['nccl']}" if answer.get("nccl") else ""
        text = f"{cuda}{nccl}, {answer.get('devices')} devices"
    return CheckResult(ended.what, result.outcome, f"{text}; {result.reason}", result.findings)


def run_live(probe: Probe) -> list[CheckResult]:
    """Start a tiny engine, compare log-probs, and let two processes sum a tensor."""
    probe.failures = {}
    return [*_engine(probe), *(_collective(probe, backend) for backend in ("gloo", "nccl"))]


def _engine(probe: Probe) -> list[CheckResult]:
    engine, parity = "tiny engine", "log-probs against transformers"
    packages = probe.environment.packages
    needed = {
        "vLLM": probe.environment.vllm,
        "torch": packages.get("torch"),
        "transformers": packages.get("transformers"),
    }
    missing = ", ".join(name for name, package in needed.items() if package is None)
    if missing:
        return [CheckResult(name, "skipped", f"{missing} not installed") for name in (engine, parity)]
    ended = probe.run(engine, "engine", str(probe.children.folder()), limit_s=ENGINE_S, offline=True)
    if not ended.ok:
        return [probe.result(ended, "ENG901"), CheckResult(parity, "skipped", "the engine did not sample")]
    answer = ended.answer
    device = str(answer["device"])
    where = "the GPU" if device == "cuda" else f"the {device.upper()}"
    text = f"vLLM {answer['version']}, engine {answer['engine']}, on {where}: {answer['tokens']} tokens"
    results = probe_results.parity_findings(ended)
    limit = probe_results.TOLERANCES.get(device, probe_results.TOLERANCES["cpu"])
    difference = f"largest difference {answer['largest']:.1e}, allowed {limit:g}"
    return [
        CheckResult(engine, "ok", f"{text}, {ended.seconds:.0f} s"),
        CheckResult(parity, "findings" if results else "ok", difference, tuple(results)),
    ]


def _collective(probe: Probe, backend: str) -> CheckResult:
    what = f"two-rank collective, {backend}"
    gpus = probe.machine.gpus
    count = len(gpus.devices) if gpus.state == "ok" else 0
    if not probe.environment.packages.get("torch"):
        return CheckResult(what, "skipped", "torch is not installed")
    if backend == "nccl" and count < 2:
        return CheckResult(what, "skipped", f"NCCL needs a GPU for each of two ranks; found {count}")
    meeting = probe.children.folder() / "meeting"
    ended = probe.run(what, "collective", backend, str(meeting), limit_s=COLLECTIVE_S)
    probe.failures.clear()
    return probe.result(ended, "NET903")
