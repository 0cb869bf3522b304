"""SYN001: new weights, and keys and values that the old ones cached for the same prompt.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import InapplicableError, Repro, TriedMitigation, Trigger
from repro.drivers import whole_engine

if TYPE_CHECKING:
    from repro.base import Work


def _stale_cache(mitigation: str | None) -> Work:
    """New weights, and the keys that the old ones cached for the same prompt."""
    import vllm

    old, new = whole_engine.model(0), whole_engine.model(1)
    options = {"enable_prefix_caching": mitigation != "prefix_caching_off"}
    llm = whole_engine.start(whole_engine.save(old), logprobs_mode="processed_logprobs", **options)
    whole_engine.sample(llm, [whole_engine.LONG], [whole_engine.params(0)])
    tensors = iter([(name, value.detach()) for name, value in new.named_parameters()])
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
    except (AttributeError, TypeError) as error:
        raise InapplicableError(f"vLLM {vllm.__version__} takes no weights this way: {error}") from error
    if mitigation == "reset_prefix_cache" and not llm.reset_prefix_cache():
        raise InapplicableError("the prefix cache was not reset")
    [one] = whole_engine.sample(llm, [whole_engine.LONG], [whole_engine.params(1)])
    return whole_engine.compared(list(zip(one.logprobs, whole_engine.trainers(new, one), strict=True)))


REPRO = Repro(
    code="SYN001",
    title="New weights, keys and values cached by the old ones",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger("same_prompt", "weights replaced, the prompt's keys still cached", _stale_cache, silent=True),
    ),
    mitigations=(
        TriedMitigation(
            "reset_prefix_cache", "llm.reset_prefix_cache() after each update", frozenset({"same_prompt"})
        ),
        TriedMitigation("prefix_caching_off", "LLM(enable_prefix_caching=False)", frozenset({"same_prompt"})),
    ),
    inapplicable=whole_engine.inapplicable,
)
