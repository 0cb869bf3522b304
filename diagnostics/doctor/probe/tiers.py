"""The tiers `probe` and `live`: what is tried, in which order, and what is skipped for which reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.doctor.probe import outcomes
from diagnostics.doctor.probe.outcomes import Tried
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.output.findings import CheckResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.catalog.model import Issue
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Machine
    from diagnostics.doctor.probe.children import ChildEnded, Children
    from diagnostics.triage.rules import Rules

IMPORT_S, PLATFORM_S, ENGINE_S, COLLECTIVE_S = 180.0, 120.0, 400.0, 120.0
# (distribution, what of it is imported): a name behind a colon makes lazy packages import what a run uses.
MODULES = (
    ("torch", "torch"),
    ("transformers", "transformers"),
    ("ray", "ray"),
    ("deepspeed", "deepspeed"),
    ("flash-attn", "flash_attn"),
    ("xformers", "xformers.ops"),
    *(
        (each.packages[0], module)
        for each in FRAMEWORKS.values()
        for module in dict.fromkeys((*each.modules, *each.entries))
    ),
)


def probe(
    children: Children,
    environment: Environment,
    machine: Machine,
    issues: dict[str, Issue],
    rules: Rules,
    say: Callable[[str], None],
) -> list[CheckResult]:
    """Imports what is installed and asks what it would run on, each in a process of its own."""
    started = children.ask("interpreter", "imports", "sys", limit_s=PLATFORM_S)
    results = [outcomes.result(Tried(started, "ENV921", environment), rules)]
    if not started.ok:
        return [*results, CheckResult("imports, platforms", "skipped", "the interpreter does not start")]
    said: dict[str, str] = {}
    for module in _modules(environment):
        what = f"import {module.replace(':', ': ')}"
        say(f"{what} (at most {IMPORT_S:.0f} s)")
        ended = children.ask(what, "imports", module, limit_s=IMPORT_S)
        results.append(outcomes.result(Tried(ended, "ENV921", environment), rules, said))
        if ended.timed_out and module == "torch":
            # Everything else imports it, and would wait as long.
            return [*results, CheckResult("other imports, platforms", "skipped", f"{what} did not end")]
    if len(results) == 1:
        results.append(CheckResult("imports", "skipped", "nothing is installed that it knows"))
    asked: dict[str, ChildEnded] = {}
    for name in ("torch", "vllm"):
        there = environment.vllm if name == "vllm" else environment.packages.get(name)
        what = f"platform of {name}"
        if there is None:
            results.append(CheckResult(what, "skipped", f"{name} is not installed"))
            continue
        say(f"{what} (at most {PLATFORM_S:.0f} s)")
        asked[name] = children.ask(what, "platforms", name, limit_s=PLATFORM_S)
        results.append(_platform(Tried(asked[name], "ENV921", environment), rules, said))
    against = "platforms against the machine"
    if not any(ended.ok for ended in asked.values()):
        return [*results, CheckResult(against, "skipped", "neither named one")]
    found = outcomes.platforms(asked.get("torch"), asked.get("vllm"), environment, machine, issues)
    return [*results, CheckResult(against, "findings" if found else "ok", "", tuple(found))]


def _modules(environment: Environment) -> list[str]:
    """What is to be imported here."""
    compiled = {
        Path(module.path).name.partition(".")[0]
        for module in environment.extensions
        if "/vllm/" in module.path
    }
    found = []
    for distribution, module in MODULES:
        there = environment.vllm if distribution == "vllm" else environment.packages.get(distribution)
        # TRL's server is one of vLLM's.
        served = distribution == "vllm" or "vllm" not in module or environment.vllm is not None
        if there is not None and served and (module != "vllm._C" or "_C" in compiled):
            found.append(module)
    return found


def _platform(asked: Tried, rules: Rules, said: dict[str, str]) -> CheckResult:
    """The outcome of asking for a platform, with what was answered."""
    ended = asked.ended
    result = outcomes.result(asked, rules, said)
    if not ended.ok:
        return result
    seen = ended.answer
    if "platform" in seen:
        told = f"{seen['platform']}, device {seen['device'] or 'none'}"
    else:
        cuda = f"CUDA {seen.get('cuda')}" if seen.get("cuda") else "built without CUDA"
        nccl = f", NCCL {seen['nccl']}" if seen.get("nccl") else ""
        told = f"{cuda}{nccl}, {seen.get('devices')} devices"
    return CheckResult(ended.what, result.outcome, f"{told}; {result.reason}", result.findings)


def live(
    children: Children,
    environment: Environment,
    machine: Machine,
    rules: Rules,
    say: Callable[[str], None],
) -> list[CheckResult]:
    """Starts a tiny engine, compares log-probs, and has two processes sum a tensor."""
    return [
        *_engine(children, environment, rules, say),
        *_collectives(children, environment, machine, rules, say),
    ]


def _engine(
    children: Children, environment: Environment, rules: Rules, say: Callable[[str], None]
) -> list[CheckResult]:
    engine, parity = "tiny engine", "log-probs against transformers"
    missing = [
        name
        for name, there in (
            ("vLLM", environment.vllm),
            ("torch", environment.packages.get("torch")),
            ("transformers", environment.packages.get("transformers")),
        )
        if there is None
    ]
    if missing:
        reason = f"{', '.join(missing)} not installed"
        return [CheckResult(engine, "skipped", reason), CheckResult(parity, "skipped", reason)]
    say(f"{engine} (at most {ENGINE_S:.0f} s)")
    ended = children.ask(engine, "engine", str(children.folder()), limit_s=ENGINE_S, offline=True)
    result = outcomes.result(Tried(ended, "ENG901", environment), rules)
    if not ended.ok:
        return [result, CheckResult(parity, "skipped", "the engine did not sample")]
    seen = ended.answer
    where = "the GPU" if seen["device"] == "cuda" else f"the {str(seen['device']).upper()}"
    told = f"vLLM {seen['version']}, engine {seen['engine']}, on {where}: {seen['tokens']} tokens"
    found = outcomes.parity(ended)
    limit = outcomes.TOLERANCES.get(str(seen["device"]), outcomes.TOLERANCES["cpu"])
    difference = f"largest difference {seen['largest']:.1e}, allowed {limit:g}"
    return [
        CheckResult(engine, "ok", f"{told}, {ended.seconds:.0f} s"),
        CheckResult(parity, "findings" if found else "ok", difference, tuple(found)),
    ]


def _collectives(
    children: Children,
    environment: Environment,
    machine: Machine,
    rules: Rules,
    say: Callable[[str], None],
) -> list[CheckResult]:
    results = []
    count = len(machine.gpus.devices) if machine.gpus.state == "ok" else 0
    for backend in ("gloo", "nccl"):
        what = f"two-rank collective, {backend}"
        reason = "" if environment.packages.get("torch") else "torch is not installed"
        if backend == "nccl" and count < 2:
            reason = reason or f"NCCL needs a GPU for each of two ranks; seen here: {count}"
        if reason:
            results.append(CheckResult(what, "skipped", reason))
            continue
        say(f"{what} (at most {COLLECTIVE_S:.0f} s)")
        meeting = children.folder() / "meeting"
        ended = children.ask(what, "collective", backend, str(meeting), limit_s=COLLECTIVE_S)
        results.append(outcomes.result(Tried(ended, "NET903", environment), rules))
    return results
