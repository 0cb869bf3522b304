"""Shared memory, open files, disks, memory: whether the machine has room for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalog.own_codes import finding, known
from diagnostics.doctor.checks.registered import check
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run, SetVariables

if TYPE_CHECKING:
    from diagnostics.catalog.model import Issue
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Disk, Machine
    from diagnostics.output.findings import Finding

# What Docker gives without --shm-size is 64 MB; DeepSpeed's ds_report warns below 512 MB.
TINY_SHM_GB, SMALL_SHM_GB = 0.07, 1.0
# Ray's documentation asks for 65,536; vLLM raises the soft limit to 65,535 itself, up to the hard one.
FEW_FILES, WANTED_FILES = 4096, 65535
FEW_PROCESSES = 4096
# Ray no longer spills or creates objects on a disk fuller than this (RAY_local_fs_capacity_threshold).
RAY_FULL = 0.95
_ROOM_GB = {"environment": 1.0, "hub cache": 10.0, "vllm cache": 1.0, "temporary": 2.0, "ray": 2.0}
LITTLE_MEMORY_GB = 8.0
_WRITTEN = {
    "environment": "An installer writes there.",
    "hub cache": "Models from Hugging Face's hub are written there.",
    "vllm cache": "vLLM writes there what it compiles.",
    "temporary": "Programs write there what they keep for a while.",
    "ray": "Ray writes its logs there, and unless told otherwise objects that it spills.",
}
# What points a folder elsewhere.
_VARIABLES = {
    "hub cache": "HF_HOME", "temporary": "TMPDIR", "ray": "RAY_TMPDIR", "vllm cache": "VLLM_CACHE_ROOT",
}  # fmt: skip


@check("shared memory")
def shared_memory(machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    """ENV001 where /dev/shm is tiny or full."""
    disk = machine.disk("shared memory")
    if disk is None or disk.total_gb is None or disk.free_gb is None:
        return []
    if disk.total_gb > SMALL_SHM_GB and disk.free_gb > SMALL_SHM_GB / 2:
        return []
    severity = Severity.ERROR if disk.free_gb <= TINY_SHM_GB else Severity.WARNING
    full = disk.total_gb > SMALL_SHM_GB
    text = f"{disk.free_gb:.2f} GB of {disk.total_gb:.2f} GB are free"
    remedy = (
        Remedy.of(
            "See what fills it, and remove what no running process uses.",
            Run(("ls", "-lS", "/dev/shm"), piped=(("head",),)),  # noqa: S108 - a command that is printed
        )
        if full
        else _more_shared_memory(machine)
    )
    detail = "NCCL between the processes of one machine, vLLM's message queues and Ray's object store may live in it."
    evidence = (Evidence(text, "/dev/shm"),)  # noqa: S108 - a place in a report
    return [known(issues["ENV001"], severity, detail=detail, evidence=evidence, remedy=remedy)]


def _more_shared_memory(machine: Machine) -> Remedy:
    if machine.container == "kubernetes":
        return Remedy.of('Mount an emptyDir with medium "Memory" at /dev/shm.')
    if machine.container in {"docker", "podman"}:
        return Remedy.of(
            "Start the container with more.",
            Run((machine.container, "run", "--shm-size=16g", "--gpus", "all", "IMAGE")),
        )
    return Remedy.of(
        "Give it more.",
        Run(("sudo", "mount", "-o", "remount,size=16G", "/dev/shm")),  # noqa: S108 - a command that is printed
    )


def _no_limits(machine: Machine) -> str:
    return "" if machine.limits else "this system tells none"


@check("limits", skip=_no_limits)
def limits(machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    """ENV002 for few open files, ENV904 for few processes or little locked memory on InfiniBand."""
    found = []
    files, processes, locked = (machine.limits.get(name) for name in ("nofile", "nproc", "memlock"))
    if files and files.soft is not None and files.soft < FEW_FILES:
        hard = files.hard
        wanted = WANTED_FILES if hard is None else min(hard, WANTED_FILES)
        stuck = hard is not None and hard <= files.soft
        text = (
            "Its hard limit has to be raised first: by root, or of a container where it is started."
            if stuck
            else "Raise it before the run, and before `ray start`."
        )
        lift = (
            Run(("docker", "run", "--ulimit", "nofile=65535:65535", "IMAGE"))
            if machine.container in {"docker", "podman"}
            else Run(
                ("echo", "* - nofile 65535"),
                piped=(("sudo", "tee", "/etc/security/limits.d/90-nofile.conf"),),
            )
        )
        found.append(
            known(
                issues["ENV002"],
                Severity.WARNING,
                detail="Ray and vLLM hold a file open for each of their connections.",
                evidence=(Evidence(f"nofile: soft {files.soft}, hard {_number(hard)}", "ulimit -n"),),
                remedy=Remedy.of(text, lift if stuck else Run(("ulimit", "-n", str(wanted)))),
            )
        )
    if processes and processes.soft is not None and processes.soft < FEW_PROCESSES:
        found.append(_low("nproc", "-u", processes.soft, processes.hard, "65535"))
    infiniband = any(name.startswith("ib") for name in machine.interfaces)
    if infiniband and locked and locked.soft is not None and locked.soft < 1 << 30:
        found.append(_low("memlock, bytes", "-l", locked.soft, locked.hard, "unlimited"))
    return found


def _low(name: str, option: str, soft: int, hard: int | None, wanted: str) -> Finding:
    return finding(
        "ENV904",
        Severity.WARNING,
        known_by="static",
        detail="",
        evidence=(Evidence(f"{name}: soft {soft}, hard {_number(hard)}", f"ulimit {option}"),),
        remedy=Remedy.of(
            "Raise it before the run; beyond the hard limit root has to, or who starts the container.",
            Run(("ulimit", option, wanted)),
        ),
    )


def _number(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


@check("disks")
def disks(environment: Environment, machine: Machine, issues: dict[str, Issue]) -> list[Finding]:
    """ENV003 for file systems with little room, ENV917 for folders that cannot be written."""
    found: list[Finding] = []
    told = set()
    for disk in machine.disks:
        if disk.purpose == "shared memory":
            continue
        reason = _full(disk)
        if reason and (disk.device, reason) not in told:
            told.add((disk.device, reason))
            found.append(_no_room(disk, reason, issues, moved_by(environment, disk.purpose)))
        silent = disk.exists and disk.free_gb is None
        if disk.purpose != "environment" and (disk.writable is False or silent):
            found.append(_not_writable(disk, moved_by(environment, disk.purpose), silent=silent))
    return found


def _full(disk: Disk) -> str:
    if disk.free_gb is None or not disk.total_gb:
        return ""
    if disk.purpose == "ray" and 1 - disk.free_gb / disk.total_gb > RAY_FULL:
        return "fuller than 95 %: Ray stops writing there"
    if disk.free_gb < _ROOM_GB.get(disk.purpose, 1.0):
        return "little room"
    return "hardly any inode is free" if disk.free_inodes is not None and disk.free_inodes < 10_000 else ""


def moved_by(environment: Environment, purpose: str) -> str:
    """The variable that points a folder elsewhere, or ""; of two the one that counts."""
    # The older name is still heard.
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") if purpose == "hub cache" else ():
        if environment.variables.get(name):
            return name
    return _VARIABLES.get(purpose, "")


def _no_room(disk: Disk, reason: str, issues: dict[str, Issue], variable: str) -> Finding:
    point = SetVariables(((variable, "/a/larger/disk"),)) if variable else Run(("du", "-xsh", disk.path))
    look = [Run(("du", "-h", "--max-depth=1", disk.path))] if disk.purpose == "hub cache" else []
    free = f"{disk.free_gb:.1f} GB of {disk.total_gb:.0f} GB are free ({disk.purpose}): {reason}"
    return known(
        issues["ENV003"],
        Severity.WARNING,
        detail=_WRITTEN[disk.purpose],
        evidence=(Evidence(free, disk.path),),
        remedy=Remedy.of("Make room, or point it elsewhere." if variable else "Make room.", *look, point),
    )


def _not_writable(disk: Disk, variable: str, *, silent: bool) -> Finding:
    what = "its file system did not answer in time" if silent else "it cannot be written by this user"
    return finding(
        "ENV917",
        Severity.WARNING,
        known_by="static",
        detail="",
        evidence=(Evidence(f"{disk.purpose}: {what}", disk.path),),
        remedy=Remedy.of(
            f"Mend its mount or its owner, or point {variable} elsewhere.",
            Run(("ls", "-ld", disk.path)),
        ),
    )


@check("memory")
def memory(environment: Environment, machine: Machine) -> list[Finding]:
    """ENV905 where the host or the control group has little memory."""
    told = machine.memory
    evidence = []
    if told.limit_gb is not None and told.used_gb is not None:
        free = told.limit_gb - told.used_gb
        if free < LITTLE_MEMORY_GB or told.used_gb > 0.9 * told.limit_gb:
            text = f"the control group allows {told.limit_gb} GB, of which {told.used_gb} GB are used"
            evidence.append(Evidence(text, "/sys/fs/cgroup"))
    if told.available_gb is not None and told.available_gb < LITTLE_MEMORY_GB:
        text = f"{told.available_gb} GB of the host's {told.total_gb} GB are available"
        evidence.append(Evidence(text, "/proc/meminfo"))
    if not evidence or environment.vllm is None:
        return []
    return [
        finding(
            "ENV905",
            Severity.WARNING,
            known_by="static",
            detail="Loading a model can take its size in host memory, once a process that loads; /dev/shm counts too.",
            evidence=tuple(evidence),
            remedy=Remedy.of(
                "Give the job more memory, or end what uses it.",
                Run(("ps", "-eo", "pid,rss,comm", "--sort=-rss"), piped=(("head",),)),
            ),
        )
    ]
