"""Putting back what `Policy.state` and `Updater.state` gave, by a run that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grpo_core.learn.policy import Policy
    from grpo_core.learn.update import Updater


@torch.no_grad()  # type: ignore[untyped-decorator]
def put_back(policy: Policy, state: Mapping[str, torch.Tensor]) -> None:
    """Gives a policy the parameters that one like it had.

    Raises:
        KeyError: The names are not this policy's.
        ValueError: A shape is not.
    """
    odd = sorted(set(state) ^ {name for name, _ in policy.trained()})
    if odd:
        raise KeyError(f"{odd[0]} is on one side alone")
    for name, value in policy.trained():
        if state[name].shape != value.shape:  # copying would broadcast it
            raise ValueError(f"{name} is {tuple(state[name].shape)}, not {tuple(value.shape)}")
        value.copy_(_share_of(state[name], value))


def go_on(updater: Updater, policy: Policy, state: Mapping[str, torch.Tensor], updates: int) -> None:
    """Gives the optimizer of this policy the state that it had after so many updates."""
    updater.updates = updates
    parameters = dict(policy.trained())
    for entry, value in state.items():
        name, key = entry.rsplit("|", 1)
        held = updater.optimizer.state[parameters[name]]
        held[key] = _share_of(value, parameters[name]).clone() if value.dim() else value


def _share_of(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What of a whole tensor belongs to this process, if the parameter is sharded; else the tensor, where that is."""
    tensor = tensor.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from grpo_core.learn.parallel import own_share

    return own_share(tensor, parameter)
