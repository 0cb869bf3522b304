"""SCH002: a sequence parked as stopped was never freed when the next step is scheduled.

Under async output processing a running sequence longer than `max_model_len` is parked in `_async_stopped`: its pending
output is taken to finish it, and whatever finishes empties the list in the same step. If the output does *not* finish
it and nothing else finishes, the next `schedule()` asserts that the list is empty. Two ways lead there: a prompt
longer than the model length, which chunked prefill admits because it checks the chunk and not the prompt; and
`min_tokens` that keep the stop checker from ending a sequence at the model length.
"""

from __future__ import annotations

from dataclasses import replace

from repro.base import Mitigation, NotApplicableError, Repro, Trigger, Work
from repro.schedulers import v0

ASSERTION = "assert len(self._async_stopped) == 0"
MAX_LEN = 64
OVERLONG = MAX_LEN + 16


def _engine(mitigation: str | None, *, chunked: bool, token_budget: int = 64) -> v0.V0Engine:
    setup = v0.Setup(chunked=chunked, async_output=True, max_model_len=MAX_LEN, token_budget=token_budget)
    if mitigation == "chunked_prefill_off":
        setup = replace(setup, chunked=False, token_budget=max(MAX_LEN, token_budget))
    if mitigation == "async_output_off":
        setup = replace(setup, async_output=False)
    return v0.V0Engine(setup)


def _overlong(mitigation: str | None, *, neighbour_tokens: int) -> Work:
    """An over-long prompt joins a running neighbour, whose own end decides what is seen of the failure."""
    _only_between_generates(mitigation)
    engine = _engine(mitigation, chunked=True)
    engine.add("neighbour", prompt=1, max_tokens=neighbour_tokens)
    received = engine.step()
    note = ""
    if mitigation == "filter_overlong":
        note = f"the prompt of {OVERLONG} tokens was filtered out"
    else:
        engine.add("overlong", prompt=OVERLONG, max_tokens=5)
    received |= engine.run()
    expected = {"neighbour": neighbour_tokens}
    if mitigation != "filter_overlong":
        # Ignored with an empty completion, or cut off after a token: what counts is that its caller hears of it.
        expected["overlong"] = received.get("overlong", 5)
        note = (
            f"the over-long prompt came back with {received['overlong']} tokens"
            if "overlong" in received
            else ""
        )
    return Work(expected, received, engine.leaked_blocks, note)


def _overlong_prompt(mitigation: str | None) -> Work:
    return _overlong(mitigation, neighbour_tokens=30)


def _overlong_dropped(mitigation: str | None) -> Work:
    return _overlong(mitigation, neighbour_tokens=2)


def _overlong_poisons_next(mitigation: str | None) -> Work:
    """Alone, the over-long prompt makes generate() return nothing; the next, legal, prompt meets what it left."""
    engine = _engine(mitigation, chunked=True)
    if mitigation != "filter_overlong":
        engine.add("overlong", prompt=OVERLONG, max_tokens=5)
    engine.run()
    if mitigation == "abort_leftovers":
        engine.abort("overlong", *engine.in_flight())
    elif mitigation == "drain":
        engine.scheduler.free_finished_seq_groups()
    elif mitigation == "fresh_engine":
        engine = _engine(mitigation, chunked=True)
    engine.add("legal", prompt=8, max_tokens=5)
    received = engine.run()
    return Work({"legal": 5}, received, engine.leaked_blocks)


def _min_tokens(mitigation: str | None, *, chunked: bool) -> Work:
    _only_between_generates(mitigation)
    if mitigation == "chunked_prefill_off" and not chunked:
        mitigation = None  # it is off already: the same run, to be seen
    engine = _engine(mitigation, chunked=chunked)
    engine.add("neighbour", prompt=5, max_tokens=40)
    received = engine.step()
    prompt, minimum = MAX_LEN - 4, 16
    if mitigation == "cap_min_tokens":
        minimum = MAX_LEN - prompt
    # `filter_overlong` lets this prompt pass: by itself it is not over-long.
    engine.add("minimum", prompt=prompt, max_tokens=30, min_tokens=minimum)
    received |= engine.run()
    expected = {"neighbour": 40, "minimum": received.get("minimum", minimum)}
    return Work(expected, received, engine.leaked_blocks)


def _only_between_generates(mitigation: str | None) -> None:
    if mitigation in {"abort_leftovers", "drain", "fresh_engine"}:
        raise NotApplicableError("it acts between two calls of generate(); this failure falls within one")


_PROMPTS = frozenset({"overlong_prompt", "overlong_dropped", "overlong_poisons_next"})
_MINIMUM = frozenset({"min_tokens", "min_tokens_chunked"})

SCH002 = Repro(
    code="SCH002",
    title="A sequence parked as stopped was never freed when the next step is scheduled",
    assertion=ASSERTION,
    modules=v0.MODULES,
    simulated=v0.SIMULATED,
    triggers=(
        Trigger(
            "overlong_prompt",
            "a prompt over max_model_len under chunked prefill, others running",
            _overlong_prompt,
        ),
        Trigger(
            "overlong_dropped",
            "the same, and a neighbour finishes in that step: dropped without a word",
            _overlong_dropped,
            silent=True,
        ),
        Trigger(
            "overlong_poisons_next",
            "the same prompt alone; the next generate() meets what it left",
            _overlong_poisons_next,
        ),
        Trigger(
            "min_tokens",
            "prompt + min_tokens over max_model_len, chunked prefill off",
            lambda m: _min_tokens(m, chunked=False),
        ),
        Trigger(
            "min_tokens_chunked",
            "prompt + min_tokens over max_model_len, chunked prefill on",
            lambda m: _min_tokens(m, chunked=True),
        ),
    ),
    mitigations=(
        Mitigation("chunked_prefill_off", "enable_chunked_prefill=False", _PROMPTS),
        Mitigation("async_output_off", "disable_async_output_proc=True", _PROMPTS | _MINIMUM),
        Mitigation(
            "filter_overlong",
            "drop or truncate prompts over max_model_len before they are submitted",
            _PROMPTS,
        ),
        Mitigation("cap_min_tokens", "keep prompt + min_tokens within max_model_len", _MINIMUM),
        Mitigation("abort_leftovers", "abort what is left before the next generate()", frozenset()),
        Mitigation("drain", "free_finished_seq_groups() before the next generate()", frozenset()),
        Mitigation(
            "fresh_engine", "a new engine before the next generate()", frozenset({"overlong_poisons_next"})
        ),
    ),
    inapplicable=lambda: v0.missing_code(method="_schedule_running", statement=ASSERTION),
)
