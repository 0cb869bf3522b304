"""NUM004: TRL's default loss divides by the tokens of more samples than one optimizer step sees.

TRL samples `steps_per_generation` micro-batches at once and takes an optimizer step every `gradient_accumulation_steps`
of them. The token-level losses (dapo, the default since 0.22, and cispo) divided each micro-batch by the tokens of all
that was sampled. Where the two settings are equal, as by default, that is right. Where they differ, each gradient is
too small by their ratio. TRL 1.9.1 rescales.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from repro import upstream
from repro.base import OTHER_RELEASE, InapplicableError, Trigger, Work, repro
from repro.drivers import tiny_trl

_NAMES = ("trl",)
_FILE = "trl/trainer/grpo_trainer.py"
_DIVIDES = 'inputs["num_items_in_batch"]'
_RESCALES = "self.current_gradient_accumulation_steps / self.args.steps_per_generation"
MICRO, PARTS = 4, 4  # samples in a micro-batch, micro-batches in a generation
TOLERANCE = 1e-3

Gradients = dict[str, list[float]]


def _gradients(loss: str, *, size: int, accumulated: int) -> tuple[Gradients, list[str]]:
    """Train through one generation of 16 samples at learning rate zero.

    Args:
        loss: TRL's `loss_type`.
        size: samples in a micro-batch.
        accumulated: micro-batches in an optimizer step.

    Returns:
        The mean of the gradients of its optimizer steps, by parameter, and the completions, sorted.
    """
    import transformers

    parts = MICRO * PARTS // size
    sums: dict[str, Any] = {}
    texts: list[str] = []

    class GradientSum(transformers.TrainerCallback):  # type: ignore[misc] # transformers is looked into in cells alone
        """Adds the gradients up, just before each optimizer step."""

        def on_pre_optimizer_step(
            self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
        ) -> None:
            del args, state, control
            for name, parameter in model.named_parameters():
                sums[name] = sums.get(name, 0) + parameter.grad.double()

    def rewards(completions: list[str], **_: Any) -> list[float]:
        texts.extend(completions)
        return [len(text) % 5 + len(text) / 7 for text in completions]

    steps = parts // accumulated
    trained = tiny_trl.trainer(
        rewards,
        GradientSum(),
        prompts=tiny_trl.PROMPTS * 2,
        loss_type=loss,
        learning_rate=0.0,
        max_grad_norm=0.0,
        max_steps=steps,
        num_generations=4,
        max_completion_length=8,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulated,
        steps_per_generation=parts,
    )
    trained.train()
    mean = {name: (total / steps).flatten().tolist() for name, total in sums.items()}
    return mean, sorted(texts)


def count_right_gradients(found: Mapping[str, list[float]], right: Mapping[str, list[float]]) -> Work:
    """Count the parameters with the right gradient, and return the gradient's length along it."""
    ratios = {name: _along(found[name], right[name]) for name in right}
    names = list(right)
    received = [(name, 1) for name in names if abs(ratios[name] - 1) <= TOLERANCE]
    expected = _along(
        [value for name in names for value in found[name]], [value for name in names for value in right[name]]
    )
    note = f"mean gradient of the steps / gradient of all samples at once: {expected:.4f}"
    return Work(dict.fromkeys(names, 1), received, note=note, counted="parameters' gradients are right")


def _along(found: list[float], right: list[float]) -> float:
    """Return how long a vector is along another one, in that one's lengths."""
    return sum(a * b for a, b in zip(found, right, strict=True)) / sum(b * b for b in right)


def _carry_out(trigger: str, mitigation: str | None) -> Work:
    if trigger not in (upstream.source("trl/trainer/grpo_config.py", _NAMES) or ""):
        raise InapplicableError(f"this TRL has no loss of the name {trigger}")
    loss = mitigation if mitigation in {"dr_grpo", "grpo"} else trigger
    accumulated = PARTS if mitigation == "equal_settings" else 1
    result, texts = _gradients(loss, size=MICRO, accumulated=accumulated)
    right, same = _gradients(loss, size=MICRO * PARTS, accumulated=1)
    if texts != same:
        raise RuntimeError("the two trainers did not sample the same completions")
    return count_right_gradients(result, right)


def inapplicable() -> str | None:
    """Return why the installed TRL can't show it, or None."""
    distribution = upstream.installed(_NAMES)
    text = upstream.source(_FILE, _NAMES)
    if distribution is None or text is None:
        return "TRL is not installed here"
    if _DIVIDES not in text or "steps_per_generation" not in text:
        return f"TRL {distribution.version} does not divide by the tokens of a generation"
    if _RESCALES in text:
        return f"TRL {distribution.version} rescales the tokens to those of one optimizer step"
    return None


repro(
    "NUM004",
    distributions=_NAMES,
    modules=tiny_trl.MODULES,
    triggers=[
        Trigger("dapo", partial(_carry_out, "dapo"), silent=True),
        Trigger("cispo", partial(_carry_out, "cispo"), silent=True),
    ],
    mitigations={
        "equal_settings": "gradient_accumulation_steps equal to steps_per_generation, as by default",
        "dr_grpo": 'loss_type="dr_grpo": divides by a constant',
        "grpo": 'loss_type="grpo": a mean of samples',
        "upgrade": ("TRL 1.9.1 or newer", "huggingface/trl#6024"),
    },
    untried=dict.fromkeys(("upgrade",), OTHER_RELEASE),
    inapplicable=inapplicable,
)
