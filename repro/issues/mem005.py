"""MEM005: weights and trial run have left nothing for the KV cache: vLLM's own check of what is left."""

from __future__ import annotations

from repro.drivers import calls

GIB = 1 << 30


def check(available: int, needed: int) -> None:
    """Has vLLM compare what is left with what one request of the longest length needs."""
    from vllm.v1.core import kv_cache_utils

    compare = kv_cache_utils._check_enough_kv_cache_memory  # noqa: SLF001 - the check itself
    compare(available, lambda: needed, 32768, lambda _: 1024)


def _check(mitigation: str | None) -> None:
    check(4 * GIB if mitigation == "larger_share" else 0, GIB)


REPRO = calls.repro(
    "MEM005",
    "Nothing is left for the KV cache",
    needs=("vllm",),
    modules=("vllm.v1.core.kv_cache_utils",),
    trigger=("nothing_left", "vLLM's check of the KV cache, told that 0 bytes are left"),
    call=_check,
    failure=("ValueError", "raise ValueError(", "_check_enough_kv_cache_memory"),
    says="No available memory for the cache blocks",
    helps={"larger_share": "4 GiB are left"},
    untried={"shard": "needs GPUs", "offload": "needs a GPU"},
    simulated=("the device: how much is left of it is told",),
)
