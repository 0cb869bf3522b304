"""NUM001: log-probs from before the temperature, of completions sampled after it.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import Repro, TriedMitigation, Trigger
from repro.drivers import whole_engine

if TYPE_CHECKING:
    from repro.base import Work

TEMPERATURE = 0.6


def _temperature(mitigation: str | None) -> Work:
    """Sampled at a temperature below 1, reported with vLLM's default."""
    temperature = 1.0 if mitigation == "temperature_one" else TEMPERATURE
    options = {"logprobs_mode": "processed_logprobs"} if mitigation == "processed_logprobs" else {}
    held = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(held), **options)
    params = [whole_engine.params(seed, temperature=temperature) for seed in range(len(whole_engine.PROMPTS))]
    sampled = whole_engine.sample(llm, whole_engine.PROMPTS, params)
    pairs = [
        pair
        for one in sampled
        for pair in zip(one.logprobs, whole_engine.trainers(held, one, temperature), strict=True)
    ]
    return whole_engine.compared(pairs)


REPRO = Repro(
    code="NUM001",
    title="Log-probs before the temperature, completions after it",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger(
            "temperature",
            f"sampled at temperature {TEMPERATURE}, log-probs as vLLM reports them",
            _temperature,
            silent=True,
        ),
    ),
    mitigations=(
        TriedMitigation(
            "processed_logprobs",
            'LLM(logprobs_mode="processed_logprobs")',
            frozenset({"temperature"}),
            "TRL 0.28.0, huggingface/trl#4873",
        ),
        TriedMitigation("temperature_one", "sample at temperature 1", frozenset({"temperature"})),
    ),
    inapplicable=whole_engine.inapplicable,
)
