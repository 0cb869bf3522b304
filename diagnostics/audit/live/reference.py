"""Compute a checkpoint's logits and log-probs with PyTorch, to compare an engine's log-probs with them.

`Reference` is a checkpoint: a model, or a LoRA adapter (`Adapter`) on its base. It can be mixed with another one, and
its adapter can be scaled. `sibling_checkpoints` finds those next to it.

Log-probs are computed in two ways. "Exact" rounds the weights to the engine's dtype and computes in float64 (float32
for large models). "Native" computes in the engine's dtype. The mean difference of both is the floor: the rounding error
of a correct engine of that dtype. For "exact" the rounded adapter is added to the rounded base, and the sum is not
rounded: an engine that applies the adapter at run time computes the same. For "native" the sum is rounded. The tensors
of a mix are merged before, and rounded in both ways.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.checkpoint_validation import is_file
from diagnostics.audit.results import AuditError
from diagnostics.output.redact import mask, name_below, truncate

Sequences = Sequence[Sequence[int]]
DTYPES = ("float32", "bfloat16", "float16")
# With more weights than this, float64 takes too long, and float32 is exact enough.
_LARGE = 60_000_000
# Number of ids in one forward pass, and of their logits.
_BATCH_IDS, _BATCH_LOGITS = 640, 1 << 27
_ADAPTER, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _LORA_A, _LORA_B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_MERGE = "is not supported: merge the adapter and give the merged checkpoint"
_UNSUPPORTED = ("use_dora", "fan_in_fan_out", "use_bdlora", "use_qalora", "lora_bias", "alpha_pattern")


class Adapter:
    """A LoRA adapter in peft's format, read without peft: for each tensor two low-rank matrices and a scale."""

    def __init__(self, folder: Path) -> None:
        """Read the settings only.

        Raises:
            AuditError: The settings are unreadable, the base model is missing, or the kind is not supported.
        """
        self.folder, path = folder, folder / _ADAPTER
        settings = checkpoint_validation.read_json_object(path)
        unsupported = [name for name in _UNSUPPORTED if settings.get(name)]
        if settings.get("peft_type") != "LORA" or unsupported:
            raise AuditError(f"{path}: {', '.join(unsupported) or settings.get('peft_type')} {_MERGE}")
        self._alpha = float(settings.get("lora_alpha") or 1.0)
        self._has_root_scale = bool(settings.get("use_rslora"))
        self.base = Path(str(settings.get("base_model_name_or_path") or ""))
        if not is_file(self.base / "config.json"):
            base = f"base_model_name_or_path = {truncate(mask(str(self.base)), 200)!r}"
            raise AuditError(f"{path}: {base}: expected a folder of weights")

    def products(self) -> dict[str, tuple[Any, Any, float]]:
        """Return, by the base tensor's name, the matrices B and A and the scale of their product.

        Raises:
            AuditError: The tensors are unreadable or of another kind.
        """
        from safetensors.torch import load_file

        path = self.folder / _ADAPTER_WEIGHTS
        checkpoint_validation.check_files(self.folder)
        try:
            tensors = load_file(path)
        except Exception as error:
            raise AuditError(f"{path}: {checkpoint_validation.one_line_message(error)}") from error
        products = {}
        for name in (name for name in tensors if not name.endswith(_LORA_B)):
            module = name.removeprefix(_PREFIX).removesuffix(_LORA_A)
            second = tensors.get(f"{_PREFIX}{module}{_LORA_B}")
            if not name.endswith(_LORA_A) or second is None:
                raise AuditError(f"{path}: {name} {_MERGE}")
            first = tensors[name]
            if first.ndim != 2 or second.ndim != 2 or not len(first) or second.shape[1] != len(first):
                raise AuditError(f"{path}: {name} has shape {[*first.shape]}, and its B {[*second.shape]}")
            rank = len(first)
            scale = self._alpha / (math.sqrt(rank) if self._has_root_scale else rank)
            products[f"{module}.weight"] = (second, first, scale)
        return products


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter and no complete weights."""
    return is_file(folder / _ADAPTER) and not is_file(folder / "config.json")


class Reference:
    """The weights in a checkpoint folder; the model is loaded when it is first needed, and stays until `release`.

    Attributes:
        folder: The folder.
        name: Name of the folder, or a description of changed weights.
        step: Training step in the folder's name (40 for checkpoint-40); -1 for a folder named `base`; None for other
            names.
        config: The settings in config.json of the model, for an adapter of its base model.
        weights_folder: Folder of the complete weights; for an adapter, the folder of its base model.
    """

    def __init__(self, folder: Path) -> None:
        """Read the settings only: config.json, and of an adapter adapter_config.json.

        Raises:
            AuditError: The folder has no usable weights.
        """
        self.folder, self.name = folder, name_below(folder, folder.parent)
        self.step = step_of(folder)
        self._adapter = Adapter(folder) if is_adapter(folder) else None
        self.weights_folder = self._adapter.base if self._adapter else folder
        self.config = checkpoint_validation.read_config(self.weights_folder)
        self._state: dict[str, Any] | None = None
        self._models: dict[tuple[str, bool], Any] = {}
        self._scores: dict[tuple[Any, ...], Any] = {}
        self._merged: Any = None
        self._base: Any = None
        self._adapter_factor = 1.0

    @property
    def is_large(self) -> bool:
        """Whether the model, which is loaded to count its parameters, is so large that a forward pass takes long."""
        return bool(sum(parameter.numel() for parameter in self._load().parameters()) > _LARGE)

    @property
    def has_adapter(self) -> bool:
        """Whether the weights are an adapter on a base model."""
        return self._adapter is not None

    @property
    def vocabulary(self) -> int:
        """The number of ids that the model has logits for; 0 if unknown."""
        text_config = self.config.get("text_config") or {}
        return int(self.config.get("vocab_size") or text_config.get("vocab_size") or 0)

    @property
    def stop_ids(self) -> set[int]:
        """The end-of-sequence ids in generation_config.json and config.json."""
        path = self.weights_folder / "generation_config.json"
        generation = checkpoint_validation.read_json_object(path) if is_file(path) else {}
        values = [self.config.get("eos_token_id"), generation.get("eos_token_id")]
        return {token for value in values for token in ([value] if isinstance(value, int) else value or [])}

    @property
    def dtype(self) -> str:
        """The dtype of the stored weights in config.json; float32 if it is missing or unknown."""
        dtype = str(self.config.get("dtype") or self.config.get("torch_dtype") or "float32")
        return dtype if dtype in DTYPES else "float32"

    @property
    def state(self) -> dict[str, Any]:
        """The tensors by name: as on disk, with the adapter merged, or as `mix` has replaced them."""
        return self._load().state_dict() if self._state is None else self._state

    def release(self) -> None:
        """Free the loaded models; they are read again when needed. A mix keeps its tensors."""
        self._models = {}
        if self._state is None:
            self._merged = self._base = None

    def logits(self, sequences: Sequences, dtype: str, *, native: bool = False) -> Iterator[Any]:
        """Yield the logits of each sequence, one row per id; adjacent sequences of equal length are batched."""
        import torch

        model = self._model(dtype, native)
        for length, group in itertools.groupby(map(list, sequences), len):
            count = min(_BATCH_IDS, _BATCH_LOGITS // max(self.vocabulary, 1))
            batch, size = list(group), max(1, count // length)
            for first in range(0, len(batch), size):
                ids = torch.tensor(batch[first : first + size])
                with torch.inference_mode(), self._memory_limit("computing its logits"):
                    logits = model(input_ids=ids, use_cache=False).logits
                yield from logits

    def scores(self, sequences: Sequences, dtype: str, *, native: bool = False) -> Any:
        """Return the log-probs of all ids after the first of each sequence, concatenated; results are cached."""
        import torch

        keys = [(dtype, native, *ids) for ids in sequences]
        missing = [ids for key, ids in zip(keys, sequences, strict=True) if key not in self._scores]
        computed = self.logits(missing, dtype, native=native) if missing else ()
        for ids, logits in zip(missing, computed, strict=True):
            rows = logits[:-1].double()
            chosen = rows.gather(1, torch.tensor([list(ids[1:])]).T)[:, 0]
            self._scores[dtype, native, *ids] = chosen - rows.logsumexp(-1)
        return torch.cat([self._scores[key] for key in keys])

    def mix(self, other: Reference, from_other: Callable[[str], bool]) -> Reference:
        """Return these weights with those tensors from another checkpoint for whose name `from_other` is true.

        Adapters are merged before.
        """
        mixed = Reference(self.folder)
        mixed.name, mixed._merged = f"{self.name}+{other.name}", self._load()
        mixed._state = self.state | {name: tensor for name, tensor in other.state.items() if from_other(name)}
        return mixed

    def scale_adapter(self, factor: float) -> Reference:
        """Return these weights with the adapter multiplied by a factor."""
        scaled = Reference(self.folder)
        self._load()
        scaled.name, scaled._base = f"the adapter {factor:.2f} times", self._base
        scaled._adapter_factor = factor
        return scaled

    def has_same_tensors(self, other: Reference) -> bool:
        """Return whether another checkpoint has tensors of the same names and shapes."""
        return self._shapes == other._shapes

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.state.items()}

    def _model(self, dtype: str, native: bool) -> Any:
        """Return the model rounded to a dtype; unless `native`, it computes in float64 (float32 for large models)."""
        if (dtype, native) in self._models:
            return self._models[dtype, native]
        import torch

        torch_dtype = getattr(torch, dtype)
        is_separate = self._adapter is not None and not native and self._state is None
        merged = self._load()
        model = _copy_model(self._base if is_separate else merged)
        if self._state is not None:
            model.load_state_dict(self._state)
        model = round_weights(model, torch_dtype)
        if not native:
            model = model.to(torch.float32 if self.is_large else torch.float64)
        if is_separate:
            self._add_adapter(model, torch_dtype)
        self._models[dtype, native] = model.eval()
        return model

    def _load(self) -> Any:
        """Return the model as on disk, with its adapter merged; the files are read once until `release`."""
        if self._merged is None:
            self._base = self._merged = self._base or checkpoint_validation.load_model(self.weights_folder)
            if self._adapter is not None:
                self._merged = self._add_adapter(_copy_model(self._base), None)
        return self._merged

    def _memory_limit(self, what: str) -> contextlib.AbstractContextManager[None]:
        size = checkpoint_validation.model_bytes(self.weights_folder)
        return checkpoint_validation.memory_limit(f"{self.folder}: {what}", size)

    def _add_adapter(self, model: Any, dtype: Any) -> Any:
        """Add the adapter, rounded to `dtype` (None: as stored), to a model of its base, in place."""
        import torch

        tensors = dict(model.named_parameters())
        for name, (left, right, scale) in (self._adapter.products() if self._adapter else {}).items():
            if name not in tensors:
                raise AuditError(f"{self.folder}: its base has no {name}")
            target = tensors[name]
            if target.shape != (len(left), right.shape[1]):
                raise AuditError(f"{self.folder}: its product for {name} has another shape than the base's")
            factors = (matrix.to(dtype or matrix.dtype).to(target.dtype) for matrix in (left, right))
            with torch.no_grad(), self._memory_limit("merging its adapter"):
                target += self._adapter_factor * scale * torch.matmul(*factors)
        return model


def _copy_model(model: Any) -> Any:
    """Copy a model with its weights; both share configs and empty tables, whose copies take most of the time."""
    shared = [value for module in model.modules() for value in vars(module).values() if value in ({}, set())]
    return copy.deepcopy(model, {id(one): one for one in (model.config, model.generation_config, *shared)})


def round_weights(model: Any, dtype: Any) -> Any:
    """Convert the parameters to a dtype; buffers such as rotary frequencies stay in float32, as in engines."""
    buffers = [(module, dict(module.named_buffers(recurse=False))) for module in model.modules()]
    model = model.to(dtype)
    for module, tensors in buffers:
        for name, value in tensors.items():
            setattr(module, name, value)
    return model


def step_of(folder: Path) -> int | None:
    """Return the number after the last dash of a folder's name, or its whole name; -1 for `base`, None for other names.

    >>> step_of(Path("checkpoint-40")), step_of(Path("base")), step_of(Path("policy"))
    (40, -1, None)
    """
    number = folder.name.rpartition("-")[2]
    if number.isascii() and number.isdigit():
        return int(number)
    return -1 if folder.name == "base" else None


def sibling_checkpoints(checkpoint: Path) -> list[Path]:
    """Return at most four checkpoints next to a checkpoint, the nearest step first; then the base of an adapter.

    Their folders are named by step, or `base`, which counts as step -1. A checkpoint without a step counts as -1, too.
    """
    own_step = step_of(checkpoint)
    siblings = []
    for path in checkpoint.resolve().parent.iterdir():
        step = step_of(path)
        has_weights = is_file(path / "config.json") or is_adapter(path)
        if step is not None and has_weights and path.resolve() != checkpoint.resolve():
            siblings.append((abs(step - (-1 if own_step is None else own_step)), path))
    nearest = [path for _, path in sorted(siblings)[:4]]
    # An engine without its adapter has the weights of the base model.
    return [*nearest, Adapter(checkpoint).base] if is_adapter(checkpoint) else nearest
