"""Check environment variables that break or slow down a run, or that have no effect.

They are proxies, Ray's address, network devices, variables of vLLM, PyTorch's allocator, switches of NCCL, CUDA and Ray
(`switches.toml`), a launcher's variables, and PYTHONPATH, PYTHONHOME and LD_PRELOAD.
"""

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path

from diagnostics.doctor.checks.registry import CheckInput, check, evidence_of, finding
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Fix, Run, SetVariables, Unset
from diagnostics.versions import AFFECTED, affects, in_range

_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SWITCHES = tomllib.loads(Path(__file__).with_name("switches.toml").read_text(encoding="utf-8"))
_VARIABLES = "environment variables"


def _evidence(case: CheckInput, *names: str) -> list[Evidence]:
    """Return the named environment variables with their values, as evidence."""
    return [Evidence(f"{name}={case.variables[name]}", "environment") for name in names]


@check(_VARIABLES)
def ray_address(case: CheckInput) -> Iterator[Finding]:
    """Report a RAY_ADDRESS that is an HTTP URL, such as the dashboard's (ENV902)."""
    if case.variables.get("RAY_ADDRESS", "").startswith(("http://", "https://")):
        advice = "Unset RAY_ADDRESS, or set it to the cluster's own address (ip:6379)."
        fix = Fix.of(advice, Unset(("RAY_ADDRESS",)))
        detail = "A process that calls ray.init() with this address fails."
        yield finding("ENV902", Severity.ERROR, _evidence(case, "RAY_ADDRESS"), fix, detail)


@check(_VARIABLES)
def removed_engine(case: CheckInput) -> Iterator[Finding]:
    """Report VLLM_USE_V1=0 with a vLLM that has only the V1 engine (ENV903)."""
    vllm = case.environment.vllm
    if case.variables.get("VLLM_USE_V1") == "0" and vllm and in_range(vllm.version, ">=0.11"):
        evidence = [*_evidence(case, "VLLM_USE_V1"), evidence_of(vllm)]
        advice = "Unset VLLM_USE_V1; the V0 engine is only in releases before 0.11."
        detail = f"vLLM {vllm.version} has only the V1 engine."
        yield finding("ENV903", Severity.WARNING, evidence, Fix.of(advice, Unset(("VLLM_USE_V1",))), detail)


@check(_VARIABLES)
def proxies(case: CheckInput) -> Iterator[Finding]:
    """Report a proxy for HTTP, unless no_proxy exempts `*`, or both localhost and 127.0.0.1 (NET901).

    NO_PROXY is read if no_proxy has no value.
    """
    proxy = next((name for name in _PROXIES if case.variables.get(name)), None)
    # HTTP clients for Python prefer the lower-case spelling if it has a value.
    spelling = "no_proxy" if case.variables.get("no_proxy") else "NO_PROXY"
    exempt = [part.strip() for part in case.variables.get(spelling, "").split(",")]
    if proxy is None or "*" in exempt or {"localhost", "127.0.0.1"} <= set(exempt):
        return
    exempt = list(dict.fromkeys(filter(None, exempt)))
    local = ["localhost", "127.0.0.1", "::1", "0.0.0.0"]  # noqa: S104 - TRL's server is reached there
    value = ",".join(dict.fromkeys([*exempt, *local]))
    text = f"{spelling}: {', '.join(exempt) or '(not set)'}"
    advice = "Add this machine and the run's nodes to NO_PROXY and no_proxy: clients differ in which they read first."
    detail = (
        "Requests to a rollout server on this machine go to the proxy, if the client reads these variables."
    )
    fix = Fix.of(advice, SetVariables((("NO_PROXY", value), ("no_proxy", value))))
    evidence = [*_evidence(case, proxy), Evidence(text, "environment")]
    yield finding("NET901", Severity.WARNING, evidence, fix, detail)


@check("network devices")
def network_devices(case: CheckInput) -> Iterator[Finding]:
    """Report a variable for NCCL, Gloo or TensorPipe whose network devices are all missing (NET902).

    Lists of excluded devices (`^…`) are not checked.
    """
    interfaces = case.machine.interfaces
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        value = case.variables.get(name, "")
        if not value or not interfaces or value.startswith("^"):
            continue
        required = tuple(part for part in value.lstrip("=").split(",") if part)
        # Only NCCL accepts the beginning of a name.
        exact = value.startswith("=") or name != "NCCL_SOCKET_IFNAME"
        if any(device in required if exact else device.startswith(required) for device in interfaces):
            continue
        text = f"devices here: {', '.join(interfaces)}"
        advice = f"Name a device of this machine, or unset {name} so that the library chooses."
        fix = Fix.of(advice, Unset((name,)), Run(("ip", "-brief", "link")))
        evidence = [*_evidence(case, name), Evidence(text, "/sys/class/net")]
        yield finding("NET902", Severity.ERROR, evidence, fix)


