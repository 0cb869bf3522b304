"""Processors, NUMA nodes and memory: what the machine has, and what this process may use of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_NODES = Path("/sys/devices/system/node")
_NODE = re.compile(r"node(\d+)")
# What inference and training kernels ask for.
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node: its memory, and its processors as the kernel lists them ("0-15,32-47")."""

    number: int
    processors: str
    memory_gb: float | None


@dataclass(frozen=True)
class Processors:
    """Logical processors.

    Attributes:
        count: That are there.
        allowed: That this process may run on.
        quota: Processors' worth of time that the control group gives; None without a quota.
        nodes_allowed: Numbers of the NUMA nodes on which it may run.
        flags: Instruction sets of interest.
    """

    count: int
    allowed: int
    quota: float | None
    nodes: tuple[NumaNode, ...] = ()
    nodes_allowed: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def usable(self) -> float:
        """What may be used at the same time."""
        return min(self.allowed, self.quota or self.allowed)


@dataclass(frozen=True)
class Memory:
    """Memory of the host in GB of 1e9 bytes.

    Attributes:
        limit_gb: What the control group allows; None without a limit.
        used_gb: What the control group uses, file cache that can be given back left out.
    """

    total_gb: float | None
    available_gb: float | None
    swap_gb: float | None
    limit_gb: float | None
    used_gb: float | None


def collect() -> Processors:
    """Counts processors, by the kernel and by the control group."""
    count = os.cpu_count() or 1
    try:
        allowed = os.sched_getaffinity(0)
    except (AttributeError, OSError):
        allowed = set(range(count))
    nodes = tuple(sorted(_nodes(), key=lambda node: node.number))
    on = tuple(node.number for node in nodes if _listed(node.processors) & allowed)
    return Processors(count, len(allowed), _quota(), nodes, on, _flags())


def memory() -> Memory:
    """Reads the host's memory and the control group's limit."""
    told = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE))

    def of_host(name: str) -> float | None:
        return round(int(told[name]) * 1024 / 1e9, 1) if name in told else None

    limit, used = _limit()
    total = of_host("MemTotal")
    if limit is not None and total is not None and limit >= total:
        limit = None
    return Memory(total, of_host("MemAvailable"), of_host("SwapTotal"), limit, used if limit else None)


def _groups() -> list[Path]:
    """The folders of this process's control group and those above it, the nearest first; v2, then v1."""
    found = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for controller in controllers.split(","):
            if controller in {"", "cpu", "memory"}:
                folder = _GROUPS / controller / path.lstrip("/")
                found += [folder, *folder.parents]
    inside = [folder for folder in found if folder == _GROUPS or _GROUPS in folder.parents]
    return list(dict.fromkeys([*inside, _GROUPS, _GROUPS / "cpu", _GROUPS / "memory"]))


def _quota() -> float | None:
    """The smallest quota on the way up."""
    found = []
    for folder in _groups():
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return round(min(found), 2) if found else None


def _limit() -> tuple[float | None, float | None]:
    """The smallest limit of memory on the way up, and what is used under it, in GB."""
    found = []
    for folder in _groups():
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            value = _read(folder / limit).strip()
            if value.isdecimal() and int(value) < 2**60:
                now = _read(folder / used).strip()
                back = re.search(rf"^{cache} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
                taken = int(now) - (int(back[1]) if back else 0) if now.isdecimal() else 0
                found.append((int(value) / 1e9, max(taken, 0) / 1e9))
    if not found:
        return None, None
    limit_gb, used_gb = min(found)
    return round(limit_gb, 1), round(used_gb, 1)


def _nodes() -> list[NumaNode]:
    try:
        folders = [path for path in _NODES.iterdir() if _NODE.fullmatch(path.name)]
    except OSError:
        return []
    nodes = []
    for folder in folders:
        total = re.search(r"MemTotal:\s+(\d+) kB", _read(folder / "meminfo"))
        gigabytes = round(int(total[1]) * 1024 / 1e9, 1) if total else None
        nodes.append(NumaNode(int(folder.name[4:]), _read(folder / "cpulist").strip(), gigabytes))
    return nodes


def _listed(text: str) -> set[int]:
    """The numbers in a list like "0-3,8"."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _flags() -> tuple[str, ...]:
    told = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(Path("/proc/cpuinfo"), 16384), re.MULTILINE)
    there = set(told[1].split()) if told else set()
    return tuple(flag for flag in _FLAGS if flag in there)


def _read(path: Path, most: int = 1 << 20) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""
