"""A vLLM platform plugin for SCH002: the CPU platform, which reports that it supports async output, as CUDA does.

Only vLLM imports it, in the process that `repro.issues.sch002` starts.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform


class Platform(CpuPlatform):  # type: ignore[misc]
    """The CPU platform, but with async output allowed and the caller's executor class."""

    @classmethod
    def is_async_output_supported(cls, _enforce_eager: bool | None) -> bool:
        """Return True, like vllm/platforms/cuda.py."""
        return True

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Keep the executor class, which the CPU platform would replace."""
        backend = vllm_config.parallel_config.distributed_executor_backend
        super().check_and_update_config(vllm_config)
        vllm_config.parallel_config.distributed_executor_backend = backend
