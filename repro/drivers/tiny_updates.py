"""Whether a step of TRL's `GRPOTrainer` moves the weights of the tiny model, by its settings and rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repro.drivers import tiny_trl

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 4


def moved(rewards: Callable[..., list[float]], **settings: Any) -> tuple[float, int]:
    """Trains a few steps; returns by how much the farthest weight moved, and how many completions were sampled."""
    import transformers

    sampled: list[str] = []

    def counted(completions: list[str], **more: Any) -> list[float]:
        sampled.extend(completions)
        return rewards(completions=completions, **more)

    held = tiny_trl.model()
    before = {name: value.detach().clone() for name, value in held.named_parameters()}
    sizes = {"num_generations": 4, "max_completion_length": 8, "per_device_train_batch_size": 4}
    common = {"learning_rate": 0.1, "max_steps": STEPS}
    trained = tiny_trl.trainer(
        counted,
        transformers.TrainerCallback(),
        held=held,
        **(sizes | common | settings),
    )
    trained.train()
    farthest = max(
        float((value.detach() - before[name]).abs().max()) for name, value in held.named_parameters()
    )
    return farthest, len(sampled)
