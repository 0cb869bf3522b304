"""Run doctor's tiers `probe` and `live`, which import and start packages in child processes.

`run_tier` calls `run_probes`, which imports packages and compares the platforms that they report with the machine. For
the tier `live`, it then calls `run_live`, which starts a tiny engine, compares its log-probs with those of
transformers, and sums a tensor over two processes with Gloo and NCCL. Tests whose packages or GPUs are missing are
skipped.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnostics import catalog, process
from diagnostics.collect.blocking_reads import UNANSWERED
from diagnostics.collect.facts import Facts
from diagnostics.collect.machine import Machine
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.probe import probe_results
from diagnostics.doctor.probe.child_processes import ChildProcesses, ChildResult
from diagnostics.findings import CheckResult, NotChecked, Report
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.output import progress
from diagnostics.triage.rules import Rules

START_S, IMPORT_S, ENGINE_S, COLLECTIVE_S = 120.0, 180.0, 400.0, 120.0
NOTES = {
    "probe": "probe: imported in child processes of this environment's Python; no engine was started (--tier live)",
    "live": "live: a tiny random model in an engine in one process, without graphs; a real run adds size and processes",
}
_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Names of results that show that the imports did not finish; the live tier is then skipped.
_STOPPED = ("other imports, platforms", "imports, platforms")
# (distribution, import): a name after a colon is read from the module, so that a lazy package imports what a run uses.
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
    """Runs probe programs in the examined environment, and turns their results into check results.

    Attributes:
        children: Runs programs in child processes.
        rules: Triage rules, which explain a failure.
        failures: The probe that first had each failure, by the failure's description.
    """

    children: ChildProcesses
    environment: Environment
    machine: Machine
    rules: Rules
    failures: dict[str, str] = field(default_factory=dict)

    def run(self, name: str, program: str, *arguments: str, limit_s: float) -> ChildResult:
        """Run a program in a child process."""
        progress.update(f"{name} (at most {limit_s:.0f} s)")
        return self.children.run_program(name, program, *arguments, limit_s=limit_s)

    def result(self, ended: ChildResult, code: str = "ENV921") -> CheckResult:
        """Return the check result for a child; `code` is for a failure of unknown cause."""
        return probe_results.check_result_of(ended, code, self.environment, self.rules, self.failures)


def run_tier(report: Report, tier: str, python: Path, facts: Facts) -> tuple[Report, bool]:
    """Return the report with the results of a tier, and whether the tier is incomplete: its main probes did not run.

    If the interpreter cannot be run, the tier adds one crashed check. Processes that may be left by a probe are listed.
    """
    problem = f"{python}: no interpreter that can be run; give --python PATH"
    if os.access(python, os.X_OK):
        try:
            programs = ChildProcesses(python.absolute(), os.environ)
            with process.handle_signals(_EXIT_SIGNALS, _exit), programs as children:
                probe = Probe(children, facts.environment, facts.machine, Rules(catalog.load()))
                imports = run_probes(probe)
                live = run_live(probe, imports) if tier == "live" else []
        except OSError as error:
            problem = f"{python} cannot be run: {error.strerror or error}"
        else:
            deciding = [check for check in live if check.check == "tiny engine"] or imports[1:]
            incomplete = all(check.outcome == "skipped" for check in deciding)
            left = [NotChecked(f"pid {pid}", "may be left by a probe", decides=False) for pid in UNANSWERED]
            strays = [CheckResult.of("remaining processes", (), left)] if left else []
            checks = (*report.checks, *imports, *live, *strays)
            return replace(report, checks=checks, method_note=NOTES[tier]), incomplete
    return replace(report, checks=(*report.checks, CheckResult(tier, "crashed", problem))), True


def _exit(number: int) -> None:
    """Raise SystemExit for a signal, so that child processes and folders are removed."""
    raise SystemExit(128 + number)


def run_probes(probe: Probe) -> list[CheckResult]:
    """Import installed packages and query their platform, each in a separate process.

    The rest is skipped if the interpreter does not start, or if the import of torch does not end.
    """
    started = probe.run("interpreter", "imports", "sys", limit_s=START_S)
    results = [probe.result(started)]
    if not started.ok:
        return [*results, CheckResult("imports, platforms", "skipped", "the interpreter does not start")]
    probe.failures.clear()
    answers: dict[str, ChildResult] = {}
    for module in _modules_to_import(probe.environment):
        ended = probe.run(f"import {module.replace(':', ': ')}", "imports", module, limit_s=IMPORT_S)
        answers[module] = ended
        results.append(probe.result(ended, "ENV922" if ended.answer.get("step") else "ENV921"))
        if ended.timed_out and module == "torch":
            # Everything else imports it and would wait as long.
            return [*results, CheckResult("other imports, platforms", "skipped", "import torch did not end")]
    if not answers:
        results.append(CheckResult("imports", "skipped", "no supported package is installed"))
    return [*results, _compare_platforms(probe, answers.get("torch"), answers.get("vllm:LLM"))]


def _compare_platforms(probe: Probe, torch: ChildResult | None, vllm: ChildResult | None) -> CheckResult:
    """Return the result of `platform_findings`; skipped if no platform was reported."""
    what = "platforms against the machine"
    if not any(ended and {"cuda", "platform"} & set(ended.answer) for ended in (torch, vllm)):
        return CheckResult(what, "skipped", "neither PyTorch nor vLLM reported one")
    results = probe_results.platform_findings(torch, vllm, probe.environment, probe.machine)
    return CheckResult.of(what, results)


def _modules_to_import(environment: Environment) -> list[str]:
    """Return the modules of installed packages; those that need vLLM or its extension only if it exists."""
    extensions = [Path(item.path) for item in environment.extensions if "/vllm/" in item.path]
    compiled = {path.name.partition(".")[0] for path in extensions}
    results = []
    for distribution, module in MODULES:
        installed = environment.vllm if distribution == "vllm" else environment.packages.get(distribution)
        # TRL's server needs vLLM.
        usable = distribution == "vllm" or "vllm" not in module or environment.vllm is not None
        if installed is not None and usable and (module != "vllm._C" or "_C" in compiled):
            results.append(module)
    return results


def run_live(probe: Probe, imports: Sequence[CheckResult] = ()) -> list[CheckResult]:
    """Start a tiny engine, compare its log-probs with those of transformers, and sum a tensor over two processes.

    Skipped if the imports did not finish.
    """
    if any(check.check in _STOPPED for check in imports):
        return [CheckResult("live", "skipped", "the imports did not finish")]
    probe.failures = {}
    return [*_engine(probe), *(_collective(probe, backend) for backend in ("gloo", "nccl"))]


def _engine(probe: Probe) -> list[CheckResult]:
    """Return the results of tiny engine and log-probs; skipped without vLLM, torch or transformers."""
    engine, parity = "tiny engine", "log-probs against transformers"
    needed = {"vLLM": "vllm", "torch": "torch", "transformers": "transformers"}
    missing = ", ".join(name for name, package in needed.items() if package not in probe.environment.releases)
    if missing:
        return [CheckResult(name, "skipped", f"{missing} not installed") for name in (engine, parity)]
    ended = probe.run(engine, "engine", str(probe.children.create_folder()), limit_s=ENGINE_S)
    if not ended.ok:
        return [probe.result(ended, "ENG901"), CheckResult(parity, "skipped", "the engine did not sample")]
    answer = ended.answer
    device = str(answer["device"])
    where = "the GPU" if device == "cuda" else f"the {device.upper()}"
    text = f"vLLM {answer['version']}, engine {answer['engine']}, on {where}: {answer['tokens']} tokens"
    results = tuple(probe_results.parity_findings(ended))
    difference = f"largest difference {answer['largest']:.1e}, allowed {probe_results.tolerance_of(device):g}"
    return [
        CheckResult(engine, "ok", f"{text}, {ended.seconds:.0f} s"),
        CheckResult(parity, "findings" if results else "ok", difference, results),
    ]


def _collective(probe: Probe, backend: str) -> CheckResult:
    """Return the result of a sum over two ranks; skipped without torch, or for NCCL without two GPUs."""
    what = f"two-rank collective, {backend}"
    gpus = probe.machine.gpus
    count = len(gpus.devices) if gpus.state == "ok" else 0
    if not probe.environment.packages.get("torch"):
        return CheckResult(what, "skipped", "torch is not installed")
    if backend == "nccl" and count < 2:
        return CheckResult(what, "skipped", f"NCCL needs a GPU for each of two ranks; found {count}")
    rendezvous = probe.children.create_folder() / "rendezvous"
    ended = probe.run(what, "collective", backend, str(rendezvous), limit_s=COLLECTIVE_S)
    probe.failures.clear()
    return probe.result(ended, "NET903")
