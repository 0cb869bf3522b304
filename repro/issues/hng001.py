"""HNG001: ranks are in different collectives, since a branch that only some of them take has one in it.

Real ranks over gloo, in processes of their own. What they do is what a trainer's step does around its rewards, or when
it logs and saves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from repro.drivers import hangs, standing

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))


def gather_on_main(mitigation: str) -> None:
    """The main rank alone gathers, to log; the others go on to the barrier."""
    _ranks(hangs.guilty_of(0), mitigation, _gather)


def gather_skipped(mitigation: str) -> None:
    """A rank without completions leaves the gather out."""
    _ranks(hangs.guilty_of(1), mitigation, _gather, leaves_out=True)


def full_tensor_on_main(mitigation: str) -> None:
    """The main rank alone calls full_tensor() of a sharded DTensor, to log a norm; the others go on to the barrier."""
    _ranks(hangs.guilty_of(0), mitigation, _full_tensor)


def state_dict_on_main(mitigation: str) -> None:
    """The main rank alone asks an FSDP2 model for its full state dict, to save it; the others go on to the barrier."""
    _ranks(hangs.guilty_of(0), mitigation, _state_dict)


def _gather() -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    return lambda: dist.all_gather([torch.zeros(4) for _ in range(RANKS)], torch.zeros(4))


def _full_tensor() -> Callable[[], object]:
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    sharded: Any = distribute_tensor(torch.ones(RANKS, 2), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
    full_tensor: Callable[[], object] = sharded.full_tensor
    return full_tensor


def _state_dict() -> Callable[[], object]:
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    model = torch.nn.Linear(RANKS, RANKS)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    return lambda: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


_IMPORTS = {
    _gather: (),
    _full_tensor: ("torch.distributed.tensor",),
    _state_dict: ("torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"),
}


def _ranks(
    one: int, mitigation: str, prepared: Callable[[], Callable[[], object]], *, leaves_out: bool = False
) -> None:
    """One rank alone calls the collective, or alone leaves it out."""
    import torch
    import torch.distributed as dist

    for name in _IMPORTS[prepared]:  # once, and not by each rank
        importlib.import_module(name)

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, RANKS)
        collective = prepared()
        dist.barrier()
        if rank == one:
            standing.say("guilty", NAMES[rank])
        standing.say("ready", NAMES[rank])
        wants = (rank == one) != leaves_out
        if mitigation == "every_rank":
            gathers = True
        elif mitigation == "decide_together":
            flag = torch.tensor(float(wants))
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            gathers = bool(flag)
        else:
            gathers = wants
        if gathers:
            collective()
        dist.barrier()
        standing.say("done", NAMES[rank])
        # A rank that leaves would take the connections of the others with it.
        dist.barrier()

    hangs.run_ranks(RANKS, rank_of)


TRIGGERS = {
    "gather_on_main": hangs.Standing(gather_on_main, NAMES),
    "gather_skipped": hangs.Standing(gather_skipped, NAMES),
    "full_tensor_on_main": hangs.Standing(full_tensor_on_main, NAMES),
    "state_dict_on_main": hangs.Standing(state_dict_on_main, NAMES),
}
REPRO = hangs.repro(
    "HNG001",
    "Ranks are in different collectives",
    triggers=TRIGGERS,
    counted="ranks came through the step",
    helps={
        "every_rank": "call the collective on every rank",
        "decide_together": "reduce the condition first",
    },
    needs=("torch",),
    simulated=("the trainer: ranks of ours call the collectives that its step calls",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
