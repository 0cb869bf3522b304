"""Which policy the settings need, where the plain one is not all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_core.learn.equipped import EquippedPolicy

if TYPE_CHECKING:
    from grpo_core.config import Config
    from grpo_core.machine.world import World


def policy_for(model_dir: str, config: Config, world: World) -> EquippedPolicy:
    """One with what the settings add to the model, or that computes in fewer bits.

    Raises:
        ConfigError: The model can't be loaded or does not fit the settings.
    """
    kind: Any = EquippedPolicy
    if config.wide:
        from grpo_core.learn.forms.precision import MixedPolicy
        from grpo_core.wide import WideConfig

        if isinstance(config, WideConfig) and config.lowered:
            kind = MixedPolicy
    policy: EquippedPolicy = kind(model_dir, config, world)
    return policy
