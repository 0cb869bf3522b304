"""The digest of weights on a device equals that on the CPU, and an engine that sleeps frees device memory.

Sending weights from a device is tested in test_weight_transport.py.
"""

import pytest
import torch

from grpo_core.rollout.transformers_engine import TransformersEngine
from grpo_core.rollout.weights.digest import spot_digest
from grpo_core.tasks.model import load_model
from tests.gpu.devices import DEVICES, on_gpu, storage_bytes


def start_engine(device, model_dir, dtype="float32"):
    """Return an engine with version 0 of the weights, and those weights on the same device."""
    engine = TransformersEngine(model_dir, max_model_len=64, device=device, dtype=dtype)
    weights = {
        name: value.detach().to(device, getattr(torch, dtype))
        for name, value in load_model(model_dir).named_parameters()
    }
    engine.update_weights(weights.items(), 0)
    return engine, weights


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_digest_matches_the_cpu(device, dtype, model_dir):
    """For three dtypes, the digest of weights on a device equals the digest of the same weights on the CPU."""
    engine, weights = start_engine(device, model_dir, dtype=dtype)
    on_cpu = {name: value.cpu() for name, value in weights.items()}
    assert engine.fingerprint() == spot_digest(on_cpu.items(), 0)


@on_gpu
def test_sleeping_engine_frees_device_memory(tmp_path):
    """While the engine sleeps, the allocator and the driver report the memory of its weights as free."""
    from grpo_core.config import ModelConfig, TaskConfig
    from grpo_core.tasks import model

    wide = ModelConfig(hidden_size=1024, layers=4)
    model.make_tiny(tmp_path / "model", wide, TaskConfig().letters, seed=0)
    engine, weights = start_engine("cuda", tmp_path / "model")
    del weights
    size = storage_bytes(engine._model.parameters())
    torch.cuda.empty_cache()
    allocated, (free, _) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
    engine.sleep()
    torch.cuda.empty_cache()
    assert allocated - torch.cuda.memory_allocated() >= 0.99 * size
    assert torch.cuda.mem_get_info()[0] - free >= 0.9 * size
    engine.wake()
    assert torch.cuda.memory_allocated() >= 0.99 * allocated
