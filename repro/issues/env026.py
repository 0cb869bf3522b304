"""ENV026: the hub is reached, and answers with an error of its own."""

from __future__ import annotations

import os
import tempfile

from repro.drivers import calls, pages, tiny_trl


def _ask(mitigation: str | None) -> None:
    # Read when huggingface_hub is imported: this process is the attempt's own, and has not imported it yet.
    os.environ.update(HF_HOME=tempfile.mkdtemp(), HF_ENDPOINT=pages.serve({}, status=503), HF_HUB_OFFLINE="0")
    if mitigation == "local":
        from transformers import AutoConfig

        folder = tempfile.mkdtemp()
        tiny_trl.model().save_pretrained(folder)
        AutoConfig.from_pretrained(folder)
        return
    from huggingface_hub import HfApi

    HfApi().model_info("some/model")


REPRO = calls.repro(
    "ENV026",
    "The hub answered with an error of its own",
    needs=("transformers",),
    trigger=("unavailable", "model_info of a hub that answers 503"),
    call=_ask,
    failure=(
        "HfHubHTTPError",
        "raise _format(HfHubHTTPError, str(e), response) from e",
        "hf_raise_for_status",
    ),
    says="503",
    helps={"local": "a folder that has the model"},
    untried={"later": "it is waiting: nothing is changed"},
    simulated=("the hub: HF_ENDPOINT names a server on this machine that answers 503",),
)
