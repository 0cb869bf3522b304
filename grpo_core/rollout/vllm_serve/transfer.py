"""Weight transfers into `vllm serve` without NCCL: files that it reads itself, or a receiver of ours inside it.

Files work with any vLLM that has `/collective_rpc`, where the server sees the trainer's folder. The receiver
(`grpo_core/rollout/vllm_serve/worker.py`) is named when the server is started, and is called by vLLM's native
weight-transfer endpoints; the bytes go through shared memory.
"""

from __future__ import annotations

import shutil
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm_serve import BACKEND
from grpo_core.rollout.weights.sync import ShmSender

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from grpo_core.rollout.http_client import HttpClient
    from grpo_core.rollout.vllm_serve.protocol import VllmServer
    from grpo_core.rollout.weights.flat import Flat


class FileTransfer:
    """Writes a safetensors file and makes the server reload from its folder."""

    def __init__(self, http: HttpClient, folder: Path) -> None:
        """`folder` is for updates only; server and trainer see it under the same path."""
        self._http, self._folder = http, folder.resolve()

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, deadline: float) -> None:
        """Load all parameters by the deadline, or raise EngineError.

        `reload_weights` repacks weights for the kernels; `load_weights` fails on a CPU.
        """
        from safetensors.torch import save_file

        target = self._folder / str(version)
        try:
            # vLLM globs the folder: it must not hold a half-written file or another version.
            self.close()
            target.mkdir(parents=True)
            copies = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
            save_file(copies, target / "model.safetensors")
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
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)


class ReceiverTransfer:
    """Sends to our receiver through shared memory, called by vLLM's native endpoints."""

    def __init__(self, http: HttpClient) -> None:
        """Set nothing up before the first update."""
        self._http, self._deadline = http, 0.0
        self._sender = ShmSender(self._call_receiver)

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, deadline: float) -> None:
        """Load all parameters by the deadline, or raise EngineError.

        First ends an update that an earlier trainer left unfinished.
        """
        self._deadline = deadline
        try:
            self._post("/start_weight_update", {})
        except EngineError:
            self._post("/finish_weight_update", {})
            self._post("/start_weight_update", {})
        self._sender.send(tensors.items(), version)
        self._post("/finish_weight_update", {})

    def close(self) -> None:
        """Free the memory."""
        self._sender.close()

    def _call_receiver(
        self, method: str, arguments: dict[str, Any], payload: Flat | None = None, /
    ) -> dict[str, Any]:
        assert payload is None  # these endpoints take no bodies of bytes
        if method == "sync_open":
            self._post("/init_weight_transfer_engine", {"init_info": {"arguments": arguments}})
        else:
            self._post("/update_weights", {"update_info": {"arguments": arguments}})
        return {"version": arguments.get("version", -1)}

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self._http.json("POST", path, body, deadline=self._deadline)


def choose_transfer(
    http: HttpClient, server: VllmServer, folder: Path | None, sync: str
) -> tuple[FileTransfer | ReceiverTransfer | None, str]:
    """Return the transfer for this server; or None, and why there is none."""
    needed = {"/pause", "/resume", "/reset_prefix_cache", "/weight_info", "/update_weight_version"}
    if missing := sorted(needed - server.paths):
        return None, (
            f"vLLM {server.version} serves no {', '.join(missing)}; start it with VLLM_SERVER_DEV_MODE=1 "
            "(and a release that has them: 0.31 does)"
        )
    backend = _read_backend(http, server)
    if sync == "shm" or (sync == "auto" and backend == BACKEND):
        if backend == BACKEND:
            return ReceiverTransfer(http), ""
        return None, (
            f"its weight-transfer backend is {backend!r}; for rollout.sync = {sync!r} start it with "
            f'--weight-transfer-config \'{{"backend": "{BACKEND}"}}\' '
            "--worker-extension-cls grpo_core.rollout.vllm_serve.worker.WorkerExtension"
        )
    if sync not in ("auto", "files"):
        return None, f"weights don't go to it by rollout.sync = {sync!r}, but by files or shm"
    if folder is None or "/collective_rpc" not in server.paths:
        return None, "no folder was given for the weights' files, or the release has no /collective_rpc"
    return FileTransfer(http, folder), ""


def _read_backend(http: HttpClient, server: VllmServer) -> str | None:
    """Return the server's weight-transfer backend; where its configuration can't be read, ask for our receiver."""
    if server.config:
        backend = server.setting("weight_transfer_config", "backend")
        return None if backend is None else str(backend)
    if "/collective_rpc" not in server.paths:
        return None
    status, text = http.call("POST", "/collective_rpc", {"method": "grpo_core_backend"})
    return BACKEND if status == HTTPStatus.OK and BACKEND.encode() in text else None
