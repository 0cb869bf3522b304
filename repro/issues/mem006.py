"""MEM006: one request of the longest length needs more than is left for the KV cache: vLLM's own check."""

from __future__ import annotations

from repro.drivers import calls
from repro.issues import mem005


def _check(mitigation: str | None) -> None:
    mem005.check(4 * mem005.GIB, mem005.GIB if mitigation == "shorter" else 16 * mem005.GIB)


REPRO = calls.repro(
    "MEM006",
    "One request of the longest length does not fit in the KV cache",
    needs=("vllm",),
    modules=("vllm.v1.core.kv_cache_utils",),
    trigger=(
        "sixteen_in_four",
        "vLLM's check of the KV cache, told that 4 GiB are left of the 16 that are needed",
    ),
    call=_check,
    failure=("ValueError", "raise ValueError(", "_check_enough_kv_cache_memory"),
    says="To serve at least one request",
    helps={"shorter": "a length that needs 1 GiB"},
    simulated=("the device: what is left of it, and what the length needs, is told",),
)
