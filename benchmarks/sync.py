"""Measure the CPU time of grpo_core's weight transports `shm` and `http`, relative to memcpy of the same bytes.

`python -m benchmarks.sync [MIB [ROUNDS]]`; the defaults are 512 MiB of random float32 tensors of a Llama's shapes, and
15 rounds after two warm-up rounds. Each round copies the tensors in this process, and then sends them by each transport
to another process, which copies them into its own tensors. Each process is pinned to one core, and PyTorch uses one
thread. The CPU time of all threads of both processes is divided by that of memcpy in the same round, so that noise of
the machine cancels. Both sides' digests of the weights are compared after each transfer; their time is not included,
but printed as a share of the transport's. Figures are medians with a 95 % interval.
"""

import os
import sys
import time
from subprocess import PIPE, Popen

import torch

from benchmarks.harness import VARIABLES, WARM, interval
from grpo_core.rollout.http_client import HttpClient
from grpo_core.rollout.remote_engines import RemoteEngine
from grpo_core.rollout.weights.digest import spot_digest

TRANSPORTS = ("shm", "http")
CORES = os.sched_getaffinity(0)
Tensors = list[tuple[str, torch.Tensor]]


def random_llama_tensors(mib: int) -> Tensors:
    """Return the float32 tensors of a random Llama with at least two layers, about `mib` MiB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    layers = max(2, (mib - 128) // 49)
    sizes = {"vocab_size": 16384, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes))
    return [(name, value.detach()) for name, value in model.named_parameters()]


def measure(tensors: Tensors, rounds: int) -> list[dict[str, float]]:
    """Return for each round the CPU seconds of memcpy, of each transport and of its digests.

    The receiving process (`programs/weight_receiver.py`) runs on the last core.
    The digests of both sides are compared after each transfer; their time is not in that of the transport.

    Raises:
        RuntimeError: The receiver has other weights than were sent.
    """
    copies = [torch.zeros_like(value) for _, value in tensors]
    program = [sys.executable, "-m", "benchmarks.programs.weight_receiver"]
    process = Popen(program, env=os.environ | VARIABLES, stdin=PIPE, stdout=PIPE)
    os.sched_setaffinity(process.pid, {max(CORES)})
    assert process.stdout is not None
    port = int(process.stdout.readline())
    http = HttpClient("receiver", "127.0.0.1", port, timeout_s=60)
    engines = {kind: RemoteEngine("127.0.0.1", port, timeout_s=60, sync=kind) for kind in TRANSPORTS}
    measured = []
    for version in range(rounds + WARM):
        began = time.process_time()
        for copy, (_, value) in zip(copies, tensors, strict=True):
            copy.copy_(value)
        times = {"memcpy": time.process_time() - began}
        for kind, engine in engines.items():
            http.json("GET", "/timings")
            began = time.process_time()
            engine.update_weights(tensors, version)
            sent = time.process_time()
            timings, digest = http.json("GET", "/timings"), spot_digest(tensors, version)
            if digest != timings["digest"]:
                raise RuntimeError(f"version {version}: {timings['digest']} arrived, {digest} was sent")
            times[kind] = sent - began + timings["cpu_s"]
            times[f"{kind} digests"] = time.process_time() - sent + timings["digest_s"]
        measured.append(times)
    process.communicate()
    return measured[WARM:]


def main(mib: int = 512, rounds: int = 15) -> None:
    """Print the speed of memcpy, and a line for each transport."""
    os.sched_setaffinity(0, {min(CORES)})
    torch.set_num_threads(1)
    tensors = random_llama_tensors(mib)
    measured = measure(tensors, rounds)
    size = sum(value.numel() * 4 for _, value in tensors) / 1e9
    memcpy = size / interval([times["memcpy"] for times in measured])[0]
    print(f"{size:.3f} GB of float32, {rounds} rounds; memcpy {memcpy:.2f} GB/s; CPU time, medians [95 %]")
    for kind in TRANSPORTS:
        middle, low, high = interval([times[kind] / times["memcpy"] for times in measured])
        share = interval([times[f"{kind} digests"] / times[kind] for times in measured])[0]
        print(f"{kind:6} {middle:.1f} [{low:.1f}, {high:.1f}] times memcpy; digests {share:.1%} of that")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
