"""Starting, and ending, the reference rollout server."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as CallTimeoutError
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import LOOPBACK, Config, ConfigError
from grpo_core.machine.process import make_deterministic
from grpo_core.machine.resources import resolve
from grpo_core.rollout.build import build_engine, engine_spec
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.rollout.server.token import TOKEN_VARIABLE, given_token, kept_token
from grpo_core.rules import check_folders

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_core.rollout.engine import Engine

_GRACE_S = 5
_BY_ITSELF_S = (
    4  # in which a running call may end by itself; then it is ended, and has _GRACE_S for its answer
)
_CONNECTIONS = 256  # at a time; further calls are answered with status 503
_QUEUE = 2048  # connections that wait to be accepted


def serve(
    config: Config,
    announce: Callable[[str], None],
    *,
    exit_with_stdin: bool,
    allow_unauthenticated: bool = False,
) -> None:
    """Serves until SIGTERM or SIGINT, then lets running calls end for a few seconds.

    Args:
        config: `model.path`, `model.max_length`, `rollout.host`, `port`, `engine`, `device`, `max_batch`,
            `timeout_s`, `token_file` and `on_update`, `train.threads` and `train.seed` count.
        announce: Is given one line of JSON that says where, when the server is ready.
        exit_with_stdin: End when stdin does, as a trainer's own server must.
        allow_unauthenticated: Take calls without a token, from whoever is on this machine.

    Raises:
        ConfigError: No model, an address that needs a token or can't be bound, or an engine without what
            `rollout.on_update` needs.
        EngineError: The engine did not start.
    """
    if not config.model.path:
        raise ConfigError("model.path = '' (default): a server needs the folder of the model it serves")
    # What the engine starts in processes of its own has no use for the token.
    token = given_token(config.rollout.token_file, take=True)
    if allow_unauthenticated:
        _check_open(config.rollout.host, token)
    listener = _bind(
        config.rollout.host, config.rollout.port, has_token=bool(token or config.rollout.token_file)
    )
    # Another engine reads the model itself, and may know more kinds.
    check_folders(config)
    config = resolve(config)
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {' and '.join(missing)} in this environment; install them there")
    threads = config.train.threads
    with ExitStack() as stack:
        thread = stack.enter_context(ThreadPoolExecutor(1, "engine", lambda: make_deterministic(threads)))
        host, port = listener.getsockname()[:2]
        where = {"schema": PROTOCOL, "host": host, "port": port, "pid": os.getpid()}
        if token is None and not allow_unauthenticated:
            token, place = stack.enter_context(kept_token(config.rollout.token_file, port))
            where["token_file"] = str(place)
        engine = thread.submit(build_engine, engine_spec(config, config.model.path)).result()
        server = _server(config, engine, thread, token)
        if exit_with_stdin:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        listener.listen(_QUEUE)  # from here on connections wait, they are not refused
        # For a signal before uvicorn has its own handlers, and after: it raises the signal once more when done.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        announce(json.dumps(where))
        server.run(sockets=[listener])
        _close(engine, thread)


def _server(config: Config, engine: Engine, thread: ThreadPoolExecutor, token: str | None) -> Any:
    """The uvicorn server around an engine, with its protocol on it."""
    import uvicorn

    from grpo_core.rollout.server.app import create_app
    from grpo_core.rollout.server.guard import Limits

    model, on_update = config.model, config.rollout.on_update
    if on_update == "abort" and not engine.capabilities.abort:
        why = engine.capabilities.why_not.get("abort", "")
        raise ConfigError(
            f"rollout.on_update = 'abort': the {engine.name} engine can't end a running call: {why}; use 'wait'"
        )
    limits = Limits(weights_bytes=_largest_upload(Path(model.path)), call_s=config.rollout.timeout_s)
    app = create_app(
        engine, thread, token=token, limits=limits, on_update=on_update, host=config.rollout.host
    )
    options = uvicorn.Config(
        app,
        http=http_protocol(),
        ws="none",
        limit_concurrency=_CONNECTIONS,
        proxy_headers=False,  # who calls is who is connected, not who a header says
        log_level="error",  # a line for each call that is no HTTP would let anybody fill a disk
        timeout_graceful_shutdown=_BY_ITSELF_S + _GRACE_S,
        server_header=False,
    )

    class GracefulServer(uvicorn.Server):  # type: ignore[misc]
        """Has running calls answered before uvicorn cuts them off."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().call_later(_BY_ITSELF_S, app.state.engines.stop)
            await super().shutdown(sockets)

    return GracefulServer(options)


def http_protocol(head_s: float = 10.0) -> type[asyncio.Protocol]:
    """Uvicorn's stricter parser, h11, which limits a head's bytes; connections without a whole head in time end."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):  # type: ignore[misc]
        """Looks every `head_s` whether a call came since the last look, or still runs."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(head_s, self._look, None)

        def _look(self, before: Any) -> None:
            idle = self.cycle is None or self.cycle.response_complete
            if idle and self.cycle is before and not self.transport.get_write_buffer_size():
                self.transport.abort()
            elif not self.transport.is_closing():
                self.loop.call_later(head_s, self._look, self.cycle)

    return TimedProtocol


def _close(engine: Engine, thread: ThreadPoolExecutor) -> None:
    """Ends what runs in the engine's thread; a call that can't be ended in time ends with the process."""
    if engine.capabilities.abort:
        engine.abort()
    closing = thread.submit(engine.close)
    try:
        closing.result(timeout=_GRACE_S)
    except CallTimeoutError:  # on Python 3.10 another class than the built-in
        print("grpo_core: the engine's running call did not end; it ends with the process", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


def _check_open(host: str, token: str | None) -> None:
    if token is not None:
        raise ConfigError(
            f"--allow-unauthenticated: a token is given by {TOKEN_VARIABLE} or rollout.token_file; leave one of "
            "the two out"
        )
    if host not in LOOPBACK:
        raise ConfigError(
            f"rollout.host = {host!r}, --allow-unauthenticated: other machines could sample from and overwrite the "
            "model; leave it out, or listen on 127.0.0.1"
        )


def _bind(host: str, port: int, *, has_token: bool) -> socket.socket:
    if host not in LOOPBACK and not has_token:
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
