"""Check the machine's resources for training: shared memory, resource limits, disks, memory and processors.

Two further checks report a Hugging Face hub that is switched off without a cache, and a default config of accelerate
that cannot be read or does not fit the machine.
"""

import math
from collections.abc import Iterator

from diagnostics.collect.machine import ConfigFile, Disk, Machine
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, finding
from diagnostics.doctor.installers import free_places
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Action, Fix, Run, SetVariables

# Docker without --shm-size gives 64 MB; DeepSpeed's ds_report warns below 512 MB.
TINY_SHM_GB, SMALL_SHM_GB = 0.07, 1.0
# Ray's documentation recommends 65,536; vLLM raises the soft limit to 65,535 itself, up to the hard one.
FEW_FILES, FEW_PROCESSES = 4096, 4096
# Ray stops writing to a disk fuller than this (RAY_local_fs_capacity_threshold).
RAY_FULL = 0.95
LITTLE_MEMORY_GB = 8.0
# Folders that a run writes to: needed space in GB, environment variable that relocates the folder, and its use.
_FOLDERS = {
    "environment": (1.0, "", "Installers write there."),
    "hub cache": (10.0, "HF_HOME", "Models from the Hugging Face hub are stored there."),
    "vllm cache": (1.0, "VLLM_CACHE_ROOT", "vLLM stores compiled code there."),
    "temporary": (2.0, "TMPDIR", "Programs write temporary files there."),
    "ray": (2.0, "RAY_TMPDIR", "Ray writes its logs there, and spilled objects unless configured otherwise."),
}
_UNKNOWN_FOLDER = (1.0, "", "")
_TRUE_VALUES = {"1", "true", "on", "yes"}
_SHM = "/dev/shm"  # noqa: S108 - a location in a report


@check("shared memory")
def shared_memory(case: CheckInput) -> Iterator[Finding]:
    """Report a /dev/shm that is small or full (ENV001)."""
    disk = case.machine.disk("shared memory")
    if disk is None or disk.total_gb is None or disk.free_gb is None:
        return
    is_small = disk.total_gb <= SMALL_SHM_GB
    if is_small or disk.free_gb <= SMALL_SHM_GB / 2:
        fix = Fix.of("Start the container with --shm-size=16g (Kubernetes: an emptyDir of medium Memory).")
        if not is_small:
            advice = "List the files in /dev/shm, and remove those that no running process uses."
            fix = Fix.of(advice, Run(("ls", "-lS", _SHM), piped=(("head",),)))
        elif not case.machine.container:
            fix = Fix.of("Enlarge /dev/shm.", Run(("sudo", "mount", "-o", "remount,size=16G", _SHM)))
        severity = Severity.ERROR if disk.free_gb <= TINY_SHM_GB else Severity.WARNING
        evidence = [Evidence(f"{disk.free_gb:.2f} GB of {disk.total_gb:.2f} GB are free", _SHM)]
        detail = "NCCL within one machine, vLLM's message queues and Ray's object store use shared memory."
        yield finding("ENV001", severity, evidence, fix, detail)


@check("limits")
def limits(case: CheckInput) -> Iterator[Finding]:
    """Report low limits of open files (ENV002), of processes, and with InfiniBand of locked memory (ENV904)."""
    machine = case.machine
    if not machine.limits:
        raise NotApplicableError("this system reports none")
    files, processes, locked = (machine.limits.get(name) for name in ("nofile", "nproc", "memlock"))
    advice = "Raise the limit before the run; above the hard limit as root, or where the container starts."
    infiniband = any(name.startswith("ib") for name in machine.interfaces)
    for code, name, option, limit, least, target in (
        ("ENV002", "nofile", "-n", files, FEW_FILES, "65535"),
        ("ENV904", "nproc", "-u", processes, FEW_PROCESSES, "65535"),
        ("ENV904", "memlock, bytes", "-l", locked, 1 << 30 if infiniband else 0, "unlimited"),
    ):
        if limit and limit.soft is not None and limit.soft < least:
            hard = "unlimited" if limit.hard is None else limit.hard
            evidence = [Evidence(f"{name}: soft {limit.soft}, hard {hard}", f"ulimit {option}")]
            fix = Fix.of(advice, Run(("ulimit", option, target)))
            yield finding(code, Severity.WARNING, evidence, fix)


