"""Find traces of Ray clusters on this machine: the last session, the file of `ray start`, running processes.

Ray is neither imported nor started. The layout is that of ray/_private/node.py and ray/_private/utils.py of 2.40 to
2.60. `collect` returns the traces, and `ray_folder` the folder of Ray's sessions.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnostics import safe_io
from diagnostics.collect.blocking_reads import UNANSWERED, list_pids, read_process_file
from diagnostics.collect.metadata_validation import is_package_version
from diagnostics.collect.search_path import working_folder
from diagnostics.output.redact import remember_host

_PORT = re.compile(r"--gcs_server_port=(\d+)")
_ADDRESS = re.compile(r"--gcs-address=(\S+)")


@dataclass(frozen=True)
class RayTraces:
    """Traces of Ray clusters in Ray's temporary folder and in this machine's running processes.

    Attributes:
        folder: The folder, such as "/tmp/ray".
        current: The address in `ray_current_cluster`, which a bare `ray.init()` joins; empty without the file.
        release: Release of Ray that made the latest session, if recorded.
        running: Addresses of clusters whose processes run on this machine, as "10.0.0.1:6379"; None if processes
            could not be listed, or if none is found and some did not answer.
        unanswered: Processes whose command line could not be read in time, at most 20.
    """

    folder: str
    current: str
    release: str
    running: tuple[str, ...] | None
    unanswered: tuple[int, ...] = ()


def collect(environ: Mapping[str, str]) -> tuple[RayTraces, ...]:
    """Return one RayTraces; empty if there is no temporary folder of Ray, even if clusters run."""
    folder = Path(working_folder(), ray_folder(environ))
    if not os.path.isdir(folder):  # noqa: PTH112 - False where the folder may not be entered
        return ()
    current, running = _read_file(folder, "ray_current_cluster").strip(), _running_clusters()
    for address in (current, *(running or ())):
        remember_host(address.rpartition(":")[0])
    return (RayTraces(str(folder), current, _release(folder), running, tuple(sorted(UNANSWERED)[:20])),)


def ray_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder in which Ray keeps its sessions (ray/_common/utils.py, get_default_ray_temp_dir)."""
    return Path(environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp") / "ray"  # noqa: S108 - Ray's own place


def _release(folder: Path) -> str:
    """Return the Ray release in the latest session's usage_stats.json; empty if unknown or no release."""
    try:
        document = safe_io.parse_json(_read_file(folder, "session_latest/usage_stats.json"))
    except ValueError:
        return ""
    release = document.get("ray_version") if isinstance(document, dict) else None
    return release if isinstance(release, str) and is_package_version("ray", release) else ""


def _running_clusters() -> tuple[str, ...] | None:
    """Return the addresses on the command lines of Ray's processes, also of other users; see `RayTraces.running`.

    A gcs_server's command line has only the port; the address is then 127.0.0.1:PORT.
    """
    pids = list_pids()
    results = set()
    for pid in pids:
        command = read_process_file(pid, "cmdline").replace("\0", " ")
        program = command.split(" ", 1)[0].rpartition("/")[2]
        if program == "raylet" and (address := _ADDRESS.search(command)):
            results.add(address[1])
        elif program == "gcs_server" and (port := _PORT.search(command)):
            results.add(f"127.0.0.1:{port[1]}")
    return tuple(sorted(results)) if results or (pids and not UNANSWERED) else None


def _read_file(folder: Path, name: str) -> str:
    """Read a file in Ray's folder; empty if it is unreadable or a link out of the folder, where all users may write."""
    try:
        return safe_io.read_text(folder / name, safe_io.CONFIG_LIMIT, inside=folder)
    except OSError:
        return ""
