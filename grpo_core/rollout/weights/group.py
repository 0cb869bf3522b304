"""Weights by torch.distributed: gloo between CPUs, NCCL between GPUs, in a group of trainer and engine alone.

The group is made without `init_process_group`, so it neither needs nor disturbs one that a process may have (the
trainer's under torchrun, vLLM's own): a store that the sender opens on one address, and a backend on it. The bytes go
in buckets, the next being filled while one is on its way.
"""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.weights.flat import Flat, received
from grpo_core.rollout.weights.transports import SetUpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from grpo_core.rollout.weights.transports import Call

BUCKET = 32 * 2**20  # bytes of one broadcast


def open_sender(
    kind: str, call: Call, *, timeout_s: float, device: str, host: str, **others: Any
) -> GroupSender:
    """For `weights.send.open_sender`."""
    del others
    return GroupSender(kind, call, timeout_s=timeout_s, device=device, host=host)


def open_receiver(
    kind: str, arguments: Mapping[str, Any], *, timeout_s: float, **others: Any
) -> GroupReceiver:
    """For `weights.receive.open_receiver`."""
    del others
    return GroupReceiver(kind, arguments, timeout_s=timeout_s)


class GroupSender:
    """The trainer's side, rank 0."""

    def __init__(
        self, backend: str, call: Call, *, timeout_s: float, device: str = "cpu", host: str = "127.0.0.1"
    ) -> None:
        """Opens nothing yet.

        Args:
            backend: `gloo` or `nccl`.
            call: The control channel.
            timeout_s: The longest wait for the other rank.
            device: `cpu` for gloo, the trainer's GPU for NCCL.
            host: This machine's address, as the engine's machine reaches it.
        """
        self._backend, self._call, self._timeout_s = backend, call, timeout_s
        self._device, self._host = torch.device(device), host
        self._group: Any = None
        self._store: Any = None

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """See `Sender`."""
        flat = Flat(tensors, version)
        if self._group is None:
            self._join()
        arguments = {"kind": self._backend, "version": version, "size": flat.size}
        self._call("sync_begin", arguments)
        try:
            self._broadcast(flat)
        except RuntimeError as error:
            self.close()  # its ranks are out of step: the next version takes a new group
            raise EngineError(
                f"weight sync by {self._backend}: version {version}: {_short(error)}; the other side ended, or did "
                f"not take it in {self._timeout_s:g} s (rollout.timeout_s)"
            ) from error
        return int(self._call("sync_load", arguments)["version"])

    def close(self) -> None:
        """See `Sender`."""
        group, self._group, self._store = self._group, None, None
        _shut(group)

    def _join(self) -> None:
        try:
            with _listener(self._host) as listener:
                port = listener.getsockname()[1]
                self._store = _store(self._host, port, self._timeout_s, listener.detach())
            self._call("sync_open", {"kind": self._backend, "host": self._host, "port": port})
            self._group = _group(self._backend, self._store, 0, self._host, self._timeout_s)
        except (OSError, RuntimeError, AttributeError) as error:
            self.close()
            raise SetUpError(
                f"weight sync by {self._backend}: no group of trainer and engine at {self._host}: {_short(error)}"
            ) from error

    def _broadcast(self, flat: Flat) -> None:
        size = min(BUCKET, flat.size)
        memory = [torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(2)]
        before = None
        for bucket in flat.buckets(memory):
            work = _begin_broadcast(self._group, bucket, self._timeout_s)
            if before is not None:
                before.wait()
            before = work
        if before is not None:
            before.wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class GroupReceiver:
    """The engine's side, rank 1. A thread of its own joins and receives, so that every call is answered at once."""

    def __init__(self, backend: str, arguments: Mapping[str, Any], *, timeout_s: float) -> None:
        """Begins to join the group that the sender has opened at `host` and `port`."""
        self._backend, self._timeout_s = backend, timeout_s
        host, port = arguments["host"], arguments["port"]
        if backend == "nccl" and not torch.cuda.is_available():
            raise EngineError("weight sync by nccl: the engine's process sees no GPU; use gloo")
        try:  # a store that isn't there would be waited for
            socket.create_connection((host, port), timeout=min(timeout_s, 5.0)).close()
        except (OSError, OverflowError) as error:
            raise EngineError(f"weight sync by {backend}: no sender at {host}:{port}: {error}") from error
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self._thread = ThreadPoolExecutor(1, "weight-sync")
        self._memory = torch.empty(0, dtype=torch.uint8, device=self._device)
        self._group = self._thread.submit(self._join, host, port)
        self._coming: Future[None] | None = None

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """See `Incoming`."""
        if self._coming is not None and not self._coming.done():
            raise EngineError(f"weight sync by {self._backend}: another version is on its way")
        self._coming = self._thread.submit(self._receive, arguments["size"])

    @contextmanager
    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """See `Incoming`: the tensors lie where they were received."""
        del payload
        coming, self._coming = self._coming, None
        if coming is None:
            raise EngineError(f"weight sync by {self._backend}: nothing was begun")
        try:
            coming.result(timeout=self._timeout_s)
        except FutureTimeoutError as error:
            raise EngineTimeoutError(
                f"weight sync by {self._backend}: nothing came in {self._timeout_s:g} s"
            ) from error
        except RuntimeError as error:
            raise EngineError(
                f"weight sync by {self._backend}: {_short(error)}; nothing was loaded"
            ) from error
        yield received(self._memory[: arguments["size"]], f"weight sync by {self._backend}")

    def close(self) -> None:
        """See `Incoming`."""
        if self._group.done() and self._group.exception() is None:
            _shut(self._group.result())
        self._thread.shutdown(wait=False)

    def _join(self, host: str, port: int) -> Any:
        own = _own_address(host, port)
        return _group(self._backend, _store(host, port, self._timeout_s), 1, own, self._timeout_s)

    def _receive(self, size: int) -> None:
        group = self._group.result()
        if self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        works = [_begin_broadcast(group, part, self._timeout_s) for part in self._memory[:size].split(BUCKET)]
        for work in works:
            work.wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _store(host: str, port: int, timeout_s: float, listening: int | None = None) -> Any:
    """The store of two ranks; its server is the one with a socket that listens, on one address instead of on all."""
    from torch.distributed import TCPStore

    limit = timedelta(seconds=timeout_s)
    if listening is None:
        return TCPStore(host, port, 2, is_master=False, timeout=limit)
    return TCPStore(
        host, port, 2, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=listening
    )


