"""The policy that is trained: a causal language model of transformers, and what settings add to it."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grpo_core.config import ConfigError
from grpo_core.learn.adapters import adapter_layers, inject, merged
from grpo_core.learn.batch import make_batch
from grpo_core.learn.logprobs import chunked_logprobs, completion_logprobs
from grpo_core.learn.precision import LoweredCopy
from grpo_core.machine.resources import torch_device
from grpo_core.machine.world import World
from grpo_core.rollout.weights.digest import fingerprint_of
from grpo_core.tasks import model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grpo_core.config import Config
    from grpo_core.learn.batch import Batch


class _Scorer(nn.Module):  # type: ignore[misc]
    """Log-probs as a module's forward pass: what PyTorch's data parallel wrappers hook into."""

    def __init__(self, causal: Any, chunk: int, known: int) -> None:
        super().__init__()
        self.causal, self._chunk, self._known, self.head = causal, chunk, known, chunked_logprobs

    def forward(
        self, ids_BL: torch.Tensor, prompts_B: torch.Tensor, lengths_B: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        how: dict[str, Any] = {
            "temperature": temperature,
            "chunk": self._chunk,
            "head": self.head,
            "known": self._known,
        }
        return completion_logprobs(self.causal, ids_BL, prompts_B, lengths_B, **how)


class Policy:
    """A causal language model, and what crosses to engines and checkpoints.

    Attributes:
        causal: The transformers model.
        device: Where it lives.
        module: What holds the parameters, for the optimizer and for checkpoints.
        reference: The model before training, where the KL to it counts.
        lowered: The copy that computes, where the compute type is not float32.
        vocabulary: How many token ids can be sampled: those that model and tokenizer both have.
    """

    make_batch = staticmethod(make_batch)

    def __init__(self, model_dir: str, config: Config, world: World | None = None) -> None:
        """Loads the model and puts adapters, recomputation, a lower type and sharding on it, as configured.

        Raises:
            ConfigError: The model can't be loaded or does not fit the settings.
        """
        world = world or World()
        self.device = torch_device(config.train.device)
        if self.device == "cuda" and world.size > 1:  # under torchrun, one GPU each
            self.device = f"cuda:{world.rank % torch.cuda.device_count()}"
        self.causal = model.load_model(model_dir, self.device)
        self.vocabulary = model.known_ids(model_dir, int(self.causal.config.get_text_config().vocab_size))
        self._adapters = (
            inject(self.causal, config.model, config.train.seed) if config.model.lora_rank else []
        )
        self.module = _Scorer(self.causal, config.train.logprob_chunk, self.vocabulary)
        self._sent = getattr(torch, config.engine_dtype)
        self.lowered = self._lowered_copy(config, world)
        self._computing = self.lowered.module if self.lowered else self.module
        self.reference = self._reference_policy() if config.loss.kl_coefficient else None
        if config.model.gradient_checkpointing:
            recompute_activations(self._computing.causal)
        if self.lowered:
            self.lowered.connect()
        self._training: Any = None
        if world.size > 1:
            from grpo_core.learn.parallel import spread

            self._training = spread(self.module, config.train.sharding)

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that the optimizer moves."""
        return [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]

    def logprobs(self, rows: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies [B, T] of completions, in float32; with a gradient where gradients are enabled."""
        if self.lowered:
            self.lowered.refresh()
            logprobs, entropies = rows.scored(self.lowered.module, temperature)
            return self.lowered.scaled(logprobs), entropies
        training = self._training is not None and torch.is_grad_enabled()
        return rows.scored(self._training if training else self.module, temperature)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What an engine is given: whole, merged parameters by transformers' own names, in the engine's type."""
        values = merged(self.causal) if self._adapters else self.causal.named_parameters()
        for name, value in values:
            yield name, whole(value).to(self._sent)

    def fingerprint(self) -> str:
        """The digest of what an engine is given."""
        return fingerprint_of(self.tensors())

    def state(self) -> dict[str, torch.Tensor]:
        """The trained parameters, whole, by name: enough to go on."""
        return {name: whole(value.detach()).cpu().contiguous() for name, value in self.trained()}

    def gradients_kept(self, *, last: bool) -> AbstractContextManager[None]:
        """Leaves gradients in each process until the `last` micro-batch of an update, which adds them up."""
        if self._training is None:
            return nullcontext()
        from grpo_core.learn.parallel import gradients_kept

        return gradients_kept(self._training, last=last)

    def _lowered_copy(self, config: Config, world: World) -> LoweredCopy | None:
        if config.model.dtype == "float32":
            return None
        if world.size > 1:
            raise ConfigError(
                f"model.dtype = {config.model.dtype!r}: several processes train in float32 only"
            )
        return LoweredCopy(self.module, config.model)

    def _reference_policy(self) -> ReferencePolicy:
        return ReferencePolicy(
            self._computing, adapter_layers(self._computing.causal) if self._adapters else []
        )


class ReferencePolicy:
    """The model before training."""

    def __init__(self, scorer: Any, adapters: Sequence[Any]) -> None:
        """Copies it; but with adapters, the model without them is the model before training."""
        self._adapters = adapters
        self._scorer = scorer if adapters else copy.deepcopy(scorer).requires_grad_(False)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def logprobs(self, rows: Batch, temperature: float) -> torch.Tensor:
        """Log-probs [B, T] of completions."""
        with ExitStack() as stack:
            for layer in self._adapters:
                layer.enable_adapters(enabled=False)
                stack.callback(layer.enable_adapters, enabled=True)
            return rows.scored(self._scorer, temperature)[0]


def recompute_activations(causal: Any) -> None:
    """Transformers recomputes in training mode alone; dropout, which that would wake up, is set to zero."""
    for layer in causal.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if hasattr(layer, "attention_dropout"):
            layer.attention_dropout = 0.0
    if hasattr(causal, "activation_checkpointing_enable"):  # its name since transformers 5.23
        causal.activation_checkpointing_enable({"use_reentrant": False})
    else:
        causal.gradient_checkpointing_enable({"use_reentrant": False})
    causal.train()


def whole(value: torch.Tensor) -> torch.Tensor:
    """A sharded parameter, put together; any other as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
