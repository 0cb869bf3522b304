"""Read the state of the machine: processors, memory, limits, disks, GPUs, network devices, C libraries.

It also finds Ray clusters, the kind of container, and accelerate's default config. `collect` returns all of this as a
`Machine`. Standard library only, because this module is also sent to remote hosts and runs there.
"""

import os
import platform
import re
import resource
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.collect import elf, gpus, ray_traces
from diagnostics.collect.blocking_reads import call_in_child
from diagnostics.collect.gpus import Gpus
from diagnostics.collect.processors_and_memory import Memory, Processors, collect_memory, collect_processors
from diagnostics.collect.ray_traces import RayTraces
from diagnostics.collect.search_path import working_folder
from diagnostics.output.redact import mask

_LIMITS = ("nofile", "nproc", "memlock", "core", "stack", "as")
_CONFIG_LINE = re.compile(r"^\s*([A-Za-z_][\w-]*)\s*[:=]\s*(.*?)\s*(?:#.*)?$")
_SECRET_KEY = re.compile(r"token|secret|passw|_key", re.IGNORECASE)
# The pattern takes time quadratic in the length of a line.
_MAX_CONFIG_LINE = 1000


@dataclass(frozen=True)
class Limit:
    """A resource limit in its own unit (files, processes, bytes); None is unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class Disk:
    """A folder that a run writes to, and its file system.

    Attributes:
        purpose: `environment`, `hub cache`, `vllm cache`, `temporary`, `ray`, `shared memory`.
        exists: Whether the folder exists; True if it was not examined in time, False if examining it failed. If it
            does not exist, the other values are those of the nearest folder above.
        writable: Whether this user can write to it; None if unknown, like the values below.
        free_inodes: None if the file system does not count them.
        device: Number of the file system; folders on the same file system have the same.
    """

    purpose: str
    path: str
    exists: bool = True
    writable: bool | None = None
    free_gb: float | None = None
    total_gb: float | None = None
    free_inodes: int | None = None
    device: int | None = None


@dataclass(frozen=True)
class Libraries:
    """Releases of the C libraries that wheels link against; empty if unknown.

    Attributes:
        libc: Such as "glibc 2.36".
        libstdcxx: The newest `GLIBCXX_` version, such as "3.4.30".
    """

    libc: str = ""
    libstdcxx: str = ""


@dataclass(frozen=True)
class ConfigFile:
    """A config file that a run reads by default, with its `name: value` lines.

    Attributes:
        kind: `accelerate`, the only kind.
        values: Values by name, without those that may be secret.
        lines: Line numbers by name.
        problem: Why the file could not be read; empty if it could.
    """

    kind: str
    path: str
    values: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """Everything collected about the machine.

    Attributes:
        container: `docker`, `podman`, `kubernetes`, `apptainer`, or empty.
        limits: Resource limits by name: `nofile`, `nproc`, `memlock`, `core`, `stack`, `as`.
        interfaces: Names of the network devices.
    """

    host: str
    kernel: str
    architecture: str
    container: str
    processors: Processors
    memory: Memory
    limits: dict[str, Limit] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[str, ...] = ()
    libraries: Libraries = field(default_factory=Libraries)
    gpus: Gpus = field(default_factory=Gpus)
    ray: tuple[RayTraces, ...] = ()
    configs: tuple[ConfigFile, ...] = ()

    def disk(self, purpose: str) -> Disk | None:
        """Return the disk with a purpose; None if there is none."""
        return next((disk for disk in self.disks if disk.purpose == purpose), None)


def collect(prefix: str, environ: Mapping[str, str]) -> Machine:
    """Examine the machine, without network; the only program that it starts is `nvidia-smi`.

    Args:
        prefix: The environment, whose disk is examined, too.
        environ: Variables; they name folders, and show some kinds of containers.
    """
    return Machine(
        host=platform.node(),
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        container=_container(environ),
        processors=collect_processors(),
        memory=collect_memory(),
        limits=collect_limits(),
        disks=_disks(prefix, environ),
        interfaces=tuple(sorted(safe_io.list_folder("/sys/class/net"))),
        libraries=_libraries(),
        gpus=gpus.collect(),
        ray=ray_traces.collect(environ),
        configs=collect_configs(environ),
    )


def collect_limits() -> dict[str, Limit]:
    """Return this process's limits of files, processes, locked memory, core files, stack and address space."""
    pairs = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}")) for name in _LIMITS}
    return {name: Limit(_finite(soft), _finite(hard)) for name, (soft, hard) in pairs.items()}


