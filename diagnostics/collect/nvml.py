"""Asks NVIDIA's management library about the GPUs and prints one JSON document. Run as a program of its own.

The library is called directly, so nothing has to be installed; a driver that hangs, hangs this process alone.
Names and numbers are those of NVML's `nvml.h` (12.x). CUDA is not started: no memory of a GPU is taken.
"""

from __future__ import annotations

import ctypes
import json
import sys

# `typing` itself is a fifth of what this program takes where there is no driver.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96
_MISMATCH = 18
_ERRORS = {
    1: "uninitialized", 3: "not supported", 4: "no permission", 9: "driver not loaded", 12: "function not found",
    15: "the GPU has fallen off the bus", 16: "the GPU needs a reset", 17: "the operating system blocks the GPU",
    _MISMATCH: "the driver's library and the kernel's module are of different releases", 999: "unknown error",
}  # fmt: skip
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


class NvmlError(Exception):
    """Raised when a call of the library answers with an error."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def look() -> dict[str, Any]:
    """What the library says: a state, the driver, and each device."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return {"state": "none", "problem": f"{LIBRARY} cannot be loaded: {error}"}
    try:
        _call(library, "nvmlInit_v2")
        seen = {"state": "ok", "problem": "", "driver": _text(library, "nvmlSystemGetDriverVersion")}
        release = ctypes.c_int()
        _call(library, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(release))
        seen["cuda"] = f"{release.value // 1000}.{release.value % 1000 // 10}"
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return {**seen, "devices": [_device(library, index) for index in range(count.value)]}
    except NvmlError as error:
        return {"state": "failed", "problem": str(error)}


def _call(library: Any, name: str, *arguments: Any) -> None:
    try:
        code = getattr(library, name)(*arguments)
    except AttributeError:
        raise NvmlError(f"{name}: not in this {LIBRARY}") from None
    if code:
        raise NvmlError(f"{name}: {_ERRORS.get(code, f'error {code}')}")


def _text(library: Any, name: str, *first: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    _call(library, name, *first, buffer, _TEXT)
    return buffer.value.decode("utf-8", "replace")


def _device(library: Any, index: int) -> dict[str, Any]:
    """One device; what it does not tell is None."""
    handle = ctypes.c_void_p()
    try:
        _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    except NvmlError as error:
        return {"index": index, "name": "", "problem": str(error)}
    memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
    seen: dict[str, Any] = {"index": index, "name": _maybe(library, "nvmlDeviceGetName", handle)}
    seen["uuid"] = _maybe(library, "nvmlDeviceGetUUID", handle)
    try:
        _call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        seen["capability"] = f"{major.value}.{minor.value}"
        _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        seen |= {"memory_gb": round(memory.total / 1e9, 1), "used_gb": round(memory.used / 1e9, 1)}
    except NvmlError as error:
        # A GPU that shares the machine's memory has none of its own to tell of; some may not be asked.
        seen |= {} if str(error).endswith((_ERRORS[3], _ERRORS[4])) else {"problem": str(error)}
    mode = _number(library, "nvmlDeviceGetComputeMode", handle)
    mig = _pair(library, "nvmlDeviceGetMigMode", handle)
    pending = _number(library, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    return {
        **seen,
        "compute_mode": _COMPUTE_MODES.get(mode, "") if mode is not None else "",
        "mig": bool(mig[0]) if mig else None,
        "ecc_uncorrected": _ecc(library, handle),
        "rows_pending": bool(pending) if pending is not None else _rows_pending(library, handle),
    }


def _maybe(library: Any, name: str, handle: Any) -> str:
    try:
        return _text(library, name, handle)
    except NvmlError:
        return ""


def _number(library: Any, name: str, handle: Any) -> int | None:
    value = ctypes.c_uint()
    try:
        _call(library, name, handle, ctypes.byref(value))
    except NvmlError:
        return None
    return value.value


def _pair(library: Any, name: str, handle: Any) -> tuple[int, int] | None:
    one, other = ctypes.c_uint(), ctypes.c_uint()
    try:
        _call(library, name, handle, ctypes.byref(one), ctypes.byref(other))
    except NvmlError:
        return None
    return one.value, other.value


def _ecc(library: Any, handle: Any) -> int | None:
    """Uncorrected errors since the driver was loaded (nvmlMemoryErrorType 1, nvmlEccCounterType 0)."""
    value = ctypes.c_ulonglong()
    try:
        _call(library, "nvmlDeviceGetTotalEccErrors", handle, 1, 0, ctypes.byref(value))
    except NvmlError:
        return None
    return value.value


def _rows_pending(library: Any, handle: Any) -> bool | None:
    """Whether memory rows wait to be remapped, or could not be."""
    values = [ctypes.c_uint() for _ in range(4)]
    try:
        _call(library, "nvmlDeviceGetRemappedRows", handle, *(ctypes.byref(value) for value in values))
    except NvmlError:
        return None
    return bool(values[2].value or values[3].value)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look()))
