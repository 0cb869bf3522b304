"""The machine under an environment: processors, memory, limits, disks, network devices, libraries, GPUs, Ray, files.

Standard library alone, so that it can be sent to any node and run there.
"""

from __future__ import annotations

import os
import platform
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.collect import clusters, configs, gpus, limits, processors
from diagnostics.collect.clusters import RayCluster
from diagnostics.collect.configs import ConfigFile
from diagnostics.collect.gpus import Gpus
from diagnostics.collect.limits import Limit
from diagnostics.collect.processors import Memory, Processors

if TYPE_CHECKING:
    from collections.abc import Mapping

# A file server that does not answer must not keep the rest from being said.
DISK_LIMIT_S = 2.0


@dataclass(frozen=True)
class Disk:
    """A folder that a run writes to, and the file system under it.

    Attributes:
        purpose: `environment`, `hub cache`, `vllm cache`, `temporary`, `ray`, `shared memory`.
        path: The folder as it is configured.
        exists: Whether it is there; if not, the figures are those of the nearest folder above.
        free_gb: None where the file system did not answer in time.
        free_inodes: None where the file system does not count them.
        device: The same number for folders on the same file system.
    """

    purpose: str
    path: str
    exists: bool
    writable: bool | None
    free_gb: float | None
    total_gb: float | None
    free_inodes: int | None
    device: int | None


@dataclass(frozen=True)
class Libraries:
    """Of the C libraries that wheels are linked against: the releases that are there, empty where not known."""

    libc: str = ""
    """As "glibc 2.36"."""
    libstdcxx: str = ""
    """The newest `GLIBCXX_` version, as "3.4.30"."""


@dataclass(frozen=True)
class Machine:
    """What was found out about the machine.

    Attributes:
        container: `docker`, `podman`, `kubernetes`, `apptainer`, or empty where none shows.
        limits: By name: `nofile`, `nproc`, `memlock`, `core`, `stack`, `as`.
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
    ray: tuple[RayCluster, ...] = ()
    configs: tuple[ConfigFile, ...] = ()

    def disk(self, purpose: str) -> Disk | None:
        """The disk of a purpose."""
        return next((disk for disk in self.disks if disk.purpose == purpose), None)


def collect(prefix: str, environ: Mapping[str, str]) -> Machine:
    """Looks at the machine; asks no network, starts one child process (which asks the GPUs' driver).

    Args:
        prefix: The environment whose disk is looked at.
        environ: Variables that say where caches are.
    """
    return Machine(
        host=platform.node(),
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        container=_container(environ),
        processors=processors.collect(),
        memory=processors.memory(),
        limits=limits.collect(),
        disks=_disks(prefix, environ),
        interfaces=_interfaces(),
        libraries=_libraries(),
        gpus=gpus.collect(),
        ray=clusters.collect(environ),
        configs=configs.collect(environ),
    )


def _disks(prefix: str, environ: Mapping[str, str]) -> tuple[Disk, ...]:
    places = folders(prefix, environ)
    found: dict[str, Disk] = {}

    def look() -> None:
        for purpose, path in places.items():
            found[purpose] = _disk(purpose, path)

    # A daemon, since a file system that hangs would keep it for ever.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(DISK_LIMIT_S)
    unknown = (True, None, None, None, None, None)
    return tuple(found.get(name) or Disk(name, str(path), *unknown) for name, path in places.items())


def folders(prefix: str, environ: Mapping[str, str]) -> dict[str, Path]:
    """Where a run writes, by purpose, as huggingface_hub, vLLM, Ray and tempfile look for it."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - works without a home folder
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(environ.get("HF_HOME") or cache / "huggingface")
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - its size is asked
    return {
        "environment": Path(prefix),
        "hub cache": Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or hub / "hub"),
        "vllm cache": Path(environ.get("VLLM_CACHE_ROOT") or cache / "vllm"),
        "temporary": temporary,
        "ray": clusters.folder(environ),
        "shared memory": Path("/dev/shm"),  # noqa: S108 - the same
    }


def _disk(purpose: str, path: Path) -> Disk:
    there = path
    try:
        exists = path.exists()
        while not there.exists() and there != there.parent:
            there = there.parent
        seen = os.statvfs(there)
        device = there.stat().st_dev
    except OSError:
        return Disk(purpose, str(path), False, None, None, None, None, None)
    free, total = seen.f_bavail * seen.f_frsize / 1e9, seen.f_blocks * seen.f_frsize / 1e9
    inodes = seen.f_favail if seen.f_files else None
    writable = os.access(there, os.W_OK | os.X_OK)
    return Disk(purpose, str(path), exists, writable, round(free, 2), round(total, 2), inodes, device)


def _container(environ: Mapping[str, str]) -> str:
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    marks = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
    return next((name for mark, name in marks.items() if Path(mark).exists()), "")


def _interfaces() -> tuple[str, ...]:
    try:
        return tuple(sorted(path.name for path in Path("/sys/class/net").iterdir()))
    except OSError:
        return ()


def _libraries() -> Libraries:
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        libc = ""
    arch = platform.machine()
    places = (f"/usr/lib/{arch}-linux-gnu", f"/lib/{arch}-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64")
    for place in places:
        library = Path(place, "libstdc++.so.6")
        if library.exists():
            # libstdc++.so.6.0.N has the versions up to GLIBCXX_3.4.N (gcc's ABI policy and guidelines).
            number = library.resolve().name.rpartition(".")[2]
            return Libraries(libc, f"3.4.{number}" if number.isdecimal() else "")
    return Libraries(libc)
