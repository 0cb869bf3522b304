"""Record what the in-process vLLM engine of a cell supports and refuses, and how it reacts to Ctrl-C; print JSON.

Usage: python vllm_engine.py WORK_FOLDER. The assertions are in tests/grpo_core/test_vllm_engine_in_cells.py, which runs
outside of the cell. The report also says whether the start changed torch's random state or number of threads. The
conformance suite checks what every engine must do.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm_engine import VllmEngine
from grpo_core.tasks.model import make_tiny
from grpo_core.types import Request, SamplingParams

LENGTH = 2304
REQUESTS = [Request(f"r{i}", (1, 2, 3), seed=i) for i in range(64)]


def refusal(call) -> str:
    """Return the engine's error message; empty if it did not refuse."""
    try:
        call()
    except EngineError as error:
        return str(error)
    return ""


def stops_on_interrupt(engine, params: SamplingParams) -> bool:
    """Return whether a KeyboardInterrupt in the middle of a rollout ended it."""

    def interrupt(*_) -> None:
        if engine._broken is not None:  # vLLM has the requests; earlier, there is nothing to mix up
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    # Repeats, in case one is too early or lost in a destructor.
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.5)
    try:
        engine.generate(REQUESTS, params)
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def main(folder: Path) -> None:
    """Run all checks on one engine; the interruption comes last."""
    sys.stdout.flush()
    document = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout gets only the document; vLLM prints to stderr
    make_tiny(folder, ModelConfig(max_length=LENGTH), TaskConfig().letters, seed=0)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    engine = VllmEngine(folder, max_model_len=LENGTH, kv_cache_gib=0.25)
    report: dict = {
        "generator_kept": bool(torch.equal(state, torch.get_rng_state())),
        "threads_kept": torch.get_num_threads() == threads,
        "engine_version": engine.engine_version,
        "capabilities": {**vars(engine.capabilities), "why_not": dict(engine.capabilities.why_not)},
    }
    short, long = SamplingParams(max_tokens=4), SamplingParams(max_tokens=2000)
    cold = SamplingParams(4, temperature=0.001)
    refusals = {"temperature": refusal(lambda: engine.generate(REQUESTS, cold))}
    with engine._exclusive("first owner"):
        refusals["second owner"] = refusal(lambda: engine.generate(REQUESTS, short))
    report["interrupted"] = stops_on_interrupt(engine, long)
    refusals["interruption"] = refusal(lambda: engine.generate(REQUESTS, short))
    engine.close()
    json.dump({**report, "refusals": refusals}, document)
    document.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