@check(_VARIABLES)
def switches(case: CheckInput) -> Iterator[Finding]:
    """Report disabled NCCL features (NET904), debugging switches (ENV918) and disabled Ray features (RAY902)."""
    for code, entry in _SWITCHES.items():
        evidence = {
            name: Evidence(f"{name}={case.variables[name]}: {switch['effect']}", "environment")
            for name, switch in entry["variables"].items()
            if case.variables.get(name, "").strip().lower() in switch["values"]
        }
        if evidence:
            fix = Fix.of(entry["advice"], Unset(tuple(evidence)))
            yield finding(code, Severity[entry["severity"].upper()], evidence.values(), fix)


@check(_VARIABLES)
def expandable_segments(case: CheckInput) -> Iterator[Finding]:
    """Report expandable segments with a vLLM whose sleep mode refuses them (CFG112)."""
    vllm = case.environment.vllm
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    values = {name: case.variables.get(name, "").replace(" ", "").lower() for name in names}
    name = next((name for name, value in values.items() if "expandable_segments:true" in value), None)
    if name is None or vllm is None:
        return
    if affects(case.issues["CFG112"], case.environment.releases).answer != AFFECTED:
        return
    evidence = [*_evidence(case, name), evidence_of(vllm)]
    detail = "An engine with enable_sleep_mode (vllm_enable_sleep_mode, sleep_level) may not start with it."
    fix = Fix.of("Unset it if the engine uses sleep mode.", Unset((name,)))
    yield finding("CFG112", Severity.WARNING, evidence, fix, detail)


@check(_VARIABLES)
def unread_by_vllm(case: CheckInput) -> Iterator[Finding]:
    """Report VLLM_* variables that the installed vLLM does not read, except VLLM_USE_V1 (ENV915)."""
    known, vllm = case.environment.vllm_variables, case.environment.vllm
    if not known or vllm is None:
        return
    names = [name for name in case.variables if name.startswith("VLLM_") and name != "VLLM_USE_V1"]
    for name in sorted(set(names) - set(known)):
        close = difflib.get_close_matches(name, known, 1, 0.85)
        text = f"Did you mean {close[0]}?" if close else "Unset it, unless something else reads it."
        reads = Evidence(f"{vllm} reads {len(known)} others", "vllm/envs.py")
        evidence = [Evidence(f"{name} is set", "environment"), reads]
        severity = Severity.WARNING if close else Severity.INFO
        yield finding("ENV915", severity, evidence, Fix.of(text, Unset((name,))))


@check(_VARIABLES)
def launcher_variables(case: CheckInput) -> Iterator[Finding]:
    """Report RANK or WORLD_SIZE without a TORCHELASTIC_* variable, so probably left in the shell (ENV916)."""
    names = tuple(name for name in _LAUNCHER if name in case.variables)
    launched = any(name.startswith("TORCHELASTIC_") for name in case.variables)
    if {"RANK", "WORLD_SIZE"} & set(names) and not launched:
        severity = Severity.INFO if case.variables.get("WORLD_SIZE") == "1" else Severity.WARNING
        fix = Fix.of("Unset them, unless this shell is a process of a launched run.", Unset(names))
        detail = "A training script started here without a launcher may act as one rank of a run."
        yield finding("ENV916", severity, _evidence(case, *names), fix, detail)


@check(_VARIABLES)
def foreign_modules(case: CheckInput) -> Iterator[Finding]:
    """Report variables that put foreign packages or libraries before the environment's own (ENV919).

    These are PYTHONPATH with a folder of another environment's packages, PYTHONHOME and LD_PRELOAD.
    """
    foreign = [
        path
        for path in case.variables.get("PYTHONPATH", "").split(":")
        if path.rstrip("/").endswith(("site-packages", "dist-packages"))
        and not path.startswith(f"{case.environment.prefix}/")
    ]
    names = [name for name in ("PYTHONHOME", "LD_PRELOAD") if case.variables.get(name)]
    if foreign or names:
        evidence = [Evidence(f"PYTHONPATH has {path}", "environment") for path in foreign]
        evidence += _evidence(case, *names)
        variables = (*(["PYTHONPATH"] if foreign else []), *names)
        fix = Fix.of("Unset these for runs of this environment, unless they are intended.", Unset(variables))
        detail = "Modules or libraries that these variables name come before the environment's own."
        yield finding("ENV919", Severity.WARNING, evidence, fix, detail)
