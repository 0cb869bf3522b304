"""Check with uv whether what a plan installs can be had. Nothing of the examined environment is run or changed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from diagnostics import process
from diagnostics.collect.packages import Environment
from diagnostics.doctor.fix_plan.model import Plan, Step
from diagnostics.fixes import Advice, Install
from diagnostics.output.redact import mask_and_cut

LIMIT_S = 120.0
NOT_TRIED = (
    "Not checked: whether these versions can be installed together here. --resolve asks the package index."
)
RESOLVED = "Checked: it resolves for this Python and platform at the configured index, from wheels alone."
_NO_INDEX = (
    "error sending request", "Failed to fetch", "dns error", "offline", "network connectivity", "Could not connect",
)  # fmt: skip
# Variables a neutral uv may keep: where the user's index and cache are. Everything else could change what runs.
_KEPT = ("HOME", "LANG", "SSL_CERT_FILE", "UV_CACHE_DIR", "UV_FIND_LINKS", "UV_INDEX_URL", "UV_DEFAULT_INDEX",
         "UV_NO_INDEX", "UV_OFFLINE", "https_proxy", "http_proxy", "no_proxy", "HTTPS_PROXY", "HTTP_PROXY",
         "NO_PROXY")  # fmt: skip


def mark_unresolved(plan: Plan) -> Plan:
    """Note at every installation of a plan that it was not resolved."""
    steps = (
        replace(step, text=(*step.text, Advice(NOT_TRIED))) if _installs(step) else step
        for step in plan.steps
    )
    return replace(plan, steps=tuple(steps))


def resolve_plan(plan: Plan, environment: Environment) -> Plan:
    """Resolve every installation of a plan; what has no solution is reported and not proposed."""
    return replace(plan, steps=tuple(_resolve_step(step, environment) for step in plan.steps))


def _installs(step: Step) -> list[Install]:
    return [action for action in (*step.commands, *step.text) if isinstance(action, Install)]


def _resolve_step(step: Step, environment: Environment) -> Step:
    notes = []
    for action in _installs(step):
        solved, reason = resolve(action, environment)
        if solved:
            notes.append(RESOLVED)
        elif solved is None:
            notes.append(f"Not checked: {reason}")
        else:
            step = replace(
                step, commands=tuple(item for item in step.commands if item is not action),
                text=tuple(item for item in step.text if item is not action),
            )  # fmt: skip
            notes.append(f"Not proposed: {', '.join(action.requirements)} can't be installed here: {reason}")
    return replace(step, text=(*step.text, *map(Advice, dict.fromkeys(notes))))


def resolve(action: Install, environment: Environment) -> tuple[bool | None, str]:
    """Return whether an installation has a solution, and uv's message; None if it could not be checked.

    `uv pip compile` runs in an empty folder with an empty configuration. It gets the Python release and platform as
    values, so it starts no interpreter of the environment, and wheels alone, so it builds nothing.
    """
    uv = _find_uv()
    if uv is None:
        return None, "uv is not installed"
    release = re.match(r"3\.\d+(\.\d+)?", environment.python_release)
    if release is None:
        return None, "the environment's Python release is unknown"
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        required, config = Path(folder, "requirements.in"), Path(folder, "uv.toml")
        required.write_text("\n".join(action.requirements) + "\n")
        config.write_text("")
        command: list[str | os.PathLike[str]] = [
            uv, "pip", "compile", "--quiet", "--no-progress", "--config-file", config, "--only-binary", ":all:",
            "--python", sys.executable, "--python-version", release[0], "--python-platform", _platform(), "--no-header",
            "--output-file", Path(folder, "requirements.txt"), required,
        ]  # fmt: skip
        environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
        try:
            done = process.run(command, timeout_s=LIMIT_S, cwd=Path(folder), env=environ)
        except OSError as error:
            return None, f"uv cannot be started: {error.strerror or error}"
    if done.timed_out:
        return None, f"uv did not end within {LIMIT_S:g} s"
    return _outcome(done)


def _outcome(done: process.Completed) -> tuple[bool | None, str]:
    message = mask_and_cut(" ".join(done.errors.split()), 400)
    if done.code == 0:
        return True, ""
    if "No solution found" in message and not any(text in message for text in _NO_INDEX):
        return False, message
    return None, message or f"uv ended with {done.code}"


def _find_uv() -> str | None:
    """Return uv next to our own Python, or on the PATH; never one of the examined environment or a relative path."""
    adjacent = Path(sys.executable).with_name("uv")
    return str(adjacent) if adjacent.is_file() else shutil.which("uv")


def _platform() -> str:
    """Return this platform as uv names it."""
    machine = platform.machine().lower()
    arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)
    if sys.platform == "darwin":
        return f"{arch}-apple-darwin"
    libc = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else ""
    version = (libc or "").rpartition(" ")[2].split(".")
    return (
        f"{arch}-manylinux_2_{version[1]}"
        if len(version) > 1 and version[1].isdecimal()
        else f"{arch}-unknown-linux-gnu"
    )
