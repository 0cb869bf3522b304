"""Check invariants of vLLM's V1 scheduler and of the tokens that it delivers, for the fuzzer.

The functions in INVARIANTS yield a message for each violation. They read upstream's own structures (vLLM 0.31.0), or
what the engine delivered. `check` raises BrokenInvariantError for the first message. `check_step` and `check_end` have
rules of their own, for one step and for an engine that has ended its work.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from repro.drivers.schedulers.v1 import FIRST_TOKEN, STOP, V1Engine
from repro.registry import BrokenInvariantError


def check(engine: V1Engine) -> None:
    """Check INVARIANTS, which must hold between two calls of the fuzzer.

    Raises:
        BrokenInvariantError: An invariant is violated.
    """
    for name, find_faults in INVARIANTS.items():
        for fault in find_faults(engine):
            raise BrokenInvariantError(name, fault)


def check_step(engine: V1Engine, scheduled: Any) -> None:
    """Check the scheduler's output for one step.

    Raises:
        BrokenInvariantError: The token counts are not positive or do not add up to the total, the step exceeds the
            token budget or the number of sequences, or it schedules a request that is not running.
    """
    counts, total = scheduled.num_scheduled_tokens, scheduled.total_num_scheduled_tokens
    running = {request.request_id for request in engine.scheduler.running}
    most = engine.setup.max_num_seqs
    budget = 0 if engine.scheduler.pause_state.name == "PAUSED_ALL" else engine.setup.token_budget
    fault = ""
    if total != sum(counts.values()) or total > budget:
        fault = f"{dict(counts)} scheduled, {total} by its own count, {budget} allowed"
    elif len(counts) > most or len(running) > most:
        fault = f"{len(counts)} scheduled and {len(running)} running, {most} allowed"
    elif any(count <= 0 for count in counts.values()) or not set(counts) <= running:
        fault = f"{dict(counts)} scheduled, running: {sorted(running)}"
    if fault:
        raise BrokenInvariantError("a step keeps its budget", fault)


def check_end(engine: V1Engine) -> None:
    """Check an engine that reports that it has nothing to do.

    Raises:
        BrokenInvariantError: A request never ended, or the engine still has requests or KV blocks.
    """
    unended = " ".join(engine.unfinished())
    if unended:
        raise BrokenInvariantError(LOST, f"{unended} never ended, and the engine says it has nothing to do")
    leaked = engine.setup.blocks - 1 - engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    requests = sorted(engine.scheduler.requests)
    if leaked or requests:
        raise BrokenInvariantError(BLOCKS, f"{leaked} are taken in an empty engine, requests: {requests}")


def _miscounted_blocks(engine: V1Engine) -> Iterator[str]:
    """Yield KV blocks that are counted or queued wrongly, and ended requests that still have some."""
    manager = engine.scheduler.kv_cache_manager
    pool, [tables] = manager.block_pool, [m.req_to_blocks for m in manager.coordinator.single_type_managers]
    counts = Counter(block.block_id for blocks in tables.values() for block in blocks if not block.is_null)
    free = Counter(block.block_id for block in pool.free_block_queue.get_all_free_blocks())
    for block in pool.blocks:
        holders, times_free = counts[block.block_id], free[block.block_id]
        if not block.is_null and (block.ref_cnt != holders or times_free != (holders == 0)):
            yield (
                f"block {block.block_id} is held by {holders}, counts {block.ref_cnt} holders, "
                f"and is {times_free} times in the free queue"
            )
    if pool.get_num_free_blocks() != sum(free.values()):
        yield f"{pool.get_num_free_blocks()} are said to be free, {sum(free.values())} are"
    requests = engine.scheduler.requests
    if strangers := sorted(name for name, blocks in tables.items() if blocks and name not in requests):
        yield f"requests that are gone still hold some: {' '.join(strangers)}"


def _misplaced_requests(engine: V1Engine) -> Iterator[str]:
    """Yield requests that are not exactly once in a queue, or not in the queue of their status."""
    scheduler = engine.scheduler
    queues = {
        "running": list(scheduler.running),
        "waiting": list(scheduler.waiting),
        "holding blocks": list(scheduler.kv_holding_waiting),
    }
    listed = {name: [request.request_id for request in queue] for name, queue in queues.items()}
    counts = Counter(name for names in listed.values() for name in names)
    if set(counts) != set(scheduler.requests) or any(count > 1 for count in counts.values()):
        yield f"{listed}; known: {sorted(scheduler.requests)}"
    for name, queue in queues.items():
        for request in queue:
            if (request.status.name == "RUNNING") != (name == "running"):
                yield f"{request.request_id} is {request.status.name} in the queue '{name}'"
    waiting = {*listed["waiting"], *listed["holding blocks"]}
    if strangers := {request.request_id for request in scheduler.deferred_waiting} - waiting:
        yield f"deferred, and not waiting: {sorted(strangers)}"


def _ended_twice(engine: V1Engine) -> Iterator[str]:
    """Yield requests that ended more than once."""
    for name, ends in engine.ends.items():
        if len(ends) > 1:
            yield f"{name} ended by {' and by '.join(ends)}"


def _lost_requests(engine: V1Engine) -> Iterator[str]:
    """Yield ended or aborted requests that the scheduler still has, and unfinished ones that it no longer has."""
    for name, ends in engine.ends.items():
        known = name in engine.scheduler.requests
        if known == bool(ends or name in engine.aborted):
            yield f"{name} is {'still' if known else 'no longer'} known, and ended by {ends or 'nothing'}"


def _wrong_tokens(engine: V1Engine) -> Iterator[str]:
    """Yield requests with wrong, repeated, too many or too few delivered tokens."""
    for name, request in engine.requests.items():
        ends, tokens = engine.ends[name], engine.tokens[name]
        expected = [FIRST_TOKEN + number for number in range(1, len(tokens) + 1)]
        if tokens and tokens[-1] == STOP:
            expected[-1] = STOP
        most = min(request.max_tokens, engine.setup.max_model_len - request.prompt)
        if tokens != expected or len(tokens) > most:
            yield f"{name} got {tokens}, at most {most} are due"
        if ends and ends[0] == "length" and len(tokens) != most:
            yield f"{name} ended by length after {len(tokens)} of {most} tokens"
        if ends and len(tokens) < min(request.min_tokens, most):
            yield f"{name} ended after {len(tokens)} tokens, at least {request.min_tokens} are due"


def _computed_too_far(engine: V1Engine) -> Iterator[str]:
    """Yield requests with more computed tokens than the request has, or than the model's limit."""
    longest = engine.setup.max_model_len
    for name, request in engine.scheduler.requests.items():
        expected = request.num_tokens + request.num_output_placeholders
        if not 0 <= request.num_computed_tokens <= min(expected, longest):
            computed = request.num_computed_tokens
            yield f"{name} has computed {computed} of {expected} tokens, the limit is {longest}"


