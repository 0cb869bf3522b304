"""SYN025: an update that leaves out some tensors is taken without a word.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import Repro, TriedMitigation, Trigger
from repro.drivers import pushed_weights, whole_engine

if TYPE_CHECKING:
    from repro.base import Work


def _without_a_layer(mitigation: str | None) -> Work:
    """All tensors but those of the second layer arrive."""
    policy = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(policy), logprobs_mode="processed_logprobs")
    pushed_weights.stepped(policy)
    pushed_weights.push(llm, policy, lambda name: mitigation == "all_names" or ".layers.1." not in name)
    return pushed_weights.held_against(llm, policy)


REPRO = Repro(
    code="SYN025",
    title="Part of the weights did not arrive",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger(
            "layer_left_out", "an update without the second layer's tensors", _without_a_layer, silent=True
        ),
    ),
    mitigations=(
        TriedMitigation("all_names", "send every tensor of the model", frozenset({"layer_left_out"})),
    ),
    inapplicable=whole_engine.inapplicable,
)
