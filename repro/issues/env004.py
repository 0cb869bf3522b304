"""ENV004: the hub does not answer, and the model is not in the cache."""

from __future__ import annotations

import os
import tempfile

from repro.drivers import calls, tiny_trl


def _load(mitigation: str | None) -> None:
    # Read when huggingface_hub is imported: this process is the attempt's own, and has not imported it yet.
    os.environ.update(HF_HOME=tempfile.mkdtemp(), HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0")
    from transformers import AutoConfig

    folder = tempfile.mkdtemp()
    if mitigation == "local":
        tiny_trl.model().save_pretrained(folder)
    AutoConfig.from_pretrained(folder if mitigation == "local" else "some/model")


REPRO = calls.repro(
    "ENV004",
    "The hub cannot be reached, and the files are not in the cache",
    needs=("transformers",),
    trigger=("refused", "from_pretrained of a hub's name; nobody listens where the hub should be"),
    call=_load,
    failure=("OSError", "raise OSError(", "cached_files"),
    says="We couldn't connect to",
    helps={"local": "a folder that has the model"},
    simulated=("the network: HF_ENDPOINT names a port of this machine that is closed",),
)
