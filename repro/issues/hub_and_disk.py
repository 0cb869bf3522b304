"""Reproduce failures of unmodified transformers, huggingface_hub, safetensors and PyTorch by disk, hub or broken files.

Files: CMP027 (unknown model type), ENV003 (full disk), ENV010 (truncated weights). The hub is a closed port (ENV004) or
a failing HTTP server on this machine (ENV005, ENV026).
"""

import json
import os
import tempfile
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from repro.drivers import single_call, tiny_trl

# No module is imported before the call sets the hub's address.
_hub_repro = partial(single_call.repro, needs=("transformers",), modules=())


@single_call.repro(
    "CMP027",
    needs=("transformers",),
    raises="ValueError: does not recognize this architecture",
    simulated=("the model: a config.json with a made-up type",),
)
def cmp027_unknown_type(_mitigation: str | None) -> None:
    """Load a config.json whose model type the installed transformers does not have."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({"model_type": "no_such_type_yet"}))
    _load_config(folder)


@single_call.repro(
    "ENV003", needs=("torch",), raises="RuntimeError: unexpected pos", simulated=("the full disk: /dev/full",)
)
def env003_save(mitigation: str | None) -> None:
    """Save with torch.save to a full device: the error does not mention the missing space."""
    import torch

    # Writing to this device of the kernel fails with errno 28.
    path = Path(tempfile.mkdtemp(), "a.pt") if mitigation == "space" else "/dev/full"
    torch.save(torch.zeros(100_000), path)


def _set_hub(address: str) -> None:
    """Set the hub's address by the environment variable that huggingface_hub reads when it is imported."""
    os.environ.update(HF_HOME=tempfile.mkdtemp(), HF_ENDPOINT=address, HF_HUB_OFFLINE="0")


def _load_config(model: str | Path) -> None:
    from transformers import AutoConfig

    AutoConfig.from_pretrained(model)


def _save_model() -> str:
    """Save the tiny model in a new folder, and return the folder."""
    folder = tempfile.mkdtemp()
    tiny_trl.model().save_pretrained(folder)
    return folder


@_hub_repro(
    "ENV004",
    raises="OSError: We couldn't connect to",
    simulated=("the network: HF_ENDPOINT names a port of this machine that is closed",),
)
def env004_refused(mitigation: str | None) -> None:
    """Load the config of a model that is not in the cache, while the hub does not answer."""
    _set_hub("http://127.0.0.1:9")
    _load_config(_save_model() if mitigation == "local" else "some/model")


def _start_failing_hub(status: int, code: str = "") -> str:
    """Start an HTTP server in a thread that answers with a status and an error code; return its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


@_hub_repro(
    "ENV005",
    raises="OSError: is not a local folder",
    simulated=("the hub: a local server that answers 401 with the hub's header",),
)
def env005_unauthorized(_mitigation: str | None) -> None:
    """Load the config of a model for which the hub answers 401, as for a wrong name or a private repository."""
    _set_hub(_start_failing_hub(401, "RepoNotFound"))
    _load_config("some/model")


@single_call.repro(
    "ENV010",
    needs=("transformers", "safetensors", "torch"),
    raises="SafetensorError: Error while deserializing header",
)
def env010_cut_off(mitigation: str | None) -> None:
    """Load a truncated weights file, whose header safetensors cannot read."""
    from transformers import LlamaForCausalLM

    folder = _save_model()
    path = Path(folder, "model.safetensors")
    if mitigation != "again":
        path.write_bytes(path.read_bytes()[:1000])
    LlamaForCausalLM.from_pretrained(folder)


@_hub_repro(
    "ENV026",
    raises="HfHubHTTPError: 503",
    simulated=("the hub: HF_ENDPOINT names a server on this machine that answers 503",),
)
def env026_unavailable(mitigation: str | None) -> None:
    """Request information on a model from a hub that answers with a server error."""
    _set_hub(_start_failing_hub(503))
    if mitigation == "local":
        _load_config(_save_model())
        return
    from huggingface_hub import HfApi

    HfApi().model_info("some/model")
