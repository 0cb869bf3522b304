"""Reproduce failures in which engine and trainer use different distributions, on vLLM's whole unmodified engine.

The model is tiny. The causes are log-probs reported without the sampling temperature (NUM001), top-p that the trainer
does not apply (NUM002), defaults in the model's folder (NUM003), another base of the rotary embedding (NUM043), and a
temperature or a presence penalty that the trainer does not apply (NUM049).
"""

from repro.drivers import whole_engine
from repro.drivers.whole_engine import PROCESSED
from repro.registry import Tally, Trigger


def _sample_at_temperature(mitigation: str | None) -> Tally:
    """Sample at a temperature below 1; vLLM reports log-probs at temperature 1 by default."""
    value = 1.0 if mitigation == "temperature_one" else 0.6
    policy, llm = whole_engine.start_model(**(PROCESSED if mitigation == "processed_logprobs" else {}))
    return whole_engine.compare_samples(llm, policy, value, temperature=value)


whole_engine.repro("NUM001", triggers=[Trigger("temperature", _sample_at_temperature, silent=True)])


def _sample_nucleus(mitigation: str | None) -> Tally:
    """Sample with top-p below 1, while the trainer's softmax covers the whole vocabulary."""
    top_p = 1.0 if mitigation == "neutral_sampling" else 0.7
    mode = "raw_logprobs" if mitigation == "raw_logprobs" else "processed_logprobs"
    policy, llm = whole_engine.start_model(logprobs_mode=mode)
    params = [whole_engine.params(seed, top_p=top_p) for seed in range(len(whole_engine.PROMPTS))]
    pairs = []
    for sample in whole_engine.sample(llm, whole_engine.PROMPTS, params):
        trainer = whole_engine.trainer_logprobs(policy, sample)
        sampling = whole_engine.trainer_logprobs(policy, sample, top_p=top_p)
        for reported, of_trainer, of_sampling in zip(sample.logprobs, trainer, sampling, strict=True):
            # Reported log-probs may agree with the trainer although sampling used another distribution.
            differs = abs(of_sampling - of_trainer) > whole_engine.TOLERANCE
            pairs.append((of_sampling if differs else reported, of_trainer))
    return whole_engine.count_agreeing(pairs)


whole_engine.repro("NUM002", triggers=[Trigger("nucleus", _sample_nucleus, silent=True)])


def _use_folder_defaults(mitigation: str | None) -> Tally:
    """Sample with the defaults that the engine reads from the model's folder (generation_config.json)."""
    options = {"generation_config": "vllm"} if mitigation == "generation_config_vllm" else {}
    policy, llm = whole_engine.start_model({"repetition_penalty": 1.3}, **PROCESSED, **options)
    penalty = llm.get_default_sampling_params().repetition_penalty
    if mitigation == "pin_every_parameter":
        penalty = 1.0
    return whole_engine.compare_samples(llm, policy, repetition_penalty=penalty)


whole_engine.repro("NUM003", triggers=[Trigger("defaults", _use_folder_defaults, silent=True)])


def _use_other_rotary_base(mitigation: str | None) -> Tally:
    """Give the engine another base of the rotary embedding than the checkpoint's config has."""
    policy = whole_engine.model(0)
    theta = {"rope_theta": 500000.0}
    # From transformers 5 on the base is one of the rotary embedding's parameters.
    parameters = getattr(policy.config, "rope_parameters", None)
    override = {"rope_parameters": {**parameters, **theta}} if parameters else theta
    options = {} if mitigation == "one_config" else {"hf_overrides": override}
    llm = whole_engine.start(whole_engine.save(policy), **PROCESSED, **options)
    return whole_engine.compare_samples(llm, policy)


whole_engine.repro("NUM043", triggers=[Trigger("other_positions", _use_other_rotary_base, silent=True)])


def _use_folder_temperature(mitigation: str | None) -> Tally:
    """Sample at the temperature in the model's folder, which the engine uses if a request has no temperature."""
    policy, llm = whole_engine.start_model({"temperature": 0.6}, **PROCESSED)
    default = llm.get_default_sampling_params().temperature
    return whole_engine.compare_samples(llm, policy, temperature=1.0 if mitigation == "pin" else default)


def _use_presence_penalty(mitigation: str | None) -> Tally:
    """Sample with a penalty on ids that the completion contains already."""
    policy, llm = whole_engine.start_model(**PROCESSED)
    options = {} if mitigation == "pin" else {"presence_penalty": 0.7}
    return whole_engine.compare_samples(llm, policy, **options)


whole_engine.repro(
    "NUM049",
    triggers=[
        Trigger("folders_temperature", _use_folder_temperature, silent=True),
        Trigger("presence_penalty", _use_presence_penalty, silent=True),
    ],
)
