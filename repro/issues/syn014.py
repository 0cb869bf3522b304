"""SYN014: TRL's server is sent a weight before a group was made."""

from __future__ import annotations

from repro.drivers import calls


def _update(mitigation: str | None) -> None:
    del mitigation
    from trl.scripts.vllm_serve import WeightSyncWorkerExtension

    WeightSyncWorkerExtension().update_named_param("model.norm.weight", "torch.float32", (64,))


REPRO = calls.repro(
    "SYN014",
    "A weight update comes before its group is there, or within another update",
    needs=("trl",),
    modules=("trl.scripts.vllm_serve",),
    trigger=("no_group", "update_named_param of the server's worker extension, without init_communicator"),
    call=_update,
    failure=(
        "RuntimeError",
        'raise RuntimeError("Communicator not initialized. Call `init_communicator` first.")',
        "update_named_param",
    ),
    untried={"order": "the group is one of NCCL, which needs GPUs"},
    simulated=("the engine around the worker extension: there is none",),
)
