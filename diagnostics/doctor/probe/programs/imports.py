"""Import a module and report its release; for PyTorch and vLLM, also report the platform that they detect.

PyTorch also runs a kernel on each GPU.

The argument is `module`, or `module:name` to also read a name from it. A module `*._C` is an extension of PyTorch, so
PyTorch is imported first. `probe` fills in the answer.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import doctor_child  # type: ignore[import-not-found] # beside this file when run


def torch_platform() -> dict[str, Any]:
    """Return the CUDA that PyTorch was built with, and its number of devices; run a kernel on each of them.

    Raises:
        RuntimeError: A device computes a wrong result.
    """
    import torch

    platform: dict[str, Any] = {
        "cuda": torch.version.cuda or "",
        "available": torch.cuda.is_available(),
        "devices": torch.cuda.device_count(),
    }
    if platform["available"]:
        # A device that is counted may still refuse work.
        for index in range(platform["devices"]):
            value = (torch.ones(8, device=f"cuda:{index}") * 2).sum().item()
            if value != 16:
                raise RuntimeError(f"cuda:{index} computes 8 * 2 = {value}")
    return platform


def vllm_platform() -> dict[str, Any]:
    """Return the platform that vLLM chose."""
    from vllm.platforms import current_platform

    name = type(current_platform).__name__
    return {"platform": name, "device": str(getattr(current_platform, "device_type", "") or "")}


PLATFORMS = {"torch": torch_platform, "vllm:LLM": vllm_platform}


def probe(answer: dict[str, Any]) -> None:
    """Fill in `version` and the platform; `step` remains only if querying the platform fails."""
    module, _, name = sys.argv[1].partition(":")
    if module.endswith("._C"):
        importlib.import_module("torch")
    imported = importlib.import_module(module)
    if query := PLATFORMS.get(sys.argv[1]):
        answer["step"] = "querying its platform"
        doctor_child.write_answer(answer)
        answer |= query()
        del answer["step"]
        doctor_child.write_answer(answer)
    if name:
        getattr(imported, name)  # lazy packages import here
    version = getattr(imported, "__version__", None)
    answer["version"] = version if isinstance(version, str) else ""


if __name__ == "__main__":
    doctor_child.run(probe)
