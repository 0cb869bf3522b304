"""Query the device that PyTorch (`torch`) or vLLM (`vllm`), the argument, would run on."""

from __future__ import annotations

import sys
from typing import Any

import doctor_child  # type: ignore[import-not-found] # beside this file when run


def torch_platform() -> dict[str, Any]:
    """Return what PyTorch was built with, and the devices it can use."""
    import torch

    known: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda or "",
        "hip": torch.version.hip or "",
        "available": torch.cuda.is_available(),
        "devices": torch.cuda.device_count(),
        "distributed": torch.distributed.is_available(),
        "nccl": "",
    }
    if known["distributed"] and torch.distributed.is_nccl_available():
        release = torch.cuda.nccl.version()
        known["nccl"] = ".".join(map(str, release)) if isinstance(release, tuple) else str(release)
    if known["available"]:
        # A device can be counted and still refuse work: a kernel is run on each.
        for index in range(known["devices"]):
            value = (torch.ones(8, device=f"cuda:{index}") * 2).sum().item()
            if value != 16:
                raise RuntimeError(f"cuda:{index} computes 8 * 2 = {value}")
    return known


def vllm_platform() -> dict[str, Any]:
    """Return the platform that vLLM chose."""
    import vllm
    from vllm.platforms import current_platform

    name = type(current_platform).__name__
    device = str(getattr(current_platform, "device_type", "") or "")
    return {"version": str(vllm.__version__), "platform": name, "device": device}


def main() -> None:
    """Answer the platform with `ok`, or `error` and `where`."""
    doctor_child.begin()
    try:
        doctor_child.write_answer(
            {"ok": True, **{"torch": torch_platform, "vllm": vllm_platform}[sys.argv[1]]()}
        )
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        doctor_child.write_answer(doctor_child.failure(error))
    doctor_child.end_process()


if __name__ == "__main__":
    main()
