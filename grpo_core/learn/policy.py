"""The policy that is trained: a causal language model of transformers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grpo_core.learn.batch import make_batch
from grpo_core.learn.logprobs import chunked_logprobs, completion_logprobs
from grpo_core.machine.resources import torch_device
from grpo_core.rollout.weights.digest import fingerprint_of
from grpo_core.tasks import model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpo_core.config import Config
    from grpo_core.learn.batch import Batch
    from grpo_core.learn.reference import ReferencePolicy
    from grpo_core.machine.world import World


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
    """A causal language model, and what crosses to engines and checkpoints; `equipped` has what settings add to it.

    Attributes:
        causal: The transformers model.
        device: Where it lives.
        module: What holds the parameters, for the optimizer and for checkpoints.
        reference: The model before training, where the KL to it counts.
        make_batch: What makes tensors of samples.
        vocabulary: How many token ids can be sampled: those that model and tokenizer both have.
    """

    reference: ReferencePolicy | None = None
    make_batch: Any = staticmethod(make_batch)

    def __init__(self, model_dir: str, config: Config, device: str = "") -> None:
        """Loads the model, onto the configured device if no other is given.

        Raises:
            ConfigError: The model can't be loaded.
        """
        self.device = torch_device(device or config.train.device)
        self.causal = model.load_model(model_dir, self.device)
        self.vocabulary = model.known_ids(model_dir, int(self.causal.config.get_text_config().vocab_size))
        self.module = _Scorer(self.causal, config.train.logprob_chunk, self.vocabulary)

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that the optimizer moves."""
        return [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]

    def logprobs(self, rows: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies [B, T] of completions; with a gradient where gradients are enabled."""
        return rows.scored(self.module, temperature)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What an engine is given: whole, merged parameters by transformers' own names."""
        for name, value in self.causal.named_parameters():
            yield name, whole(value)

    def fingerprint(self) -> str:
        """The digest of what an engine is given."""
        return fingerprint_of(self.tensors())

    def state(self) -> dict[str, torch.Tensor]:
        """The trained parameters, whole, by name: enough to go on."""
        return {name: whole(value.detach()).cpu().contiguous() for name, value in self.trained()}

    def gradients_kept(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002 - for many processes
        """Leaves gradients in each process until the `last` micro-batch of an update, which adds them up."""
        return nullcontext()


def is_plain(config: Config, world: World) -> bool:
    """Whether the model as it was loaded is all that these settings need."""
    more = config.model.lora_rank or config.model.gradient_checkpointing or config.loss.kl_coefficient
    return world.size == 1 and not (config.wide or more)


def whole(value: torch.Tensor) -> torch.Tensor:
    """A sharded parameter, put together; any other as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
