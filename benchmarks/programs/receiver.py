"""Receive weights for the weight sync benchmark, called by messages on standard input.

A simulated engine copies the weights into its own tensors, as the embedded engine does.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from grpo_core.rollout.engine import Capabilities
from grpo_core.rollout.pipes import read_message, write_message
from grpo_core.rollout.weights.digest import spot_digest
from grpo_core.rollout.weights.sync import Receiver


class Engine:
    """A simulated engine: it copies weights."""

    name = "memory"
    capabilities = Capabilities(seeds=True, fingerprint=False, sleep=False)

    def __init__(self) -> None:
        self.policy_version, self.tensors = -1, {}
        self._load, self._clock = (0.0, 0.0), time.process_time()

    def update_weights(self, tensors: Any, version: int) -> None:
        """Copy the tensors."""
        began = now()
        for name, value in tensors:
            if name not in self.tensors:
                self.tensors[name] = torch.empty_like(value)
            self.tensors[name].copy_(value)
        self.policy_version, self._load = version, since(began)

    def facts(self) -> dict[str, Any]:
        """Return seconds (wall, CPU) of the last load and the digest, and CPU time since the last call."""
        used, began = time.process_time() - self._clock, now()
        digest = spot_digest(self.tensors.items(), self.policy_version)
        facts = {"load": self._load, "digest": digest, "digesting": since(began), "cpu_s": used}
        self._clock = time.process_time()
        return facts


def now() -> tuple[float, float]:
    """Return wall and CPU time."""
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Return seconds of wall and CPU time."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def answer_messages(engine: Engine) -> None:
    """Answer messages until stdin ends."""
    receiver = Receiver()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (document := read_message(sys.stdin.buffer)) is not None:
        result = {}
        method, arguments = document["method"], document["arguments"]
        if method == "sync_load":
            result = receiver.load(arguments, engine)
        elif method == "facts":
            result = engine.facts()
        else:
            result = receiver.open(arguments)
        write_message(answers, {"result": result})


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    answer_messages(Engine())
