"""A policy that several processes train: each holds the whole of it, or its share."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def spread(scorer: Any, sharding: str) -> Any:
    """What to train in place of the module: PyTorch's own data parallel wrapper, or the module itself under FSDP2."""
    if sharding != "fsdp2":
        return nn.parallel.DistributedDataParallel(scorer, broadcast_buffers=False)
    for layer in scorer.causal.base_model.layers:  # put together only while it computes
        fully_shard(layer)
    fully_shard(scorer)
    return scorer


@contextmanager
def gradients_kept(training: Any, *, last: bool) -> Iterator[None]:
    """Leaves gradients in each process until the `last` micro-batch of an update, which adds them up."""
    if isinstance(training, nn.parallel.DistributedDataParallel):
        if not last:
            with training.no_sync():
                yield
            return
    else:
        training.set_requires_gradient_sync(last)
    yield


def own_share(tensor: torch.Tensor, parameter: Any) -> torch.Tensor:
    """This process's part of a whole tensor, as that parameter is sharded."""
    # No source rank: every process has read the whole tensor, so nothing needs to be sent.
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)
