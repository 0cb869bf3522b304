"""CMP027: config.json names a model type that the installed transformers does not have."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from repro.drivers import calls


def _load(mitigation: str | None) -> None:
    del mitigation
    from transformers import AutoConfig

    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({"model_type": "no_such_type_yet"}))
    AutoConfig.from_pretrained(folder)


REPRO = calls.repro(
    "CMP027",
    "The installed transformers does not know the model's type",
    needs=("transformers",),
    modules=("transformers",),
    trigger=("unknown_type", "AutoConfig.from_pretrained on a config.json with another model_type"),
    call=_load,
    failure=("ValueError", "raise ValueError(", "from_pretrained"),
    says="does not recognize this architecture",
    untried={"newer": "no release knows the type that is made up here"},
    simulated=("the model: a config.json of ours with a made-up type",),
)
