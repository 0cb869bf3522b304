"""NUM043: engine and trainer read one checkpoint, and turn positions differently.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import InapplicableError, Repro, TriedMitigation, Trigger
from repro.drivers import calls, pushed_weights, whole_engine

if TYPE_CHECKING:
    from repro.base import Work


_UNTRIED = {"ask": calls.SEARCHES, "correct": "it bounds what the difference does, and leaves it there"}


def _other_positions(mitigation: str | None) -> Work:
    """The engine is told another base of the rotary embedding than the checkpoint's config has."""
    if mitigation in _UNTRIED:
        raise InapplicableError(_UNTRIED[mitigation])
    held = whole_engine.model(0)
    theta = 500000.0
    # From transformers 5 on it stands among the rotary embedding's own parameters.
    own = getattr(held.config, "rope_parameters", None)
    override = {"rope_parameters": {**own, "rope_theta": theta}} if own else {"rope_theta": theta}
    options = {} if mitigation == "one_config" else {"hf_overrides": override}
    llm = whole_engine.start(whole_engine.save(held), logprobs_mode="processed_logprobs", **options)
    return pushed_weights.held_against(llm, held)


REPRO = Repro(
    code="NUM043",
    title="Engine and trainer compute different log-probs",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger(
            "other_positions",
            "one checkpoint, and another rope_theta for the engine",
            _other_positions,
            silent=True,
        ),
    ),
    mitigations=(
        TriedMitigation("one_config", "the checkpoint's config for both", frozenset({"other_positions"})),
        TriedMitigation("ask", "audit, with the address of the server", frozenset()),
        TriedMitigation("correct", "TRL's importance sampling correction", frozenset()),
    ),
    inapplicable=whole_engine.inapplicable,
)
