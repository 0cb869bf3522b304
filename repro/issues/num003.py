"""NUM003: a repetition penalty out of the model's own generation_config.json, which nobody asked for.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import Repro, TriedMitigation, Trigger
from repro.drivers import whole_engine

if TYPE_CHECKING:
    from repro.base import Work

PENALTY = 1.3


def _defaults(mitigation: str | None) -> Work:
    """Sampled with the engine's own default parameters, as a server does for what a request leaves out."""
    import vllm

    held = whole_engine.model(0)
    folder = whole_engine.save(held, {"repetition_penalty": PENALTY})
    options = {"generation_config": "vllm"} if mitigation == "generation_config_vllm" else {}
    llm = whole_engine.start(folder, logprobs_mode="processed_logprobs", **options)
    params = []
    for seed in range(len(whole_engine.PROMPTS)):
        default = llm.get_default_sampling_params()
        known = {"repetition_penalty": default.repetition_penalty}
        if mitigation == "pin_every_parameter":
            known = {"repetition_penalty": 1.0}
        params.append(vllm.SamplingParams(**whole_engine.settings(seed), **known))
    pairs = [
        pair
        for one in whole_engine.sample(llm, whole_engine.PROMPTS, params)
        for pair in zip(one.logprobs, whole_engine.trainers(held, one), strict=True)
    ]
    return whole_engine.compared(pairs)


REPRO = Repro(
    code="NUM003",
    title="A repetition penalty out of the model's generation_config.json",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger(
            "defaults", f"repetition_penalty {PENALTY} stands in the model's folder", _defaults, silent=True
        ),
    ),
    mitigations=(
        TriedMitigation(
            "generation_config_vllm",
            'LLM(generation_config="vllm"), --generation-config vllm',
            frozenset({"defaults"}),
            "NVIDIA-NeMo/RL#3497",
        ),
        TriedMitigation(
            "pin_every_parameter", "send repetition_penalty=1.0 with each request", frozenset({"defaults"})
        ),
    ),
    inapplicable=whole_engine.inapplicable,
)
