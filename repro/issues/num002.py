"""NUM002: sampled within a nucleus, trained on a softmax over the whole vocabulary.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import Repro, TriedMitigation, Trigger
from repro.drivers import whole_engine

if TYPE_CHECKING:
    from repro.base import Work

TOP_P = 0.7


def _nucleus(mitigation: str | None) -> Work:
    """Sampled within a nucleus, while the trainer's softmax goes over the whole vocabulary."""
    top_p = 1.0 if mitigation == "neutral_sampling" else TOP_P
    mode = "raw_logprobs" if mitigation == "raw_logprobs" else "processed_logprobs"
    held = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(held), logprobs_mode=mode)
    params = [whole_engine.params(seed, top_p=top_p) for seed in range(len(whole_engine.PROMPTS))]
    pairs = []
    for one in whole_engine.sample(llm, whole_engine.PROMPTS, params):
        trainer = whole_engine.trainers(held, one)
        truth = whole_engine.trainers(held, one, top_p=top_p)  # of the distribution that was sampled from
        for reported, of_trainer, of_sampling in zip(one.logprobs, trainer, truth, strict=True):
            # What is reported may agree with the trainer and still not be what was sampled from.
            hidden = abs(of_sampling - of_trainer) > whole_engine.TOLERANCE
            pairs.append((of_sampling if hidden else reported, of_trainer))
    return whole_engine.compared(pairs)


REPRO = Repro(
    code="NUM002",
    title="Sampled within a nucleus, trained on the whole vocabulary",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(Trigger("nucleus", f"top_p = {TOP_P}, log-probs as sampled from", _nucleus, silent=True),),
    mitigations=(
        TriedMitigation(
            "neutral_sampling", "top_p 1, top_k off, min_p 0", frozenset({"nucleus"}), "huggingface/trl#6789"
        ),
        TriedMitigation(
            "raw_logprobs", 'LLM(logprobs_mode="raw_logprobs"): the ratio looks clean', frozenset()
        ),
    ),
    inapplicable=whole_engine.inapplicable,
)
