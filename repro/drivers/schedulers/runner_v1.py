"""Stands for the workers of V1: samples made-up tokens, and remembers what each slot of the KV cache holds.

What it does with a scheduler's output mirrors `GPUModelRunner._update_states` and its bookkeeping of sampled tokens
(vLLM 0.31.0, vllm/v1/worker/gpu_model_runner.py:1192): new requests bring their tokens and blocks, running ones get
blocks appended, resumed ones get theirs anew. A request gets a token sampled when the step reaches the end of what is
known of it.

It is also a witness. Like a device it runs steps in the order in which they are scheduled; a slot holds the beginning
of a text, and the weights' version, that its keys and values were computed from. A step that reads a slot with
anything else would compute garbage without any error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from repro.base import BrokenInvariantError
from repro.drivers.schedulers.v1_setup import STOP, V1Request

FIRST_TOKEN = 100  # the token of number n is this and n: equal prompts get equal completions


class Runner:
    """The simulated model runner, its input batch, and its KV cache."""

    def __init__(self, block_size: int) -> None:
        self.weights = 0
        self._block_size = block_size
        self._requests: dict[str, V1Request] = {}
        self._tokens: dict[str, list[int]] = {}
        self._blocks: dict[str, list[int]] = {}
        self._last_batch: set[str] = set()
        self._slots: dict[tuple[int, int], int] = {}

    def expect(self, request: V1Request) -> None:
        """Hears of a request: where its stop token falls."""
        self._requests[request.id] = request

    def execute(self, scheduled: Any) -> Any:
        """Runs a step.

        Args:
            scheduled: vLLM's own `SchedulerOutput`.

        Returns:
            vLLM's own `ModelRunnerOutput`.
        """
        from vllm.v1.outputs import ModelRunnerOutput

        for name in scheduled.finished_req_ids:
            self._tokens.pop(name, None)
            self._blocks.pop(name, None)
        computed = self._update(scheduled)
        counts: dict[str, int] = scheduled.num_scheduled_tokens
        missing = sorted(set(counts) - set(computed))
        if missing:
            raise BrokenInvariantError(
                "the runner knows what it is to compute", f"no data came for {' '.join(missing)}"
            )
        for name, count in counts.items():
            self._write(name, computed[name], computed[name] + count)
        for name, count in counts.items():
            self._read(name, computed[name] + count)
        sampled = {name: self._sample(name, computed[name] + count) for name, count in counts.items()}
        self._last_batch = set(counts)
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: index for index, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
        )

    def _update(self, scheduled: Any) -> dict[str, int]:
        """Takes over tokens and blocks; returns how many tokens each request has computed so far."""
        computed: dict[str, int] = {}
        for new in scheduled.scheduled_new_reqs:
            self._tokens[new.req_id] = list(new.prefill_token_ids or new.prompt_token_ids)
            self._blocks[new.req_id] = list(new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            computed[name] = cached.num_computed_tokens[index]
            self._update_tokens(name, cached.num_output_tokens[index], cached.all_token_ids.get(name))
            blocks = cached.new_block_ids[index]
            if name in cached.resumed_req_ids:
                self._blocks[name] = list(blocks[0])
            elif blocks is not None:
                self._blocks[name] += blocks[0]
        return computed

    def _update_tokens(self, name: str, outputs: int, known: Iterable[int] | None) -> None:
        """The scheduler's word counts for a request that was not in the last step, and for one that it cut."""
        if known is not None and name not in self._last_batch:
            self._tokens[name] = list(known)
        del self._tokens[name][self._requests[name].prompt + outputs :]

    def _sample(self, name: str, end: int) -> list[int]:
        tokens, request = self._tokens[name], self._requests[name]
        if end < len(tokens):
            return []
        number = len(tokens) - request.prompt + 1
        # The real sampler gives a stop token no chance below min_tokens.
        stop_at = max(request.stop_at, request.min_tokens + 1) if request.stop_at else 0
        token = STOP if number == stop_at else FIRST_TOKEN + number
        tokens.append(token)
        return [token]

    def _prefixes(self, name: str, end: int) -> list[int]:
        """Returns what each of the first slots must hold: all tokens up to it, and the weights."""
        prefixes, so_far = [], hash(self.weights)
        for token in self._tokens[name][:end]:
            so_far = hash((so_far, token))
            prefixes.append(so_far)
        return prefixes

    def _slot(self, name: str, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self._block_size)
        if index >= len(self._blocks[name]):
            raise BrokenInvariantError(
                "blocks cover what is computed",
                f"{name} computes token {position + 1} and has {len(self._blocks[name])} blocks",
            )
        return self._blocks[name][index], offset

    def _write(self, name: str, start: int, end: int) -> None:
        if end > len(self._tokens[name]):
            raise BrokenInvariantError(
                "computed tokens stay within the request",
                f"{name} has {len(self._tokens[name])} tokens and is to compute up to {end}",
            )
        for position, prefix in list(enumerate(self._prefixes(name, end)))[start:]:
            self._slots[self._slot(name, position)] = prefix

    def _read(self, name: str, end: int) -> None:
        for position, prefix in enumerate(self._prefixes(name, end)):
            if self._slots.get(self._slot(name, position)) != prefix:
                raise BrokenInvariantError(
                    "a step reads what was computed for it",
                    f"slot of token {position + 1} of {name} holds something else",
                )
