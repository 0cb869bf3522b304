"""The GPUs as NVIDIA's management library tells them, asked in a child process with a time limit."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from diagnostics.collect.plain import FactsError, decode

LIMIT_S = 5.0
_PROGRAM = Path(__file__).with_name("nvml.py")


@dataclass(frozen=True)
class Gpu:
    """One device; what it did not tell is None or empty.

    Attributes:
        capability: CUDA compute capability, as "9.0".
        compute_mode: `default`, `exclusive_process`, `exclusive_thread` or `prohibited`.
        ecc_uncorrected: Memory errors that could not be corrected, since the driver was loaded.
        rows_pending: Whether broken memory waits to be replaced at the next reset, or could not be.
    """

    index: int
    name: str
    uuid: str = ""
    memory_gb: float | None = None
    used_gb: float | None = None
    capability: str = ""
    compute_mode: str = ""
    mig: bool | None = None
    ecc_uncorrected: int | None = None
    rows_pending: bool | None = None
    problem: str = ""


@dataclass(frozen=True)
class Gpus:
    """All devices, or why there are none.

    Attributes:
        state: `ok`; `none` (no NVIDIA driver, which is no failure); `failed` (the driver answers with an error);
            `timeout` (it does not answer); `unknown` (it was not asked).
        problem: Its words, where the state is not `ok`.
        driver: Release of the driver, as "570.86.15".
        cuda: The newest CUDA that this driver runs, as "12.8".
        module: Release of the kernel's module, where it is loaded.
        nodes: Device files, as "/dev/nvidia0".
    """

    state: str = "unknown"
    problem: str = ""
    driver: str = ""
    cuda: str = ""
    devices: tuple[Gpu, ...] = ()
    module: str = ""
    nodes: tuple[str, ...] = ()


def collect(limit_s: float = LIMIT_S, program: Path = _PROGRAM) -> Gpus:
    """Asks the driver; a driver that crashes or hangs the asking process is a fact, not a failure of ours."""
    found = {"module": _module(), "nodes": sorted(str(path) for path in Path("/dev").glob("nvidia*[0-9l]"))}
    try:
        return decode(Gpus, {**_ask(limit_s, program), **found}, "gpus")
    except FactsError as error:
        return Gpus(state="failed", problem=f"no usable answer: {error}")


def _ask(limit_s: float, program: Path) -> dict[str, object]:
    command = [sys.executable, "-I", "-S", str(program)]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"state": "timeout", "problem": f"the driver did not answer within {limit_s:g} s"}
    finally:
        _end(child)
    if child.returncode:
        return {"state": "failed", "problem": f"the process that asked it ended with {child.returncode}"}
    try:
        answer = json.loads(output)
    except ValueError:
        answer = None
    usable = isinstance(answer, dict)
    return answer if usable else {"state": "failed", "problem": "the process that asked it gave no answer"}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kills the child; one that the kernel holds in the driver cannot be waited for, and is left to it."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1.0)
    if child.stdout:
        child.stdout.close()


def _module() -> str:
    """Release of the loaded kernel module, empty where there is none."""
    try:
        line = (
            Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace").splitlines()[0]
        )
    except (OSError, IndexError):
        return ""
    return next((word for word in line.split() if word[:1].isdigit() and "." in word), "")
