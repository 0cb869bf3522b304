"""Check which processes may be inspected, and name what would permit it for the others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from diagnostics.hang.collect import proc

_SYS_PTRACE = 1 << 19
_CONTAINER = (
    "in a container, give it that capability: docker run --cap-add SYS_PTRACE; Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE], or kubectl debug --profile=general --target=CONTAINER"
)


def unreadable_processes(pids: Iterable[int]) -> dict[int, str]:
    """Return each process whose memory may not be read, with the reason and what would permit it."""
    return {pid: reason for pid in pids if (reason := _reason(pid))}


def _reason(pid: int) -> str:
    state = (proc.stat_fields(pid) or ["X"])[0]
    if state in "ZX":
        return ""
    try:
        # Opening it needs exactly the permission that py-spy needs, and stops nothing.
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except FileNotFoundError:
        return ""
    except OSError:
        return _explain_refusal(pid)
    return ""


def _explain_refusal(pid: int) -> str:
    owner = proc.owner_uid(pid)
    if owner != os.geteuid() and os.geteuid() != 0:
        return f"it belongs to uid {owner}; run hang as that user (sudo -u '#{owner}' ...) or as root"
    scope = _ptrace_scope()
    if scope == "3":
        return (
            "kernel.yama.ptrace_scope is 3: no process may read another one until a reboot with another value"
        )
    if not _effective_capabilities() & _SYS_PTRACE and scope not in {"", "0"}:
        # `--watch` is no way around: py-spy is not the parent of the command.
        return f"kernel.yama.ptrace_scope is {scope}: run hang as root, or: sudo sysctl kernel.yama.ptrace_scope=0"
    return f"this process lacks CAP_SYS_PTRACE over it; {_CONTAINER}"


def _effective_capabilities() -> int:
    for line in proc.read_proc(os.getpid(), "status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _ptrace_scope() -> str:
    try:
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii").strip()
    except OSError:
        return ""
