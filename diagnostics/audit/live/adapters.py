"""A checkpoint that is an adapter (peft's LoRA): its base, and what it adds to the base's tensors.

Read without peft: two small matrices a tensor, whose product is added with a scale.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from diagnostics import given
from diagnostics.audit.errors import AuditError
from diagnostics.collect.secrets import cut

SETTINGS = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
# What changes the sum in another way than the product does.
_UNREAD = ("use_dora", "fan_in_fan_out", "use_bdlora", "use_qalora", "lora_bias")


class Adapter:
    """What a folder with an adapter_config.json adds.

    Attributes:
        folder: Where it is.
        base: The folder of the weights that it is added to.
    """

    def __init__(self, folder: Path) -> None:
        """Reads its settings alone.

        Raises:
            AuditError: They can't be read, its base is not here, or it is of a kind that is not computed.
        """
        self.folder = folder
        try:
            told = given.parsed(given.text(folder / SETTINGS, given.METADATA))
        except (OSError, ValueError) as error:
            raise AuditError(f"{folder}/{SETTINGS}: {error}") from error
        if not isinstance(told, dict):
            raise AuditError(f"{folder}/{SETTINGS}: expected settings by name")
        other = [name for name in _UNREAD if told.get(name)]
        if told.get("peft_type") != "LORA" or other:
            kind = ", ".join(other) or told.get("peft_type")
            raise AuditError(f"{folder}/{SETTINGS}: {kind}: merge it, and name the merged checkpoint")
        self._settings: dict[str, Any] = told
        self.base = Path(str(told.get("base_model_name_or_path") or ""))
        if not (self.base / "config.json").is_file():
            raise AuditError(
                f"{folder}/{SETTINGS}: base_model_name_or_path = {str(self.base)!r}: expected a folder of weights"
            )

    def added(self) -> dict[str, tuple[Any, Any, float]]:
        """By the base's name of a tensor: B, A and the scale of their product.

        Raises:
            AuditError: Its tensors can't be read, or are others than products.
        """
        from safetensors.torch import load_file

        path = self.folder / _WEIGHTS
        try:
            tensors = load_file(path)
        except Exception as error:
            raise AuditError(f"{path}: {cut(' '.join(str(error).split()), 200)}") from error
        made = {}
        for name, tensor in tensors.items():
            if name.endswith(".lora_B.weight"):
                continue
            if not name.endswith(".lora_A.weight"):
                raise AuditError(f"{path}: {name}: merge it, and name the merged checkpoint")
            module = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
            second = tensors.get(f"{_PREFIX}{module}.lora_B.weight")
            if second is None:
                raise AuditError(f"{path}: {name} without its lora_B")
            made[f"{module}.weight"] = (second, tensor, self._scale(module, tensor.shape[0]))
        return made

    def _scale(self, module: str, rank: int) -> float:
        alphas = self._settings.get("alpha_pattern") or {}
        named = next((value for key, value in alphas.items() if module.endswith(key)), None)
        alpha = float(self._settings.get("lora_alpha") or 1.0 if named is None else named)
        return alpha / (math.sqrt(rank) if self._settings.get("use_rslora") else rank)


def is_one(folder: Path) -> bool:
    """Whether the folder holds an adapter, and no whole weights."""
    return (folder / SETTINGS).is_file() and not (folder / "config.json").is_file()
