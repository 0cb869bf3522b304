"""The suite for a GPU as a whole: how large it is, and that each test of it has a twin where one can exist."""

from __future__ import annotations

import subprocess
import sys

from tests.cells import ROOT

# Those without a body on a CPU, and why.
ALONE = {
    "test_chunks_keep_a_devices_memory": "a CPU's peak is measured by benchmarks/logprobs.py",
    "test_the_device_has_the_bytes_back": "the storages' bytes are counted on both: test_an_engine_asleep_...",
    "test_nccl_between_two_ranks_on_one_gpu_is_an_error_in_time": "NCCL has no CPUs; gloo's ways are tests/grpo_core",
    "test_a_fact_is_that_of_nvidia_smi": "there is nothing to ask; how its words are read is tested",
    "test_the_facts_are_those_that_cuda_itself_tells": "there is nothing to ask",
    "test_vllm_asleep_gives_memory_back": "vLLM's CPU build cannot sleep",
    "test_a_cell_for_a_gpu_has_its_locks_versions": "it is of wheels for CUDA",
}
LEAST = 60


def collected(*options):
    """The names of the tests that pytest finds."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [line.strip() for line in done.stdout.splitlines() if "::" in line]


def test_each_test_has_a_twin_on_a_cpu_or_a_reason():
    """And there are as many as are promised."""
    everything = collected("tests/gpu")
    marked = collected("tests/gpu", "-m", "gpu")
    assert len(marked) >= LEAST
    there = {name for name in everything if name not in marked}
    alone = {name.split("::")[1].split("[")[0] for name in marked if twin(name) not in there}
    more = {  # which have one in fewer cases
        "test_an_engine_samples_what_transformers_computes",
        "test_a_share_of_memory_ends_as_the_catalogue_says",
        "test_trls_own_trainer_takes_steps_with_vllm",
    }
    assert alone - more == ALONE.keys()


def twin(name):
    """The name of the same test on a CPU."""
    test, bracket, parameters = name.partition("[")
    return test + bracket + parameters.replace("cuda", "cpu")
