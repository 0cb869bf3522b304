"""TOK001: sample token ids that the tokenizer lacks, on vLLM's whole unmodified engine with a padded tiny model.

Many models pad their embeddings to a round number of rows. The extra rows are ids without a text, and the engine
samples from all rows. Each trigger shows one consequence: trainers train on the extra ids, a text that is tokenized
again loses them, and older engines refuse them in a prompt.
"""

from collections.abc import Sequence
from typing import Any

from repro import upstream
from repro.drivers import tiny_trl, whole_engine
from repro.drivers.whole_engine import PROMPTS, VOCABULARY
from repro.registry import InapplicableError, Tally, Trigger

TOKENS = 113  # number of the tokenizer's tokens; the model has VOCABULARY rows
# Files of the check of a prompt's ids. The V0 engine refuses ids that the tokenizer lacks; later releases compare ids
# with the larger of the tokenizer's and the model's vocabularies.
_CHECKS = ("vllm/engine/llm_engine.py", "vllm/v1/engine/processor.py", "vllm/v1/engine/input_processor.py")
_REFUSES = "max_input_id > tokenizer.max_token_id"


def mitigation_params(mitigation: str | None) -> dict[str, Any]:
    """Return the sampling parameters that a mitigation adds."""
    if mitigation == "allowed_ids":
        return {"allowed_token_ids": list(range(TOKENS))}
    if mitigation == "logit_bias":
        return {"logit_bias": dict.fromkeys(range(TOKENS, VOCABULARY), -100.0)}
    return {"top_p": 0.9999} if mitigation == "top_p" else {}


def _start_engine(mitigation: str | None) -> tuple[Any, Any]:
    """Start the engine on a padded model, or with the mitigation on a trimmed one; return tokenizer and engine."""
    policy = whole_engine.model(0)
    words = tiny_trl.tokenizer([f"w{number}" for number in range(TOKENS - 3)], "WhitespaceSplit")
    if mitigation == "trimmed_model":
        policy.resize_token_embeddings(TOKENS)
    folder = whole_engine.save(policy)
    words.save_pretrained(folder)
    return words, whole_engine.start(folder, skip_tokenizer_init=False)


def _complete(llm: Any, prompts: Sequence[Sequence[int]], mitigation: str | None) -> list[Any]:
    """Return one of vLLM's completions, with its text, for each prompt."""
    options = {"detokenize": True, "skip_special_tokens": False, "spaces_between_special_tokens": True}
    options |= mitigation_params(mitigation)
    params = [whole_engine.params(seed, **options) for seed in range(len(prompts))]
    return whole_engine.complete(llm, prompts, params)


def _sample_tokens(mitigation: str | None) -> Tally:
    """Count the sampled tokens that have a text."""
    _, llm = _start_engine(mitigation)
    completions = _complete(llm, PROMPTS, mitigation)
    return count_with_text([token for completion in completions for token in completion.token_ids])


def count_with_text(ids: Sequence[int]) -> Tally:
    """Count the ids that the tokenizer has."""
    passed = {f"token {index}": token < TOKENS for index, token in enumerate(ids)}
    return Tally.of_checks(passed, "sampled tokens have a text")


def _encode_texts_again(mitigation: str | None) -> Tally:
    """Count the completions whose text is tokenized to the same ids; mitigation token_ids takes the ids themselves."""
    words, llm = _start_engine(mitigation)
    passed, count, count_again = {}, 0, 0
    for index, completion in enumerate(_complete(llm, PROMPTS, mitigation)):
        ids = list(completion.token_ids)
        encoded = words(completion.text, add_special_tokens=False).input_ids
        again = ids if mitigation == "token_ids" else encoded
        passed[f"completion {index}"] = list(again) == ids
        count, count_again = count + len(ids), count_again + len(again)
    note = f"{count} tokens sampled, {count_again} came back"
    return Tally.of_checks(passed, "completions are the same tokens again", note)


def _continue_with_sampled_ids(mitigation: str | None) -> Tally:
    """Count the requests of a second turn that the engine answers; their prompts contain the sampled ids."""
    if not any(_REFUSES in (upstream.source(path) or "") for path in _CHECKS):
        raise InapplicableError("this vLLM takes every id that the model has a row for as a prompt")
    _, llm = _start_engine(mitigation)
    first = _complete(llm, PROMPTS, mitigation)
    turns = [(*prompt, *completion.token_ids) for prompt, completion in zip(PROMPTS, first, strict=True)]
    second = _complete(llm, turns, mitigation)
    names = [f"turn {index}" for index in range(len(turns))]
    due = {name: len(completion.token_ids) for name, completion in zip(names, first, strict=True)}
    received = [(name, len(completion.token_ids)) for name, completion in zip(names, second, strict=True)]
    return Tally(due, received)


whole_engine.repro(
    "TOK001",
    assertion="raise ValueError(",
    raises="ValueError",
    function="_validate_token_prompt",
    triggers=[
        Trigger("sampled", _sample_tokens, silent=True),
        Trigger("re_encoded", _encode_texts_again, silent=True),
        Trigger("fed_back", _continue_with_sampled_ids),
    ],
)