def _miscounted_in_flight_tokens(engine: V1Engine) -> Iterator[str]:
    """Yield requests with a wrong count of tokens in flight, or a negative one of placeholders or stale tokens."""
    flying = Counter[str]()
    for scheduled, _ in engine.in_flight:
        flying.update(scheduled.num_scheduled_tokens)
    for name, request in engine.scheduler.requests.items():
        if request.num_in_flight_tokens != flying[name]:
            yield f"{name} has {flying[name]} in flight and counts {request.num_in_flight_tokens}"
        if request.num_output_placeholders < 0 or request.num_stale_output_tokens < 0:
            yield f"{name} counts fewer than none"


def _unfinished_after_waiting_pause(engine: V1Engine) -> Iterator[str]:
    """Yield requests that are unfinished when a pause in mode 'wait' is complete, although it should wait for them.

    `AsyncLLM.pause_generation` promises: "Wait for in-flight requests to complete". The engine reports the pause as
    complete as soon as it has nothing to do; its caller then loads new weights.
    """
    remaining = sorted(engine.waited_for & set(engine.scheduler.requests))
    if remaining and not engine.next_half():
        tokens = ", ".join(f"{name} has {len(engine.tokens[name])} of its tokens" for name in remaining)
        yield f"the engine has nothing left to do, and {tokens}"


BLOCKS, LOST = "KV blocks are conserved", "no request is lost"
INVARIANTS: dict[str, Callable[[V1Engine], Iterator[str]]] = {
    BLOCKS: _miscounted_blocks,
    "queues are disjoint and complete": _misplaced_requests,
    "no request ends twice": _ended_twice,
    LOST: _lost_requests,
    "a completion is whole and in order": _wrong_tokens,
    "computed tokens stay within the request": _computed_too_far,
    "tokens in flight are counted": _miscounted_in_flight_tokens,
    "a pause in mode 'wait' lets what runs end": _unfinished_after_waiting_pause,
}
