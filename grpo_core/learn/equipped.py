"""A policy with what settings add: adapters, a reference model, less memory, several processes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.learn.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from grpo_core.config import Config
    from grpo_core.learn.batch import Batch
    from grpo_core.machine.world import World


class EquippedPolicy(Policy):
    """Each part of it is imported where a setting asks for it."""

    def __init__(self, model_dir: str, config: Config, world: World) -> None:
        """Loads the model and puts adapters, recomputation and sharding on it, as configured.

        Raises:
            ConfigError: The model can't be loaded or does not fit the settings.
        """
        device = config.train.device
        if device == "cuda" and world.size > 1:  # under torchrun, one GPU each
            device = f"cuda:{world.rank % torch.cuda.device_count()}"
        super().__init__(model_dir, config, device)
        self._adapters: list[Any] = []
        if config.model.lora_rank:
            from grpo_core.learn.adapters import inject

            self._adapters = inject(self.causal, config.model, config.train.seed)
        self._work = self._computing(config, world)
        if config.loss.kl_coefficient:
            from grpo_core.learn.adapters import adapter_layers
            from grpo_core.learn.reference import ReferencePolicy

            layers = adapter_layers(self._work.causal) if self._adapters else []
            self.reference = ReferencePolicy(self._work, layers)
        if config.model.gradient_checkpointing:
            from grpo_core.learn.memory import recompute_activations

            recompute_activations(self._work.causal)
        self._training: Any = None
        if world.size > 1:
            from grpo_core.learn.parallel import spread

            self._training = spread(self.module, config.train.sharding)

    def _computing(self, config: Config, world: World) -> Any:  # noqa: ARG002 - for subclasses
        """The module that log-probs are computed by: the trained one itself."""
        return self.module

    def logprobs(self, rows: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies [B, T] of completions; with a gradient where gradients are enabled."""
        training = self._training is not None and torch.is_grad_enabled()
        return rows.scored(self._training if training else self.module, temperature)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What an engine is given: whole, merged parameters by transformers' own names."""
        if not self._adapters:
            yield from super().tensors()
            return
        from grpo_core.learn.adapters import merged

        yield from merged(self.causal)

    def gradients_kept(self, *, last: bool) -> AbstractContextManager[None]:
        """Leaves gradients in each process until the `last` micro-batch of an update, which adds them up."""
        if self._training is None:
            return nullcontext()
        from grpo_core.learn.parallel import gradients_kept

        return gradients_kept(self._training, last=last)