@check("disks")
def disks(case: CheckInput) -> Iterator[Finding]:
    """Report little space or few inodes (ENV003), and folders that cannot be written or do not answer (ENV917).

    ENV917 leaves out the environment's folder; shared memory has a check of its own.
    """
    reported = set()
    for disk in case.machine.disks:
        if disk.purpose == "shared memory":
            continue
        variable = folder_variable(case.environment, disk.purpose)
        reason = _why_full(disk)
        if reason and (disk.device, reason) not in reported:
            reported.add((disk.device, reason))
            actions: list[Action] = [Run(("du", "-xh", "--max-depth=1", disk.path))]
            actions += [SetVariables(((variable, "/a/larger/disk"),))] if variable else []
            text = f"{disk.free_gb:.1f} GB of {disk.total_gb:.0f} GB are free ({disk.purpose}): {reason}"
            advice = "Free space, or move the folder to a larger disk." if variable else "Free space."
            evidence, use = [Evidence(text, disk.path)], _FOLDERS.get(disk.purpose, _UNKNOWN_FOLDER)[2]
            yield finding("ENV003", Severity.WARNING, evidence, Fix.of(advice, *actions), use)
        silent = disk.exists and disk.free_gb is None
        if disk.purpose != "environment" and (disk.writable is False or silent):
            problem = "its file system did not answer in time" if silent else "this user cannot write to it"
            advice = f"Fix the folder's mount or owner, or set {variable} to another folder."
            fix = Fix.of(advice, Run(("ls", "-ld", disk.path)))
            evidence = [Evidence(f"{disk.purpose}: {problem}", disk.path)]
            yield finding("ENV917", Severity.WARNING, evidence, fix)


def _why_full(disk: Disk) -> str:
    """Return why a disk counts as full: Ray's threshold, little space or few inodes; empty if it does not."""
    if disk.free_gb is None or not disk.total_gb:
        return ""
    if disk.purpose == "ray" and 1 - disk.free_gb / disk.total_gb > RAY_FULL:
        return "fuller than 95 %: Ray stops writing there"
    if disk.free_gb < _FOLDERS.get(disk.purpose, _UNKNOWN_FOLDER)[0]:
        return "little room"
    return "hardly any inode is free" if disk.free_inodes is not None and disk.free_inodes < 10_000 else ""


def folder_variable(environment: Environment, purpose: str) -> str:
    """Return the variable that relocates a folder; of those for the hub cache, the one that is set; empty if none."""
    caches = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") if purpose == "hub cache" else ()
    chosen = (name for name in caches if environment.variables.get(name))
    return next(chosen, _FOLDERS.get(purpose, _UNKNOWN_FOLDER)[1])


