"""Start rollout servers that can be killed and restarted quickly, and that log samples with hashes of the weights.

The servers are forked from one process that has done the imports. `LoggedEngine` wraps a server's real engine. It logs
the samples, which are compared with the trainer's records. Its `Switch` kills the server in the middle of a call, or
suspends the engine so that its queue fills.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path

import torch

from grpo_core import __main__ as cli
from grpo_core.rollout.engine_factory import build_engine
from grpo_core.rollout.server import process as serve_run

POINTS = ("", "update_weights", "fingerprint", "generate")


def hashes(tensors) -> dict[str, str]:
    """Return a short SHA-256 hash of each tensor, independent of grpo_core's digest, which is under test."""
    return {
        name: hashlib.sha256(value.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for name, value in tensors.items()
    }


class Switch:
    """Shared memory and pipes by which a test controls all servers it starts."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4)
        self.held, self._tell_held = os.pipe()
        self._let_go, self._tell_go = os.pipe()

    @property
    def files(self) -> tuple[int, ...]:
        """Return the pipe ends that a server process inherits."""
        return (self._tell_held, self._let_go)

    def kill_during(self, call: str, steps: int) -> None:
        """Kill the server in its engine's next call of this name, after `steps` Python calls."""
        self._memory[:4] = bytes([POINTS.index(call), 1, *divmod(steps, 256)])

    def suspend_during(self, call: str) -> None:
        """Suspend the engine in its next call of this name until `resume`."""
        self._memory[:2] = bytes([POINTS.index(call), 2])

    def wait_suspended(self) -> None:
        """Wait until the engine is suspended."""
        assert select.select([self.held], [], [], 30)[0], "the engine was not called"
        os.read(self.held, 1)

    def resume(self) -> None:
        """Resume the engine."""
        os.write(self._tell_go, b".")

    def cancel(self) -> None:
        """Cancel the requested action."""
        self._memory[:4] = bytes(4)

    def apply_requested_action(self, call: str) -> None:
        """Apply the requested action; called by the server at the beginning of an engine call."""
        if self._memory[0] != POINTS.index(call):
            return
        action, steps = self._memory[1], self._memory[2] * 256 + self._memory[3]
        self.cancel()
        if action == 1:
            sys.setprofile(_KillAfterCalls(steps))
        else:
            os.write(self._tell_held, b".")
            os.read(self._let_go, 1)


class _KillAfterCalls:
    """Profile function that sends SIGKILL to its own process after some Python calls."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __call__(self, frame, event, _) -> None:
        self._left -= event == "call"
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


class LoggedEngine:
    """The real engine of a server, which logs requests, completions and hashes of the weights, and obeys the switch."""

    def __init__(self, engine, log: Path, switch: Switch) -> None:
        self._engine, self._switch = engine, switch
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def generate(self, requests, params):
        """Apply the requested action, sample, and log the requests, the completions and hashes of the weights."""
        self._switch.apply_requested_action("generate")
        completions = self._engine.generate(requests, params)
        sys.setprofile(None)
        entry = {
            "weights": hashes(dict(self._engine._model.named_parameters())),
            "answers": [
                [c.request_id, list(r.prompt_ids), list(c.ids), list(c.logprobs)]
                for r, c in zip(requests, completions, strict=True)
            ],
        }
        os.write(self._log, (json.dumps(entry) + "\n").encode())
        return completions

    def update_weights(self, tensors, version: int) -> None:
        """Apply the requested action, then update the engine's weights."""
        self._switch.apply_requested_action("update_weights")
        self._engine.update_weights(tensors, version)
        sys.setprofile(None)

    def fingerprint(self):
        """Apply the requested action, then return the engine's digest."""
        self._switch.apply_requested_action("fingerprint")
        digest = self._engine.fingerprint()
        sys.setprofile(None)
        return digest


class Servers:
    """Starts and kills rollout servers, one at a time, always at the same port.

    Attributes:
        port: The port of all servers.
        log: File with all samples, one line per call.
        errors: File with the servers' stderr.
    """

    def __init__(self, folder: Path, model_dir: Path) -> None:
        """Fork the template process; create a `Servers` before any thread is started."""
        self.switch, self.log, self.errors = Switch(), folder / "server.jsonl", folder / "server.txt"
        self.log.touch()
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            _close_inherited({theirs.fileno(), *self.switch.files})
            self._template(theirs, model_dir)
            os._exit(0)
        theirs.close()
        self._channel, self._stream, self._lock = ours, ours.makefile("rw"), threading.Lock()
        self.port = 0
        self.restart()

    def restart(self) -> None:
        """Start the server, or restart it, with the weights of its model's folder."""
        self.port = self._order("start", port=self.port)["port"]

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait until it has ended."""
        self._order("kill")

    def ensure_running(self) -> None:
        """Start the server if it isn't running."""
        if not self._order("alive")["alive"]:
            self.restart()

    def close(self) -> None:
        """Stop the server and the template process."""
        self.kill()
        self._stream.close()
        self._channel.close()
        os.waitpid(self._pid, 0)

    def _order(self, what: str, **details) -> dict:
        """Send an order to the template process; return its answer."""
        with self._lock:
            self._stream.write(json.dumps({"do": what, **details}) + "\n")
            self._stream.flush()
            return json.loads(self._stream.readline())

    def _template(self, channel: socket.socket, model_dir: Path) -> None:
        """Run the process that servers are forked from."""
        stream, pid, stdin = channel.makefile("rw"), 0, -1
        for order in map(json.loads, stream):
            answer = {}
            if order["do"] == "alive":
                alive = bool(pid) and os.waitpid(pid, os.WNOHANG)[0] == 0
                pid = pid if alive else 0
                answer = {"alive": alive}
            else:
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    os.close(stdin)
                pid = 0
                if order["do"] == "start":
                    pid, stdin, message = self._fork_server(channel, model_dir, order["port"])
                    answer = json.loads(message)
            stream.write(json.dumps(answer) + "\n")
            stream.flush()

    def _fork_server(self, channel: socket.socket, model_dir: Path, port: int) -> tuple[int, int, str]:
        """Fork a server with a logged engine; return its pid, its stdin and the line that it printed."""
        (child_in, stdin), (stdout, child_out) = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            self._child(channel, child_in, child_out)
            logged = lambda *options: LoggedEngine(build_engine(*options), self.log, self.switch)  # noqa: E731
            serve_run.build_engine = logged
            flags = ["--exit-with-stdin", "--allow-unauthenticated"]
            os._exit(cli.main(["serve", *flags, f"--model.path={model_dir}", f"--rollout.port={port}"]))
        os.close(child_in)
        os.close(child_out)
        with os.fdopen(stdout) as message:
            return pid, stdin, message.readline()

    def _child(self, channel: socket.socket, child_in: int, child_out: int) -> None:
        """Detach a forked process from its parent."""
        os.setsid()
        errors = os.open(self.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for place, file in enumerate((child_in, child_out, errors)):
            os.dup2(file, place)
        _close_inherited(set(self.switch.files))
        channel.detach()
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)


def _close_inherited(kept: set[int]) -> None:
    """Close inherited descriptors: a pipe ends only when every copy of its other end is closed."""
    for file in range(3, 256):
        if file not in kept:
            with contextlib.suppress(OSError):
                os.close(file)
