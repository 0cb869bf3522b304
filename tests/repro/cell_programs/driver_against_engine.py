"""In a cell, run the same requests on vLLM's whole `LLM` and on the driver of its V0 scheduler, for comparison.

Only the forward pass of the whole engine is simulated: by a platform plugin (in 0.6 vLLM's CPU device), an executor
class and a registered stub model. The program prints one JSON document with the results of both sides for each
workload, or with the error if `LLM` cannot be imported. The assertions are in
tests/repro/test_driver_against_engine.py, which runs outside of the cell.
"""

# ruff: noqa: E402 - standard output is kept before vLLM is imported

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "device"))
# Standard output gets the results only; vLLM, which prints from its import on, writes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

try:
    from vllm import LLM, SamplingParams
except ImportError as missing:  # the LLM of 0.10.2 requires packages that its scheduler does not
    ANSWERS.write(json.dumps({"missing": str(missing)}))
    ANSWERS.close()
    sys.exit(0)
from vllm.executor.executor_base import ExecutorBase
from vllm.model_executor.layers.sampler import SamplerOutput
from vllm.platforms import current_platform
from vllm.sequence import CompletionSequenceGroupOutput, Logprob, SequenceOutput

from repro import judge
from repro.drivers import stub_model
from repro.drivers.schedulers import callers, v0
from repro.drivers.schedulers.v0 import TOKEN, ForwardPassError, SchedulerRequest, V0Setup

WORKLOADS = 80
# 0.6 has no platform plugins. With device="cpu" it needs none, and has no async output.
PLUGIN = type(current_platform).__module__ == "harness_platform"


class Executor(ExecutorBase):
    """An executor without workers that samples TOKEN everywhere and counts forward passes.

    It runs the scheduler's callback during the forward pass.
    """

    uses_ray = False
    blocks = 64
    passes = 0
    failing = False  # the next forward pass fails

    def _init_executor(self):
        """Start nothing."""

    def determine_num_available_blocks(self):
        """Return the numbers of GPU and CPU blocks."""
        return Executor.blocks, 0

    def initialize_cache(self, *_):
        """Allocate nothing."""

    def collective_rpc(self, *_, **__):
        """Return no results, as there are no workers."""
        return []

    def check_health(self):
        """Do nothing, as there are no workers to check."""

    def stop_remote_worker_execution_loop(self):
        """Do nothing, as there are no workers."""

    def execute_model(self, execute_model_req):
        """Run one simulated forward pass."""
        Executor.passes += 1
        if Executor.failing:
            Executor.failing = False
            raise ForwardPassError
        if execute_model_req.async_callback:
            execute_model_req.async_callback()
        outputs = []
        for metadata in execute_model_req.seq_group_metadata_list:
            sample = SequenceOutput(next(iter(metadata.seq_data)), TOKEN, {TOKEN: Logprob(0.0)})
            outputs.append(CompletionSequenceGroupOutput([sample] if metadata.do_sample else [], None))
        return [SamplerOutput(outputs)]


Executor.__abstractmethods__ = frozenset()  # other methods of the interface are never called


def run_whole_engine(
    folder: str, setup: V0Setup, calls: list[list[SchedulerRequest]], *, failing: bool
) -> dict:
    """Run `LLM` on a workload; return token numbers by call, forward passes, leaked blocks, and a failed assertion."""
    Executor.blocks, Executor.passes, Executor.failing = setup.blocks, 0, failing
    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        max_model_len=setup.max_model_len,
        max_num_batched_tokens=setup.token_budget,
        max_num_seqs=setup.max_num_seqs,
        enable_chunked_prefill=setup.chunked,
        disable_async_output_proc=not setup.async_output,
        distributed_executor_backend=Executor,
        enable_prefix_caching=False,
        block_size=setup.block_size,
        **({} if PLUGIN else {"device": "cpu"}),
    )

    def generate(requests: list[SchedulerRequest]) -> list[int]:
        prompts = [{"prompt_token_ids": [1] * request.prompt} for request in requests]
        options = {"ignore_eos": True, "detokenize": False}
        params = [
            SamplingParams(max_tokens=request.max_tokens, min_tokens=request.min_tokens, **options)
            for request in requests
        ]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sorted(len(output.outputs[0].token_ids) for output in outputs)

    result = run_calls(calls, generate)
    manager = llm.llm_engine.scheduler[0].block_manager
    return result | {"passes": Executor.passes, "leaked": setup.blocks - manager.get_num_free_gpu_blocks()}


def run_driver(setup: V0Setup, calls: list[list[SchedulerRequest]], *, failing: bool) -> dict:
    """Run the scheduler driver on a workload; return the same values as `run_whole_engine`."""
    engine = v0.V0Engine(setup)
    passes, fails = 0, failing

    def generate(requests: list[SchedulerRequest]) -> list[int]:
        nonlocal passes, fails
        steps = callers.generate(engine, requests)
        while True:
            try:
                next(steps)
                passes += 1
                if fails:
                    fails = False
                    steps.throw(ForwardPassError())
            except StopIteration as done:
                return sorted(completion.tokens for completion in done.value)

    result = run_calls(calls, generate)
    return result | {"passes": passes, "leaked": engine.leaked_blocks()}


def run_calls(calls, generate) -> dict:
    """Generate for each call, up to the first failed assertion; return numbers of tokens, and where it failed."""
    completions = []
    try:
        for requests in calls:
            try:
                completions.append(generate(requests))
            except ForwardPassError:
                completions.append("failed")
    except AssertionError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {
            "completions": completions,
            "asserted": f"{judge.below_site_packages(last.filename)}:{last.lineno}",
        }
    return {"completions": completions, "asserted": None}


def workload(number: int, longest: int) -> tuple[V0Setup, list[list[SchedulerRequest]], bool]:
    """Return a random setup, two calls of generate(), and whether a forward pass fails.

    Args:
        number: Random seed.
        longest: Length of an over-long prompt.
    """
    chance = random.Random(number)
    chunked = chance.random() < 0.5
    setup = V0Setup(
        chunked=chunked,
        async_output=chance.random() < 0.7 and PLUGIN,
        blocks=chance.choice([7, 12, 64]),
        token_budget=chance.choice([16, 64]) if chunked else 64,
    )
    calls = []
    for call in range(2):
        requests = []
        for index in range(chance.randint(1, 6)):
            prompt, most = chance.randint(1, 40), chance.randint(1, 20)
            least = most if chance.random() < 0.2 else 0
            size_draw = chance.random()
            if size_draw < 0.06:
                prompt = longest
            elif size_draw < 0.12:
                prompt, most, least = setup.max_model_len - 4, 16, 12
            requests.append(SchedulerRequest(f"{call}.{index}", prompt, most, least))
        calls.append(requests)
    return setup, calls, chance.random() < 0.25


def main() -> None:
    """Run each workload on both sides, and print the results."""
    longest = 90
    try:
        v0.check_prompt(longest, V0Setup.max_model_len)
    except v0.RefusedRequestError:
        longest = V0Setup.max_model_len
    observed = []
    with tempfile.TemporaryDirectory() as folder:
        stub_model.write_and_register(folder)
        for number in range(WORKLOADS):
            setup, calls, failing = workload(number, longest)
            expected = run_whole_engine(folder, setup, calls, failing=failing)
            driven = run_driver(setup, calls, failing=failing)
            observed.append({"work": str((setup, calls, failing)), "whole": expected, "driven": driven})
    json.dump(observed, ANSWERS)
    ANSWERS.close()


if __name__ == "__main__":
    main()
