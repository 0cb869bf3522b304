"""SCH002: let a sequence outgrow `max_model_len` in vLLM's unmodified V0 scheduler with asynchronous output.

With asynchronous output processing, a running sequence longer than `max_model_len` is put into `_async_stopped`: its
pending output should finish it, and the list is emptied as soon as a sequence finishes. If the pending output does
*not* finish the sequence, and no other sequence finishes in the same step, the next `schedule()` fails, because it
asserts that the list is empty. If another sequence finishes, the stopped sequence is forgotten: there is no error and
no completion, and its KV cache blocks leak.

There are two causes:

- Chunked prefill admits a prompt longer than `max_model_len`, because it compares only the chunk with the limit; and
  the stop checker does not run for a chunk for which no token is sampled.
- Below `min_tokens` the stop checker does not check the length.

The forward pass is simulated.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from repro.drivers.schedulers import callers, v0
from repro.drivers.schedulers.v0 import SchedulerRequest, V0Setup, check_prompt
from repro.registry import Tally, Trigger

LIMIT = V0Setup.max_model_len
OVERLONG = SchedulerRequest("overlong", prompt=LIMIT + 16, max_tokens=5)
# The prompt of "minimum" is within the limit, but not together with its minimum number of new tokens.
WITH_MINIMUM = (
    SchedulerRequest("neighbour", prompt=5, max_tokens=40),
    SchedulerRequest("minimum", prompt=LIMIT - 4, max_tokens=30, min_tokens=16),
)
# Mitigations that are applied after the first call of generate(), so that they only make the next call work.
_BETWEEN_CALLS = {"abort_leftovers", "drain", "fresh_engine"}


def _new_engine(mitigation: str | None, *, chunked: bool) -> v0.V0Engine:
    """Return a V0 engine with asynchronous output, changed by the mitigation."""
    setup = V0Setup(
        chunked=chunked and mitigation != "chunked_prefill_off", async_output=mitigation != "async_output_off"
    )
    return v0.V0Engine(setup)


def _prepare(requests: Sequence[SchedulerRequest], mitigation: str | None) -> list[SchedulerRequest]:
    """Return the requests, changed if the mitigation changes the data."""
    if mitigation == "filter_overlong":
        return [request for request in requests if request.prompt <= LIMIT]
    if mitigation == "truncate_overlong":
        return [replace(request, prompt=min(request.prompt, LIMIT)) for request in requests]
    if mitigation == "cap_min_tokens":
        return [
            replace(request, min_tokens=min(request.min_tokens, max(0, LIMIT - request.prompt)))
            for request in requests
        ]
    return list(requests)


def _generate_once(mitigation: str | None, requests: Sequence[SchedulerRequest], *, chunked: bool) -> Tally:
    """Call generate() once with all requests; the failure occurs within the call."""
    engine = _new_engine(mitigation, chunked=chunked)
    prepared = _prepare(requests, mitigation)
    [received] = callers.take_turns([callers.generate(engine, prepared)])
    return v0.count_answers([engine], [(prepared, received)])


def _generate_overlong(mitigation: str | None, neighbour_tokens: int) -> Tally:
    """Generate for an overlong prompt and a neighbour, with chunked prefill."""
    check_prompt(OVERLONG.prompt, LIMIT)
    neighbour = SchedulerRequest("neighbour", prompt=1, max_tokens=neighbour_tokens)
    return _generate_once(mitigation, [neighbour, OVERLONG], chunked=True)


def _overlong_poisons_next(mitigation: str | None) -> Tally:
    """A call with the overlong request alone returns no completion; the next call, with a legal prompt, fails."""
    check_prompt(OVERLONG.prompt, LIMIT)
    engine = _new_engine(mitigation, chunked=True)
    first = _prepare([OVERLONG], mitigation)
    [received] = callers.take_turns([callers.generate(engine, first)])
    if mitigation == "abort_leftovers":
        engine.abort(OVERLONG.id, *engine.in_flight())
    elif mitigation == "drain":
        engine.scheduler.free_finished_seq_groups()
    elif mitigation == "fresh_engine":
        engine = _new_engine(mitigation, chunked=True)
    legal = SchedulerRequest("legal", prompt=8, max_tokens=5)
    received += callers.take_turns([callers.generate(engine, [legal])])[0]
    due = [legal] if mitigation in _BETWEEN_CALLS else [*first, legal]
    return v0.count_answers([engine], [(due, received)])


v0.repro(
    "SCH002",
    "assert len(self._async_stopped) == 0",
    triggers=[
        # The neighbour goes on, so no sequence finishes in the step in which the overlong sequence is stopped.
        Trigger("overlong_prompt", partial(_generate_overlong, neighbour_tokens=30)),
        # The neighbour finishes in that step, which empties the list.
        Trigger("overlong_dropped", partial(_generate_overlong, neighbour_tokens=1), silent=True),
        Trigger("overlong_poisons_next", _overlong_poisons_next),
        Trigger("min_tokens", partial(_generate_once, requests=WITH_MINIMUM, chunked=False)),
        Trigger("min_tokens_chunked", partial(_generate_once, requests=WITH_MINIMUM, chunked=True)),
    ],
)
