"""NUM041: a sampler of one's own that does not repeat prompts: TRL compares completions of different prompts."""

from __future__ import annotations

from typing import Any

from repro.drivers import calls, tiny_trl

_GROUP = 4


def _compares(mitigation: str | None) -> str | None:
    import transformers
    from torch.utils.data import SequentialSampler

    groups: list[list[str]] = []

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        groups.extend(prompts[at : at + _GROUP] for at in range(0, len(prompts), _GROUP))
        return [float(sum(map(ord, text)) % 7) for text in completions]

    made = tiny_trl.trainer(
        rewards,
        transformers.TrainerCallback(),
        num_generations=_GROUP,
        per_device_train_batch_size=_GROUP,
        max_completion_length=4,
        max_steps=1,
    )
    if mitigation != "repeat":
        # What a subclass does that overrides the method to keep an order of its own.
        made._get_train_sampler = lambda *_: SequentialSampler(made.train_dataset)  # noqa: SLF001
    made.train()
    mixed = sum(len(set(group)) > 1 for group in groups)
    return f"{mixed} of {len(groups)} groups have completions of several prompts" if mixed else None


REPRO = calls.repro(
    "NUM041",
    "Advantages of other groups than the prompts'",
    needs=("trl", "transformers", "torch"),
    modules=tiny_trl.MODULES,
    trigger=("own_sampler", "GRPOTrainer with a sampler of one's own that gives each prompt once"),
    call=_compares,
    failure=("", "", ""),
    helps={"repeat": "TRL's RepeatSampler, which it uses by itself"},
    silent=True,
)
