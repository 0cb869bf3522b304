"""A checkpoint, computed with here: what the engine's numbers are held against.

`exact` rounds the weights to the engine's type and computes in more digits; `native` computes in the type itself.
The difference of the two is the floor: what an engine of that type may be off by and still be right.
Of an adapter the base is rounded, and so are the adapter's own matrices; `exact` adds their product in more digits, as
an engine does that keeps both apart, `native` merges it before.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

from diagnostics.audit import folders
from diagnostics.audit.errors import AuditError
from diagnostics.audit.live import adapters, cutting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

DTYPES = ("float32", "bfloat16", "float16")
# Above so many weights twice the digits take too long, and single ones are exact enough; parts are looked for of the
# nearest checkpoint alone, since each takes a forward for every group.
_LARGE = 60_000_000
# Ids of a large one that go through it at once: their logits take a gigabyte.
_TOGETHER = 640


class Reference:
    """The weights of a folder.

    Attributes:
        folder: Where they are.
        name: The folder's own name.
        step: The number at its end; -1 of the base; None of another name.
        config: Its config.json, or its base's.
        weights: The folder of its whole weights: of an adapter that of its base.
    """

    def __init__(self, folder: Path) -> None:
        """Reads config.json alone.

        Raises:
            AuditError: It is no folder of weights.
        """
        self.folder, self.name = folder, folder.name
        self.step = step_of(folder)
        self._adapter = adapters.Adapter(folder) if adapters.is_one(folder) else None
        self.weights = self._adapter.base if self._adapter else folder
        self.config = folders.config(self.weights)
        self._state: dict[str, Any] | None = None
        self._kept: dict[tuple[str, bool], Any] = {}
        self._read: Any = None
        self._base: Any = None
        self._times = 1.0

    @property
    def large(self) -> bool:
        """Whether a forward takes long."""
        return bool(sum(each.numel() for each in self._loaded().parameters()) > _LARGE)

    @property
    def has_adapter(self) -> bool:
        """Whether it is an adapter beside its base."""
        return self._adapter is not None

    @property
    def vocabulary(self) -> int:
        """How many ids it gives logits for."""
        inner = self.config.get("text_config", {})
        return int(self.config.get("vocab_size") or inner.get("vocab_size") or 0)

    @property
    def dtype(self) -> str:
        """The type its weights are kept in, as its config says."""
        told = str(self.config.get("dtype") or self.config.get("torch_dtype") or "float32")
        return told if told in DTYPES else "float32"

    @property
    def state(self) -> dict[str, Any]:
        """Its tensors by name, as they are on disk."""
        return self._loaded().state_dict() if self._state is None else self._state

    def release(self) -> None:
        """Gives back the memory that its models take; what is asked later is read again."""
        self._kept = {}
        if self._state is None:
            self._read = self._base = None

    def rows(self, sequences: Iterable[Sequence[int]], dtype: str, *, native: bool = False) -> Iterator[Any]:
        """Of each sequence a row of logits for each id: what it predicts behind it.

        Args:
            sequences: Ids; of a large one those that are as long as the one before go through together, since a short
                one alone takes as long as a long one.
            dtype: The engine's type, to which the weights are rounded.
            native: Whether it also computes in that type.
        """
        import torch

        model = self._model(dtype, native)
        for length, alike in itertools.groupby(map(list, sequences), len):
            given = list(alike)
            most = max(1, _TOGETHER // length) if self.large else 1
            for first in range(0, len(given), most):
                with torch.inference_mode():
                    batch = torch.tensor(given[first : first + most])
                    told = model(input_ids=batch, use_cache=False).logits
                yield from told

    def scores(self, sequences: Iterable[Sequence[int]], dtype: str, *, native: bool = False) -> Any:
        """The log-prob of each id but the first of each sequence, one after the other."""
        import torch

        held, parts = list(sequences), []
        for ids, logits in zip(held, self.rows(held, dtype, native=native), strict=True):
            rows = logits[:-1].double()
            told = rows.gather(1, torch.tensor([list(ids[1:])]).T)[:, 0]
            parts.append(told - rows.logsumexp(-1))
        return torch.cat(parts)

    def mixed(self, other: Reference, of_other: Callable[[str], bool]) -> Reference:
        """This with some tensors of another; both must have the same ones."""
        made = Reference(self.folder)
        made.name, made._read = f"{self.name}+{other.name}", self._loaded()
        made._state = {
            name: other.state[name] if of_other(name) else tensor for name, tensor in self.state.items()
        }
        return made

    def scaled(self, times: float) -> Reference:
        """This with its adapter added so many times."""
        made = Reference(self.folder)
        self._loaded()
        made.name, made._base, made._times = f"the adapter {times:.2f} times", self._base, times
        return made

    def fits(self, other: Reference) -> bool:
        """Whether both have the same tensors."""
        mine, theirs = self.state, other.state
        return mine.keys() == theirs.keys() and all(mine[name].shape == theirs[name].shape for name in mine)

    def _model(self, dtype: str, native: bool) -> Any:
        if (dtype, native) in self._kept:
            return self._kept[dtype, native]
        import torch

        kind = getattr(torch, cutting.ROUNDED if dtype == cutting.CUT else dtype)
        apart = self._adapter is not None and not native and self._state is None
        whole = self._loaded()
        model = copy.deepcopy(self._base if apart else whole)
        if self._state is not None:
            model.load_state_dict(self._state)
        model = rounded(model, kind)
        if not native:
            model = model.to(torch.float32 if self.large else torch.float64)
        if apart:
            self._add(model, kind)
        if dtype == cutting.CUT:
            cutting.fit(model)
        self._kept = {**self._kept, (dtype, native): model.eval()}
        return model

    def _loaded(self) -> Any:
        """The model as it is on disk, read once."""
        if self._read is None:
            self._base = self._base or self._from_disk()
            self._read = self._base if self._adapter is None else self._add(copy.deepcopy(self._base), None)
        return self._read

    def _add(self, model: Any, kind: Any) -> Any:
        """Adds the adapter, rounded to a type, to a model of its base."""
        import torch

        tensors = dict(model.named_parameters())
        for name, (second, first, scale) in (self._adapter.added() if self._adapter else {}).items():
            if name not in tensors:
                raise AuditError(f"{self.folder}: its base has no {name}")
            whole = tensors[name]
            left, right = (one.to(kind or one.dtype).to(whole.dtype) for one in (second, first))
            with torch.no_grad():
                whole += self._times * scale * (left @ right)
        return model

    def _from_disk(self) -> Any:
        return folders.model(self.weights)


def rounded(model: Any, kind: Any) -> Any:
    """A model with its weights in a type; what is none, as the frequencies of positions, an engine keeps in 32 bits."""
    kept = [(module, dict(module.named_buffers(recurse=False))) for module in model.modules()]
    model = model.to(kind)
    for module, buffers in kept:
        for name, value in buffers.items():
            setattr(module, name, value)
    return model


def step_of(folder: Path) -> int | None:
    """The number at the end of a folder's name; -1 of the base; None where there is none.

    >>> from pathlib import Path
    >>> step_of(Path("checkpoint-40")), step_of(Path("base")), step_of(Path("policy"))
    (40, -1, None)
    """
    number = folder.name.rpartition("-")[2]
    if number.isascii() and number.isdigit():
        return int(number)
    return -1 if folder.name == "base" else None


def siblings(checkpoint: Path, most: int = 4) -> list[Path]:
    """Other checkpoints beside one, the nearest first; a folder `base` is one, too."""

    def step(path: Path) -> int:
        number = step_of(path)
        return -1 if number is None else number

    here = step(checkpoint)
    found = [
        path
        for path in checkpoint.resolve().parent.iterdir()
        if path.is_dir()
        and path.resolve() != checkpoint.resolve()
        and ((path / "config.json").exists() or adapters.is_one(path))
        and (step(path) >= 0 or path.name == "base")
    ]
    found = sorted(found, key=lambda path: (abs(step(path) - here), path.name))[:most]
    # Of an adapter the base is one, too: what an engine holds that has no adapter.
    return [*found, adapters.Adapter(checkpoint).base] if adapters.is_one(checkpoint) else found
