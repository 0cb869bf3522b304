"""ENV010: a weights file that was cut off: safetensors can't read its header."""

from __future__ import annotations

import tempfile
from pathlib import Path

from repro.drivers import calls, tiny_trl


def _load(mitigation: str | None) -> None:
    folder, held = tempfile.mkdtemp(), tiny_trl.model()
    held.save_pretrained(folder)
    path = Path(folder, "model.safetensors")
    if mitigation != "again":
        path.write_bytes(path.read_bytes()[:1000])
    type(held).from_pretrained(folder)


REPRO = calls.repro(
    "ENV010",
    "A weights file is cut off or no weights file",
    needs=("transformers", "safetensors", "torch"),
    modules=("torch", "transformers", "safetensors", "tokenizers"),
    trigger=("cut_off", "from_pretrained of a folder whose weights end after 1000 bytes"),
    call=_load,
    failure=("SafetensorError", 'file_pointer = safe_open(file, framework="pt", device="cpu")', ""),
    says="Error while deserializing header",
    helps={"again": "the whole file"},
)
