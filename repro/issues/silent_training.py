"""Reproduce silent training failures of unmodified TRL and PyTorch, which show in prompts, rewards, masks or weights.

For most of them TRL's GRPOTrainer trains a tiny model for a few steps on a CPU: CFG126 (resume), CFG127, CFG128, NUM046
and REW004 (no weight moves), NUM041 (groups), NUM042 (tool tokens), NUM045 (reference), REW005 (random rewards). NUM047
updates bfloat16 weights with PyTorch alone. Each function returns a description of the failure, or None.
"""

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from repro.drivers import single_call, tiny_trl

_repro = partial(single_call.repro, needs=("trl", "transformers", "torch"), modules=tiny_trl.MODULES)

_STEPS, _SAVED = 4, 2  # steps of a run, and the step of its checkpoint
_PROMPTS = ("a b", "c d", "e f", "g h", "i j", "k l", "m a", "b c")
# The tiny tokenizer's end token. Without it the tiny model generates up to the limit.
_END = 2
_WITHOUT_END = {"generation_kwargs": {"suppress_tokens": [_END]}}


def _train_and_list_prompts(checkpoint: str | None = None, **settings: Any) -> tuple[list[str], str]:
    """Train the tiny model with one prompt per step, from a checkpoint if there is one; return prompts and folder."""
    seen: list[str] = []

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        seen.extend(dict.fromkeys(prompts))
        return [float(len(text) % 5) for text in completions]

    common: dict[str, Any] = {"max_steps": _STEPS, "save_strategy": "steps", "save_steps": _SAVED}
    trainer = tiny_trl.trainer(rewards, prompts=_PROMPTS, **(tiny_trl.PAIR | common | settings))
    trainer.train(resume_from_checkpoint=checkpoint)
    return seen, str(trainer.args.output_dir)


@single_call.repro("CFG126", needs=("trl", "transformers", "torch", "accelerate"), modules=tiny_trl.MODULES)
def cfg126_no_skip(mitigation: str | None) -> str | None:
    """Resume with `ignore_data_skip=True`: the sampler starts again, and old prompts come before new ones."""
    expected, folder = _train_and_list_prompts()
    checkpoint = str(Path(folder) / f"checkpoint-{_SAVED}")
    resumed, _ = _train_and_list_prompts(checkpoint, ignore_data_skip=mitigation != "state")
    repeated = set(resumed) & set(expected[:_SAVED])
    message = f"{len(repeated)} prompts of the first {_SAVED} steps came again after the resume"
    return message if repeated else None


@_repro("CFG127", simulated=("a model that never ends: generation's suppress_tokens has the end token",))
def cfg127_never_ends(mitigation: str | None) -> str | None:
    """Mask truncated completions of a model that never samples its end token: the loss has no token."""
    return tiny_trl.describe_unmoved_weights(
        tiny_trl.reward_by_letters,
        max_completion_length=40 if mitigation == "longer" else 20,
        mask_truncated_completions=True,
        **({} if mitigation == "end" else _WITHOUT_END),
    )


@_repro("CFG128")
def cfg128_rate_zero(mitigation: str | None) -> str | None:
    """Train with learning rate 0, which TRL accepts; no weight moves."""
    rate = 0.1 if mitigation == "rate" else 0.0
    return tiny_trl.describe_unmoved_weights(tiny_trl.reward_by_letters, learning_rate=rate)


@_repro("NUM041")
def num041_own_sampler(mitigation: str | None) -> str | None:
    """Train with a sampler that does not repeat prompts: TRL compares completions of different prompts."""
    from torch.utils.data import SequentialSampler

    size = 4
    groups: list[list[str]] = []

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        groups.extend(prompts[start : start + size] for start in range(0, len(prompts), size))
        return tiny_trl.reward_by_letters(completions)

    trainer = tiny_trl.trainer(rewards, max_steps=1, **(tiny_trl.GROUP | {"max_completion_length": 4}))
    if mitigation != "repeat":
        # As in a subclass that overrides the method to keep its own order.
        trainer._get_train_sampler = lambda *_: SequentialSampler(trainer.train_dataset)  # noqa: SLF001
    trainer.train()
    mixed = sum(len(set(group)) > 1 for group in groups)
    return f"{mixed} of {len(groups)} groups have completions of several prompts" if mixed else None


# The vocabulary's last letter stands for the tool's response; it is never sampled.
_TOOL = tiny_trl.VOCABULARY - 1
_SAMPLED, _RESPONSE = 4, 3


def _rollout(prompts: list[str], trainer: Any, *, masked: bool) -> dict[str, Any]:
    """Sample completions and append a tool's response to each; this is a `rollout_func` of TRL."""
    import torch

    ids = trainer.processing_class(prompts)["input_ids"]
    completions = []
    for prompt in ids:
        options = {"max_new_tokens": _SAMPLED, "do_sample": True, "suppress_tokens": [_END, _TOOL]}
        generated = trainer.model.generate(torch.tensor([prompt]), **options)
        completions.append([*generated[0, len(prompt) :].tolist(), *[_TOOL] * _RESPONSE])
    mask = {"env_mask": [[1] * _SAMPLED + [0] * _RESPONSE for _ in ids]} if masked else {}
    logprobs = [[0.0] * len(row) for row in completions]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs, **mask}