@check("disks")
def offline_hub(case: CheckInput) -> Iterator[Finding]:
    """Report that the hub is switched off although its cache does not exist (ENV004)."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    offline = next((name for name in names if case.variables.get(name, "").lower() in _TRUE_VALUES), None)
    cache = case.machine.disk("hub cache")
    if offline is None or cache is None or cache.exists:
        return
    switch = Evidence(f"{offline}={case.variables[offline]}", "environment")
    evidence = [switch, Evidence("no such folder, so nothing was downloaded", cache.path)]
    fix = Fix.of(
        "Download the model first, or name the cache that contains it.",
        Run(("env", f"{offline}=0", "hf", "download", "MODEL")),
        SetVariables(((folder_variable(case.environment, "hub cache"), "/path/to/cache"),)),
    )
    yield finding("ENV004", Severity.WARNING, evidence, fix, "Loading a model by its name on the hub fails.")


@check("memory")
def memory(case: CheckInput) -> Iterator[Finding]:
    """Report little free memory of the host or the control group, in environments with vLLM (ENV905)."""
    size = case.machine.memory
    evidence = []
    limit, used = size.limit_gb, size.used_gb
    if limit is not None and used is not None and (limit - used < LITTLE_MEMORY_GB or used > 0.9 * limit):
        text = f"the control group allows {limit} GB, of which {used} GB are used"
        evidence.append(Evidence(text, "/sys/fs/cgroup"))
    if size.available_gb is not None and size.available_gb < LITTLE_MEMORY_GB:
        text = f"{size.available_gb} GB of the host's {size.total_gb} GB are available"
        evidence.append(Evidence(text, "/proc/meminfo"))
    if evidence and case.environment.vllm is not None:
        largest = Run(("ps", "-eo", "pid,rss,comm", "--sort=-rss"), piped=(("head",),))
        fix = Fix.of("Give the job more memory, or end the processes that use it.", largest)
        detail = "A process that loads a model can need the model's size in host memory; /dev/shm counts too."
        yield finding("ENV905", Severity.WARNING, evidence, fix, detail)


@check("processors")
def processors(case: CheckInput) -> Iterator[Finding]:
    """Report an OMP_NUM_THREADS above the usable processors, or an unset one if the processor quota is small (ENV906).

    A quota of the control group is small if at least twice as many processors are allowed.
    """
    available = case.machine.processors
    value = case.variables.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(value) if value.isdecimal() and len(value) < 6 else 0
    # Without the variable a library starts one thread for each allowed processor and ignores the quota.
    over_quota = not threads and available.quota is not None and available.allowed >= 2 * available.quota
    if threads <= available.usable and not over_quota:
        return
    text = f"{available.allowed} of {available.count} processors are allowed"
    evidence = [Evidence(text, "the process's affinity")]
    if available.quota is not None:
        evidence.append(Evidence(f"time for {available.quota:g} processors", "/sys/fs/cgroup, cpu.max"))
    if threads:
        evidence.append(Evidence(f"OMP_NUM_THREADS={threads}", "environment"))
    fix = Fix.of(
        "Set OMP_NUM_THREADS to the usable processors divided by the run's processes; the command is for one.",
        SetVariables((("OMP_NUM_THREADS", str(max(1, math.floor(available.usable)))),)),
    )
    detail = f"{threads or available.allowed} threads share {available.usable:g} processors."
    yield finding("ENV906", Severity.WARNING, evidence, fix, detail)


@check("default files")
def accelerate_config(case: CheckInput) -> Iterator[Finding]:
    """Report a default config of accelerate that cannot be read or does not fit this machine (ENV920)."""
    if not case.machine.configs:
        raise NotApplicableError("there is none")
    for file in case.machine.configs:
        if evidence := _config_evidence(file, case.machine):
            name = file.path.rpartition("/")[2]
            move = Run(("mv", file.path, *free_places(f"away{{}}-{name}")))
            fix = Fix.of("Pass your own config with --config_file, or move this file away.", move)
            yield finding("ENV920", Severity.WARNING, evidence, fix)


def _config_evidence(file: ConfigFile, machine: Machine) -> list[Evidence]:
    """Return the config's problem, or those of its settings that do not fit the machine."""
    if file.problem:
        return [Evidence(file.problem, file.path)]
    count = len(machine.gpus.devices)
    cpu = file.values.get("use_cpu", "").lower() == "true"
    processes = file.values.get("num_processes", "")
    wrong = {}
    if machine.gpus.state == "ok" and not cpu and processes.isdecimal() and int(processes[:9]) > count:
        wrong["num_processes"] = f"this machine has {count} GPUs"
    if cpu and count:
        wrong["use_cpu"] = "this machine has GPUs"
    if file.values.get("num_machines", "1") not in {"1", ""}:
        wrong["num_machines"] = "every launch waits for the other machines"
    return [
        Evidence(f"{name}: {file.values[name]} ({reason})", f"{file.path}:{file.lines[name]}")
        for name, reason in wrong.items()
    ]
