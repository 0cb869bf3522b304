"""Ways for weights into `vllm serve` that need no CUDA: files it reads, or a gloo group it joins.

Files work with any vLLM that has `/collective_rpc`, where the server sees the trainer's folder. The group needs our
receiver in the server (`grpo_core/engines/vllm_worker.py`), goes by vLLM's native weight-transfer endpoints, and
compares a digest of what arrived.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from grpo_core.engines.base import EngineError
from grpo_core.weights import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from grpo_core.engines.calls import Http

BACKEND = "grpo_core_gloo"  # of --weight-transfer-config


class Transfer(Protocol):
    """Brings all parameters into a server that is paused."""

    def send(self, tensors: Mapping[str, torch.Tensor], label: str, deadline: float) -> None:
        """All of them by the deadline, or an EngineError; `label` is unique among updates."""

    def close(self) -> None:
        """Takes down what it set up."""


class Files:
    """Writes a safetensors file and has the server reload from its folder."""

    def __init__(self, http: Http, folder: Path) -> None:
        """`folder` is the updates' own; server and trainer see it under the same path."""
        self._http, self._folder = http, folder.resolve()

    def send(self, tensors: Mapping[str, torch.Tensor], label: str, deadline: float) -> None:
        """By `reload_weights`, which repacks what the kernels want repacked; `load_weights` fails on a CPU."""
        from safetensors.torch import save_file

        target = self._folder / label
        try:
            target.mkdir(parents=True)
            save_file(
                {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
                target / "model.safetensors",
            )
        except OSError as error:
            raise EngineError(
                f"{self._http.name} engine, update_weights: can't write the weights to {target}: {error}"
            ) from error
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(target)}}
        try:
            self._http.json("POST", "/collective_rpc", call, deadline=deadline)
        except EngineError as error:
            raise type(error)(f"{error}; does the server see {target}?") from error
        for old in self._folder.iterdir():
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        """Removes the files: the server has read them."""
        shutil.rmtree(self._folder, ignore_errors=True)


class Gloo:
    """Broadcasts to the server's workers, this process being rank 0 of a group with them."""

    def __init__(self, http: Http, timeout_s: float) -> None:
        """The group is made at the first update."""
        self._http, self._timeout = http, timedelta(seconds=timeout_s)
        self._group: Any = None

    def send(self, tensors: Mapping[str, torch.Tensor], label: str, deadline: float) -> None:
        """Announces names, types, shapes and a digest, and broadcasts while the server receives."""
        del label
        values = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        told = {
            "names": list(values),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in values.values()],
            "shapes": [list(tensor.shape) for tensor in values.values()],
            "digest": fingerprint_of(values.items()),
        }
        if self._group is None:
            self._group = self._joined()
        self._start(deadline)
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit(
                self._http.json, "POST", "/update_weights", {"update_info": told}, deadline=deadline
            )
            try:
                for tensor in values.values():
                    broadcast(self._group, tensor)
            except RuntimeError as error:
                self._group = None  # the next update makes another
                received.result()  # why the server gave up says more
                raise EngineError(f"{self._http.where('/update_weights')}: gloo: {error}") from error
            received.result()
        self._http.json("POST", "/finish_weight_update", {}, deadline=deadline)

    def close(self) -> None:
        """Leaves the group."""
        self._group = None

    def _joined(self) -> Any:
        from torch.distributed import TCPStore

        address = self._http.local_address()
        size = int(self._http.json("GET", "/get_world_size", repeat=True)["world_size"]) + 1
        store = TCPStore(address, 0, size, is_master=True, timeout=self._timeout, wait_for_workers=False)
        info = {
            "address": address,
            "port": store.port,
            "world_size": size,
            "timeout_s": self._timeout.total_seconds(),
        }
        with ThreadPoolExecutor(1) as pool:  # the server answers when all have joined
            joined = pool.submit(self._http.json, "POST", "/init_weight_transfer_engine", {"init_info": info})
            try:
                group = gloo_group(store, 0, size, self._timeout)
            except RuntimeError as error:
                joined.result()
                raise EngineError(
                    f"{self._http.where('/init_weight_transfer_engine')}: gloo: {error}"
                ) from error
            joined.result()
        return group

    def _start(self, deadline: float) -> None:
        """Starts an update, and before that ends one that a trainer before us has left unfinished."""
        try:
            self._http.json("POST", "/start_weight_update", {}, deadline=deadline)
        except EngineError:
            self._http.json("POST", "/finish_weight_update", {}, deadline=deadline)
            self._http.json("POST", "/start_weight_update", {}, deadline=deadline)


def gloo_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A group of its own, beside the default group of either process."""
    from torch.distributed import PrefixStore, ProcessGroupGloo

    return ProcessGroupGloo(PrefixStore("grpo_core", store), rank, size, timeout)


def broadcast(group: Any, tensor: torch.Tensor) -> None:
    """From rank 0, in place.

    Raises:
        RuntimeError: A member is gone, or it took too long.
    """
    group.broadcast(tensor, 0).wait()
