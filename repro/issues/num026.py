"""NUM026: a head in float32 over a model in bfloat16, outside of autocast."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl


def _forward(mitigation: str | None) -> None:
    import torch

    held = tiny_trl.model().bfloat16()
    held.lm_head.float()
    if mitigation == "one_type":
        held.to(torch.bfloat16)
    held(input_ids=torch.tensor([[3, 4]]))


REPRO = calls.repro(
    "NUM026",
    "Two number types meet in one operation",
    needs=("torch", "transformers"),
    modules=("torch", "transformers", "tokenizers"),
    trigger=("head", "a forward pass of a model in bfloat16 whose lm_head is in float32"),
    call=_forward,
    failure=("RuntimeError", "return F.linear(input, self.weight, self.bias)", "forward"),
    says="to have the same dtype",
    helps={"one_type": "all of the model in bfloat16"},
)
