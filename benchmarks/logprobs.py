"""Compare memory and CPU time of log-probs computed chunk by chunk with those of log-probs from all logits at once.

Both are computed for 6,144 tokens and 32,000 ids. `python -m benchmarks.logprobs` prints a line for memory and one for
CPU time, for two chunk sizes, for the forward pass alone and with the backward pass: the ratio of chunked to whole
log-probs, and whether it meets its goal. The chunked variant also computes entropies, as in training. Each measurement
runs in a separate process. Memory is the increase of the process's maximum resident size (ru_maxrss).
"""

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.harness import interval

TOKENS, VOCABULARY, WIDTH = 6144, 32000, 256
# Goals for the ratio of memory. The goal for the ratio of CPU time is 1.5.
GOALS = {"forward": 0.10, "forward and backward": 0.45}


def measure_variant(chunk: int, backward: int) -> dict[str, float]:
    """Return the increase of this process's peak memory (`mib`) and its CPU seconds (`cpu_s`) for one variant.

    Args:
        chunk: Number of tokens in a chunk; 0 for whole logits.
        backward: 1 if gradients are computed, else 0.
    """
    import torch

    from grpo_core.learn.logprobs import chunked_logprobs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=bool(backward))
    weight = (torch.randn(VOCABULARY, WIDTH) * 0.02).requires_grad_(bool(backward))
    ids = torch.randint(VOCABULARY, (TOKENS,))
    # The first call makes libraries allocate memory that they keep; it must not count.
    torch.log_softmax(hidden[:8] @ weight.T, -1)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with torch.set_grad_enabled(bool(backward)):
        if chunk:
            logprobs, _ = chunked_logprobs(hidden, weight, ids, temperature=1.0, chunk=chunk)
        else:
            logprobs = torch.log_softmax(hidden @ weight.T, -1).gather(-1, ids[:, None])[:, 0]
        if backward:
            logprobs.sum().backward()
    cpu_s = time.process_time() - started
    return {"mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "cpu_s": cpu_s}


def main() -> None:
    """Print the ratios of chunked to whole log-probs: medians and intervals over three pairs of runs."""
    # A process that has measured keeps memory, so each measurement gets a new one.
    pool = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)
    print(f"{TOKENS} tokens x {VOCABULARY} ids, float32, one thread; chunked / whole, median [95 %]")
    for backward, name in enumerate(GOALS):
        for chunk in (256, 1024):
            pairs = [tuple(pool.map(measure_variant, (chunk, 0), (backward, backward))) for _ in range(3)]
            for key, goal in (("mib", GOALS[name]), ("cpu_s", 1.5)):
                middle, low, high = interval([chunked[key] / unchunked[key] for chunked, unchunked in pairs])
                verdict = "pass" if middle <= goal else "MISS"
                sides = f"{pairs[0][0][key]:8.1f} / {pairs[0][1][key]:8.1f} {key}"
                ratio = f"{middle:.3f} [{low:.3f}, {high:.3f}] goal {goal} {verdict}"
                print(f"{name:21} chunk {chunk:5} {sides:28} {ratio}", flush=True)


if __name__ == "__main__":
    main()
