"""Names of Linux system calls by number, for x86-64 and for ARM (the kernel's generic table)."""

from __future__ import annotations

import platform
from pathlib import Path


def _load_table(machine: str) -> dict[int, str]:
    """Read a table: runs of consecutive numbers, `number:name name name`."""
    file = "syscalls_generic.txt" if machine in {"aarch64", "arm64"} else "syscalls_x86_64.txt"
    names, number = {}, 0
    for word in Path(__file__).with_name(file).read_text(encoding="ascii").split():
        first, colon, name = word.partition(":")
        number = int(first) if colon else number
        names[number] = name if colon else word
        number += 1
    return names


SYSCALLS = _load_table(platform.machine())
