"""NUM047: an update smaller than half of a bfloat16 weight's last place, again and again."""

from __future__ import annotations

from repro.drivers import calls

STEPS, RATE = 100, 1e-6


def _moved(mitigation: str | None) -> str | None:
    import torch

    torch.manual_seed(0)
    wide = torch.float32 if mitigation == "master" else torch.bfloat16
    weights = torch.nn.Parameter(torch.rand(1000).add(0.5).to(wide))
    before = weights.detach().clone()
    optimizer = torch.optim.AdamW([weights], lr=RATE, weight_decay=0.0)
    for _ in range(STEPS):
        weights.grad = torch.ones_like(weights)
        optimizer.step()
    moved = int((weights.detach() != before).sum())
    return None if moved == len(before) else f"{moved} of {len(before)} weights moved in {STEPS} steps"


REPRO = calls.repro(
    "NUM047",
    "Updates that bfloat16 weights cannot hold",
    needs=("torch",),
    modules=("torch",),
    trigger=("bfloat16", "a hundred steps of AdamW at 1e-6 on weights of 0.5 to 1.5 in bfloat16"),
    call=_moved,
    failure=("", "", ""),
    helps={"master": "the weights in float32"},
    silent=True,
)
