"""Define the trained policy: a causal language model with optional adapters, reference model and low-precision copy.

The trained weights are in float32. Gradient checkpointing is optional. `Policy` computes log-probs with gradients,
yields the weights for engines in the engine's dtype, and returns and loads the trained parameters. Several processes
use DistributedDataParallel, and no low-precision copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn

from grpo_core.config import Config, ConfigError, ModelConfig
from grpo_core.learn.batch import Batch
from grpo_core.learn.logprobs import completion_logprobs
from grpo_core.machine.world import World
from grpo_core.rollout.weights.digest import sha256_digest
from grpo_core.tasks import model


class _LogprobModule(nn.Module):  # type: ignore[misc]
    """Module whose forward pass returns log-probs and entropies, because data parallel wrappers hook `forward`."""

    def __init__(self, causal: Any, **options: Any) -> None:
        super().__init__()
        self.causal, self._options = causal, options

    def forward(self, rows: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute log-probs and entropies [B, T] of the rows' completions."""
        lengths = rows.prompt_lengths_B, rows.lengths_B
        return completion_logprobs(
            self.causal, rows.ids_BL, *lengths, temperature=temperature, **self._options
        )


class Policy:
    """A causal language model, with its exports to engines and checkpoints.

    Attributes:
        causal: The transformers model.
        device: Torch device of the model.
        module: Module with the parameters, for the optimizer and for checkpoints.
        reference: The model before training; None if the loss has no KL to it.
        low_precision_copy: The low-precision copy that computes; None if the compute dtype is float32.
        vocabulary: Number of token ids that can be sampled: those that model and tokenizer both have.
    """

    def __init__(self, model_dir: str, config: Config, world: World | None = None) -> None:
        """Load the model, and add adapters, a low-precision copy and a reference model as configured.

        Raises:
            ConfigError: The model can't be loaded or does not fit the settings.
        """
        world = world or World()
        self.device = config.train.device
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cuda" and world.size > 1:  # torchrun: one GPU for each process
            self.device = f"cuda:{world.rank % torch.cuda.device_count()}"
        low_precision = config.model.dtype != "float32"
        if low_precision and world.size > 1:
            raise ConfigError(
                f"model.dtype = {config.model.dtype!r}: several processes train in float32 only"
            )
        self.causal = model.load_model(model_dir, self.device)
        self.vocabulary = model.known_ids(model_dir, int(self.causal.config.get_text_config().vocab_size))
        self._adapters = bool(config.model.lora_rank)
        if self._adapters:
            inject_adapters(self.causal, config.model, config.train.seed)
        self.module = _LogprobModule(self.causal, chunk=config.train.logprob_chunk, known=self.vocabulary)
        self._engine_dtype = getattr(torch, config.engine_dtype)
        self.low_precision_copy = LowPrecisionCopy(self.module, config.model) if low_precision else None
        computing = self.low_precision_copy.module if self.low_precision_copy else self.module
        adapters = adapter_layers(computing.causal) if self._adapters else []
        self.reference = ReferencePolicy(computing, adapters) if config.loss.kl_coefficient else None
        if config.model.gradient_checkpointing:
            recompute_activations(computing.causal)
        if self.low_precision_copy:
            self.low_precision_copy.connect()
        self._parallel: Any = None
        if world.size > 1:
            self._parallel = nn.parallel.DistributedDataParallel(self.module, broadcast_buffers=False)

    def trained_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that the optimizer updates."""
        return [(name, value) for name, value in self.module.named_parameters() if value.requires_grad]

    def logprobs(self, rows: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute float32 log-probs (with a gradient where enabled) and entropies [B, T] of completions."""
        module = self.module
        if self.low_precision_copy:
            self.low_precision_copy.refresh()
            module = self.low_precision_copy.module
        elif self._parallel is not None and torch.is_grad_enabled():
            module = self._parallel
        logprobs, entropies = module(rows, temperature)
        return logprobs, entropies

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def engine_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the full parameters, adapters merged, by transformers' names, in the engine's dtype."""
        values = merged_parameters(self.causal) if self._adapters else self.causal.named_parameters()
        for name, value in values:
            yield name, value.to(self._engine_dtype)

    def fingerprint(self) -> str:
        """Compute the SHA-256 digest of `engine_tensors`."""
        return sha256_digest(self.engine_tensors())

    def state(self) -> dict[str, torch.Tensor]:
        """Return the trained parameters by name, on the CPU, for a checkpoint."""
        return {name: value.detach().cpu().contiguous() for name, value in self.trained_parameters()}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set the trained parameters.

        Raises:
            KeyError: The names differ from this policy's.
            ValueError: A shape differs.
        """
        different = sorted(set(state) ^ {name for name, _ in self.trained_parameters()})
        if different:
            raise KeyError(f"{different[0]} is on one side alone")
        for name, value in self.trained_parameters():
            if state[name].shape != value.shape:  # copying would broadcast it
                raise ValueError(f"{name} is {tuple(state[name].shape)}, not {tuple(value.shape)}")
            value.copy_(state[name])

    def gradients_local(self, *, last: bool) -> AbstractContextManager[None]:
        """Keep gradients local to each rank until the `last` micro-batch of an update, which averages them."""
        return nullcontext() if last or self._parallel is None else self._parallel.no_sync()


