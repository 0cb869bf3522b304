"""Repros of failures in vLLM's own checks that need no engine."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from repro.drivers import calls

GIB = 1 << 30


@calls.repro(
    "MEM004",
    needs=("vllm",),
    modules=("vllm.v1.worker.utils",),
    trigger="half_free",
    failure=("ValueError", "raise ValueError(", "request_memory"),
    says="on startup is less than desired",
    changes={"stray": "79 GiB are free", "smaller_share": "gpu_memory_utilization=0.4"},
    simulated=("the device: its figures are told",),
)
def mem004_half_free(mitigation: str | None) -> None:
    """Less of the device is free than the engine's share of it: vLLM's own check at its start."""
    from vllm.v1.worker.utils import request_memory

    device = SimpleNamespace(
        total_memory=80 * GIB, free_memory=(79 if mitigation == "stray" else 40) * GIB, device_="cuda:0"
    )
    share = 0.4 if mitigation == "smaller_share" else 0.9
    request_memory(device, SimpleNamespace(gpu_memory_utilization=share))


def check(available: int, needed: int) -> None:
    """Run vLLM's check of the free KV cache memory against one request of the longest length."""
    from vllm.v1.core import kv_cache_utils

    compare = kv_cache_utils._check_enough_kv_cache_memory  # noqa: SLF001 - the check itself
    compare(available, lambda: needed, 32768, lambda _: 1024)


@calls.repro(
    "MEM005",
    needs=("vllm",),
    modules=("vllm.v1.core.kv_cache_utils",),
    trigger="nothing_left",
    failure=("ValueError", "raise ValueError(", "_check_enough_kv_cache_memory"),
    says="No available memory for the cache blocks",
    changes={"larger_share": "4 GiB are left"},
    untried={"shard": "needs GPUs", "offload": "needs a GPU"},
    simulated=("the device: how much is left of it is told",),
)
def mem005_nothing_left(mitigation: str | None) -> None:
    """Weights and profile run leave no memory for the KV cache: vLLM's own check."""
    check(4 * GIB if mitigation == "larger_share" else 0, GIB)


@calls.repro(
    "MEM006",
    needs=("vllm",),
    modules=("vllm.v1.core.kv_cache_utils",),
    trigger="sixteen_in_four",
    failure=("ValueError", "raise ValueError(", "_check_enough_kv_cache_memory"),
    says="To serve at least one request",
    changes={"shorter": "a length that needs 1 GiB"},
    simulated=("the device: what is left of it, and what the length needs, is told",),
)
def mem006_sixteen_in_four(mitigation: str | None) -> None:
    """One request of the longest length needs more KV cache than is free: vLLM's own check."""
    check(4 * GIB, GIB if mitigation == "shorter" else 16 * GIB)


@calls.repro(
    "SYN013",
    needs=("vllm",),
    modules=("vllm.distributed.weight_transfer.nccl_engine",),
    trigger="unknown_key",
    failure=("ValueError", "raise ValueError(", "parse_update_info"),
    says="Invalid update_info",
    changes={"match": "the keys that this release knows"},
    simulated=(
        "the trainer of another release: an update of ours",
        "the engine: its constructor is not called",
    ),
)
def syn013_unknown_key(mitigation: str | None) -> None:
    """VLLM's weight-transfer engine reads an update with a key of another release."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    update: dict[str, Any] = {"names": ["a"], "dtype_names": ["float32"], "shapes": [[1]]}
    if mitigation != "match":
        update["no_such_key"] = 1
    # Reading an update needs nothing of the engine, and its construction needs NCCL.
    engine = NCCLWeightTransferEngine.__new__(NCCLWeightTransferEngine)
    engine.parse_update_info(update)


def _double(value: int) -> int:
    return 2 * value


@calls.repro(
    "SYN021",
    needs=("vllm",),
    modules=("vllm.v1.serial_utils",),
    trigger="function",
    failure=("TypeError", "raise TypeError(", "enc_hook"),
    says="VLLM_ALLOW_INSECURE_SERIALIZATION",
    changes={"allow": "VLLM_ALLOW_INSECURE_SERIALIZATION=1", "by_name": "a method's name"},
)
def syn021_function(mitigation: str | None) -> None:
    """VLLM's encoder is given a function, and pickle is not allowed."""
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1" if mitigation == "allow" else "0"
    from vllm.v1.serial_utils import MsgpackEncoder

    MsgpackEncoder().encode(["double" if mitigation == "by_name" else _double])
