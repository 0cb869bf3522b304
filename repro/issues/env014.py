"""ENV014: something is to go to the GPU, and PyTorch is the CPU build."""

from __future__ import annotations

from repro.base import InapplicableError
from repro.drivers import calls


def _move(mitigation: str | None) -> None:
    del mitigation
    import torch

    if torch.version.cuda:
        raise InapplicableError(f"PyTorch {torch.__version__} here is built with CUDA")
    torch.nn.Linear(2, 2).cuda()


REPRO = calls.repro(
    "ENV014",
    "PyTorch in this environment is the CPU build",
    needs=("torch",),
    modules=("torch",),
    trigger=("cuda", "module.cuda() with PyTorch's CPU build"),
    call=_move,
    failure=("AssertionError", 'raise AssertionError("Torch not compiled with CUDA enabled")', "_lazy_init"),
    untried={"reinstall": "it changes the environment, and needs a GPU to show that it helps"},
)
