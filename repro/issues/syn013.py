"""SYN013: vLLM's weight-transfer engine reads an update with a key of another release."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls


def _read(mitigation: str | None) -> None:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    update: dict[str, Any] = {"names": ["a"], "dtype_names": ["float32"], "shapes": [[1]]}
    if mitigation != "match":
        update["no_such_key"] = 1
    # Reading an update needs nothing of the engine, and its construction needs NCCL.
    engine = NCCLWeightTransferEngine.__new__(NCCLWeightTransferEngine)
    engine.parse_update_info(update)


REPRO = calls.repro(
    "SYN013",
    "A weight update that the server does not understand",
    needs=("vllm",),
    modules=("vllm.distributed.weight_transfer.nccl_engine",),
    trigger=(
        "unknown_key",
        "NCCLWeightTransferEngine.parse_update_info of an update with a key it does not know",
    ),
    call=_read,
    failure=("ValueError", "raise ValueError(", "parse_update_info"),
    says="Invalid update_info",
    helps={"match": "the keys that this release knows"},
    simulated=(
        "the trainer of another release: an update of ours",
        "the engine: its constructor is not called",
    ),
)
