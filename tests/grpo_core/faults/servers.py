"""Real rollout servers that can be killed and started again at once, and that log what they sample with what.

All are forked from one process with the imports done. The engine in a server is the real one; around it is a log,
which is what the trainer's own records are compared to, and a switch that kills the server in the middle of a call,
or holds the engine so that its queue fills.
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
from grpo_core.rollout.build import build_engine
from grpo_core.rollout.server import process as serve_run

POINTS = ("", "update_weights", "fingerprint", "generate")


def hashes(tensors) -> dict[str, str]:
    """Return a short hash of each tensor; not the product's digest, which is under test."""
    return {
        name: hashlib.sha256(value.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for name, value in tensors.items()
    }


class Switch:
    """Memory and pipes that the test shares with all servers it starts."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4)
        self.held, self._tell_held = os.pipe()
        self._let_go, self._tell_go = os.pipe()

    @property
    def files(self) -> tuple[int, ...]:
        """Return the pipe ends that a server process inherits."""
        return (self._tell_held, self._let_go)

    def kill_in(self, call: str, steps: int) -> None:
        """The server dies in its next such call of the engine, that many Python calls into it."""
        self._memory[:4] = bytes([POINTS.index(call), 1, *divmod(steps, 256)])

    def hold_in(self, call: str) -> None:
        """The engine's next such call waits until `let_go`."""
        self._memory[:2] = bytes([POINTS.index(call), 2])

    def wait_held(self) -> None:
        """Wait until the engine is suspended."""
        assert select.select([self.held], [], [], 30)[0], "the engine was not called"
        os.read(self.held, 1)

    def let_go(self) -> None:
        """Resume the engine."""
        os.write(self._tell_go, b".")

    def clear(self) -> None:
        """Nothing is to happen."""
        self._memory[:4] = bytes(4)

    def reached(self, call: str) -> None:
        """Called by the server, at the begin of a call of its engine."""
        if self._memory[0] != POINTS.index(call):
            return
        action, steps = self._memory[1], self._memory[2] * 256 + self._memory[3]
        self.clear()
        if action == 1:
            sys.setprofile(_Death(steps))
        else:
            os.write(self._tell_held, b".")
            os.read(self._let_go, 1)


class _Death:
    """SIGKILL to this very process, some Python calls later."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __call__(self, frame, event, _) -> None:
        self._left -= event == "call"
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Recording:
    """The real engine of a server, with a log of requests, answers and weights."""

    def __init__(self, engine, log: Path, switch: Switch) -> None:
        self._engine, self._switch = engine, switch
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def generate(self, requests, params):
        self._switch.reached("generate")
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
        self._switch.reached("update_weights")
        self._engine.update_weights(tensors, version)
        sys.setprofile(None)

    def fingerprint(self):
        self._switch.reached("fingerprint")
        digest = self._engine.fingerprint()
        sys.setprofile(None)
        return digest


class Servers:
    """One server at a time, always at the same port.

    Attributes:
        port: Where it listens.
        log: What all of them sampled, a line a call.
        errors: What they wrote to stderr.
    """

    def __init__(self, folder: Path, model_dir: Path) -> None:
        """To be called before any thread is started, as it forks."""
        self.switch, self.log, self.errors = Switch(), folder / "server.jsonl", folder / "server.txt"
        self.log.touch()
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            _close_others({theirs.fileno(), *self.switch.files})
            self._nursery(theirs, model_dir)
            os._exit(0)
        theirs.close()
        self._channel, self._stream, self._lock = ours, ours.makefile("rw"), threading.Lock()
        self.port = 0
        self.start()

    def start(self) -> None:
        """Restart the server, with the weights of its model's folder."""
        self.port = self._order("start", port=self.port)["port"]

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it has ended."""
        self._order("kill")

    def ensure(self) -> None:
        """Start it if it is not alive."""
        if not self._order("alive")["alive"]:
            self.start()

    def close(self) -> None:
        """End the server, and what starts it."""
        self.kill()
        self._stream.close()
        self._channel.close()
        os.waitpid(self._pid, 0)

    def _order(self, what: str, **details) -> dict:
        with self._lock:
            self._stream.write(json.dumps({"do": what, **details}) + "\n")
            self._stream.flush()
            return json.loads(self._stream.readline())

    def _nursery(self, channel: socket.socket, model_dir: Path) -> None:
        """The process that the servers are forked from."""
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
        (child_in, stdin), (stdout, child_out) = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            self._child(channel, child_in, child_out)
            serve_run.build_engine = lambda spec: Recording(build_engine(spec), self.log, self.switch)
            arguments = [
                "serve",
                "--exit-with-stdin",
                "--allow-unauthenticated",
                f"--model.path={model_dir}",
                f"--rollout.port={port}",
            ]
            os._exit(cli.main(arguments))
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
        _close_others(set(self.switch.files))
        channel.detach()
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)


def _close_others(kept: set[int]) -> None:
    """Close inherited descriptors: a pipe ends only when every copy of its other end is closed."""
    for file in range(3, 256):
        if file not in kept:
            with contextlib.suppress(OSError):
                os.close(file)
