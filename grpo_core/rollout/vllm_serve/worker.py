"""Our half of a weight update inside `vllm serve`: imported by the server's worker, never by the trainer.

vLLM takes weight-transfer engines of others by name. Started with

    --worker-extension-cls grpo_core.rollout.vllm_serve.worker.WorkerExtension
    --weight-transfer-config '{"backend": "grpo_core"}'

and grpo_core importable, a server of one worker registers this one and serves it by its native endpoints. Written
against, and run with, vLLM 0.31.0 (vllm/distributed/weight_transfer/base.py and nccl_engine.py).
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
    """Naming it is how this module gets imported by a worker."""

    def grpo_core_backend(self) -> list[str]:
        """Answers `/collective_rpc` for the receiver, if that is the worker's weight-transfer engine."""
        engine = getattr(self, "weight_transfer_engine", None)
        return [BACKEND] if isinstance(engine, ReceivingEngine) else []


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """How a sender wants to send (see `grpo_core.rollout.weights.sync.Receiver.open`)."""

    timeout_s: float
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A sender's call: `sync_begin` or `sync_load`."""

    step: str
    arguments: dict[str, Any] = field(default_factory=dict)


class Loaded:
    """The model, as a receiver sees an engine."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device = model, device
        self.policy_version = -1

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Loads copies: layers keep what they are given until they are whole, the receiver's memory is its own."""
        self._model.load_weights((name, tensor.to(self._device, copy=True)) for name, tensor in tensors)
        self.policy_version = version


class ReceivingEngine(WeightTransferEngine):  # type: ignore[misc]
    """Has everything before it loads the first parameter, so that a torn transfer changes nothing."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _receiver: Receiver | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Sets a transport up, in place of an earlier one."""
        if self.parallel_config.world_size_across_dp != 1:
            raise EngineError("weights go to one worker; this server has several")
        if self._receiver is None:
            self._receiver = Receiver(timeout_s=init_info.timeout_s)
        self._receiver.open(init_info.arguments)

    def start_weight_update(self) -> None:
        """Makes the layers ready for weights as a checkpoint has them."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As vLLM's own, but waits for no accelerator: there may be none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Begins to receive, or waits for what comes and loads it."""
        if self._receiver is None:
            raise EngineError("init_weight_transfer_engine has not been called")
        if update_info.step == "sync_begin":
            self._receiver.begin(update_info.arguments)
        else:
            self._receiver.load(update_info.arguments, Loaded(self.model, self.device))  # type: ignore[arg-type]

    def finish_weight_update(self) -> None:
        """Has the layers put the weights where their kernels want them."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Frees what the transport holds."""
        if self._receiver is not None:
            self._receiver.close()


WeightTransferEngineFactory.register_engine(BACKEND, ReceivingEngine)