def _group(backend: str, store: Any, rank: int, address: str, timeout_s: float) -> Any:
    from torch.distributed import PrefixStore, distributed_c10d

    prefixed, limit = PrefixStore("grpo-core-sync", store), timedelta(seconds=timeout_s)
    if backend == "nccl":
        options = distributed_c10d.ProcessGroupNCCL.Options()
        options._timeout = limit  # noqa: SLF001 - as torch's own init_process_group does it
        return distributed_c10d.ProcessGroupNCCL(prefixed, rank, 2, options)
    kind = distributed_c10d.ProcessGroupGloo
    options = kind._Options()  # noqa: SLF001 - the only way to say which address it listens on
    options._timeout, options._devices = limit, [kind.create_device(hostname=address)]  # noqa: SLF001
    return kind(prefixed, rank, 2, options)


def _begin_broadcast(group: Any, data: torch.Tensor, timeout_s: float) -> Any:
    from torch.distributed import distributed_c10d

    options = distributed_c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    options.timeout = timedelta(seconds=timeout_s)
    return group.broadcast([data], options)


def _shut(group: Any) -> None:
    if group is not None and hasattr(group, "shutdown"):
        with contextlib.suppress(RuntimeError):
            group.shutdown()


def _listener(host: str) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.bind(address)
        found.listen(2)
    except OSError:
        found.close()
        raise
    return found


def _own_address(host: str, port: int) -> str:
    """This machine's address on the way to `host`; nothing is sent."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _short(error: Exception) -> str:
    """The first line: PyTorch adds a C++ stack."""
    return str(error).partition("\n")[0][:300]
