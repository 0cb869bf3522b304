"""Weights reach an engine on a device unchanged: digests, sync proofs and transports match, and sleep frees memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo_core.learn.policy import Policy
from grpo_core.publish import Publisher, SyncError
from grpo_core.rollout.embedded import TransformersEngine
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.weights.digest import spot_digest
from grpo_core.rollout.weights.sync import Sender, load_shared
from grpo_core.settings import load
from grpo_core.tasks.model import load_model
from grpo_core.types import Request, SamplingParams
from tests.cells import ROOT
from tests.gpu.devices import DEVICES, on_gpu, storage_bytes
from tests.grpo_core.test_sync_proof import HalfUpdate, LostUpdate, LostUpdateUnreadable, OldVersion, perturb

PROGRAM = Path(__file__).parent / "programs" / "share_tensor.py"
PARAMS = SamplingParams(max_tokens=8)
REQUESTS = [Request(f"r{i}", (1, 2, 3, 10), seed=i) for i in range(4)]


def start_engine(device, model_dir, kind=TransformersEngine, dtype="float32"):
    """Return an engine with version 0 of the weights, and those weights on the same device."""
    engine = kind(model_dir, max_model_len=64, device=device, dtype=dtype)
    weights = {
        name: value.detach().to(device, getattr(torch, dtype))
        for name, value in load_model(model_dir).named_parameters()
    }
    engine.update_weights(weights.items(), 0)
    return engine, weights


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_digest_matches_the_cpu(device, dtype, model_dir):
    """For every dtype, the digest of weights on a device equals the digest of the same weights on the CPU."""
    engine, weights = start_engine(device, model_dir, dtype=dtype)
    on_cpu = {name: value.cpu() for name, value in weights.items()}
    assert engine.fingerprint() == spot_digest(on_cpu.items(), 0)


@pytest.mark.parametrize("device", DEVICES)
def test_every_update_is_proven(device, model_dir):
    """Fingerprint and probe prove each update, with trainer and engine on the device."""
    policy = Policy(str(model_dir), load(None, [f"--train.device={device}"]))
    engine = TransformersEngine(model_dir, max_model_len=64, device=device)
    sync = Publisher(policy, engine, (0, 1, 2, 10), tolerance=1e-3)
    proofs = [sync.publish(0)]
    for version in (1, 2):
        with torch.no_grad():
            for value in policy.causal.parameters():
                value.mul_(1.01)
        proofs.append(sync.publish(version))
    assert [proof.fingerprint for proof in proofs] == [True] * 3
    assert max(proof.difference for proof in proofs) < 1e-4
    assert all(proof.moved is None or proof.moved > 1e-3 for proof in proofs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [LostUpdate, HalfUpdate, OldVersion, LostUpdateUnreadable])
def test_lost_update_ends_the_run(device, model_dir, kind):
    """A lost, partial or old update raises SyncError, also if trainer and engine share a device."""
    config = load(None, [f"--train.device={device}"])
    policy = Policy(str(model_dir), config)
    sync = Publisher(policy, kind(model_dir, max_model_len=64, device=device), (0, 1, 2, 10), tolerance=1e-3)
    sync.publish(0)
    moved = load_model(model_dir)
    perturb(moved, 1e-2)
    with torch.no_grad():
        for value, moved_value in zip(policy.causal.parameters(), moved.parameters(), strict=True):
            value.copy_(moved_value)
    with pytest.raises(SyncError):
        sync.publish(1)


@pytest.mark.parametrize("device", DEVICES)
def test_sleeping_engine_frees_its_weights(device, model_dir):
    """All storages are freed; after waking and an update it samples the same tokens as before."""
    engine, weights = start_engine(device, model_dir)
    expected = engine.generate(REQUESTS, PARAMS)
    held_before = storage_bytes(engine._model.parameters())
    assert held_before == sum(value.numel() * value.element_size() for value in weights.values())
    engine.sleep()
    assert storage_bytes(engine._model.parameters()) == 0
    with pytest.raises(EngineError, match="asleep"):
        engine.generate(REQUESTS, PARAMS)
    engine.wake()
    assert storage_bytes(engine._model.parameters()) == held_before
    engine.update_weights(weights.items(), 0)
    assert engine.generate(REQUESTS, PARAMS) == expected


@on_gpu
def test_sleeping_engine_frees_device_memory(tmp_path):
    """Asleep, the allocator and the driver report the memory of the engine's weights as free."""
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


@pytest.mark.parametrize("device", DEVICES)
def test_shared_memory_takes_tensors_from_a_device(device):
    """Tensors that are sent from a device through shared memory arrive bit-identical."""
    received = {}

    def load(name, version):
        received.update({key: value.clone() for key, value in load_shared(name, 2**30).items()})
        return version

    sender = Sender("shm", load, lambda _file, version: version)
    for version in range(2):
        torch.manual_seed(version)
        sent = {"a": torch.randn(700, 513), "b": torch.randn(7).bfloat16(), "c": torch.randn(8, 4).T}
        sender.send(((name, value.to(device)) for name, value in sent.items()), version)
        assert all(torch.equal(received[name], value) for name, value in sent.items())


@on_gpu
def test_tensor_is_shared_with_another_process():
    """Another process reads and writes the same device memory by CUDA IPC."""
    command = [sys.executable, str(PROGRAM), "cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["equal", "written"]


@pytest.mark.parametrize("device", DEVICES)
def test_process_group_of_one(device, tmp_path):
    """A process group of one rank (NCCL on a GPU, gloo on a CPU) starts, sums and ends."""
    import torch.distributed as dist

    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        value = torch.arange(4.0, device=device)
        dist.all_reduce(value)
        assert value.tolist() == [0, 1, 2, 3]
    finally:
        dist.destroy_process_group()
