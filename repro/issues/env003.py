"""ENV003: torch.save finds no space on the device, and says so in words of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from repro.drivers import calls

# The kernel's device that is always full: writing to it fails with errno 28.
FULL = "/dev/full"


def _save(mitigation: str | None) -> None:
    import torch

    torch.save(torch.zeros(100_000), Path(tempfile.mkdtemp(), "a.pt") if mitigation == "space" else FULL)


REPRO = calls.repro(
    "ENV003",
    "The disk is full",
    needs=("torch",),
    modules=("torch",),
    trigger=("save", "torch.save to a device without space"),
    call=_save,
    failure=("RuntimeError", "self.file_like.write_end_of_file()", "__exit__"),
    says="unexpected pos",
    helps={"space": "a folder with space"},
    simulated=("the full disk: /dev/full",),
)
