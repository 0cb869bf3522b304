"""Load `waits.toml` when imported: kinds of waits, functions and system calls of each, causes of hangs.

`kinds_of_frame` and `is_idle_frame` look up a stack frame; the other tables are constants.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from diagnostics.frameworks import TOP_LEVEL_PACKAGES


class WaitKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of wait; `waits.toml` explains the fields."""

    text: str
    state: Literal["waits", "idle", "computes"] = "waits"
    ended_by: tuple[Literal["thread", "child", "actor", "ring", "semaphore", "file lock", "member"], ...] = ()
    cause: str = "native"
    absent: Literal["", "always", "dump"] = ""
    frame: Literal["", "names", "means"] = ""
    spins: bool = False
    polls: bool = False


class Cause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cause of hangs; `waits.toml` explains the fields."""

    means: str
    phrase: str = "{doing}"
    unobserved: str = ""
    next: tuple[str, ...] = ()


class _Waits(msgspec.Struct, forbid_unknown_fields=True):
    """The tables of `waits.toml`."""

    calls: list[tuple[str, str, str]]
    idle_frames: list[tuple[str, str]]
    file_channels: str
    ends: dict[str, str]
    callers: dict[str, str]
    libraries: str
    library_files: str
    kinds: dict[str, WaitKind]
    syscalls: dict[str, list[str]]
    source_calls: dict[str, list[str]]
    causes: dict[str, Cause]
    details: dict[str, str]


def _path_pattern(ends: str) -> re.Pattern[str]:
    """Compile patterns, separated by blanks, of which one must match the last parts of a path."""
    return re.compile(rf"(?:^|.*/)(?:{'|'.join(ends.split())})$")


def _name_pattern(functions: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(functions.split())})$")


_WAITS = msgspec.toml.decode(Path(__file__).with_name("waits.toml").read_bytes(), type=_Waits)
KINDS, CAUSES, DETAILS = _WAITS.kinds, _WAITS.causes, _WAITS.details
# Kinds of calls in which a thread computes, and kinds in which it waits for work.
COMPUTING = tuple(name for name, kind in KINDS.items() if kind.state == "computes")
IDLE = tuple(name for name, kind in KINDS.items() if kind.state == "idle")
WITHIN_PROCESS = tuple(name for name, kind in KINDS.items() if "thread" in kind.ended_by)
"""Waits that another thread of the same process can end."""
KIND_OF_SYSCALL = {name: kind for kind, names in _WAITS.syscalls.items() for name in names}
KIND_OF_SOURCE_CALL = {name: kind for kind, names in _WAITS.source_calls.items() for name in names}
_PACKAGES = "|".join((*TOP_LEVEL_PACKAGES, *_WAITS.libraries.split()))
LIBRARY = re.compile("|".join((rf"^(?:{_PACKAGES})/", *_WAITS.library_files.split())))
"""Pattern for the paths of files outside user code."""
FILE_CHANNELS = re.compile("|".join(_WAITS.file_channels.split()))
"""Pattern for kernel functions in which a thread waits for a file system."""
PATTERNS = {name: _path_pattern(ends) for name, ends in _WAITS.ends.items()}
"""Patterns for paths, program names or frames ("path:function"), by their names in the table `ends`."""
CALLERS = {kind: _path_pattern(ends) for kind, ends in _WAITS.callers.items()}
"""Patterns for the outer frames ("path:function") that show what a wait for an event or lock is, by that kind."""
_CALLS = [(kind, _path_pattern(ends), _name_pattern(names)) for kind, ends, names in _WAITS.calls]
_IDLE_FRAMES = [(_path_pattern(ends), _name_pattern(names)) for ends, names in _WAITS.idle_frames]


@lru_cache(maxsize=4096)
def kinds_of_frame(path: str, function: str) -> tuple[str, ...]:
    """Return the kinds of waits that a frame may show, in the order of `waits.toml`.

    >>> kinds_of_frame("/usr/lib/python3.12/queue.py", "get")
    ('queue',)
    """
    return tuple(kind for kind, ends, names in _CALLS if names.match(function) and ends.match(path))


@lru_cache(maxsize=4096)
def is_idle_frame(path: str, function: str) -> bool:
    """Return whether this frame, as the first outside of library internals, shows an idle thread."""
    return any(names.match(function) and ends.match(path) for ends, names in _IDLE_FRAMES)
