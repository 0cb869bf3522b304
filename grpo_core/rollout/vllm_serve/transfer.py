"""Ways for weights into `vllm serve` that need no NCCL: files it reads by itself, or a receiver of ours inside it.

Files work with any vLLM that has `/collective_rpc`, where the server sees the trainer's folder. The receiver
(`grpo_core/rollout/vllm_serve/worker.py`) is named when the server is started, and goes by vLLM's native
weight-transfer endpoints; the bytes go as `grpo_core.rollout.weights.transports` has them go.
"""

from __future__ import annotations

import shutil
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm_serve import BACKEND
from grpo_core.rollout.weights.sync import open_sender

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from grpo_core.rollout.http_client import HttpClient
    from grpo_core.rollout.vllm_serve.protocol import VllmServer
    from grpo_core.rollout.weights.flat import Flat

RECEIVED = ("gloo", "shm")  # the ways our receiver was run with


class Transfer(Protocol):
    """Brings all parameters into a server that is paused."""

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, deadline: float) -> None:
        """All of them by the deadline, or an EngineError."""

    def close(self) -> None:
        """Takes down what it set up; safe to call twice."""


class Files:
    """Writes a safetensors file and has the server reload from its folder."""

    def __init__(self, http: HttpClient, folder: Path) -> None:
        """`folder` is the updates' own; server and trainer see it under the same path."""
        self._http, self._folder = http, folder.resolve()

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, deadline: float) -> None:
        """By `reload_weights`, which repacks what the kernels want repacked; `load_weights` fails on a CPU."""
        from safetensors.torch import save_file

        target = self._folder / str(version)
        try:
            # vLLM globs the folder: a file that is half written, or of another version, must not be in it.
            self.close()
            target.mkdir(parents=True)
            whole = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
            save_file(whole, target / "model.safetensors")
        except OSError as error:
            raise EngineError(
                f"{self._http.name} engine, update_weights: can't write the weights to {target}: {error}"
            ) from error
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(target)}}
        try:
            self._http.json("POST", "/collective_rpc", call, deadline=deadline)
        except EngineError as error:
            raise type(error)(f"{error}; does the server see {target}?") from error
        finally:
            self.close()

    def close(self) -> None:
        """Removes the files: the server has read them."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Received:
    """To our receiver, by one of `RECEIVED`. Its calls are vLLM's native endpoints."""

    def __init__(self, http: HttpClient, kind: str) -> None:
        """Nothing is set up before the first update."""
        self._http, self._deadline = http, 0.0
        host = http.local_address() if kind == "gloo" else ""
        self._sender = open_sender(kind, self._call, timeout_s=http.timeout_s, host=host)

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, deadline: float) -> None:
        """Starts an update, and before that ends one that a trainer before us has left unfinished."""
        self._deadline = deadline
        try:
            self._post("/start_weight_update", {})
        except EngineError:
            self._post("/finish_weight_update", {})
            self._post("/start_weight_update", {})
        self._sender.send(tensors.items(), version)
        self._post("/finish_weight_update", {})

    def close(self) -> None:
        """Leaves the group, or gives the memory back."""
        self._sender.close()

    def _call(self, method: str, arguments: dict[str, Any], payload: Flat | None = None, /) -> dict[str, Any]:
        """A sender's call of the receiver."""
        assert payload is None  # nothing goes inline: these endpoints take no bodies of bytes
        if method == "sync_open":
            info = {"arguments": arguments, "timeout_s": self._http.timeout_s}
            self._post("/init_weight_transfer_engine", {"init_info": info})
        else:
            self._post("/update_weights", {"update_info": {"step": method, "arguments": arguments}})
        return {"version": arguments.get("version", -1)}

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self._http.json("POST", path, body, deadline=self._deadline)


def choose_transfer(
    http: HttpClient, server: VllmServer, folder: Path | None, sync: str
) -> tuple[Transfer | None, str]:
    """How weights go to this server; or None, and why they can't."""
    needed = {"/pause", "/resume", "/reset_prefix_cache", "/weight_info", "/update_weight_version"}
    if lacking := sorted(needed - server.paths):
        return None, (
            f"vLLM {server.version} serves no {', '.join(lacking)}; start it with VLLM_SERVER_DEV_MODE=1 "
            "(and a release that has them: 0.31 does)"
        )
    backend = _backend(http, server)
    if sync in RECEIVED or (sync == "auto" and backend == BACKEND):
        if backend == BACKEND:
            return Received(http, "gloo" if sync == "auto" else sync), ""
        return None, (
            f"its weight-transfer backend is {backend!r}; for rollout.sync = {sync!r} start it with "
            f'--weight-transfer-config \'{{"backend": "{BACKEND}"}}\' '
            "--worker-extension-cls grpo_core.rollout.vllm_serve.worker.WorkerExtension"
        )
    if sync not in ("auto", "files"):
        ways = ", ".join(("files", *RECEIVED))
        return None, f"weights don't go to it by rollout.sync = {sync!r}, but by {ways}"
    if folder is None or "/collective_rpc" not in server.paths:
        return None, "no folder was given for the weights' files, or the release has no /collective_rpc"
    return Files(http, folder), ""


def _backend(http: HttpClient, server: VllmServer) -> str | None:
    """The server's weight-transfer backend; where its configuration isn't told, our receiver answers for itself."""
    if server.config:
        told = server.setting("weight_transfer_config", "backend")
        return None if told is None else str(told)
    if "/collective_rpc" not in server.paths:
        return None
    status, text = http.call("POST", "/collective_rpc", {"method": "grpo_core_backend"})
    return BACKEND if status == HTTPStatus.OK and BACKEND.encode() in text else None
