"""Stacks of the kernel: what a process sleeps in by `/proc/PID/stack`."""

from __future__ import annotations

import re

from diagnostics.hang.snapshot import NATIVE, Descriptor, Process, StackFrame, Thread

# `/proc/PID/stack` under a line that names the process; how many threads it has, where somebody says it.
_KERNEL = re.compile(
    r"(?m)^(?P<head>[^\n\[]{0,200}?\b(?P<pid>\d{1,7})\b[^\n]{0,200})\n"
    r"(?P<body>(?:[ \t]*\[<[0-9a-fx]*>\][^\n]*\n?)+)"
)
_KERNELS = re.compile(r"\[<[0-9a-fx]*>\] (\w+)(?:\.\w+)*\+0x")
_ALONE = re.compile(r"(?i)threads?:? *1\b|\b(?:one|single|1) thread\b")
_SLEEPS = tuple(
    (re.compile(pattern), call)
    for pattern, call in (
        (r"^(?:__x64_sys_|__|do_)?futex", "futex"),
        (r"tcp_recvmsg|inet_recvmsg|unix_stream_read", "recvfrom"),
        (r"^do_wait$|kernel_wait", "wait4"),
        (r"ep_poll|epoll_wait", "epoll_wait"),
        (r"flock_lock|locks_lock_inode", "flock"),
        (r"nanosleep", "nanosleep"),
        (r"pipe_write", "write"),
    )
)
# Where no signal reaches a process, and who should wake it is a server of files or a driver.
_DEEP = re.compile(
    r"nfs\d?_|rpc_wait|fuse_|request_wait_answer|ptlrpc|ldlm_|ll_\w+lock|ceph_|cifs_|gpfs|cxi|beegfs"
    r"|nvidia_|nv\d{5,}|os_acquire_\w+|uvm_|amdgpu_|kfd_"
)
# How many of the innermost functions may be the kernel's own, of any wait.
_NEAR = 4


def deep(name: str) -> bool:
    """Whether what sleeps in a function of that name is woken by no signal, but by a server of files or a driver."""
    return bool(_DEEP.match(name))


def slept(text: str) -> list[Process]:
    """What `/proc/PID/stack` shows: in which call of the kernel each process sleeps."""
    found = []
    for match in _KERNEL.finditer(text):
        frames = tuple(StackFrame(NATIVE, name) for name in _KERNELS.findall(match["body"]))
        told = (call for frame in frames for pattern, call in _SLEEPS if pattern.search(frame.function))
        call = next(told, "")
        # A futex is an event as often as a lock; but for one thread alone nobody is left to set an event.
        known = call if call != "futex" or _ALONE.search(match["head"]) else ""
        kinds = (Descriptor(0, "socket"),) if known == "recvfrom" else ()
        pid = int(match["pid"])
        asleep = next((frame.function for frame in frames[:_NEAR] if deep(frame.function)), "")
        thread = Thread(
            pid,
            "MainThread",
            frames,
            stem=len(frames),
            samples=1,
            state="D" if asleep else "",
            wchan=asleep,
            syscall=known,
            waits_fds=tuple(d.fd for d in kinds),
        )
        if frames:
            found.append(Process(pid, threads=(thread,), fds=kinds))
    return found
