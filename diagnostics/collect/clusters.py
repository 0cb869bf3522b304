"""Ray clusters that left traces on this machine: session folders, the file of `ray start`, running processes.

The layout is that of ray/_private/node.py and ray/_private/utils.py of 2.40 to 2.60.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_SESSIONS = 500
_PORT = re.compile(r"--gcs_server_port=(\d+)")
_ADDRESS = re.compile(r"--gcs-address=(\S+)")


@dataclass(frozen=True)
class RayCluster:
    """What one temporary folder of Ray holds.

    Attributes:
        folder: As "/tmp/ray".
        sessions: Session folders in it; they are never removed by Ray.
        current: The address in `ray_current_cluster`, which a bare `ray.init()` joins; empty without the file.
        release: Release of Ray that made the latest session, where it wrote it down.
        running: Addresses of the clusters whose processes run on this machine, as "10.0.0.1:6379"; None where the
            processes could not be looked at.
    """

    folder: str
    sessions: int
    current: str
    release: str
    running: tuple[str, ...] | None


def collect(environ: Mapping[str, str]) -> tuple[RayCluster, ...]:
    """Looks where Ray would look."""
    place = folder(environ)
    try:
        names = [entry.name for entry in os.scandir(place)]
    except OSError:
        return ()
    sessions = sum(name.startswith("session_") and name != "session_latest" for name in names)
    return (
        RayCluster(
            folder=str(place),
            sessions=min(sessions, _MOST_SESSIONS),
            current=_text(place, "ray_current_cluster").strip(),
            release=_release(place),
            running=_running(),
        ),
    )


def folder(environ: Mapping[str, str]) -> Path:
    """Where Ray keeps its sessions (ray/_common/utils.py, get_default_ray_temp_dir)."""
    base = environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp"  # noqa: S108 - Ray's own place
    return Path(base) / "ray"


def _release(place: Path) -> str:
    try:
        told = given.parsed(_text(place, "session_latest/usage_stats.json")).get("ray_version", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return told if isinstance(told, str) else ""


def _running() -> tuple[str, ...] | None:
    """Addresses on the command lines of Ray's own processes, those of other users included where readable."""
    try:
        numbers = [name for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - names are enough
    except OSError:
        return None
    found = set()
    for number in numbers:
        try:
            command = (
                Path("/proc", number, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        program = command.split(" ", 1)[0].rpartition("/")[2]
        if program == "raylet" and (address := _ADDRESS.search(command)):
            found.add(address[1])
        elif program == "gcs_server" and (port := _PORT.search(command)):
            found.add(f"127.0.0.1:{port[1]}")
    return tuple(sorted(found))


def _text(place: Path, name: str) -> str:
    """A file in Ray's folder, which everybody on the machine may write to; no link leads out of it."""
    try:
        return given.text(place / name, given.WORD, inside=place)
    except OSError:
        return ""
