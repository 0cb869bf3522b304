"""REW003: verl looks for a reward by the data set's data_source, and has none of that name."""

from __future__ import annotations

from repro.drivers import calls


def _score(mitigation: str | None) -> None:
    from verl.utils.reward_score import default_compute_score

    source = "openai/gsm8k" if mitigation == "name" else "/data/my_own_set"
    default_compute_score(source, "so it is #### 4", "4")


REPRO = calls.repro(
    "REW003",
    "The run names no reward function, or one that is not there",
    needs=("verl",),
    modules=("verl.utils.reward_score",),
    trigger=("data_source", "default_compute_score with a data_source of one's own"),
    call=_score,
    failure=(
        "NotImplementedError",
        'raise NotImplementedError(f"Reward function is not implemented for {data_source=}")',
        "default_compute_score",
    ),
    helps={"name": "a data_source that verl knows"},
    untried={"weights": "it is about reward_weights, of which there are none here"},
)
