"""Which experts each token goes to: looked at, or given.

The routers of transformers choose by `torch.topk`, and nothing else in a model's layers does, so that one hook serves
Mixtral, Qwen3-MoE, OLMoE and their kin in every release. Where a choice is given, the weights of the chosen experts are
still the model's own, with their gradient: only the choice is replayed (arXiv 2510.11370).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

OWN = -1  # in place of an expert: the model chooses


class Routes(TorchFunctionMode):  # type: ignore[misc]
    """Within it, choices are noted, and taken from `given` where that has any.

    Attributes:
        seen: What was chosen at each call of a router, [tokens, experts of a token], in order.
    """

    def __init__(self, given: list[torch.Tensor] | None = None) -> None:
        """`given`: for each layer in order, [tokens, experts of a token], `OWN` where nothing is given."""
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self._given = given
        self._apart = self._known = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Looks at every call, and changes the choice of one kind."""
        out = func(*args, **(kwargs or {}))
        if func is not torch.topk and func is not torch.Tensor.topk:
            return out
        chosen = out[1]
        if self._given is not None:
            wanted = self._given[len(self.seen) % len(self._given)].to(chosen.device)
            if wanted.shape != chosen.shape:
                raise ValueError(
                    f"routing of shape {tuple(wanted.shape)} for tokens of {tuple(chosen.shape)}"
                )
            known = (wanted != OWN).all(-1)
            apart = (chosen.sort(-1).values != wanted.sort(-1).values).any(-1) & known
            self._apart, self._known = self._apart + int(apart.sum()), self._known + int(known.sum())
            chosen = torch.where(wanted == OWN, chosen, wanted)
            out = (args[0].gather(-1, chosen), chosen)
        self.seen.append(chosen)
        return out

    def moved(self) -> float:
        """The share of given choices, a token in a layer each, that the model would have made otherwise."""
        return self._apart / max(self._known, 1)


def routers(model: Any) -> int:
    """How many layers of a model choose among experts."""
    return sum(type(module).__name__.endswith("SparseMoeBlock") for module in model.modules())
