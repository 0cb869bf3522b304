"""What the shell's limits (`ulimit`) allow this process, and those it starts."""

from __future__ import annotations

from dataclasses import dataclass

_NAMES = {
    "nofile": "RLIMIT_NOFILE",
    "nproc": "RLIMIT_NPROC",
    "memlock": "RLIMIT_MEMLOCK",
    "core": "RLIMIT_CORE",
    "stack": "RLIMIT_STACK",
    "as": "RLIMIT_AS",
}


@dataclass(frozen=True)
class Limit:
    """A limit in its own unit (files, processes, bytes); None is unlimited. The soft one can be raised to the hard."""

    soft: int | None
    hard: int | None


def collect() -> dict[str, Limit]:
    """The limits of this process; none on a system that has no such thing."""
    try:
        import resource
    except ImportError:
        return {}
    found = {}
    for name, constant in _NAMES.items():
        if hasattr(resource, constant):
            soft, hard = resource.getrlimit(getattr(resource, constant))
            found[name] = Limit(_value(soft, resource.RLIM_INFINITY), _value(hard, resource.RLIM_INFINITY))
    return found


def _value(number: int, infinity: int) -> int | None:
    return None if number in (infinity, -1) or number >= 2**63 - 1 else number
