"""What a row that doesn't fit leaves behind in an engine whose forward pass is real and whose async output is off.

vLLM's CPU platform has no asynchronous output, so SCH002's assertion can't fire on the engine as it is
(`repro.drivers.engines_v0.async_output` gives it one). What stands here is what the advice against it comes to
on that engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Work
from repro.drivers import whole_engine
from repro.drivers.engines_v0.asked import LIMIT, Asked, work
from repro.drivers.engines_v0.engine import Offline, model_folder

OVERLONG = Asked("overlong", 30, LIMIT + 16, 5)
_ROWS = (Asked("row-0", 31, 8, 5), Asked("row-1", 32, 11, 5), OVERLONG, Asked("row-3", 33, 9, 5))
_NEXT = (Asked("next-0", 34, 8, 5), Asked("next-1", 35, 12, 5))
_SETTINGS = {"chunked_prefill_off": "chunked prefill", "async_output_off": "async output"}


def llm_overlong(mitigation: str | None) -> Work:
    """An over-long prompt, as it is: told in upstream's words where it gets no further."""
    if mitigation:
        raise InapplicableError("the failure does not get that far here, so there is nothing to mitigate")
    engine = Offline()
    try:
        engine.generate([OVERLONG])
    except ValueError as error:
        raise InapplicableError(f"{_no_async_output()}; and LLMEngine refuses the prompt: {error}") from error
    raise InapplicableError(_no_async_output())


def _no_async_output() -> str:
    platform = _line("vllm/platforms/cpu.py", "def is_async_output_supported")
    config = _line("vllm/config.py", "current_platform.is_async_output_supported")
    return (
        f"vLLM's CPU platform has no async output (vllm/platforms/cpu.py:{platform} returns False, and "
        f"vllm/config.py:{config} turns it off)"
    )


def _line(path: str, text: str) -> int:
    lines = (upstream.source(path) or "").splitlines()
    return next((number for number, line in enumerate(lines, 1) if text in line), 0)


def llm_refused_poisons_next(mitigation: str | None) -> Work:
    """`LLM.generate` refuses a batch because of one row; the rows before that one stay in the engine."""
    _off_already(mitigation, {"cap_min_tokens"})
    engine = Offline(mitigation)
    first = _prepared(_ROWS, mitigation)
    callers = []
    try:
        callers = [(first, engine.generate(first))]
    except ValueError:
        if mitigation == "abort_leftovers":
            engine.abort_in_flight()
        elif mitigation == "drain":
            engine.core.scheduler[0].free_finished_seq_groups()
        elif mitigation == "fresh_engine":
            engine = Offline(mitigation)
    outputs = engine.generate(_NEXT)
    return work([*callers, (_NEXT, outputs)], [engine], _misplaced(outputs))


def _misplaced(outputs: Sequence[Any]) -> str:
    """Says how far a caller is misled that takes answers by their place, as `zip(prompts, outputs)` does."""
    wrong = [
        item.name
        for item, output in zip(_NEXT, outputs, strict=False)
        if list(output.prompt_token_ids) != item.prompt
    ]
    return (
        f"taken by their place, the answers to {', '.join(wrong)} are those to other prompts" if wrong else ""
    )


def _prepared(rows: Sequence[Asked], mitigation: str | None) -> list[Asked]:
    if mitigation == "filter_overlong":
        return [row for row in rows if row.length <= LIMIT]
    if mitigation == "truncate_overlong":
        return [replace(row, length=min(row.length, LIMIT)) for row in rows]
    return list(rows)


def _off_already(mitigation: str | None, others: set[str]) -> None:
    if mitigation in _SETTINGS:
        raise InapplicableError(f"{_SETTINGS[mitigation]} is off already in this engine")
    if mitigation in others:
        raise InapplicableError("there is nothing in this for it to change")


def llm_past_limit(mitigation: str | None) -> Work:
    """With async output off a sequence goes on to `min_tokens`, past `max_model_len`, here the model's own limit."""
    if mitigation != "async_output_off":  # that is what it shows: the option is given, and it happens
        _off_already(
            mitigation,
            {"filter_overlong", "truncate_overlong", "abort_leftovers", "drain", "fresh_engine"},
        )
    held = whole_engine.model(0)
    held.config.max_position_embeddings = LIMIT
    model_folder()
    engine = Offline(mitigation, whole_engine.save(held))
    length, minimum = LIMIT - 4, 16
    asked = replace(_ROWS[0], length=length, max_tokens=30, min_tokens=minimum)
    params = asked.params()
    params.logprobs = 0
    if mitigation == "cap_min_tokens":
        params.min_tokens = LIMIT - length
    [answer] = engine.outer.generate([{"prompt_token_ids": asked.prompt}], [params], use_tqdm=False)
    return _compared(held, asked.prompt, params.min_tokens, answer.outputs[0])


def _compared(held: Any, prompt: Sequence[int], minimum: int, answer: Any) -> Work:
    """Counts the tokens whose log-prob is the model's own; vLLM masks the end of sequence up to the minimum."""
    import torch

    with torch.no_grad():
        logits = held(torch.tensor([[*prompt, *answer.token_ids]])).logits[0, len(prompt) - 1 : -1].double()
    logits[:minimum, held.config.eos_token_id] = -math.inf
    truth = logits.log_softmax(-1)
    due = {f"token {len(prompt) + place}": 1 for place in range(len(answer.token_ids))}
    right = [
        (name, 1)
        for name, token, entry, row in zip(due, answer.token_ids, answer.logprobs, truth, strict=True)
        if abs(entry[token].logprob - float(row[token])) <= whole_engine.TOLERANCE  # never of nan
    ]
    past = max(0, len(prompt) + len(due) - LIMIT - 1)
    note = f"{len(prompt) + len(due)} tokens of {LIMIT}, {past} computed past the model's last place"
    return Work(due, right, note=note, counted="log-probs are the model's")
