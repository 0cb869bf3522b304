"""Start and stop the rollout server: `serve` in this process, `ServerProcess` as the trainer's child."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from grpo_core.config import LOOPBACK, Config, ConfigError
from grpo_core.machine.process import make_deterministic
from grpo_core.machine.resources import resolve
from grpo_core.rollout.build import EngineSpec, build_engine, engine_spec
from grpo_core.rollout.engine import Aborter, Engine, EngineError, EngineTimeoutError
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.rollout.server.token import TOKEN_VARIABLE, new_token, saved_token, server_token
from grpo_core.rules import check_folders

# After SIGTERM a running call has 4 s to end by itself. Then it is aborted and has 5 s to answer.
_END_ALONE_S, _GRACE_S = 4, 5
_CONNECTIONS = 64  # at a time; further calls are answered with status 503
_BACKLOG = 2048  # connections that wait to be accepted
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def serve(
    config: Config,
    announce: Callable[[str], None],
    *,
    exit_with_stdin: bool,
    allow_unauthenticated: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running calls end for a few seconds.

    Args:
        config: Settings; the sections `model`, `rollout` and `train` are used.
        announce: Called with one line of JSON, with the address, when the server is ready.
        exit_with_stdin: Whether the server ends when its stdin is closed, as a trainer's own server must.
        allow_unauthenticated: Whether to answer calls without a token; allowed on loopback only.

    Raises:
        ConfigError: There is no model, the address needs a token or can't be bound, or a package is missing.
        EngineError: The engine did not start.
    """
    rollout = config.rollout
    token = _configured_token(config, allow_unauthenticated=allow_unauthenticated)
    with ExitStack() as stack:
        listener = stack.enter_context(_bind(rollout.host, rollout.port))
        check_folders(config)
        config = resolve(config)
        if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn"))):
            raise ConfigError("serve needs fastapi and uvicorn in this environment; install them there")
        prepare = partial(make_deterministic, config.train.threads)
        thread = stack.enter_context(ThreadPoolExecutor(1, "engine", prepare))
        host, port = listener.getsockname()[:2]
        address = {"schema": PROTOCOL, "host": host, "port": port, "pid": os.getpid()}
        if token is None and not allow_unauthenticated:
            token, path = stack.enter_context(saved_token(rollout.token_file, port))
            address["token_file"] = str(path)
        engine = thread.submit(build_engine, engine_spec(config, config.model.path)).result()
        server = _make_server(config, engine, thread, token)
        if exit_with_stdin:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        listener.listen(_BACKLOG)  # from here on connections wait, they are not refused
        # For a signal before uvicorn installs its own handlers, and after: it raises the signal again when done.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        announce(json.dumps(address))
        server.run(sockets=[listener])
        _close_engine(engine, thread)


def _configured_token(config: Config, *, allow_unauthenticated: bool) -> str | None:
    """Return the token from the environment or the token file; refuse to serve other machines without a token."""
    host, token_file = config.rollout.host, config.rollout.token_file
    if not config.model.path:
        raise ConfigError("model.path = '' (default): a server needs the folder of the model it serves")
    token = server_token(token_file)
    if allow_unauthenticated and token is not None:
        source = f"{TOKEN_VARIABLE} or rollout.token_file"
        raise ConfigError(f"--allow-unauthenticated: {source} gives a token; leave one of the two out")
    if host not in LOOPBACK and (allow_unauthenticated or not (token or token_file)):
        raise ConfigError(
            f"rollout.host = {host!r}: other machines could sample from and overwrite the model; set "
            f"{TOKEN_VARIABLE} in the environment of server and trainer, or listen on 127.0.0.1"
        )
    return token


