"""Log-probs of 6144 positions over 32000 ids, once: `head.py naive|CHUNK forward|backward`."""

from __future__ import annotations

import resource
import sys
import time

import torch

from benchmarks.measure import Turns
from grpo_core.learn.logprobs import chunked_logprobs

way, direction = sys.argv[1:]
turns = Turns()
torch.set_num_threads(1)
torch.manual_seed(0)
backward = direction == "backward"
hidden = torch.randn(6144, 256, requires_grad=backward)
weight = torch.randn(32000, 256).mul_(0.05).requires_grad_(backward)
ids = torch.randint(0, 32000, (6144,))


def naive(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """All logits at once."""
    return torch.log_softmax(hidden @ weight.T, -1).gather(-1, ids[:, None])[:, 0]


def chunked(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Ours, which gives the entropies too."""
    chunk = 1024 if way == "naive" else int(way)
    return chunked_logprobs(hidden, weight, ids, temperature=1.0, chunk=chunk)[0]


def peak() -> int:
    """Most memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


compute = naive if way == "naive" else chunked
with torch.set_grad_enabled(backward):
    for count in (8, 6144):  # libraries set up their own memory in a first, small call
        started, before = time.process_time(), peak()
        values = compute(hidden[:count], weight, ids[:count])
        if backward:
            values.sum().backward()
turns.end(bytes=peak() - before, cpu_s=time.process_time() - started, check=float(values.detach().sum()))