@_repro("NUM042")
def num042_no_env_mask(mitigation: str | None) -> str | None:
    """Append a tool's response in a rollout function that returns no mask: TRL trains on the tool's tokens."""
    lengths = {"max_completion_length": _SAMPLED + _RESPONSE}
    trainer = tiny_trl.trainer(tiny_trl.reward_by_letters, max_steps=1, **(tiny_trl.GROUP | lengths))
    # TRL's constructor sets this attribute from its argument.
    trainer.rollout_func = partial(_rollout, masked=mitigation == "mask")
    compute_loss, counts = trainer._compute_loss, []  # noqa: SLF001 - reads the input of the loss

    def count_tokens(model: Any, inputs: Any) -> Any:
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        counts.append((int((mask * (inputs["completion_ids"] == _TOOL)).sum()), int(mask.sum())))
        return compute_loss(model, inputs)

    trainer._compute_loss = count_tokens  # noqa: SLF001
    trainer.train()
    tool, total = (sum(column) for column in zip(*counts, strict=True))
    return f"{tool} of {total} tokens in the loss are the tool's" if tool else None


KL_LIMIT = 0.01  # maximum KL of the first step


@_repro("NUM045")
def num045_changed_after_loading(mitigation: str | None) -> str | None:
    """Change the policy after loading; TRL loads the reference from the policy's original folder."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        tiny_trl.model().save_pretrained(folder)
        policy = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        # Merging an adapter also changes weights in place.
        with torch.no_grad():
            policy.lm_head.weight.mul_(3)
        if mitigation == "same":
            policy.save_pretrained(folder)
        settings: dict[str, Any] = {"beta": 0.1, "learning_rate": 0.0, "max_steps": 1}
        logging = {"logging_strategy": "steps", "logging_steps": 1}
        options = tiny_trl.GROUP | settings | logging
        trainer = tiny_trl.trainer(tiny_trl.reward_by_letters, policy=policy, **options)
        trainer.train()
    kls = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    if not kls:
        raise RuntimeError("TRL logged no KL")
    return None if abs(kls[0]) < KL_LIMIT else f"KL {kls[0]:.3f} before the first update"


@_repro("NUM046")
def num046_all_masked(mitigation: str | None) -> str | None:
    """Truncate every completion while TRL masks truncated completions: rewards differ, no weight moves."""
    settings = {"mask_truncated_completions": mitigation != "unmasked", **_WITHOUT_END}
    return tiny_trl.describe_unmoved_weights(tiny_trl.reward_by_letters, **settings)


@single_call.repro("NUM047", needs=("torch",))
def num047_bfloat16(mitigation: str | None) -> str | None:
    """Repeat an update smaller than half the spacing of bfloat16 weights, which rounding removes each time."""
    import torch

    torch.manual_seed(0)
    steps = 100
    dtype = torch.float32 if mitigation == "master" else torch.bfloat16
    weights = torch.nn.Parameter(torch.rand(1000).add(0.5).to(dtype))
    before = weights.detach().clone()
    optimizer = torch.optim.AdamW([weights], lr=1e-6, weight_decay=0.0)
    for _ in range(steps):
        weights.grad = torch.ones_like(weights)
        optimizer.step()
    moved = int((weights.detach() != before).sum())
    return None if moved == len(before) else f"{moved} of {len(before)} weights moved in {steps} steps"


@_repro("REW004")
def rew004_never_solved(mitigation: str | None) -> str | None:
    """Train on a task that is never solved: the rewards of each group are equal, and no weight moves."""
    answer = "a" if mitigation == "task" else "42"  # the completions consist of letters

    def solved(completions: list[str], **_: Any) -> list[float]:
        return [float(answer in text) for text in completions]

    return tiny_trl.describe_unmoved_weights(solved)


@_repro("REW005")
def rew005_chance(mitigation: str | None) -> str | None:
    """Train with a random reward function: a second call with the same completions gives other rewards."""
    recorded: list[tuple[list[str], list[float]]] = []

    def compute(completions: list[str], **_: Any) -> list[float]:
        steady = tiny_trl.reward_by_letters(completions)
        return steady if mitigation == "steady" else [random.random() for _text in completions]

    def record(completions: list[str], **_: Any) -> list[float]:
        recorded.append((list(completions), compute(completions)))
        return recorded[-1][1]

    tiny_trl.take_step(record)
    different = sum(compute(texts) != rewards for texts, rewards in recorded)
    message = f"{different} of {len(recorded)} batches got other rewards in a second call"
    return message if different else None
