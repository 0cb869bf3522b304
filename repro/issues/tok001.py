"""TOK001: the model has more rows than the tokenizer has tokens, and the engine samples them.

Embeddings are padded to a round number of rows. The extra rows are ids without text. The engine samples from all rows;
trainers train on the extra ids, tokenising the text again loses them, and older engines refuse them in a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers import tiny_trl, whole_engine

TOKENS = 113  # of the tokenizer; the model has whole_engine.VOCABULARY rows
# In the V0 engine; later releases compare with the larger of the tokenizer's and the model's.
ASSERTION, FUNCTION = "raise ValueError(", "_validate_token_prompt"
_CHECKS = ("vllm/engine/llm_engine.py", "vllm/v1/engine/processor.py", "vllm/v1/engine/input_processor.py")
_REFUSES = "max_input_id > tokenizer.max_token_id"


def tokenizer() -> Any:
    """Return a tokenizer of words, with fewer tokens than the model has rows."""
    return tiny_trl.tokenizer([f"w{number}" for number in range(TOKENS - 3)], "WhitespaceSplit")


def _mitigation_params(mitigation: str | None) -> dict[str, Any]:
    """Return the sampling parameters that a mitigation adds."""
    if mitigation == "allowed_ids":
        return {"allowed_token_ids": list(range(TOKENS))}
    if mitigation == "logit_bias":
        return {"logit_bias": dict.fromkeys(range(TOKENS, whole_engine.VOCABULARY), -100.0)}
    return {"top_p": 0.9999} if mitigation == "top_p" else {}


def _start_engine(mitigation: str | None) -> tuple[Any, Any, Any]:
    """Start the engine on a padded model; return (model, tokenizer, engine)."""
    policy, words = whole_engine.model(0), tokenizer()
    if mitigation == "trimmed_model":
        policy.resize_token_embeddings(TOKENS)
    folder = whole_engine.save(policy)
    words.save_pretrained(folder)
    return policy, words, whole_engine.start(folder, skip_tokenizer_init=False)


def _sample_answers(llm: Any, prompts: Sequence[Sequence[int]], mitigation: str | None) -> list[Any]:
    """Sample one completion for each prompt, with its text."""
    import vllm

    common = {"detokenize": True, "skip_special_tokens": False, "spaces_between_special_tokens": True}
    params = [
        vllm.SamplingParams(**(whole_engine.settings(seed) | common | _mitigation_params(mitigation)))
        for seed in range(len(prompts))
    ]
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return [answer.outputs[0] for answer in llm.generate(requests, params, use_tqdm=False)]


def _run_sampled(mitigation: str | None) -> Work:
    """Trigger `sampled`: count the sampled tokens that have a text."""
    if mitigation == "token_ids":
        raise InapplicableError("the token is sampled all the same; see re_encoded")
    policy, _, llm = _start_engine(mitigation)
    answers = _sample_answers(llm, whole_engine.PROMPTS, mitigation)
    ids = [int(token) for answer in answers for token in answer.token_ids]
    mass = _text_probability(policy, answers)
    return count_with_text(ids, f"the trainer's softmax leaves {mass:.3f} to them (geometric mean)")


def count_with_text(ids: Sequence[int], note: str = "") -> Work:
    """Count the ids that the tokenizer has."""
    names = [f"token {place}" for place in range(len(ids))]
    received = [(name, 1) for name, token in zip(names, ids, strict=True) if token < TOKENS]
    return Work(dict.fromkeys(names, 1), received, note=note, counted="sampled tokens have a text")


def _text_probability(held: Any, answers: Sequence[Any]) -> float:
    """Return the trainer's probability of all tokens with a text: geometric mean over positions."""
    import torch

    logs = []
    for prompt, answer in zip(whole_engine.PROMPTS, answers, strict=True):
        with torch.no_grad():
            logits = held(torch.tensor([[*prompt, *answer.token_ids]])).logits[0, len(prompt) - 1 : -1]
        mass = logits.double().softmax(-1)[:, :TOKENS].sum(-1)
        logs += [math.log(value) for value in mass.tolist()]
    return math.exp(sum(logs) / len(logs))


def _run_re_encoded(mitigation: str | None) -> Work:
    """Trigger `re_encoded`: count the completions whose text is tokenised to the same ids."""
    _, words, llm = _start_engine(mitigation)
    due, received, sampled, back = {}, [], 0, 0
    for place, answer in enumerate(_sample_answers(llm, whole_engine.PROMPTS, mitigation)):
        ids = list(answer.token_ids)
        again = ids if mitigation == "token_ids" else words(answer.text, add_special_tokens=False).input_ids
        due[f"completion {place}"] = 1
        received += [(f"completion {place}", 1)] if list(again) == ids else []
        sampled, back = sampled + len(ids), back + len(again)
    note = f"{sampled} tokens sampled, {back} came back"
    return Work(due, received, note=note, counted="completions are the same tokens again")


def _run_fed_back(mitigation: str | None) -> Work:
    """Trigger `fed_back`: send the sampled ids to the engine in the next turn's prompt."""
    if not any(_REFUSES in (upstream.source(path) or "") for path in _CHECKS):
        raise InapplicableError("this vLLM takes every id that the model has a row for as a prompt")
    if mitigation == "token_ids":
        raise InapplicableError("the ids are what is refused; see re_encoded")
    _, _, llm = _start_engine(mitigation)
    first = _sample_answers(llm, whole_engine.PROMPTS, mitigation)
    turns = [(*prompt, *answer.token_ids) for prompt, answer in zip(whole_engine.PROMPTS, first, strict=True)]
    second = _sample_answers(llm, turns, mitigation)
    names = [f"turn {place}" for place in range(len(turns))]
    due = {name: len(answer.token_ids) for name, answer in zip(names, first, strict=True)}
    return Work(due, [(name, len(answer.token_ids)) for name, answer in zip(names, second, strict=True)])


repro(
    "TOK001",
    assertion=ASSERTION,
    raises="ValueError",
    function=FUNCTION,
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=[
        Trigger("sampled", _run_sampled, silent=True),
        Trigger("re_encoded", _run_re_encoded, silent=True),
        Trigger("fed_back", _run_fed_back),
    ],
    mitigations={
        "allowed_ids": "SamplingParams(allowed_token_ids=...): those the tokenizer has",
        "logit_bias": ("logit_bias -100 for the others", "volcengine/verl#1398"),
        "trimmed_model": "resize_token_embeddings(len(tokenizer))",
        "token_ids": "keep the ids, never the text",
        "top_p": ("top_p = 0.9999", "vllm-project/vllm#13175"),
    },
    inapplicable=whole_engine.inapplicable,
)
