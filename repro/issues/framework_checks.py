"""Reproduce errors of unmodified functions of vLLM, verl and Ray, called directly, without an engine or a trainer.

The errors are about memory (MEM004, MEM005, MEM006), a weight update (SYN013), serialization (SYN021), verl's actor
(CFG019), rewards (REW003) and prompt lengths (TOK017). Ray raises for a dead actor (RAY010), a wrong cluster address
(RAY011), and no cluster (RAY013).
"""

import os
import tempfile
from functools import partial
from types import SimpleNamespace
from typing import Any

from repro.drivers import single_call

GIB = 1 << 30
_repro = partial(single_call.repro, needs=("vllm",))
_cache_repro = partial(_repro, modules=("vllm.v1.core.kv_cache_utils",))


@_repro(
    "MEM004",
    modules=("vllm.v1.worker.utils",),
    raises="ValueError: on startup is less than desired",
    simulated=("the device: its figures are given",),
)
def mem004_half_free(mitigation: str | None) -> None:
    """Check the engine's share of memory on a device that has less free memory."""
    from vllm.v1.worker.utils import request_memory

    free = (79 if mitigation == "stray" else 40) * GIB
    device = SimpleNamespace(total_memory=80 * GIB, free_memory=free, device_="cuda:0")
    share = 0.4 if mitigation == "smaller_share" else 0.9
    request_memory(device, SimpleNamespace(gpu_memory_utilization=share))


def _check_cache(available: int, needed: int) -> None:
    """Check the free KV cache memory against one request of the maximum length."""
    from vllm.v1.core import kv_cache_utils

    check = kv_cache_utils._check_enough_kv_cache_memory  # noqa: SLF001 - the check itself
    check(available, lambda: needed, 32768, lambda _: 1024)


@_cache_repro(
    "MEM005",
    raises="ValueError: No available memory for the cache blocks",
    simulated=("the device: its free memory is given",),
)
def mem005_nothing_left(mitigation: str | None) -> None:
    """Check a KV cache for which the weights and the profile run left no memory."""
    _check_cache(4 * GIB if mitigation == "larger_share" else 0, GIB)


@_cache_repro(
    "MEM006",
    raises="ValueError: To serve at least one request",
    simulated=("the device: its free memory, and what the length needs, are given",),
)
def mem006_sixteen_in_four(mitigation: str | None) -> None:
    """Check a KV cache of 4 GiB against one request of the maximum length, which needs 16 GiB."""
    _check_cache(4 * GIB, GIB if mitigation == "shorter" else 16 * GIB)


@_repro(
    "SYN013",
    modules=("vllm.distributed.weight_transfer.nccl_engine",),
    raises="ValueError: Invalid update_info",
    simulated=(
        "the trainer of another release: a dict for its update",
        "the engine: its constructor is not called",
    ),
)
def syn013_unknown_key(mitigation: str | None) -> None:
    """Parse a weight update that has a key of another release."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    update: dict[str, Any] = {"names": ["a"], "dtype_names": ["float32"], "shapes": [[1]]}
    if mitigation != "match":
        update["no_such_key"] = 1
    # The constructor needs NCCL; parsing an update needs no attribute that it sets.
    engine = NCCLWeightTransferEngine.__new__(NCCLWeightTransferEngine)
    engine.parse_update_info(update)


@_repro("SYN021", modules=("vllm.v1.serial_utils",), raises="TypeError: VLLM_ALLOW_INSECURE_SERIALIZATION")
def syn021_function(mitigation: str | None) -> None:
    """Serialize a function, for which vLLM's encoder needs pickle, while pickle is not allowed."""
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1" if mitigation == "allow" else "0"
    from vllm.v1.serial_utils import MsgpackEncoder

    MsgpackEncoder().encode(["a name" if mitigation == "by_name" else lambda: None])


_verl_repro = partial(single_call.repro, needs=("verl",))


@_verl_repro(
    "CFG019", modules=("verl.workers.config.actor",), raises="AssertionError: Please set at least one of"
)
def cfg019_none_set(mitigation: str | None) -> None:
    """Configure verl's actor without a micro-batch size."""
    from verl.workers.config.actor import FSDPActorConfig

    size = 4 if mitigation == "per_gpu" else None
    FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=size, use_dynamic_bsz=False)


@_verl_repro(
    "REW003",
    modules=("verl.utils.reward_score",),
    raises="NotImplementedError: Reward function is not implemented",
)
def rew003_data_source(mitigation: str | None) -> None:
    """Compute a reward for a dataset whose data_source verl does not have."""
    from verl.utils.reward_score import default_compute_score

    source = "openai/gsm8k" if mitigation == "name" else "/data/my_own_set"
    default_compute_score(source, "so it is #### 4", "4")


@_verl_repro(
    "TOK017",
    modules=("verl.utils.torch_functional",),
    raises="NotImplementedError: is larger than max_length",
    simulated=("verl's data set around it: one row",),
)
def tok017_nine_of_four(mitigation: str | None) -> None:
    """Pad a prompt of nine tokens to a maximum of four, without truncation."""
    import torch
    from verl.utils.torch_functional import postprocess_data

    row = torch.ones(1, 9).long()
    length = 16 if mitigation == "room" else 4
    truncation = "left" if mitigation == "cut" else "error"
    postprocess_data(row, row, max_length=length, pad_token_id=0, truncation=truncation)


_ray_repro = partial(single_call.repro, needs=("ray",))


class _Engine:
    """An actor whose process ends without an error message."""

    def generate(self) -> None:
        os._exit(1)


@_ray_repro(
    "RAY010",
    raises="ActorDiedError: actor died",
    simulated=("the engine: a small actor that ends by os._exit",),
)
def ray010_actor_ended(_mitigation: str | None) -> None:
    """Call an actor whose process ends: the caller gets ActorDiedError without the reason."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    ray.init(num_cpus=1, include_dashboard=False)
    engine: Any = ray.remote(_Engine).remote()
    ray.get(engine.generate.remote())


@_ray_repro("RAY011", raises="ValueError: Invalid Ray address")
def ray011_http(mitigation: str | None) -> None:
    """Start Ray while RAY_ADDRESS is the address of a dashboard."""
    import ray

    os.environ["RAY_ADDRESS"] = "http://127.0.0.1:8265"
    if mitigation == "cluster_address":
        del os.environ["RAY_ADDRESS"]
    ray.init(num_cpus=1, include_dashboard=False)


@_ray_repro("RAY013", raises="ConnectionError: Could not find any running Ray instance")
def ray013_auto(_mitigation: str | None) -> None:
    """Join a cluster by ray.init(address="auto") while no cluster runs."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    # Ray finds clusters on this machine by a file in its temporary folder, so another folder is used.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="r", dir="/tmp")
    ray.init(address="auto")
