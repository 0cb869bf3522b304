"""NUM042: a rollout function appends what a tool answered and sends no mask: TRL trains on the tool's tokens."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_trl

# The last letter of the vocabulary stands for the tool's answer; nobody samples it.
_TOOL = tiny_trl.VOCABULARY - 1
_SAMPLED, _ANSWERED = 4, 3


def _rollouts(mitigation: str | None) -> Any:
    def rollout(prompts: list[str], held: Any) -> dict[str, list[list[int]]]:
        import torch

        ids = held.processing_class(prompts)["input_ids"]
        completions = []
        for prompt in ids:
            options = {"max_new_tokens": _SAMPLED, "do_sample": True, "suppress_tokens": [2, _TOOL]}
            drawn = held.model.generate(torch.tensor([prompt]), **options)
            completions.append([*drawn[0, len(prompt) :].tolist(), *[_TOOL] * _ANSWERED])
        mask = {"env_mask": [[1] * _SAMPLED + [0] * _ANSWERED for _ in ids]} if mitigation == "mask" else {}
        logprobs = [[0.0] * len(row) for row in completions]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs, **mask}

    return rollout


def _trains_on(mitigation: str | None) -> str | None:
    import transformers

    made = tiny_trl.trainer(
        lambda completions, **_: [float(sum(map(ord, text)) % 7) for text in completions],
        transformers.TrainerCallback(),
        num_generations=4,
        per_device_train_batch_size=4,
        max_completion_length=_SAMPLED + _ANSWERED,
        max_steps=1,
    )
    made.rollout_func = _rollouts(mitigation)  # where its constructor puts what it is given under this name
    asked, seen = made._compute_loss, []  # noqa: SLF001 - what goes into the loss is looked at on the way

    def looked_at(model: Any, inputs: Any) -> Any:
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        seen.append((int((mask * (inputs["completion_ids"] == _TOOL)).sum()), int(mask.sum())))
        return asked(model, inputs)

    made._compute_loss = looked_at  # noqa: SLF001
    made.train()
    tools, tokens = sum(each[0] for each in seen), sum(each[1] for each in seen)
    return f"{tools} of {tokens} tokens in the loss are the tool's" if tools else None


REPRO = calls.repro(
    "NUM042",
    "Tokens in the loss that the policy did not sample",
    needs=("trl", "transformers", "torch"),
    modules=tiny_trl.MODULES,
    trigger=("no_env_mask", "a rollout_func appends what a tool answered, and sends no env_mask"),
    call=_trains_on,
    failure=("", "", ""),
    helps={"mask": "env_mask: 1 on what was sampled, 0 on what the tool answered"},
    silent=True,
)