def _finite(number: int) -> int | None:
    """Return a limit; None if it is unlimited."""
    return None if number in {resource.RLIM_INFINITY, -1} or number >= 2**63 - 1 else number


def _disks(prefix: str, environ: Mapping[str, str]) -> tuple[Disk, ...]:
    """Examine the folders of a run; the values of one that does not answer are unknown."""
    folders = run_folders(prefix, environ).items()
    disks = [Disk(name, str(Path(working_folder(), path))) for name, path in folders]
    return tuple(Disk(*call_in_child(partial(_disk_values, disk), astuple(disk))) for disk in disks)


def run_folders(prefix: str, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders that a run writes to, by purpose; variables such as HF_HOME and TMPDIR may set them."""
    hub = _hub_home(environ)
    hub_cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return {
        "environment": Path(prefix),
        "hub cache": Path(hub_cache or hub / "hub"),
        "vllm cache": Path(environ.get("VLLM_CACHE_ROOT") or _user_cache(environ) / "vllm"),
        "temporary": Path(environ.get("TMPDIR") or "/tmp"),  # noqa: S108 - only its size is read
        "ray": ray_traces.ray_folder(environ),
        "shared memory": Path("/dev/shm"),  # noqa: S108 - the same
    }


def _user_cache(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - works without a home folder
    return Path(environ.get("XDG_CACHE_HOME") or f"{home}/.cache")


def _hub_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HF_HOME") or _user_cache(environ) / "huggingface")


def _disk_values(disk: Disk) -> tuple[Any, ...]:
    """Return the fields of a folder with its file system, or with that of the nearest existing folder above it."""
    path = nearest = Path(disk.path)
    try:
        exists = path.exists()
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        status = os.statvfs(nearest)
        device = nearest.stat().st_dev
    except OSError:
        return disk.purpose, str(path), False
    free, total = status.f_bavail * status.f_frsize / 1e9, status.f_blocks * status.f_frsize / 1e9
    inodes = status.f_favail if status.f_files else None
    writable = os.access(nearest, os.W_OK | os.X_OK)
    return disk.purpose, str(path), exists, writable, round(free, 2), round(total, 2), inodes, device


def _container(environ: Mapping[str, str]) -> str:
    """Return the kind of container by variables and marker files; empty if there is no such sign."""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    marks = {"docker": "/.dockerenv", "podman": "/run/.containerenv"}
    return next((name for name, file in marks.items() if Path(file).exists()), "")


def _libraries() -> Libraries:
    """Return glibc's release, and libstdc++'s newest GLIBCXX version by the name of its file."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        libc = ""
    libraries = (folder / "libstdc++.so.6" for folder in elf.system_folders())
    file_name = next((library.resolve().name for library in libraries if library.exists()), "")
    # libstdc++.so.6.0.N has the versions up to GLIBCXX_3.4.N (gcc's ABI policy and guidelines).
    number = file_name.rpartition(".")[2]
    return Libraries(libc, f"3.4.{number}" if number.isdecimal() else "")


def collect_configs(environ: Mapping[str, str]) -> tuple[ConfigFile, ...]:
    """Read accelerate's default config files (its commands/config/config_args.py); none if the disk does not answer."""
    folder = Path(working_folder(), _hub_home(environ), "accelerate")
    paths = [folder / f"default_config.{end}" for end in ("yaml", "yml", "json")]
    none: list[str] = []
    names = call_in_child(lambda: [str(path) for path in paths if path.is_file()], none)
    return tuple(_accelerate_config(Path(name)) for name in names)


def _accelerate_config(path: Path) -> ConfigFile:
    """Read the `name: value` lines of a config, without those that may be secret."""
    try:
        # The name of a secret may be on a line before its value.
        text = mask(safe_io.read_head(path, safe_io.CONFIG_LIMIT).decode("utf-8", "replace"))
    except OSError as error:
        return ConfigFile("accelerate", str(path), problem=f"cannot be read: {error.strerror or error}")
    values, lines = {}, {}
    for number, line in enumerate(text.replace('"', "").replace(",\n", "\n").splitlines(), 1):
        match = _CONFIG_LINE.match(line) if len(line) <= _MAX_CONFIG_LINE else None
        if match and match[2] and not _SECRET_KEY.search(match[1]):
            values[match[1]] = mask(match[2].strip("'"))
            lines[match[1]] = number
    return ConfigFile("accelerate", str(path), values, lines)
