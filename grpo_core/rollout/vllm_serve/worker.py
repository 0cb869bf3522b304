"""Our half of a weight update inside `vllm serve`: imported by the server's worker, never by the trainer.

vLLM loads weight-transfer engines of other packages by name. Started with

    --worker-extension-cls grpo_core.rollout.vllm_serve.worker.WorkerExtension
    --weight-transfer-config '{"backend": "grpo_core"}'

and grpo_core importable, a server of one worker registers this one and calls it by its native endpoints. Written for,
and tested with, vLLM 0.31.0 (vllm/distributed/weight_transfer/base.py and nccl_engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm_serve import BACKEND
from grpo_core.rollout.weights.sync import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class WorkerExtension:
    """Makes a worker import this module."""

    def grpo_core_backend(self) -> list[str]:
        """Answer `/collective_rpc` if our receiver is the worker's weight-transfer engine."""
        engine = getattr(self, "weight_transfer_engine", None)
        return [BACKEND] if isinstance(engine, ReceivingEngine) else []


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """The sender's memory (see `grpo_core.rollout.weights.sync.Receiver.open`)."""

    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A version in that memory (see `grpo_core.rollout.weights.sync.Receiver.load`)."""

    arguments: dict[str, Any] = field(default_factory=dict)


class ModelEngine:
    """The model with the part of the engine interface that a receiver calls."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device = model, device
        self.policy_version = -1

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load copies: layers keep their tensors until they are complete, the receiver reuses its memory."""
        self._model.load_weights((name, tensor.to(self._device, copy=True)) for name, tensor in tensors)
        self.policy_version = version


class ReceivingEngine(WeightTransferEngine):  # type: ignore[misc]
    """Receives everything before it loads the first parameter, so that an incomplete transfer changes nothing."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _receiver: Receiver | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Map the sender's memory, in place of an earlier one."""
        if self.parallel_config.world_size_across_dp != 1:
            raise EngineError("weights go to one worker; this server has several")
        self._receiver = Receiver()
        self._receiver.open(init_info.arguments)

    def start_weight_update(self) -> None:
        """Prepare the layers for weights in a checkpoint's layout."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive weights as vLLM does, but wait for no accelerator: there may be none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load the weights."""
        if self._receiver is None:
            raise EngineError("init_weight_transfer_engine has not been called")
        self._receiver.load(update_info.arguments, ModelEngine(self.model, self.device))  # type: ignore[arg-type]

    def finish_weight_update(self) -> None:
        """Convert the weights to the layout of the kernels."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Unmap the memory."""
        if self._receiver is not None:
            self._receiver.close()


WeightTransferEngineFactory.register_engine(BACKEND, ReceivingEngine)
