"""Start and stop the rollout server: `serve` in this process, `ServerProcess` as the trainer's child.

The module also reads the token from the environment variable GRPO_CORE_TOKEN, and starts and ends Python child
processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
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
from grpo_core.config_checks import check_model_folder
from grpo_core.machine.devices import resolve_devices
from grpo_core.machine.process_setup import make_deterministic
from grpo_core.rollout.engine import Engine, EngineError, EngineTimeoutError
from grpo_core.rollout.engine_factory import build_engine, memory_share
from grpo_core.rollout.http_client import PROTOCOL

TOKEN_VARIABLE = "GRPO_CORE_TOKEN"  # noqa: S105 - the variable's name
_MAX_TOKEN = 4096
# Running calls may end by themselves in the first seconds after SIGTERM; then they get status 503, and the engine is
# closed or left behind.
_END_ALONE_S, _GRACE_S = 4, 5
_BACKLOG = 2048  # connections that wait to be accepted
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def serve(
    config: Config,
    announce: Callable[[str], None],
    *,
    exit_with_stdin: bool,
    allow_unauthenticated: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then give running calls a few seconds; if one goes on, end the process.

    Args:
        config: The settings. It uses the model's folder and length, the address, the engine with its device, dtype,
            batch size and time limit, `train.threads`, `train.seed`, and those of a GPU shared with the trainer.
        announce: Called with one line of JSON, with the address, when the server is ready.
        exit_with_stdin: Whether the server ends when its stdin is closed, as a trainer's own server must.
        allow_unauthenticated: Whether to answer calls without a token; allowed on loopback only.

    Raises:
        ConfigError: The model is missing or can't be loaded, the token is missing, invalid or not needed, or the
            address can't be bound.
        EngineError: The engine did not start.
    """
    rollout = config.rollout
    token = _required_token(config, allow_unauthenticated=allow_unauthenticated)
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(rollout.host, rollout.port))
        check_model_folder(config)
        config = resolve_devices(config)
        prepare = partial(make_deterministic, config.train.threads)
        thread = stack.enter_context(ThreadPoolExecutor(1, "engine", prepare))
        host, port = listener.getsockname()[:2]
        address = {"schema": PROTOCOL, "host": host, "port": port, "pid": os.getpid()}
        engine = thread.submit(build_engine, config, config.model.path).result()
        server = _make_server(config, engine, thread, token)
        if exit_with_stdin:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        # For a signal before uvicorn installs its own handlers, and after: it raises the signal again when done.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        announce(json.dumps(address))
        server.run(sockets=[listener])
        try:
            thread.submit(engine.close).result(timeout=_GRACE_S)
        except FutureTimeoutError:  # not the built-in one on Python 3.10; a running call did not end
            os._exit(0)


def _required_token(config: Config, *, allow_unauthenticated: bool) -> str | None:
    """Take the token out of the environment; refuse a config without a model or, unless allowed, without a token.

    Serving without a token is allowed on loopback only, by `allow_unauthenticated`.

    Raises:
        ConfigError: The token is missing, invalid or not needed, or no model is given.
    """
    host, token = config.rollout.host, token_from_environment()
    os.environ.pop(TOKEN_VARIABLE, None)  # not for children of the engine
    if not config.model.path:
        raise ConfigError("model.path = '' (default): a server needs the folder of the model it serves")
    if allow_unauthenticated and token is not None:
        raise ConfigError(
            f"--allow-unauthenticated: {TOKEN_VARIABLE} gives a token; leave one of the two out"
        )
    if token is None and not (allow_unauthenticated and host in LOOPBACK):
        raise ConfigError(
            f"rollout.host = {host!r}: others could sample from and overwrite the model; set {TOKEN_VARIABLE} in the "
            "environment of server and trainer, or listen on 127.0.0.1 with --allow-unauthenticated"
        )
    return token


def token_from_environment() -> str | None:
    """Return the token in the environment, or None; it is not an option, because other users can read command lines.

    Raises:
        ConfigError: An HTTP header can't carry it; names the variable, never the text.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if len(token) > _MAX_TOKEN or not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{TOKEN_VARIABLE}: a token is a line of 1 to {_MAX_TOKEN} printable ASCII characters"
        )
    return token or None


def _make_server(config: Config, engine: Engine, thread: ThreadPoolExecutor, token: str | None) -> Any:
    """Build the application's uvicorn server; the size limit for uploads follows from the size of the model's files."""
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
            asyncio.get_running_loop().call_later(_END_ALONE_S, app.state.engine_thread.stopping.set)
            await super().shutdown(sockets)

    options = uvicorn.Config(app, timeout_graceful_shutdown=_END_ALONE_S + _GRACE_S, **UVICORN_OPTIONS)
    return GracefulServer(options)


def _listen(host: str, port: int) -> socket.socket:
    """Listen on an address; connections wait until the engine is ready."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        message = f"rollout.host = {host!r}, rollout.port = {port}: can't listen there: {error}"
        raise ConfigError(message) from error


def _end_with_stdin(server: Any) -> None:
    """Wait until stdin is closed, and stop the server; end the process if it still runs after 5 s."""
    sys.stdin.buffer.read()
    server.should_exit = True
    time.sleep(_GRACE_S)
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
        [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", *arguments],
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

    def __init__(self, config: Config, model_dir: Path | str) -> None:
        """Start a server of the configured engine and wait until it announces its address.

        Raises:
            EngineError: The server ended, or did not announce its address in time.
        """
        config = resolve_devices(config)
        rollout, train = config.rollout, config.train
        settings: dict[str, Any] = {"model.path": model_dir, "model.max_length": config.model.max_length}
        settings |= {f"train.{name}": getattr(train, name) for name in ("threads", "seed")}
        for name in ("engine", "device", "dtype", "max_batch", "timeout_s"):
            settings[f"rollout.{name}"] = getattr(rollout, name)
        if share := memory_share(config):  # the trainer's own GPU
            settings |= {"rollout.mode": "server", "train.device": rollout.device}
            settings["rollout.memory_share"] = share
        command = ["grpo_core", "serve", "--exit-with-stdin"]
        command += [f"--{key}={value}" for key, value in settings.items()]
        self.token = secrets.token_urlsafe(32)
        self._process = start_child(command, train.threads, {TOKEN_VARIABLE: self.token})
        try:
            address = self._read_address(rollout.timeout_s)
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
        """Wait for the line of JSON that `serve` prints when it is ready."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise EngineTimeoutError(f"rollout server: not up after {timeout_s:g} s (rollout.timeout_s)")
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"rollout server: ended at the start with {self.death()}; see above")
        return dict(json.loads(line))
