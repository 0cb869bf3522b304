"""Read the machine's processors and memory, with the limits of the control group (container).

`collect_processors` and `collect_memory` return them. Standard library only, because this module is also sent to remote
hosts and runs there.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from diagnostics.safe_io import read_kernel_file

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Processors:
    """Logical processors.

    Attributes:
        allowed: Number that this process may run on.
        quota: Processor time of the control group, in processors; None without a quota.
    """

    count: int
    allowed: int
    quota: float | None

    @property
    def usable(self) -> float:
        """Processors that can be used at the same time."""
        return min(self.allowed, self.quota or self.allowed)


@dataclass(frozen=True)
class Memory:
    """Host memory in GB of 1e9 bytes.

    Attributes:
        limit_gb: Limit of the control group; None without a limit below the host's memory.
        used_gb: Memory the control group uses, without reclaimable file cache; None without such a limit.
    """

    total_gb: float | None
    available_gb: float | None
    limit_gb: float | None
    used_gb: float | None


def collect_processors() -> Processors:
    """Count the machine's processors, those that this process may run on, and those of the control group's quota."""
    count = os.cpu_count() or 1
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = count
    return Processors(count, allowed, _cpu_quota())


def collect_memory() -> Memory:
    """Read the host's memory and the control group's limit."""
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_kernel_file("/proc/meminfo"), re.MULTILINE))
    sizes = {name: round(int(value) * 1024 / 1e9, 1) for name, value in values.items()}
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    limit, used = _memory_limit()
    if limit is not None and total is not None and limit >= total:
        limit = None
    return Memory(total, available, limit, used if limit else None)


def _control_groups() -> list[Path]:
    """Return the folders of this process's control groups (v1 and v2) and of their parents, each once."""
    results = []
    for line in read_kernel_file("/proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for controller in {"", "cpu", "memory"} & set(controllers.split(",")):
            folder = _CGROUPS / controller / path.lstrip("/")
            results += [parent for parent in (folder, *folder.parents) if parent.is_relative_to(_CGROUPS)]
    return list(dict.fromkeys([*results, _CGROUPS, _CGROUPS / "cpu", _CGROUPS / "memory"]))


def _cpu_quota() -> float | None:
    """Return the smallest quota of the control groups, in processors; None without a quota."""
    results = []
    for folder in _control_groups():
        version_1 = (read_kernel_file(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        quota, period = (*(read_kernel_file(folder / "cpu.max").split() or version_1), "", "")[:2]
        if quota.isdecimal() and period.isdecimal() and int(period):
            results.append(int(quota) / int(period))
    return round(min(results), 2) if results else None


def _memory_limit() -> tuple[float | None, float | None]:
    """Return limit and use of the control group with the least memory left, in GB, or (None, None)."""
    results = []
    for folder in _control_groups():
        statistics = read_kernel_file(folder / "memory.stat")
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            value, now = (read_kernel_file(folder / name).strip() for name in (limit, used))
            if value.isdecimal() and int(value) < 2**60:
                cached = re.search(rf"^{cache} (\d+)$", statistics, re.MULTILINE)
                in_use = int(now) - (int(cached[1]) if cached else 0) if now.isdecimal() else 0
                results.append((int(value) / 1e9, max(in_use, 0) / 1e9))
    if not results:
        return None, None
    limit_gb, used_gb = min(results, key=lambda group: group[0] - group[1])
    return round(limit_gb, 1), round(used_gb, 1)
