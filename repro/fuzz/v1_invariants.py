"""What must hold of the V1 scheduler after every call, whoever made it.

Each check reads upstream's own structures (vLLM 0.31.0) and raises with what it saw.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from repro.base import BrokenInvariantError
from repro.drivers.schedulers.runner_v1 import FIRST_TOKEN
from repro.drivers.schedulers.v1 import V1Engine
from repro.drivers.schedulers.v1_setup import STOP

BLOCKS = "KV blocks are conserved"
QUEUES = "queues are disjoint and complete"
LOST = "no request is lost"
TWICE = "no request ends twice"
TEXT = "a completion is whole and in order"
BUDGET = "a step keeps its budget"
COMPUTED = "computed tokens stay within the request"
FLIGHT = "tokens in flight are counted"
WAIT = "a pause in mode 'wait' lets what runs end"


def check(engine: V1Engine) -> None:
    """Checks all that must hold between two calls.

    Raises:
        BrokenInvariantError: something does not.
    """
    _blocks(engine)
    _queues(engine)
    _requests(engine)
    _lengths(engine)
    _pause(engine)


def check_step(engine: V1Engine, scheduled: Any) -> None:
    """Checks what `schedule()` returned.

    Raises:
        BrokenInvariantError: it does not keep its budget, or schedules who is not running.
    """
    counts, total = scheduled.num_scheduled_tokens, scheduled.total_num_scheduled_tokens
    running = {request.request_id for request in engine.scheduler.running}
    budget = 0 if engine.scheduler.pause_state.name == "PAUSED_ALL" else engine.setup.token_budget
    if total != sum(counts.values()) or total > budget:
        _broken(BUDGET, f"{dict(counts)} scheduled, {total} by its own count, {budget} allowed")
    if len(counts) > engine.setup.max_num_seqs or len(running) > engine.setup.max_num_seqs:
        _broken(
            BUDGET, f"{len(counts)} scheduled and {len(running)} running, {engine.setup.max_num_seqs} allowed"
        )
    if any(count <= 0 for count in counts.values()) or not set(counts) <= running:
        _broken(BUDGET, f"{dict(counts)} scheduled, running: {sorted(running)}")


def check_end(engine: V1Engine) -> None:
    """Checks an engine that has nothing left to do.

    Raises:
        BrokenInvariantError: a request never ended, or the engine still holds something.
    """
    lost = engine.unfinished()
    if lost:
        _broken(LOST, f"{' '.join(lost)} never ended, and the engine says it has nothing to do")
    taken = engine.setup.blocks - 1 - engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    if taken or engine.scheduler.requests:
        _broken(
            BLOCKS, f"{taken} are taken in an empty engine, requests: {sorted(engine.scheduler.requests)}"
        )


def _broken(name: str, detail: str) -> None:
    raise BrokenInvariantError(name, detail)


def _blocks(engine: V1Engine) -> None:
    """Each is free once, or held as often as its count says, by requests that exist."""
    manager = engine.scheduler.kv_cache_manager
    pool, [tables] = manager.block_pool, [m.req_to_blocks for m in manager.coordinator.single_type_managers]
    held = Counter(block.block_id for blocks in tables.values() for block in blocks if not block.is_null)
    free = Counter(block.block_id for block in pool.free_block_queue.get_all_free_blocks())
    for block in pool.blocks:
        if block.is_null:
            continue
        holders, times_free = held[block.block_id], free[block.block_id]
        if block.ref_cnt != holders or times_free != (holders == 0):
            _broken(
                BLOCKS,
                f"block {block.block_id} is held by {holders}, counts {block.ref_cnt} holders, "
                f"and is {times_free} times in the free queue",
            )
    if pool.get_num_free_blocks() != sum(free.values()):
        _broken(BLOCKS, f"{pool.get_num_free_blocks()} are said to be free, {sum(free.values())} are")
    strangers = sorted(
        name for name, blocks in tables.items() if blocks and name not in engine.scheduler.requests
    )
    if strangers:
        _broken(BLOCKS, f"requests that are gone still hold some: {' '.join(strangers)}")


def _queues(engine: V1Engine) -> None:
    """Each request is in one queue, once, and its status says which."""
    scheduler = engine.scheduler
    queues = {
        "running": list(scheduler.running),
        "waiting": list(scheduler.waiting),
        "holding blocks": list(scheduler.kv_holding_waiting),
    }
    where = Counter(request.request_id for queue in queues.values() for request in queue)
    if set(where) != set(scheduler.requests) or any(count > 1 for count in where.values()):
        shown = {name: [request.request_id for request in queue] for name, queue in queues.items()}
        _broken(QUEUES, f"{shown}; known: {sorted(scheduler.requests)}")
    for name, queue in queues.items():
        for request in queue:
            if (request.status.name == "RUNNING") != (name == "running"):
                _broken(QUEUES, f"{request.request_id} is {request.status.name} in the queue '{name}'")
    strangers = {request.request_id for request in scheduler.deferred_waiting} - {
        request.request_id for name in ("waiting", "holding blocks") for request in queues[name]
    }
    if strangers:
        _broken(QUEUES, f"deferred, and not waiting: {sorted(strangers)}")


def _requests(engine: V1Engine) -> None:
    """Each is unfinished and known, or has ended once; what was delivered is its text, whole and in order."""
    for name, request in engine.requests.items():
        ends, tokens = engine.ends[name], engine.tokens[name]
        if len(ends) > 1:
            _broken(TWICE, f"{name} ended by {' and by '.join(ends)}")
        known = name in engine.scheduler.requests
        if known == bool(ends or name in engine.aborted):
            _broken(
                LOST, f"{name} is {'still' if known else 'no longer'} known, and ended by {ends or 'nothing'}"
            )
        whole = [FIRST_TOKEN + number for number in range(1, len(tokens) + 1)]
        if tokens and tokens[-1] == STOP:
            whole[-1] = STOP
        most = min(request.max_tokens, engine.setup.max_model_len - request.prompt)
        if tokens != whole or len(tokens) > most:
            _broken(TEXT, f"{name} got {tokens}, at most {most} are due")
        if ends and ends[0] == "length" and len(tokens) != most:
            _broken(TEXT, f"{name} ended by length after {len(tokens)} of {most} tokens")
        if ends and len(tokens) < min(request.min_tokens, most):
            _broken(TEXT, f"{name} ended after {len(tokens)} tokens, at least {request.min_tokens} are due")


def _pause(engine: V1Engine) -> None:
    """`AsyncLLM.pause_generation` promises of 'wait': "Wait for in-flight requests to complete".

    The engine takes the pause for complete as soon as it has nothing to do; its caller then loads new weights.
    """
    left = sorted(engine.waited_for & set(engine.scheduler.requests))
    if left and not engine.due():
        tokens = ", ".join(f"{name} has {len(engine.tokens[name])} of its tokens" for name in left)
        _broken(WAIT, f"the engine has nothing left to do, and {tokens}")


def _lengths(engine: V1Engine) -> None:
    """No request computes past its own end, and what is in flight is known to be."""
    flying = Counter[str]()
    for scheduled, _ in engine.in_flight:
        flying.update(scheduled.num_scheduled_tokens)
    for name, request in engine.scheduler.requests.items():
        expected = request.num_tokens + request.num_output_placeholders
        if not 0 <= request.num_computed_tokens <= min(expected, engine.setup.max_model_len):
            _broken(
                COMPUTED,
                f"{name} has computed {request.num_computed_tokens} of {expected} tokens, "
                f"the limit is {engine.setup.max_model_len}",
            )
        if request.num_in_flight_tokens != flying[name]:
            _broken(FLIGHT, f"{name} has {flying[name]} in flight and counts {request.num_in_flight_tokens}")
        if request.num_output_placeholders < 0 or request.num_stale_output_tokens < 0:
            _broken(FLIGHT, f"{name} counts fewer than none")
