"""CFG126: a resume with `ignore_data_skip=True`: the sampler begins again, and old prompts come before the new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repro.drivers import calls, tiny_trl

_STEPS, _SAVED = 4, 2
_PROMPTS = ("a b", "c d", "e f", "g h", "i j", "k l", "m a", "b c")


def _prompts_of(resumed: str = "", **settings: Any) -> tuple[list[str], str]:
    """Trains the tiny model; returns the prompts, a step each, and the folder it saved to."""
    import transformers

    asked: list[str] = []

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        asked.extend(dict.fromkeys(prompts))
        return [float(len(text) % 5) for text in completions]

    sizes = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 4}
    kept = {"max_steps": _STEPS, "save_strategy": "steps", "save_steps": _SAVED}
    made = tiny_trl.trainer(
        rewards, transformers.TrainerCallback(), prompts=_PROMPTS, **(sizes | kept | settings)
    )
    made.train(resume_from_checkpoint=resumed or None)
    return asked, str(made.args.output_dir)


def _resumes(mitigation: str | None) -> str | None:
    whole, folder = _prompts_of()
    checkpoint = str(Path(folder) / f"checkpoint-{_SAVED}")
    after, _ = _prompts_of(checkpoint, ignore_data_skip=mitigation != "state")
    again = sorted(set(after) & set(whole[:_SAVED]))
    return f"{len(again)} prompts of the first {_SAVED} steps came again after the resume" if again else None


REPRO = calls.repro(
    "CFG126",
    "A resume that repeats data, or skips it",
    needs=("trl", "transformers", "torch", "accelerate"),
    modules=tiny_trl.MODULES,
    trigger=(
        "no_skip",
        "resume_from_checkpoint with ignore_data_skip=True, in the first pass over eight prompts",
    ),
    call=_resumes,
    failure=("", "", ""),
    helps={"state": "ignore_data_skip=False"},
    silent=True,
)
