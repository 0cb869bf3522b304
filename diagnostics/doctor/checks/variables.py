"""Environment variables: those that switch something off, name what is not there, or were left over."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from diagnostics.catalog.affects import CONCERNED, affects
from diagnostics.catalog.own_codes import finding, known, to_unset
from diagnostics.doctor.checks.host import moved_by
from diagnostics.doctor.checks.registered import check
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run, SetVariables, Unset

if TYPE_CHECKING:
    from diagnostics.catalog.model import Issue
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Machine
    from diagnostics.output.findings import Finding

_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ON = {"1", "true", "on", "yes"}
# Of NCCL's, CUDA's and PyTorch's switches another word is none.
_ONE = "1"
_DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": "each kernel is waited for",
    "VLLM_TRACE_FUNCTION": "each Python call of vLLM is written down",
    "TORCHDYNAMO_DISABLE": "nothing is compiled",
    "TORCH_COMPILE_DISABLE": "nothing is compiled",
}
_SWITCHED_OFF = {
    "NCCL_P2P_DISABLE": "no direct access between GPUs",
    "NCCL_SHM_DISABLE": "no shared memory between GPUs",
    "NCCL_IB_DISABLE": "no InfiniBand",
    "NCCL_NVLS_DISABLE": "no NVLink SHARP",
}
_NOT_NOTICED = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")


@check("environment variables")
def proxies(environment: Environment) -> list[Finding]:
    """NET901 where a proxy would be asked for localhost."""
    seen = environment.variables
    proxy = next((name for name in _PROXIES if seen.get(name)), None)
    # Of both spellings Python's clients read the lower one, where it says anything.
    spelling = "no_proxy" if seen.get("no_proxy") else "NO_PROXY"
    exempt = [part.strip() for part in seen.get(spelling, "").split(",")]
    if proxy is None or "*" in exempt or {"localhost", "127.0.0.1"} <= set(exempt):
        return []
    exempt = list(dict.fromkeys(filter(None, exempt)))
    told = ", ".join(exempt) or "(not set)"
    # What is exempt already stays so.
    spared = ",".join(dict.fromkeys([*exempt, "localhost", "127.0.0.1", "::1", "0.0.0.0"]))  # noqa: S104 - TRL's server is asked there
    return [
        finding(
            "NET901",
            Severity.WARNING,
            known_by="static",
            detail="Requests to a rollout server on this machine, and health checks of it, go to the proxy where the "
            "client heeds these variables, unless NO_PROXY has the name that they use.",
            evidence=(
                Evidence(f"{proxy}={seen[proxy]}", "environment"),
                Evidence(f"{spelling}: {told}", "environment"),
            ),
            remedy=Remedy.of(
                "Name this machine, and the nodes of the run, in both spellings: clients differ in which goes first.",
                SetVariables(tuple((name, spared) for name in ("NO_PROXY", "no_proxy"))),
            ),
        )
    ]


@check("network devices")
def devices_named(environment: Environment, machine: Machine) -> list[Finding]:
    """NET902 where a network device is named that is not there."""
    found = []
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        value = environment.variables.get(name, "")
        if not value or not machine.interfaces or value.startswith("^"):
            continue
        exact = value.startswith("=") or name != "NCCL_SOCKET_IFNAME"
        wanted = [part for part in value.lstrip("=").split(",") if part]
        there = any(
            (device == part) if exact else device.startswith(part)
            for part in wanted
            for device in machine.interfaces
        )
        if not there:
            here = ", ".join(machine.interfaces)
            found.append(
                finding(
                    "NET902",
                    Severity.ERROR,
                    known_by="static",
                    detail="",
                    evidence=(
                        Evidence(f"{name}={value}", "environment"),
                        Evidence(f"devices here: {here}", "/sys/class/net"),
                    ),
                    remedy=Remedy.of(
                        "Name one that is here, or let it choose.",
                        Unset((name,)),
                        Run(("ip", "-brief", "link")),
                    ),
                )
            )
    return found


@check("environment variables")
def communication(environment: Environment) -> list[Finding]:
    """NET904 for ways that are switched off, and for failures that nobody would notice."""
    seen = environment.variables
    told = [
        (name, f"{name}={seen[name]}: {what}")
        for name, what in _SWITCHED_OFF.items()
        if seen.get(name, "").strip() == _ONE
    ]
    told += [
        (name, f"{name}=0: a failed collective is waited for without end")
        for name in _NOT_NOTICED
        if seen.get(name) == "0"
    ]
    return to_unset("NET904", Severity.WARNING, told, "Unset what is not needed on this machine.")


@check("environment variables")
def allocator(environment: Environment, issues: dict[str, Issue]) -> list[Finding]:
    """CFG112 where expandable segments meet a vLLM whose sleep mode refuses them."""
    name = next(
        (
            name
            for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
            if "expandable_segments:true" in environment.variables.get(name, "").replace(" ", "").lower()
        ),
        None,
    )
    vllm, issue = environment.vllm, issues["CFG112"]
    if name is None or vllm is None:
        return []
    if affects(issue, environment.releases).answer != CONCERNED:
        return []
    return [
        known(
            issue,
            Severity.WARNING,
            detail="An engine with enable_sleep_mode (vllm_enable_sleep_mode, sleep_level) does not start beside it, "
            "unless the trainer switches it off first, as some do."
            if name == "PYTORCH_CUDA_ALLOC_CONF"
            else "The check of an engine with enable_sleep_mode (vllm_enable_sleep_mode, sleep_level) does not look at "
            "this name; whether its memory pool works beside it depends on PyTorch's release.",
            evidence=(
                Evidence(f"{name}={environment.variables[name]}", "environment"),
                Evidence(f"{vllm.name} {vllm.version}", vllm.place),
            ),
            remedy=Remedy.of("Unset it where the engine sleeps.", Unset((name,))),
        )
    ]


@check("environment variables")
def unknown_to_vllm(environment: Environment) -> list[Finding]:
    """ENV915 for variables that this vLLM does not mention."""
    names, vllm = environment.vllm_variables, environment.vllm
    if not names or vllm is None:
        return []
    found = []
    for name in sorted(environment.variables):
        if not name.startswith("VLLM_") or name in names or name == "VLLM_USE_V1":
            continue
        close = difflib.get_close_matches(name, names, 1, 0.85)
        text = (
            f"It was meant to be {close[0]}, perhaps."
            if close
            else "Unset it, unless something else reads it."
        )
        found.append(
            finding(
                "ENV915",
                Severity.WARNING if close else Severity.INFO,
                known_by="static",
                detail="",
                evidence=(
                    Evidence(f"{name} is set", "environment"),
                    Evidence(f"{vllm.name} {vllm.version} reads {len(names)} others", "vllm/envs.py"),
                ),
                remedy=Remedy.of(text, Unset((name,))),
            )
        )
    return found


@check("environment variables")
def launcher(environment: Environment) -> list[Finding]:
    """ENV916 where a launcher's variables are set outside a launched process."""
    seen = environment.variables
    left = [name for name in _LAUNCHER if name in seen]
    if not {"RANK", "WORLD_SIZE"} & set(left) or any(name.startswith("TORCHELASTIC_") for name in seen):
        return []
    return [
        finding(
            "ENV916",
            Severity.INFO if seen.get("WORLD_SIZE") == "1" else Severity.WARNING,
            known_by="static",
            detail="A training script that is started here without a launcher may take itself for one rank of a run.",
            evidence=tuple(Evidence(f"{name}={seen[name]}", "environment") for name in left),
            remedy=Remedy.of("Unset them, unless this is such a process.", Unset(tuple(left))),
        )
    ]


