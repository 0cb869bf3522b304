"""Read the NVIDIA driver and its GPUs from `nvidia-smi -q -x`, /proc and /dev, without creating a CUDA context.

`nvidia-smi` runs as a child process with a time limit; only the system's folders are searched for it. GPUs of other
makers are not read. `collect` returns a `Gpus`; `parse_report` parses the output of `nvidia-smi`.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree as ET

from diagnostics import process
from diagnostics.output.redact import truncate
from diagnostics.safe_io import read_kernel_file

LIMIT_S = 10.0
# Only folders of the system, because no program of the examined environment may be run.
_FOLDERS = (
    "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/usr/local/nvidia/bin:/usr/lib/wsl/lib:/run/current-system/sw/bin"
)
_MAX_XML = 16 << 20


@dataclass(frozen=True)
class Gpu:
    """One GPU; a value that the driver does not report is None or empty.

    Attributes:
        memory_gb: Memory in GB of 1e9 bytes.
        used_gb: Memory in use, in GB of 1e9 bytes.
        capability: CUDA compute capability; always empty, because `nvidia-smi -q` does not report it.
        compute_mode: `default`, `exclusive_process`, `exclusive_thread` or `prohibited`.
        ecc_uncorrected: Uncorrectable memory errors since the driver was loaded.
        rows_pending: Whether broken memory waits for a reset to be replaced, or could not be replaced.
        problem: Why the driver's report on this GPU cannot be used; empty if it can.
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
    """All GPUs, or the reason why none are listed.

    Attributes:
        state: `ok`; `none` (nvidia-smi is not installed); `failed` (it cannot be run, ends with an error, or gives no
            usable answer); `timeout`; `unknown` (not queried).
        problem: The reason if the state is not `ok`.
        driver: Driver release, such as "570.86.15".
        cuda: The newest CUDA that this driver supports, such as "12.8".
        module: Release of the loaded kernel module; empty if none is loaded.
        nodes: Device files, such as "/dev/nvidia0".
    """

    state: str = "unknown"
    problem: str = ""
    driver: str = ""
    cuda: str = ""
    devices: tuple[Gpu, ...] = ()
    module: str = ""
    nodes: tuple[str, ...] = ()


def collect(limit_s: float = LIMIT_S, program: str | None = None) -> Gpus:
    """Query the driver by `nvidia-smi`, or by `program`; a crash or a hang is reported in `state`."""
    nodes = tuple(sorted(str(path) for path in Path("/dev").glob("nvidia*[0-9l]")))
    return replace(_query_driver(limit_s, program), module=_kernel_module(), nodes=nodes)


def _query_driver(limit_s: float, program: str | None) -> Gpus:
    """Run nvidia-smi and parse its report; without a report, return the state and the problem."""
    program = program or shutil.which("nvidia-smi", path=_FOLDERS)
    if program is None:
        return Gpus("none", "nvidia-smi is not installed")
    try:
        done = process.run([program, "-q", "-x"], timeout_s=limit_s, max_output=_MAX_XML)
    except OSError as error:
        return Gpus("failed", f"nvidia-smi cannot be started: {error.strerror or error}")
    if done.timed_out:
        return Gpus("timeout", f"nvidia-smi did not answer within {limit_s:g} s")
    if done.code:
        lines = [line for line in (done.output + done.errors).splitlines() if line.strip()]
        reason = f": {truncate(lines[-1], 300)}" if lines else ""
        return Gpus("failed", f"nvidia-smi ended with {done.code}{reason}")
    try:
        return parse_report(done.output.encode())
    except (ET.ParseError, ValueError) as error:
        return Gpus("failed", f"nvidia-smi gave no usable answer: {error}")


def parse_report(xml: bytes) -> Gpus:
    """Parse the XML of `nvidia-smi -q -x`.

    Raises:
        ValueError: The document is no such report (ElementTree.ParseError if it is no XML).
    """
    # A report needs no entities, and entities could expand without end.
    if b"<!ENTITY" in xml:
        raise ValueError("it declares entities")
    log = ET.fromstring(xml)  # noqa: S314 - entities were refused above
    if log.tag != "nvidia_smi_log":
        raise ValueError(f"expected nvidia_smi_log, found {log.tag}")
    devices = tuple(_gpu(index, node) for index, node in enumerate(log.findall("gpu")))
    return Gpus("ok", "", _field_text(log, "driver_version"), _field_text(log, "cuda_version"), devices)


# Elements that count uncorrectable memory errors, and elements that report broken memory (`Gpu.rows_pending`).
_ERRORS = (
    "dram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable",
    "device_memory_uncorrectable",
)  # fmt: skip
_PENDING = (
    "remapped_rows/remapped_row_pending", "remapped_rows/remapped_row_failure", "retired_pages/pending_retirement",
)  # fmt: skip
_UNSUPPORTED = {"N/A", "[N/A]", "Not Supported", "Requested functionality has been deprecated"}


def _gpu(index: int, node: ET.Element) -> Gpu:
    """Return the GPU that an element of the report describes."""
    errors = [_number(node, f"ecc_errors/volatile/{name}") for name in _ERRORS]
    counted = [number for number in errors if number is not None]
    pending = list(filter(None, (_field_text(node, path) for path in _PENDING)))
    name, mig = _field_text(node, "product_name"), _field_text(node, "mig_mode/current_mig")
    broken = name.lower() in {"", "unknown error"}
    return Gpu(
        index,
        name,
        _field_text(node, "uuid"),
        memory_gb=_gigabytes(node, "fb_memory_usage/total"),
        used_gb=_gigabytes(node, "fb_memory_usage/used"),
        compute_mode=_field_text(node, "compute_mode").lower().replace(" ", "_"),
        mig=mig == "Enabled" if mig else None,
        ecc_uncorrected=sum(counted) if counted else None,
        rows_pending="Yes" in pending if pending else None,
        problem="the driver reports nothing about this GPU" if broken else "",
    )


def _field_text(node: ET.Element, path: str) -> str:
    """Return the text of an element; empty if it is missing or the GPU does not support the value."""
    value = truncate((node.findtext(path) or "").strip(), 200)
    return "" if value in _UNSUPPORTED else value


def _number(node: ET.Element, path: str) -> int | None:
    value = _field_text(node, path).partition(" ")[0]
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else None


def _gigabytes(node: ET.Element, path: str) -> float | None:
    mebibytes = _number(node, path)
    return None if mebibytes is None else round(mebibytes * 1048576 / 1e9, 1)


def _kernel_module() -> str:
    """Return the release of the loaded kernel module; empty if there is none."""
    words = read_kernel_file("/proc/driver/nvidia/version").partition("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")
