"""NUM004: compare gradients of unmodified TRL's trainer, whose default loss may divide by too many tokens.

TRL samples `steps_per_generation` micro-batches at once and takes an optimizer step after every
`gradient_accumulation_steps` micro-batches. The token-level losses (dapo, the default since 0.22, and cispo) divide
each micro-batch by the number of all sampled tokens. This is right if the two settings are equal, as by default. If
they differ, each gradient is too small by their ratio. From 1.9.1 on, TRL rescales. The repro compares the mean
gradient of the optimizer steps with that of one step on the same completions, at learning rate 0. The mitigations are
the losses `dr_grpo` and `grpo`, and equal settings.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from repro import upstream
from repro.drivers import tiny_trl
from repro.registry import InapplicableError, Tally, Trigger, repro

_NAMES = ("trl",)
DIVIDES = 'inputs["num_items_in_batch"]'
RESCALES = "self.current_gradient_accumulation_steps / self.args.steps_per_generation"
MICRO, PARTS = 4, 4  # samples in a micro-batch, micro-batches in a generation
TOLERANCE = 1e-3

Gradients = Mapping[str, list[float]]


def _train(loss: str, *, size: int, accumulated: int) -> tuple[Gradients, list[str]]:
    """Train on one generation of 16 samples at learning rate zero.

    Args:
        loss: TRL's `loss_type`.
        size: Number of samples in a micro-batch.
        accumulated: Number of micro-batches in an optimizer step.

    Returns:
        The mean gradient of the optimizer steps, by parameter, and the completions, sorted.
    """
    import transformers

    parts = MICRO * PARTS // size
    steps = parts // accumulated
    sums: dict[str, Any] = {}
    texts: list[str] = []

    class GradientSum(transformers.TrainerCallback):  # type: ignore[misc] # transformers is not checked outside of cells
        """Sum of the gradients over all optimizer steps."""

        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            for name, parameter in model.named_parameters():
                sums[name] = sums.get(name, 0) + parameter.grad.double()

    def rewards(completions: list[str], **_: Any) -> list[float]:
        texts.extend(completions)
        return [len(text) % 5 + len(text) / 7 for text in completions]

    batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
    lengths = {"steps_per_generation": parts, "max_steps": steps}
    rates = {"learning_rate": 0.0, "max_grad_norm": 0.0}
    settings = tiny_trl.GROUP | batches | lengths | rates
    prompts = tiny_trl.PROMPTS * 2
    tiny_trl.trainer(rewards, GradientSum(), prompts=prompts, loss_type=loss, **settings).train()
    return {name: (total / steps).flatten().tolist() for name, total in sums.items()}, sorted(texts)


def count_right_gradients(gradients: Gradients, right: Gradients) -> Tally:
    """Count the parameters whose gradient, projected on the right one, has the right length (within 0.1 %).

    The note has the ratio of these lengths over all parameters.
    """
    passed = {name: abs(_length_along(gradients[name], right[name]) - 1) <= TOLERANCE for name in right}
    ratio = _length_along(
        [value for name in right for value in gradients[name]],
        [value for values in right.values() for value in values],
    )
    note = f"mean gradient of the steps / gradient of all samples at once: {ratio:.4f}"
    return Tally.of_checks(passed, "parameters' gradients are right", note)


def _length_along(vector: list[float], direction: list[float]) -> float:
    """Return a vector's component along a direction, in units of the direction's length."""
    return sum(a * b for a, b in zip(vector, direction, strict=True)) / sum(b * b for b in direction)


def _compare_gradients(trigger: str, mitigation: str | None) -> Tally:
    """Train with the trigger's loss and mitigation, and compare the gradient with that of all samples at once."""
    if trigger not in (upstream.source("trl/trainer/grpo_config.py", _NAMES) or ""):
        raise InapplicableError(f"this TRL has no loss of the name {trigger}")
    loss = mitigation if mitigation in {"dr_grpo", "grpo"} else trigger
    accumulated = PARTS if mitigation == "equal_settings" else 1
    gradients, texts = _train(loss, size=MICRO, accumulated=accumulated)
    right, same_texts = _train(loss, size=MICRO * PARTS, accumulated=1)
    if texts != same_texts:
        raise RuntimeError("the two trainers did not sample the same completions")
    return count_right_gradients(gradients, right)


def inapplicable_reason() -> str | None:
    """Return the reason why the failure cannot occur with the installed TRL; None if it can."""
    path = "trl/trainer/grpo_trainer.py"
    if RESCALES in (upstream.source(path, _NAMES) or ""):
        return f"{upstream.release_name(_NAMES)} rescales the tokens to those of one optimizer step"
    return upstream.explain_missing_code(path, DIVIDES, _NAMES) or upstream.explain_missing_code(
        path, "steps_per_generation", _NAMES
    )


repro(
    "NUM004",
    distributions=_NAMES,
    modules=tiny_trl.MODULES,
    triggers=[Trigger(loss, partial(_compare_gradients, loss), silent=True) for loss in ("dapo", "cispo")],
    inapplicable_reason=inapplicable_reason,
)
