"""vLLM's CPU platform with CUDA's answer about async output.

Imported by vLLM alone, in the process of `repro.issues.sch002`.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform


class Platform(CpuPlatform):  # type: ignore[misc]
    """The CPU platform, but with async output allowed and the caller's executor class."""

    @classmethod
    def is_async_output_supported(cls, _enforce_eager: bool | None) -> bool:
        """Return the same answer as vllm/platforms/cuda.py."""
        return True

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Keep the executor class, for which the CPU platform puts its own."""
        backend = vllm_config.parallel_config.distributed_executor_backend
        super().check_and_update_config(vllm_config)
        vllm_config.parallel_config.distributed_executor_backend = backend
