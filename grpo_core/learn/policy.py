"""The policy that is trained: a causal language model of transformers, and what settings add to it."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from grpo_core.config import ConfigError
from grpo_core.learn.batch import make_batch
from grpo_core.learn.logprobs import chunked_logprobs, completion_logprobs
from grpo_core.machine.resources import torch_device
from grpo_core.machine.world import World
from grpo_core.rollout.weights.digest import fingerprint_of
from grpo_core.tasks import model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grpo_core.config import Config, ModelConfig
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
            from grpo_core.learn.policy import spread

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
        from grpo_core.learn.policy import gradients_kept

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


def inject(causal: Any, options: ModelConfig, seed: int) -> list[Any]:
    """Puts low-rank adapters into the model and freezes the rest; returns the layers that have one."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            f"model.lora_rank = {options.lora_rank}: needs peft in this environment ({error}); pip install peft"
        ) from error
    targets = options.lora_targets
    wanted = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        target_modules=targets[0] if targets == ("all-linear",) else list(targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(wanted, causal)
        except ValueError as error:
            raise ConfigError(f"model.lora_targets = {list(targets)}: {error}") from error
    return adapter_layers(causal)


def adapter_layers(causal: Any) -> list[Any]:
    """The layers of a model that have adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [layer for layer in causal.modules() if isinstance(layer, BaseTunerLayer)]


@torch.no_grad()  # type: ignore[untyped-decorator]
def merged(causal: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters with the adapters added to them, by the names that they have without."""
    layers = dict(causal.named_modules())
    for name, value in causal.named_parameters():
        if ".lora_" in name:
            continue
        layer, base, rest = name.rpartition(".base_layer.")
        if not base:
            yield name, value
        else:
            added = layers[layer].get_delta_weight("default") if rest == "weight" else 0
            yield f"{layer}.{rest}", value + added


class LoweredCopy:
    """A copy of a trained module in the compute type, whose gradients go to the trained weights.

    Attributes:
        module: The copy.
        lost: Share of the last update that the compute type could not tell from nothing; None before the first.
    """

    def __init__(self, trained: Any, options: ModelConfig) -> None:
        """Copies and converts the module."""
        self.lost: float | None = None
        self._type = getattr(torch, options.dtype)
        self.module = copy.deepcopy(trained)
        _lowered(self.module, self._type, options.float32_parts)
        masters = dict(trained.named_parameters(remove_duplicate=False))
        # A trained weight and its copy; a tied embedding has two copies where the output layer stays in float32.
        pairs = [(masters[name], value) for name, value in self.module.named_parameters()]
        self._pairs = [pair for pair in pairs if pair[0].requires_grad]
        self._scale, self._seen = options.loss_scale, self._changes()

    def connect(self) -> None:
        """From now on gradients go to the trained weights; not before the copy itself is copied."""
        for trained, value in self._pairs:
            value.register_post_accumulate_grad_hook(_adds_to(trained))

    def scaled(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Log-probs whose gradient is scaled up, where float16 would take a small one for zero."""
        if self._type == torch.float16 and torch.is_grad_enabled():
            return _Scaled.apply(logprobs, self._scale)
        return logprobs

    def refresh(self) -> None:
        """Takes the weights over if they were written to: a checkpoint, or an older version, was put back."""
        if self._seen != self._changes():
            self.take_over()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def take_over(self, *, updated: bool = False) -> None:
        """Gives the copy the weights as they are now; right after an update, whose gradients stand, counts losses."""
        lost = moved = 0
        for trained, value in self._pairs:
            rounded = trained.detach().to(value.dtype)
            if updated and trained.grad is not None and value.dtype != torch.float32:
                stirred = trained.grad != 0
                moved += int(stirred.sum())
                lost += int((stirred & (rounded == value)).sum())
            value.copy_(rounded)
        self.lost, self._seen = lost / moved if moved else self.lost, self._changes()

    def unscale(self) -> None:
        """Divides the gradients by what float16's were multiplied by."""
        if self._type != torch.float16:
            return
        for trained in {id(trained): trained for trained, _ in self._pairs}.values():
            if trained.grad is not None:
                trained.grad.div_(self._scale)

    def _changes(self) -> list[int]:
        """How often each trained weight was written to."""
        return [trained._version for trained, _ in self._pairs]  # noqa: SLF001 - PyTorch's own count has no other name


class _Scaled(torch.autograd.Function):  # type: ignore[misc]
    """The same values; the gradient comes out times a number: float16 takes small ones for zero."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return upstream * ctx.scale, None


def in_float32(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, ids_N: torch.Tensor, **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output layer in float32, whatever the hidden states are."""
    return chunked_logprobs(hidden_NH.float(), weight_VH, ids_N, **how)


def _lowered(scorer: Any, kind: torch.dtype, kept: tuple[str, ...]) -> None:
    """Converts a model but for the parts that are to stay in float32, whose results are rounded behind them."""
    head = scorer.causal.get_output_embeddings()
    if "head" in kept and head.weight is scorer.causal.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(
            head.weight.detach().clone()
        )  # tied: the embedding is in the compute type
    scorer.to(kind)
    if "head" in kept:
        head.float()
        scorer.head = in_float32
    if "norms" in kept:
        for name, module in scorer.causal.named_modules():
            if "norm" in name.rpartition(".")[2]:
                module.float()
                module.register_forward_hook(lambda _, __, out: out.to(kind))


def _adds_to(trained: torch.Tensor) -> Any:
    """Moves a gradient of the copy onto the trained weight's, in float32."""

    def add(value: torch.Tensor) -> None:
        assert value.grad is not None
        grad, value.grad = value.grad.float(), None
        trained.grad = grad if trained.grad is None else trained.grad.add_(grad)

    return add


def spread(scorer: Any, sharding: str) -> Any:
    """What to train in place of the module: PyTorch's own data parallel wrapper, or the module itself under FSDP2."""
    if sharding != "fsdp2":
        return nn.parallel.DistributedDataParallel(scorer, broadcast_buffers=False)
    for layer in scorer.causal.base_model.layers:  # put together only while it computes
        fully_shard(layer)
    fully_shard(scorer)
    return scorer


@contextmanager
def gradients_kept(training: Any, *, last: bool) -> Iterator[None]:
    """Leaves gradients in each process until the `last` micro-batch of an update, which adds them up."""
    if isinstance(training, nn.parallel.DistributedDataParallel):
        if not last:
            with training.no_sync():
                yield
            return
    else:
        training.set_requires_gradient_sync(last)
    yield


def own_share(tensor: torch.Tensor, parameter: Any) -> torch.Tensor:
    """This process's part of a whole tensor, as that parameter is sharded."""
    # No source rank: every process has read the whole tensor, so nothing needs to be sent.
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
