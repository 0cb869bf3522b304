"""A rollout server as the trainer's own child process."""

from __future__ import annotations

import json
import queue
import threading
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.pipes import end_child, start_child
from grpo_core.rollout.server.token import TOKEN_VARIABLE, new_token

if TYPE_CHECKING:
    from grpo_core.rollout.build import EngineSpec


def _shared(spec: EngineSpec) -> dict[str, Any]:
    """Settings of a server on the trainer's own GPU."""
    return {"rollout.mode": "server", "train.device": spec.device, "rollout.memory_share": spec.memory_share}


class ServerProcess:
    """Started on a free port of loopback; gone when the trainer is.

    Attributes:
        host: Where it listens.
        port: Where it listens.
        token: Its own, which only it and this process are given; by the environment, as others see command lines.
    """

    def __init__(self, spec: EngineSpec, *, timeout_s: float) -> None:
        """Starts the server and waits until it says where it listens.

        Raises:
            EngineError: It ended, or said nothing in time.
        """
        settings = {
            "model.path": spec.model_dir,
            "model.max_length": spec.max_model_len,
            "rollout.engine": spec.engine,
            "rollout.device": spec.device,
            "rollout.max_batch": spec.max_batch,
            "rollout.timeout_s": timeout_s,
            "train.threads": spec.threads,
            "train.seed": spec.seed,
            **({"rollout.dtype": spec.dtype} if spec.dtype != "float32" else {}),
            **(_shared(spec) if spec.memory_share else {}),
        }
        overrides = [f"--{key}={value}" for key, value in settings.items()]
        self.token = new_token()
        self._process = start_child(
            ["grpo_core", "serve", "--exit-with-stdin", *overrides],
            spec.threads,
            {TOKEN_VARIABLE: self.token},
        )
        try:
            where = self._announcement(timeout_s)
        except BaseException:
            self.close()
            raise
        self.host, self.port = str(where["host"]), int(where["port"])

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def death(self) -> str | None:
        """How the server ended; None while it runs (or is about to be found dead: waits a moment)."""
        try:
            code = self._process.wait(timeout=1)
        except Exception:  # noqa: BLE001 - TimeoutExpired: it is alive
            return None
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """Ends the server."""
        end_child(self._process, grace_s=10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _announcement(self, timeout_s: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=timeout_s)
        except queue.Empty:
            raise EngineTimeoutError(
                f"rollout server: not up after {timeout_s:g} s (rollout.timeout_s)"
            ) from None
        if not line:
            raise EngineError(f"rollout server: ended at the start with {self.death()}; its words are above")
        return dict(json.loads(line))
