"""Which experts each token goes to: looked at, or given.

The routers of transformers choose by `torch.topk`, and nothing else in a model's layers does, so that one hook serves
Mixtral, Qwen3-MoE, OLMoE and their kin in every release. Where a choice is given, the weights of the chosen experts are
still the model's own, with their gradient: only the choice is replayed (arXiv 2510.11370).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

OWN = -1  # in place of an expert: the model chooses


class Routes(TorchFunctionMode):  # type: ignore[misc]
    """Within it, choices are noted, and taken from `given` where that has any.

    Attributes:
        seen: What was chosen at each call of a router, [tokens, experts of a token], in order.
        experts: Among how many, at the last call.
    """

    experts = 0

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
        chosen, self.experts = out[1], args[0].shape[-1]
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


class Routing(NamedTuple):
    """What a model chooses for each token: in each of `layers`, `chosen` of its `experts`, all of them different."""

    layers: int
    chosen: int
    experts: int

    def fault(self, told: Any, tokens: int) -> str:
        """What is wrong with the experts that so many tokens went to; nothing if nothing is."""
        if len(told) != tokens:
            return f"tells the experts of {len(told)} tokens, and {tokens} were read"
        found = torch.tensor(told).reshape(tokens, -1, len(told[0][0]) if told and told[0] else 1)
        if tokens and found.shape[1:] != (self.layers, self.chosen):
            return (
                f"tells {found.shape[2]} experts in each of {found.shape[1]} layers; the model chooses "
                f"{self.chosen} in each of {self.layers}"
            )
        if tokens and not 0 <= int(found.min()) <= int(found.max()) < self.experts:
            return f"tells of expert {int(found.max())}; the model has {self.experts}"
        twice = (found.sort(-1).values.diff() == 0).any()
        return "tells of a token that went to one expert twice" if twice else ""


def routing_of(model: Any) -> Routing | None:
    """By one token's pass, as routers of other kinds choose in other ways; None: of no kind that is known here."""
    with torch.no_grad(), Routes() as routes:
        model.base_model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
    if not routes.seen or len(routes.seen) != routers(model):
        return None
    return Routing(len(routes.seen), routes.seen[0].shape[-1], routes.experts)