class ReferencePolicy:
    """The model before training, for the KL in the loss."""

    def __init__(self, module: Any, adapters: Sequence[Any]) -> None:
        """Copy the module. With adapters nothing is copied: the model without them is the model before training."""
        self._adapters = adapters
        self._module = module if adapters else copy.deepcopy(module).requires_grad_(False)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def logprobs(self, rows: Batch, temperature: float) -> torch.Tensor:
        """Compute log-probs [B, T] of completions."""
        with ExitStack() as stack:
            for layer in self._adapters:
                layer.enable_adapters(enabled=False)
                stack.callback(layer.enable_adapters, enabled=True)
            logprobs: torch.Tensor = self._module(rows, temperature)[0]
            return logprobs


def recompute_activations(causal: Any) -> None:
    """Turn on gradient checkpointing. Transformers recomputes in training mode only, so dropout is set to zero."""
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


class LowPrecisionCopy:
    """A low-precision copy of a trained module; its gradients are added to those of the float32 master weights.

    Attributes:
        module: The copy.
    """

    def __init__(self, trained: Any, options: ModelConfig) -> None:
        """Copy the module, and convert the copy to `options.dtype`."""
        self.module = copy.deepcopy(trained)
        _convert(self.module, getattr(torch, options.dtype), options.float32_parts)
        masters = dict(trained.named_parameters(remove_duplicate=False))
        # A trained weight and its copy; a tied embedding has two copies where the output layer stays in float32.
        pairs = [(masters[name], value) for name, value in self.module.named_parameters()]
        self._pairs = [pair for pair in pairs if pair[0].requires_grad]
        self._copied = self._versions()

    def connect(self) -> None:
        """Add hooks that send gradients to the master weights. Call it last: copies of `module` need no hooks."""
        for trained, value in self._pairs:
            value.register_post_accumulate_grad_hook(_gradient_hook(trained))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def refresh(self) -> None:
        """Copy the master weights, rounded, if an update or a checkpoint has changed them."""
        if self._copied != self._versions():
            for trained, value in self._pairs:
                value.copy_(trained)
            self._copied = self._versions()

    def _versions(self) -> list[int]:
        """Return how often each master weight was written to, as PyTorch counts."""
        return [trained._version for trained, _ in self._pairs]  # noqa: SLF001 - PyTorch's own count has no other name


def _convert(module: Any, dtype: torch.dtype, float32_parts: tuple[str, ...]) -> None:
    """Convert a module to a dtype, except for the parts that stay in float32.

    Norms in float32 round their output. A tied head that stays in float32 gets its own weight.
    """
    head = module.causal.get_output_embeddings()
    if "head" in float32_parts and head.weight is module.causal.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
    module.to(dtype)
    if "head" in float32_parts:
        head.float()
    if "norms" in float32_parts:
        for name, layer in module.causal.named_modules():
            if "norm" in name.rpartition(".")[2]:
                layer.float()
                layer.register_forward_hook(lambda _, __, out: out.to(dtype))


def _gradient_hook(trained: torch.Tensor) -> Any:
    """Return a hook that adds a gradient of the copy to its master weight's gradient, in float32."""

    def add(value: torch.Tensor) -> None:
        assert value.grad is not None
        grad, value.grad = value.grad.float(), None
        trained.grad = grad if trained.grad is None else trained.grad.add_(grad)

    return add


def inject_adapters(causal: Any, options: ModelConfig, seed: int) -> None:
    """Put low-rank adapters into the model and freeze the rest; ConfigError without peft or for wrong targets."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            f"model.lora_rank = {options.lora_rank}: needs peft in this environment ({error}); pip install peft"
        ) from error
    targets = options.lora_targets
    adapters = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=targets[0] if targets == ("all-linear",) else list(targets),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(adapters, causal)
        except ValueError as error:
            raise ConfigError(f"model.lora_targets = {list(targets)}: {error}") from error


def adapter_layers(causal: Any) -> list[Any]:
    """Return the layers of a model that have adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [layer for layer in causal.modules() if isinstance(layer, BaseTunerLayer)]


@torch.no_grad()  # type: ignore[untyped-decorator]
def merged_parameters(causal: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters with the adapters merged, by the names that they have without adapters."""
    layers = dict(causal.named_modules())
    for name, value in causal.named_parameters():
        if ".lora_" in name:
            continue
        layer, base, rest = name.rpartition(".base_layer.")
        if not base:
            yield name, value
        else:
            delta = layers[layer].get_delta_weight("default") if rest == "weight" else 0
            yield f"{layer}.{rest}", value + delta
