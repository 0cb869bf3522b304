"""The policy that is trained, however it is held: whole, as adapters, or in shares of several processes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grpo_core.learn.logprobs import completion_logprobs
from grpo_core.rollout.weights.digest import fingerprint_of
from grpo_core.tasks import model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from grpo_core.config import Config
    from grpo_core.learn.batch import Batch
    from grpo_core.learn.reference import ReferencePolicy
    from grpo_core.machine.distributed import World


class _Scorer(nn.Module):  # type: ignore[misc]
    """Log-probs as a module's forward pass: what PyTorch's data parallel wrappers hook into."""

    def __init__(self, causal: Any, chunk: int) -> None:
        super().__init__()
        self.causal, self._chunk = causal, chunk

    def forward(
        self, ids_BL: torch.Tensor, prompts_B: torch.Tensor, lengths_B: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return completion_logprobs(
            self.causal, ids_BL, prompts_B, lengths_B, temperature=temperature, chunk=self._chunk
        )


class Policy:
    """A causal language model, its reference, and what crosses to engines and checkpoints.

    Attributes:
        causal: The transformers model.
        device: Where it lives.
        module: What holds the parameters, for the optimizer and for checkpoints.
        reference: The model before training, where the KL to it counts.
    """

    def __init__(self, model_dir: str, config: Config, world: World) -> None:
        """Loads the model and puts adapters, recomputation and sharding on it, as configured.

        Raises:
            ConfigError: The model can't be loaded or does not fit the settings.
        """
        self._world, self.device = world, _device(config.train.device, world)
        self.causal = model.load_model(model_dir, self.device)
        adapters: list[Any] = []
        if config.model.lora_rank:
            from grpo_core.learn.adapters import inject

            adapters = inject(self.causal, config.model, config.train.seed)
        self.module = _Scorer(self.causal, config.train.logprob_chunk)
        self.reference: ReferencePolicy | None = None
        if config.loss.kl_coefficient:
            from grpo_core.learn.reference import ReferencePolicy

            self.reference = ReferencePolicy(self.module, adapters)
        if config.model.gradient_checkpointing:
            from grpo_core.learn.memory import recompute_activations

            recompute_activations(self.causal)
        self._training: Any = self.module
        if world.size > 1 and config.train.sharding == "fsdp2":
            from grpo_core.learn.memory import shard

            shard(self.module)
        elif world.size > 1:
            self._training = nn.parallel.DistributedDataParallel(self.module, broadcast_buffers=False)

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that the optimizer moves."""
        return [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]

    def logprobs(self, rows: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies [B, T] of completions; with a gradient where gradients are enabled."""
        scorer = self._training if torch.is_grad_enabled() else self.module
        logprobs, entropies = scorer(rows.ids_BL, rows.prompt_lengths_B, rows.lengths_B, temperature)
        return logprobs, entropies

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What an engine is given: whole, merged parameters by transformers' own names."""
        layers = dict(self.causal.named_modules())
        for name, value in self.causal.named_parameters():
            if ".lora_" in name:
                continue
            merged = whole(value)
            if ".base_layer." in name:
                layer_name, _, rest = name.rpartition(".base_layer.")
                if rest == "weight":
                    merged = merged + layers[layer_name].get_delta_weight("default")
                name = f"{layer_name}.{rest}"  # noqa: PLW2901
            yield name, merged

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self.causal.config.get_text_config().vocab_size)

    def fingerprint(self) -> str:
        """The digest of what an engine is given."""
        return fingerprint_of(self.tensors())

    def state(self) -> dict[str, torch.Tensor]:
        """The trained parameters, whole, by name: enough to go on."""
        return {name: whole(value.detach()).cpu().contiguous() for name, value in self.trained()}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes over what `state` gave.

        Raises:
            KeyError: The names are not this policy's.
            ValueError: A shape is not.
        """
        odd = sorted(set(state) ^ {name for name, _ in self.trained()})
        if odd:
            raise KeyError(f"{odd[0]} is on one side alone")
        for name, value in self.trained():
            if state[name].shape != value.shape:  # copying would broadcast it
                raise ValueError(f"{name} is {tuple(state[name].shape)}, not {tuple(value.shape)}")
            value.copy_(share_of(state[name], value))

    @contextmanager
    def gradients_kept(self, *, last: bool) -> Iterator[None]:
        """Leaves gradients in each process until the `last` micro-batch of an update, which adds them up."""
        training = self._training
        if isinstance(training, nn.parallel.DistributedDataParallel) and not last:
            with training.no_sync():
                yield
            return
        if training is self.module and hasattr(training, "set_requires_gradient_sync"):
            training.set_requires_gradient_sync(last)
        yield


def _device(wanted: str, world: World) -> str:
    """Under torchrun, `cuda` is one GPU each."""
    return f"cuda:{world.rank % torch.cuda.device_count()}" if wanted == "cuda" and world.size > 1 else wanted


def whole(value: torch.Tensor) -> torch.Tensor:
    """A sharded parameter, put together; any other as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def share_of(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What of a whole tensor belongs to this process, if the parameter is sharded; else the tensor, where that is."""
    tensor = tensor.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # No source rank: every process has read the whole tensor, so nothing needs to be sent.
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
