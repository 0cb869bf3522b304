"""NUM049: the engine samples at the temperature of the model's folder, or with a penalty, and the trainer knows of 1.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import Repro, TriedMitigation, Trigger
from repro.drivers import pushed_weights, whole_engine

if TYPE_CHECKING:
    from repro.base import Work

TEMPERATURE, PENALTY = 0.6, 0.7


def _folders_temperature(mitigation: str | None) -> Work:
    """A temperature in the model's folder, taken where a request says nothing of one."""
    held = whole_engine.model(0)
    folder = whole_engine.save(held, {"temperature": TEMPERATURE})
    llm = whole_engine.start(folder, logprobs_mode="processed_logprobs")
    asked = 1.0 if mitigation == "pin" else llm.get_default_sampling_params().temperature
    return pushed_weights.held_against(llm, held, temperature=asked)


def _presence_penalty(mitigation: str | None) -> Work:
    """A penalty on ids that the completion has already."""
    held = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(held), logprobs_mode="processed_logprobs")
    asked = {} if mitigation == "pin" else {"presence_penalty": PENALTY}
    return pushed_weights.held_against(llm, held, **asked)


REPRO = Repro(
    code="NUM049",
    title="The engine samples by another law than the trainer computes",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger(
            "folders_temperature",
            f"temperature {TEMPERATURE} in the model's folder, and a request that says none",
            _folders_temperature,
            silent=True,
        ),
        Trigger(
            "presence_penalty", f"presence_penalty {PENALTY} with a request", _presence_penalty, silent=True
        ),
    ),
    mitigations=(
        TriedMitigation(
            "pin",
            "the trainer's temperature with each request, and no penalty",
            frozenset({"folders_temperature", "presence_penalty"}),
        ),
    ),
    inapplicable=whole_engine.inapplicable,
)