@check("environment variables")
def debugging(environment: Environment) -> list[Finding]:
    """ENV918 for settings that are for debugging."""
    seen = environment.variables
    told = [
        (name, f"{name}={seen[name]}: {what}")
        for name, what in _DEBUGGING.items()
        if seen.get(name, "").strip() == _ONE
    ]
    if seen.get("NCCL_DEBUG", "").upper() == "TRACE":
        told.append(("NCCL_DEBUG", "NCCL_DEBUG=TRACE: for the debugging of NCCL itself"))
    if seen.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        name = "TORCH_DISTRIBUTED_DEBUG"
        told.append((name, f"{name}=DETAIL: each collective is checked"))
    return to_unset("ENV918", Severity.INFO, told, "Unset them for a real run.")


@check("environment variables")
def elsewhere(environment: Environment) -> list[Finding]:
    """ENV919 where modules or libraries of another place come first."""
    seen = environment.variables
    own = environment.prefix
    paths = [path for path in seen.get("PYTHONPATH", "").split(":") if path]
    evidence = [
        Evidence(f"PYTHONPATH holds {path}", "environment")
        for path in paths
        if path.rstrip("/").endswith(("site-packages", "dist-packages")) and not path.startswith(own)
    ]
    others = [name for name in ("PYTHONHOME", "LD_PRELOAD") if seen.get(name)]
    names = (["PYTHONPATH"] if evidence else []) + others
    evidence += [Evidence(f"{name}={seen[name]}", "environment") for name in others]
    if not evidence:
        return []
    imports = (
        "What lies there comes before its own packages, and is judged here." if "PYTHONPATH" in names else ""
    )
    home = "PYTHONHOME says where the standard library is." if "PYTHONHOME" in names else ""
    preload = "LD_PRELOAD names libraries that come before a program's own." if "LD_PRELOAD" in names else ""
    return [
        finding(
            "ENV919", Severity.WARNING, known_by="static",
            detail=" ".join(filter(None, (imports, home, preload))), evidence=tuple(evidence),
            remedy=Remedy.of("Unset it for runs of this environment, unless it is meant.", Unset(tuple(names))),
        )
    ]  # fmt: skip


@check("disks")
def hub(environment: Environment, machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    """ENV004 where the hub may not be asked and nothing is in its cache."""
    seen = environment.variables
    offline = next(
        (name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if seen.get(name, "").lower() in _ON),
        None,
    )
    cache = machine.disk("hub cache")
    if offline is None or cache is None or cache.exists:
        return []
    return [
        known(
            issues["ENV004"],
            Severity.WARNING,
            detail="No model is found there by its name on the hub.",
            evidence=(
                Evidence(f"{offline}={seen[offline]}", "environment"),
                Evidence("no such folder: nothing was ever fetched to it", cache.path),
            ),
            remedy=Remedy.of(
                "Fetch what is needed first, or name the cache that has it.",
                Run(("env", f"{offline}=0", "hf", "download", "MODEL")),
                SetVariables(((moved_by(environment, "hub cache"), "/where/it/is"),)),
            ),
        )
    ]
