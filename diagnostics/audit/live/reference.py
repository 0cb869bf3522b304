"""A checkpoint, computed with here: what the engine's numbers are held against.

`exact` rounds the weights to the engine's type and computes in more digits; `native` computes in the type itself.
The difference of the two is the floor: what an engine of that type may be off by and still be right.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from diagnostics.audit.errors import AuditError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

DTYPES = ("float32", "bfloat16", "float16")
# Above so many weights twice the digits take too long, and single ones are exact enough.
_DOUBLE = 60_000_000


class Reference:
    """The weights of a folder.

    Attributes:
        folder: Where they are.
        name: The folder's own name.
        config: Its config.json.
    """

    def __init__(self, folder: Path) -> None:
        """Reads config.json alone.

        Raises:
            AuditError: It is no folder of weights.
        """
        self.folder, self.name = folder, folder.name
        try:
            self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise AuditError(
                f"{folder}: no config.json: expected a folder that transformers loads"
            ) from error
        except (OSError, ValueError) as error:
            raise AuditError(f"{folder}/config.json: {error}") from error
        self._state: dict[str, Any] | None = None
        self._kept: dict[tuple[str, bool], Any] = {}
        self._read: Any = None

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
            self._read = None

    def logits(self, ids: Sequence[int], dtype: str, *, native: bool = False) -> Any:
        """A row of logits for each id: what it predicts behind it.

        Args:
            ids: A sequence.
            dtype: The engine's type, to which the weights are rounded.
            native: Whether it also computes in that type.
        """
        import torch

        model = self._model(dtype, native)
        with torch.inference_mode():
            return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].double()

    def scores(self, sequences: Iterable[Sequence[int]], dtype: str, *, native: bool = False) -> Any:
        """The log-prob of each id but the first of each sequence, one after the other."""
        import torch

        parts = []
        for ids in sequences:
            rows = self.logits(ids, dtype, native=native)[:-1].log_softmax(-1)
            parts.append(rows.gather(1, torch.tensor([list(ids[1:])]).T)[:, 0])
        return torch.cat(parts)

    def mixed(self, other: Reference, of_other: Callable[[str], bool]) -> Reference:
        """This with some tensors of another; both must have the same ones."""
        made = Reference(self.folder)
        made.name, made._read = f"{self.name}+{other.name}", self._loaded()
        made._state = {
            name: other.state[name] if of_other(name) else tensor for name, tensor in self.state.items()
        }
        return made

    def fits(self, other: Reference) -> bool:
        """Whether both have the same tensors."""
        mine, theirs = self.state, other.state
        return mine.keys() == theirs.keys() and all(mine[name].shape == theirs[name].shape for name in mine)

    def _model(self, dtype: str, native: bool) -> Any:
        if (dtype, native) in self._kept:
            return self._kept[dtype, native]
        import torch

        model = copy.deepcopy(self._loaded())
        if self._state is not None:
            model.load_state_dict(self._state)
        kind = getattr(torch, dtype)
        model = model.to(kind)
        if not native:
            count = sum(each.numel() for each in model.parameters())
            model = model.to(torch.float64 if count < _DOUBLE else torch.float32)
        self._kept = {**self._kept, (dtype, native): model.eval()}
        return model

    def _loaded(self) -> Any:
        """The model as it is on disk, read once."""
        if self._read is None:
            self._read = self._from_disk()
        return self._read

    def _from_disk(self) -> Any:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            return transformers.AutoModelForCausalLM.from_pretrained(self.folder, local_files_only=True)
        except Exception as error:
            told = " ".join(str(error).split())[:200]
            raise AuditError(f"{self.folder}: transformers does not load it: {told}") from error


def siblings(checkpoint: Path, most: int = 4) -> list[Path]:
    """Other checkpoints beside one, the nearest first; a folder `base` is one, too."""

    def step(path: Path) -> int:
        number = path.name.rpartition("-")[2]
        return int(number) if number.isascii() and number.isdigit() else -1

    here = step(checkpoint)
    found = [
        path
        for path in checkpoint.resolve().parent.iterdir()
        if path.is_dir()
        and path.resolve() != checkpoint.resolve()
        and (path / "config.json").exists()
        and (step(path) >= 0 or path.name == "base")
    ]
    return sorted(found, key=lambda path: (abs(step(path) - here), path.name))[:most]


def tokenizer(folder: Path) -> Any:
    """The folder's tokenizer.

    Raises:
        AuditError: It can't be read.
    """
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        told = " ".join(str(error).split())[:200]
        raise AuditError(f"{folder}: its tokenizer can't be read: {told}") from error
