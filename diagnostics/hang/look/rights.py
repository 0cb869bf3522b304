"""What may be seen of a process, asked before anything is taken; where it may not, the command that would allow it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.hang.look import proc

if TYPE_CHECKING:
    from collections.abc import Iterable

_SYS_PTRACE = 1 << 19
_CONTAINER = (
    "in a container, give it that capability: docker run --cap-add SYS_PTRACE; Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE], or kubectl debug --profile=general --target=CONTAINER"
)


def refusals(pids: Iterable[int]) -> dict[int, str]:
    """For each process whose memory may not be read: why, and what would allow it."""
    found = {}
    for pid in pids:
        reason = _reason(pid)
        if reason:
            found[pid] = reason
    return found


def _reason(pid: int) -> str:
    state = (proc.stat(pid) or ["X"])[0]
    if state in "ZX":
        return ""
    try:
        # Opening it asks the kernel for exactly the right that a reader of stacks needs, and stops nothing.
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except FileNotFoundError:
        return ""
    except OSError:
        return _why(pid)
    return ""


def _why(pid: int) -> str:
    owner = proc.uid(pid)
    if owner != os.geteuid() and os.geteuid() != 0:
        return f"it belongs to uid {owner}; look as that user (sudo -u '#{owner}' …) or as root"
    scope = _scope()
    if scope == "3":
        return (
            "kernel.yama.ptrace_scope is 3: until this machine is started with another value, nobody may look"
        )
    if not _effective() & _SYS_PTRACE and scope not in {"", "0"}:
        # Of a command that `--watch` starts the reader of stacks is no parent, so that is no way around.
        return f"kernel.yama.ptrace_scope is {scope}: look as root (sudo), or sudo sysctl kernel.yama.ptrace_scope=0"
    return f"this process lacks CAP_SYS_PTRACE over it; {_CONTAINER}"


def _effective() -> int:
    for line in proc.read(os.getpid(), "status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _scope() -> str:
    try:
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii").strip()
    except OSError:
        return ""
