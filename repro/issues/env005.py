"""ENV005: the hub answers 401, as it does for a name that is wrong and for a private repository."""

from __future__ import annotations

import os
import tempfile

from repro.drivers import calls, pages


def _load(mitigation: str | None) -> None:
    del mitigation
    # Read when huggingface_hub is imported: this process is the attempt's own, and has not imported it yet.
    os.environ.update(HF_HOME=tempfile.mkdtemp(), HF_HUB_OFFLINE="0")
    os.environ["HF_ENDPOINT"] = pages.serve({}, status=401, header=("X-Error-Code", "RepoNotFound"))
    from transformers import AutoConfig

    AutoConfig.from_pretrained("some/model")


REPRO = calls.repro(
    "ENV005",
    "A repository that needs a login, or does not exist",
    needs=("transformers",),
    trigger=("unauthorized", "from_pretrained of a hub's name; the hub answers 401"),
    call=_load,
    failure=("OSError", "raise OSError(", "cached_files"),
    says="is not a local folder",
    untried={"token": "there is no hub here that a token would open"},
    simulated=("the hub: a server of ours that answers 401 with the hub's header",),
)
