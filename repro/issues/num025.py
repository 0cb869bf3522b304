"""NUM025: the loss scaler is given gradients in float16, since the weights are."""

from __future__ import annotations

from repro.drivers import calls


def _step(mitigation: str | None) -> None:
    import torch

    kind = torch.float32 if mitigation == "weights" else torch.float16
    layer = torch.nn.Linear(2, 2).to(kind)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(layer(torch.ones(1, 2, dtype=kind)).float().sum()).backward()
    scaler.unscale_(optimizer)


REPRO = calls.repro(
    "NUM025",
    "The loss scaler meets gradients in float16",
    needs=("torch",),
    modules=("torch",),
    trigger=("half", "GradScaler.unscale_ after a backward pass through a layer in float16"),
    call=_step,
    failure=("ValueError", 'raise ValueError("Attempting to unscale FP16 gradients.")', "_unscale_grads_"),
    helps={"weights": "weights in float32"},
)
