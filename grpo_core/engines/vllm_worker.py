"""Our half of a weight update inside `vllm serve`: imported by the server's workers, never by the trainer.

vLLM takes weight-transfer engines of others by name. Started with

    --worker-extension-cls grpo_core.engines.vllm_worker.Extension
    --weight-transfer-config '{"backend": "grpo_core_gloo"}'

and grpo_core importable, a server registers this one and serves it by its native endpoints. Written against, and run
with, vLLM 0.31.0 (vllm/distributed/weight_transfer/base.py and nccl_engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from grpo_core.engines.vllm_transfer import BACKEND, broadcast, gloo_group
from grpo_core.weights import fingerprint_of


class Extension:
    """Adds nothing to a worker: naming it is how this module gets imported there."""


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the trainer waits for the group to be joined."""

    address: str
    port: int
    world_size: int
    timeout_s: float


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What will be broadcast, in this order, and the digest of all of it."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    digest: str


class GlooReceiver(WeightTransferEngine):  # type: ignore[misc]
    """Receives all parameters before it loads the first, so that a torn transfer changes nothing."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Joins the trainer, who is rank 0."""
        parallel, timeout = self.parallel_config, timedelta(seconds=init_info.timeout_s)
        rank = 1 + parallel.data_parallel_index * parallel.world_size + parallel.rank
        store = TCPStore(
            init_info.address, init_info.port, init_info.world_size, is_master=False, timeout=timeout
        )
        self._group = gloo_group(store, rank, init_info.world_size, timeout)

    def start_weight_update(self) -> None:
        """Makes the layers ready for weights as a checkpoint has them."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As vLLM's own, but waits for no accelerator: there may be none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Takes the broadcast, compares the digest, and loads."""
        received = []
        for name, kind, shape in zip(
            update_info.names, update_info.dtype_names, update_info.shapes, strict=True
        ):
            tensor = torch.empty(shape, dtype=getattr(torch, kind))
            broadcast(self._group, tensor)
            received.append((name, tensor))
        if (found := fingerprint_of(received)) != update_info.digest:
            raise ValueError(f"weights of digest {update_info.digest[:12]} were announced, {found[:12]} came")
        self.model.load_weights((name, tensor.to(self.device)) for name, tensor in received)

    def finish_weight_update(self) -> None:
        """Has the layers put the weights where their kernels want them."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leaves the group."""
        self._group = None


WeightTransferEngineFactory.register_engine(BACKEND, GlooReceiver)
