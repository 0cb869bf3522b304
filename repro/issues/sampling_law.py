"""Repros: engine and trainer compute log-probs of different distributions, shown on the whole engine."""

from __future__ import annotations

from repro.base import Work
from repro.drivers import calls, whole_engine

PROCESSED = {"logprobs_mode": "processed_logprobs"}


def temperature(mitigation: str | None) -> Work:
    """Sample at a temperature below 1, with log-probs as vLLM reports them by default."""
    used = 1.0 if mitigation == "temperature_one" else 0.6
    policy = whole_engine.model(0)
    options = PROCESSED if mitigation == "processed_logprobs" else {}
    llm = whole_engine.start(whole_engine.save(policy), **options)
    return whole_engine.compare_samples(llm, policy, used, temperature=used)


whole_engine.repro(
    "NUM001",
    temperature,
    changes={
        "processed_logprobs": ('LLM(logprobs_mode="processed_logprobs")', "TRL 0.28.0, huggingface/trl#4873"),
        "temperature_one": "sample at temperature 1",
    },
)


def nucleus(mitigation: str | None) -> Work:
    """Sample within a nucleus, while the trainer's softmax goes over the whole vocabulary."""
    top_p = 1.0 if mitigation == "neutral_sampling" else 0.7
    mode = "raw_logprobs" if mitigation == "raw_logprobs" else "processed_logprobs"
    policy = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(policy), logprobs_mode=mode)
    params = [whole_engine.params(seed, top_p=top_p) for seed in range(len(whole_engine.PROMPTS))]
    pairs = []
    for sample in whole_engine.sample(llm, whole_engine.PROMPTS, params):
        trainer = whole_engine.trainers(policy, sample)
        truth = whole_engine.trainers(
            policy, sample, top_p=top_p
        )  # of the distribution that was sampled from
        for reported, of_trainer, of_sampling in zip(sample.logprobs, trainer, truth, strict=True):
            # Reported log-probs may agree with the trainer although sampling used another distribution.
            hidden = abs(of_sampling - of_trainer) > whole_engine.TOLERANCE
            pairs.append((of_sampling if hidden else reported, of_trainer))
    return whole_engine.count_agreeing(pairs)


whole_engine.repro(
    "NUM002",
    nucleus,
    changes={
        "neutral_sampling": ("top_p 1, top_k off, min_p 0", "huggingface/trl#6789"),
        "raw_logprobs": 'LLM(logprobs_mode="raw_logprobs"): the ratio looks clean',
    },
)


def defaults(mitigation: str | None) -> Work:
    """Sample with the engine's own default parameters, as a server does for what a request leaves out."""
    policy = whole_engine.model(0)
    folder = whole_engine.save(policy, {"repetition_penalty": 1.3})
    options = {"generation_config": "vllm"} if mitigation == "generation_config_vllm" else {}
    llm = whole_engine.start(folder, **PROCESSED, **options)
    penalty = llm.get_default_sampling_params().repetition_penalty
    if mitigation == "pin_every_parameter":
        penalty = 1.0
    return whole_engine.compare_samples(llm, policy, repetition_penalty=penalty)


whole_engine.repro(
    "NUM003",
    defaults,
    changes={
        "generation_config_vllm": (
            'LLM(generation_config="vllm"), --generation-config vllm',
            "NVIDIA-NeMo/RL#3497",
        ),
        "pin_every_parameter": "send repetition_penalty=1.0 with each request",
    },
)


def other_positions(mitigation: str | None) -> Work:
    """Give the engine another base of the rotary embedding than the checkpoint's config has."""
    policy = whole_engine.model(0)
    theta = 500000.0
    # From transformers 5 on it is one of the rotary embedding's parameters.
    local = getattr(policy.config, "rope_parameters", None)
    override = {"rope_parameters": {**local, "rope_theta": theta}} if local else {"rope_theta": theta}
    options = {} if mitigation == "one_config" else {"hf_overrides": override}
    llm = whole_engine.start(whole_engine.save(policy), **PROCESSED, **options)
    return whole_engine.compare_samples(llm, policy)


whole_engine.repro(
    "NUM043",
    other_positions,
    changes={
        "one_config": "the checkpoint's config for both",
        "ask": "audit, with the address of the server",
        "correct": "TRL's importance sampling correction",
    },
    untried={"ask": calls.SEARCHES, "correct": "it bounds what the difference does, and leaves it there"},
)


def folders_temperature(mitigation: str | None) -> Work:
    """Take the temperature of the model's folder, where a request has none."""
    policy = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(policy, {"temperature": 0.6}), **PROCESSED)
    requests = 1.0 if mitigation == "pin" else llm.get_default_sampling_params().temperature
    return whole_engine.compare_samples(llm, policy, temperature=requests)


def presence_penalty(mitigation: str | None) -> Work:
    """Sample with a penalty on ids that the completion has already."""
    policy = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(policy), **PROCESSED)
    requests = {} if mitigation == "pin" else {"presence_penalty": 0.7}
    return whole_engine.compare_samples(llm, policy, **requests)


whole_engine.repro(
    "NUM049",
    folders_temperature,
    presence_penalty,
    changes={"pin": "the trainer's temperature with each request, and no penalty"},
)
