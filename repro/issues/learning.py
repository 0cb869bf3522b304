"""Repros of silent failures: training raises nothing and does not learn as configured; metrics show it."""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from repro.drivers import calls, tiny_trl

_repro = partial(calls.repro, needs=("trl", "transformers", "torch"), modules=tiny_trl.MODULES)

_STEPS, _SAVED = 4, 2


_PROMPTS = ("a b", "c d", "e f", "g h", "i j", "k l", "m a", "b c")


def _prompts_of(resumed: str = "", **settings: Any) -> tuple[list[str], str]:
    """Train the tiny model; return the prompts, a step each, and the folder it saved to."""
    requests: list[str] = []

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        requests.extend(dict.fromkeys(prompts))
        return [float(len(text) % 5) for text in completions]

    sizes: dict[str, Any] = {
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "max_completion_length": 4,
    }
    selected: dict[str, Any] = {"max_steps": _STEPS, "save_strategy": "steps", "save_steps": _SAVED}
    built = tiny_trl.trainer(rewards, prompts=_PROMPTS, **(sizes | selected | settings))
    built.train(resume_from_checkpoint=resumed or None)
    return requests, str(built.args.output_dir)


@calls.repro(
    "CFG126",
    needs=("trl", "transformers", "torch", "accelerate"),
    modules=tiny_trl.MODULES,
    trigger="no_skip",
    changes={"state": "ignore_data_skip=False"},
)
def cfg126_no_skip(mitigation: str | None) -> str | None:
    """A resume with `ignore_data_skip=True`: the sampler begins again, and old prompts come before the new ones."""
    expected, folder = _prompts_of()
    checkpoint = str(Path(folder) / f"checkpoint-{_SAVED}")
    after, _ = _prompts_of(checkpoint, ignore_data_skip=mitigation != "state")
    again = sorted(set(after) & set(expected[:_SAVED]))
    return f"{len(again)} prompts of the first {_SAVED} steps came again after the resume" if again else None


END = 2  # the tiny tokenizer's end token


@_repro(
    "CFG127",
    trigger="never_ends",
    changes={"end": "generation that may say the end token", "longer": "twice the limit"},
    simulated=("a model that never ends: generation's suppress_tokens has the end token",),
)
def cfg127_never_ends(mitigation: str | None) -> str | None:
    """A model that never samples its end token, with truncated completions masked: the loss has no token."""
    limit = 40 if mitigation == "longer" else 20
    mute = {} if mitigation == "end" else {"generation_kwargs": {"suppress_tokens": [END]}}
    return tiny_trl.weights_that_stay(
        tiny_trl.reward_by_letters, max_completion_length=limit, mask_truncated_completions=True, **mute
    )


@_repro(
    "CFG128", trigger="rate_zero", changes={"rate": "learning_rate=0.1"}, untried={"trained": calls.SEARCHES}
)
def cfg128_rate_zero(mitigation: str | None) -> str | None:
    """A learning rate of 0, which TRL takes without a word: rewards are logged, and nothing is learned."""
    return tiny_trl.weights_that_stay(
        tiny_trl.reward_by_letters, learning_rate=0.1 if mitigation == "rate" else 0.0
    )


_GROUP = 4


@_repro("NUM041", trigger="own_sampler", changes={"repeat": "TRL's RepeatSampler, which it uses by itself"})
def num041_own_sampler(mitigation: str | None) -> str | None:
    """A sampler of one's own that does not repeat prompts: TRL compares completions of different prompts."""
    from torch.utils.data import SequentialSampler

    groups: list[list[str]] = []

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        groups.extend(prompts[at : at + _GROUP] for at in range(0, len(prompts), _GROUP))
        return tiny_trl.reward_by_letters(completions)

    built = tiny_trl.trainer(
        rewards,
        num_generations=_GROUP,
        per_device_train_batch_size=_GROUP,
        max_completion_length=4,
        max_steps=1,
    )
    if mitigation != "repeat":
        # A subclass that overrides the method to keep its own order does this.
        built._get_train_sampler = lambda *_: SequentialSampler(built.train_dataset)  # noqa: SLF001
    built.train()
    mixed = sum(len(set(group)) > 1 for group in groups)
    return f"{mixed} of {len(groups)} groups have completions of several prompts" if mixed else None


# The vocabulary's last letter represents the tool's answer; it is never sampled.
_TOOL = tiny_trl.VOCABULARY - 1


_SAMPLED, _ANSWERED = 4, 3


def _rollouts(mitigation: str | None) -> Any:
    def rollout(prompts: list[str], held: Any) -> dict[str, list[list[int]]]:
        import torch

        ids = held.processing_class(prompts)["input_ids"]
        completions = []
        for prompt in ids:
            options = {"max_new_tokens": _SAMPLED, "do_sample": True, "suppress_tokens": [2, _TOOL]}
            generated = held.model.generate(torch.tensor([prompt]), **options)
            completions.append([*generated[0, len(prompt) :].tolist(), *[_TOOL] * _ANSWERED])
        mask = {"env_mask": [[1] * _SAMPLED + [0] * _ANSWERED for _ in ids]} if mitigation == "mask" else {}
        logprobs = [[0.0] * len(row) for row in completions]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs, **mask}

    return rollout


