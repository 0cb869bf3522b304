"""Starting, and ending, the reference rollout server."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import LOOPBACK, Config, ConfigError
from grpo_core.determinism import settle
from grpo_core.engines import build_engine, engine_spec
from grpo_core.engines.remote import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_VARIABLE = "GRPO_CORE_TOKEN"  # noqa: S105 - the variable's name; a command line would show the token to all
_GRACE_S = 5


def serve(config: Config, announce: Callable[[str], None], *, exit_with_stdin: bool) -> None:
    """Serves until SIGTERM or SIGINT, then lets running calls end for a few seconds.

    Args:
        config: `rollout.host`, `rollout.port`, `rollout.engine`, `model.path` and `train.threads` count.
        announce: Is given one line of JSON that says where, when the server is ready.
        exit_with_stdin: End when stdin does, as a trainer's own server must.

    Raises:
        ConfigError: No model, an address that needs a token, or one that can't be bound.
        EngineError: The engine did not start.
    """
    if not config.model.path:
        raise ConfigError("model.path = '' (default): a server needs the folder of the model it serves")
    token = os.environ.get(TOKEN_VARIABLE) or None
    listener = _bind(config.rollout.host, config.rollout.port, token)
    try:
        import uvicorn

        from grpo_core.serve.app import Limits, create_app
    except ImportError as error:
        raise ConfigError(f"serve needs fastapi and uvicorn in this environment: {error}") from error
    threads = config.train.threads
    with ThreadPoolExecutor(1, "engine", lambda: settle(threads)) as thread:
        engine = thread.submit(build_engine, engine_spec(config, config.model.path)).result()
        limits = Limits(weights_bytes=_largest_upload(Path(config.model.path)))
        app = create_app(engine, thread, token=token, limits=limits)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE_S, server_header=False)
        )
        if exit_with_stdin:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        listener.listen(128)  # from here on connections wait, they are not refused
        host, port = listener.getsockname()[:2]
        # For a signal before uvicorn has its own handlers, and after: it raises the signal once more when done.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        announce(json.dumps({"schema": PROTOCOL, "host": host, "port": port, "pid": os.getpid()}))
        server.run(sockets=[listener])
        thread.submit(engine.close).result()


def _bind(host: str, port: int, token: str | None) -> socket.socket:
    if host not in LOOPBACK and token is None:
        raise ConfigError(
            f"rollout.host = {host!r}: other machines could sample from and overwrite the model; "
            f"set {TOKEN_VARIABLE} in the environment of server and trainer, or listen on 127.0.0.1"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"rollout.host = {host!r}, rollout.port = {port}: can't listen there: {error}"
        ) from error
    return listener


def _largest_upload(model_dir: Path) -> int:
    """Twice the model's files (they may be in 16 bits, an upload in 32), and room for names."""
    return 2 * sum(path.stat().st_size for path in model_dir.glob("*.safetensors")) + 2**20


def _end_with_stdin(server: Any) -> None:
    """Stops gracefully when the trainer is gone; if a call does not end, the process does."""
    sys.stdin.buffer.read()
    server.should_exit = True
    time.sleep(_GRACE_S + 1)
    os._exit(0)
