"""Start rollout servers that can be killed and restarted quickly, and that log samples with hashes of the weights.

`LoggedEngine` wraps a server's real engine. It logs the samples, which are compared with the trainer's records. Its
`Switch` kills the server in the middle of a call, or suspends the engine so that its queue fills.
"""

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
from pathlib import Path

import torch

from grpo_core import __main__ as cli
from grpo_core.rollout.engine_factory import build_engine
from grpo_core.rollout.server import process as serve_run
from tests.fork_server import ForkServer
from tests.processes import is_running

POINTS = ("", "update_weights", "fingerprint", "generate")
LOG = "server.jsonl"


def hashes(tensors) -> dict[str, str]:
    """Return a short SHA-256 hash of each tensor, independent of grpo_core's digest, which is under test."""
    return {
        name: hashlib.sha256(value.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for name, value in tensors.items()
    }


class Switch:
    """A shared file and two named pipes in a folder, by which a test controls the servers it starts there."""

    def __init__(self, folder: Path) -> None:
        """Open the files; the first process, which is the test's, makes them."""
        for name in ("held", "go"):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(folder / name)
        self._file = os.open(folder / "action", os.O_RDWR | os.O_CREAT)
        self._held, self._go = (os.open(folder / name, os.O_RDWR) for name in ("held", "go"))

    def _request(self, *action: int) -> None:
        """Write the number of a call, the action, and the number of steps."""
        os.pwrite(self._file, bytes(action).ljust(4, b"\0"), 0)

    def kill_during(self, call: str, steps: int) -> None:
        """Kill the server in its engine's next call of this name, after `steps` Python calls."""
        self._request(POINTS.index(call), 1, *divmod(steps, 256))

    def suspend_during(self, call: str) -> None:
        """Suspend the engine in its next call of this name until `resume`."""
        self._request(POINTS.index(call), 2)

    def wait_suspended(self) -> None:
        """Wait until the engine is suspended."""
        assert select.select([self._held], [], [], 30)[0], "the engine was not called"
        os.read(self._held, 1)

    def resume(self) -> None:
        """Resume the engine."""
        os.write(self._go, b".")

    def cancel(self) -> None:
        """Cancel the requested action."""
        self._request()

    def apply_requested_action(self, call: str) -> None:
        """Apply the requested action; called by the server at the beginning of an engine call."""
        place, action, *steps = os.pread(self._file, 4, 0)
        if place != POINTS.index(call):
            return
        self.cancel()
        if action == 1:
            sys.setprofile(_KillAfterCalls(steps[0] * 256 + steps[1]))
        else:
            os.write(self._held, b".")
            os.read(self._go, 1)


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
    """Start and kill rollout servers, one at a time, always at the same port.

    Attributes:
        port: The port of all servers.
        log: File with all samples, one line per call.
    """

    def __init__(self, folder: Path, model_dir: Path) -> None:
        self.switch, self.log, self.port = Switch(folder), folder / LOG, 0
        self.log.touch()
        self.switch.cancel()
        self._command = ["tests.grpo_core.faults.killable_servers", str(folder), f"--model.path={model_dir}"]
        self._fork_server, self._process = ForkServer("trainer"), None
        self.restart()

    def restart(self) -> None:
        """Start the server, or restart it, with the weights of its model's folder."""
        self.kill()
        self._process = self._fork_server.start_server(
            [*self._command, f"--rollout.port={self.port}"], threads=1
        )
        self.port = json.loads(self._process.stdout.readline())["port"]

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait until it has ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def ensure_running(self) -> None:
        """Start the server if it isn't running."""
        if self._process is None or not is_running(self._process.pid):
            self.restart()

    def close(self) -> None:
        """Stop the server and the process that it was forked from."""
        self.kill()
        self._fork_server.close()


def main(folder: Path, arguments: list[str]) -> int:
    """Run a server with a logged engine."""
    switch = Switch(folder)
    serve_run.build_engine = lambda *options: LoggedEngine(build_engine(*options), folder / LOG, switch)
    return cli.main(["serve", "--exit-with-stdin", "--allow-unauthenticated", *arguments])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