@_repro(
    "NUM042",
    trigger="no_env_mask",
    changes={"mask": "env_mask: 1 on what was sampled, 0 on what the tool answered"},
)
def num042_no_env_mask(mitigation: str | None) -> str | None:
    """A rollout function appends what a tool answered and sends no mask: TRL trains on the tool's tokens."""
    built = tiny_trl.trainer(
        tiny_trl.reward_by_letters,
        num_generations=4,
        per_device_train_batch_size=4,
        max_completion_length=_SAMPLED + _ANSWERED,
        max_steps=1,
    )
    built.rollout_func = _rollouts(mitigation)  # where its constructor puts what it is given under this name
    requests, observed = built._compute_loss, []  # noqa: SLF001 - what goes into the loss is looked at on the way

    def looked_at(model: Any, inputs: Any) -> Any:
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        observed.append((int((mask * (inputs["completion_ids"] == _TOOL)).sum()), int(mask.sum())))
        return requests(model, inputs)

    built._compute_loss = looked_at  # noqa: SLF001
    built.train()
    tools, tokens = sum(item[0] for item in observed), sum(item[1] for item in observed)
    return f"{tools} of {tokens} tokens in the loss are the tool's" if tools else None


KL_LIMIT = 0.01  # of the first step


@_repro(
    "NUM045",
    trigger="changed_after_loading",
    changes={"same": "the changed weights are saved to the folder that the policy's name points to"},
)
def num045_changed_after_loading(mitigation: str | None) -> str | None:
    """The policy is changed after it was loaded; TRL loads the reference from where the policy's name points."""
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        tiny_trl.model().save_pretrained(folder)
        policy = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        # Merging an adapter does the same.
        with torch.no_grad():
            policy.lm_head.weight.mul_(3)
        if mitigation == "same":
            policy.save_pretrained(folder)
        reported: list[float] = []

        class Logged(transformers.TrainerCallback):  # type: ignore[misc] # transformers is looked into in cells alone
            """Keeps the KL of each step."""

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                del args, state, control
                reported.extend(logs[key] for key in ("kl",) if key in logs)

        trained = tiny_trl.trainer(
            lambda completions, **_: [float(len(text) % 3) for text in completions],
            Logged(),
            held=policy,
            beta=0.1,
            learning_rate=0.0,
            max_steps=1,
            logging_strategy="steps",
            logging_steps=1,
            num_generations=4,
            max_completion_length=8,
            per_device_train_batch_size=4,
        )
        trained.train()
    if not reported:
        raise RuntimeError("TRL logged no KL")
    return None if abs(reported[0]) < KL_LIMIT else f"KL {reported[0]:.3f} before the first update"


# Without its end token the tiny model writes on until the limit.
_ENDLESS = {"generation_kwargs": {"suppress_tokens": [2]}}


@_repro(
    "NUM046",
    trigger="all_masked",
    changes={"unmasked": "mask_truncated_completions=False"},
    untried={"reach": calls.SEARCHES},
)
def num046_all_masked(mitigation: str | None) -> str | None:
    """Every completion is truncated, and TRL masks truncated completions: rewards differ, no weight moves."""
    masked = mitigation != "unmasked"
    return tiny_trl.weights_that_stay(
        tiny_trl.reward_by_letters, mask_truncated_completions=masked, **_ENDLESS
    )


STEPS, RATE = 100, 1e-6


@calls.repro(
    "NUM047",
    needs=("torch",),
    modules=("torch",),
    trigger="bfloat16",
    changes={"master": "the weights in float32"},
)
def num047_bfloat16(mitigation: str | None) -> str | None:
    """An update smaller than half of a bfloat16 weight's last place, again and again."""
    import torch

    torch.manual_seed(0)
    wide = torch.float32 if mitigation == "master" else torch.bfloat16
    weights = torch.nn.Parameter(torch.rand(1000).add(0.5).to(wide))
    before = weights.detach().clone()
    optimizer = torch.optim.AdamW([weights], lr=RATE, weight_decay=0.0)
    for _ in range(STEPS):
        weights.grad = torch.ones_like(weights)
        optimizer.step()
    moved = int((weights.detach() != before).sum())
    return None if moved == len(before) else f"{moved} of {len(before)} weights moved in {STEPS} steps"


def _never(completions: list[str], **_: Any) -> list[float]:
    """Return reward 0: no completion of letters has the requested number."""
    return [float("42" in text) for text in completions]


def _sometimes(completions: list[str], **_: Any) -> list[float]:
    return [float("a" in text or "b" in text) for text in completions]


@_repro(
    "REW004",
    trigger="never_solved",
    changes={"task": "a task that some completions solve"},
    untried={"again": calls.SEARCHES},
)
def rew004_never_solved(mitigation: str | None) -> str | None:
    """A task that is never solved: every group has one reward, and no step learns."""
    return tiny_trl.weights_that_stay(_sometimes if mitigation == "task" else _never)


def _by_chance(completions: list[str], **_: Any) -> list[float]:
    return [random.random() for _ in completions]


@_repro(
    "REW005",
    trigger="chance",
    changes={"steady": "a function of the completion alone"},
    untried={"column": "the function of this trigger reads no column"},
)
def rew005_chance(mitigation: str | None) -> str | None:
    """A reward function that draws: TRL trains on numbers that it does not give again."""
    function = tiny_trl.reward_by_letters if mitigation == "steady" else _by_chance
    reported: list[tuple[list[str], list[float]]] = []

    def recorded(completions: list[str], **more: Any) -> list[float]:
        rewards = function(completions=completions, **more)
        reported.append((list(completions), list(rewards)))
        return rewards

    tiny_trl.take_step(recorded)
    unlike = sum(function(completions=texts) != rewards for texts, rewards in reported)
    return (
        f"{unlike} of {len(reported)} batches were worth something else when asked again" if unlike else None
    )
