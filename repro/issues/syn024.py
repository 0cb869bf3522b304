"""SYN024: training went on, and the engine was sent nothing of it.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import Repro, TriedMitigation, Trigger
from repro.drivers import pushed_weights, whole_engine

if TYPE_CHECKING:
    from repro.base import Work


def _one_step_on(mitigation: str | None) -> Work:
    """The engine as it was started, beside the policy after a step."""
    policy = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(policy), logprobs_mode="processed_logprobs")
    pushed_weights.stepped(policy)
    if mitigation == "push":
        pushed_weights.push(llm, policy)
    return pushed_weights.held_against(llm, policy)


REPRO = Repro(
    code="SYN024",
    title="The engine samples with weights of an earlier step",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger("not_sent", "the policy takes a step, and nothing is sent", _one_step_on, silent=True),
    ),
    mitigations=(
        TriedMitigation(
            "push", "reload_weights with the policy's tensors before sampling", frozenset({"not_sent"})
        ),
    ),
    inapplicable=whole_engine.inapplicable,
)