def _make_server(config: Config, engine: Engine, thread: ThreadPoolExecutor, token: str | None) -> Any:
    import uvicorn

    from grpo_core.rollout.server.access import UVICORN_OPTIONS, Limits
    from grpo_core.rollout.server.app import create_app

    rollout = config.rollout
    # The limit is twice the size of the model's files, as they may be in 16 bits and an upload in 32, plus names.
    stored = sum(path.stat().st_size for path in Path(config.model.path).iterdir() if path.is_file())
    limits = Limits(weights_bytes=2 * stored + 2**20, call_s=rollout.timeout_s)
    app = create_app(engine, thread, token=token, limits=limits, host=rollout.host)

    class GracefulServer(uvicorn.Server):  # type: ignore[misc]
        """Ends running calls before uvicorn cuts off their connections."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().call_later(_END_ALONE_S, app.state.queue.stop)
            await super().shutdown(sockets)

    options = uvicorn.Config(
        app,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_END_ALONE_S + _GRACE_S,
        **UVICORN_OPTIONS,
    )
    return GracefulServer(options)


def _close_engine(engine: Engine, thread: ThreadPoolExecutor) -> None:
    """Close the engine in its thread; if a running call does not end in time, end the process."""
    if isinstance(engine, Aborter) and engine.capabilities.abort:
        engine.abort()
    closing = thread.submit(engine.close)
    try:
        closing.result(timeout=_GRACE_S)
    except FutureTimeoutError:  # not the built-in one on Python 3.10
        message = "grpo_core: the engine's running call did not end; it ends with the process"
        print(message, file=sys.stderr, flush=True)
        os._exit(1)


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        message = f"rollout.host = {host!r}, rollout.port = {port}: can't listen there: {error}"
        raise ConfigError(message) from error
    return listener


def _end_with_stdin(server: Any) -> None:
    """Stop the server when stdin is closed: abort a running call; if it does not end, end the process."""
    sys.stdin.buffer.read()
    server.config.app.state.queue.stop()
    server.should_exit = True
    time.sleep(_GRACE_S + 1)
    os._exit(0)


def start_child(
    arguments: Sequence[str], threads: int, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m ...` with this package importable, with pipes for stdin and stdout and the parent's stderr.

    The child gets a new session: Ctrl-C at the terminal reaches only the trainer, which then ends its child.
    """
    package_root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # OMP_NUM_THREADS holds in every thread of the child, torch.set_num_threads only in the calling one.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), **(variables or {})}
    for name in _TORCHRUN:  # an engine is not in the process group of the training ranks
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def end_child(process: subprocess.Popen[bytes], grace_s: float = 5.0) -> None:
    """Close the child's stdin, so that the child ends; kill it after `grace_s` seconds. Safe to call twice."""
    if process.stdin is not None:
        # Closing would raise an error if the child died before it read everything in the pipe.
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ServerProcess:
    """A rollout server on a free port of loopback that ends when the trainer does.

    Attributes:
        host: The address that the server listens on.
        port: Port of the server.
        token: Token of the server, passed by the environment, because other users see command lines.
    """

    def __init__(self, spec: EngineSpec, *, timeout_s: float) -> None:
        """Start the server and wait until it announces its address.

        Raises:
            EngineError: The server ended, or did not announce its address in time.
        """
        settings = {
            "model.path": spec.model_dir,
            "model.max_length": spec.max_model_len,
            "rollout.engine": spec.engine,
            "rollout.device": spec.device,
            "rollout.dtype": spec.dtype,
            "rollout.max_batch": spec.max_batch,
            "rollout.timeout_s": timeout_s,
            "train.threads": spec.threads,
            "train.seed": spec.seed,
        }
        if spec.memory_share:  # the trainer's own GPU
            settings |= {"rollout.mode": "server", "train.device": spec.device}
            settings["rollout.memory_share"] = spec.memory_share
        command = ["grpo_core", "serve", "--exit-with-stdin"]
        command += [f"--{key}={value}" for key, value in settings.items()]
        self.token = new_token()
        self._process = start_child(command, spec.threads, {TOKEN_VARIABLE: self.token})
        try:
            address = self._read_address(timeout_s)
        except BaseException:
            self.close()
            raise
        self.host, self.port = str(address["host"]), int(address["port"])

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def death(self) -> str | None:
        """Return the exit code or signal of the server; None if it still runs after 1 s."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return None
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """End the server."""
        end_child(self._process, grace_s=10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read_address(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise EngineTimeoutError(f"rollout server: not up after {timeout_s:g} s (rollout.timeout_s)")
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"rollout server: ended at the start with {self.death()}; see above")
        return dict(json.loads(line))
