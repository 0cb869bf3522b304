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


# Prints the name of each test that is collected, and whether it is one for a GPU.
COLLECTING = """\
import sys, pytest

class Names:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("COLLECTED", int(item.get_closest_marker("gpu") is not None), item.nodeid)

sys.exit(pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "tests/gpu"], plugins=[Names()]))
"""


def collected():
    """The names of the tests that pytest finds, and whether each is one for a GPU."""
    command = [sys.executable, "-c", COLLECTING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("COLLECTED ")]
    return {name: marked == "1" for marked, name in lines}


def test_each_test_has_a_twin_on_a_cpu_or_a_reason():
    """And there are as many as are promised."""
    tests = collected()
    marked = [name for name, so in tests.items() if so]
    on_cpu = tests.keys() - set(marked)
    assert len(marked) >= LEAST
    alone = {name.split("::")[1].split("[")[0] for name in marked if twin(name) not in on_cpu}
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
