"""Kill a training run repeatedly, resume it each time, and compare it with a run that was never killed.

Each attempt, and its engine or server, is a process forked from one that has done the imports. To be killed, an attempt
sends itself SIGKILL at a random call of Python or C code inside the training loop; every other kill is at a call that
writes files. The comparison is printed as JSON.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

import torch

from grpo_core import run
from grpo_core.machine.process_setup import make_deterministic
from grpo_core.rollout.server import process as server_process
from grpo_core.settings import load
from grpo_core.trainer import Trainer
from tests.fork_server import ForkServer
from tests.grpo_core.conftest import read_lines

SERVERS = ForkServer("trainer")
server_process.start_child = SERVERS.start_server

WRITERS = ("checkpoint.py", "run_files.py")


class KillAtCall:
    """Profile function that sends SIGKILL at the n-th call of the training loop, also of C code; 0 only counts calls.

    With `writing`, only calls made while files are written are counted, because a random call seldom hits them.
    """

    def __init__(self, at: int, *, writing: bool) -> None:
        self.calls, self.at, self.writing = 0, at, writing

    def watch(self, frame, event, _) -> None:
        """Count a call; at the n-th one report its location and kill the process."""
        if event not in ("call", "c_call"):
            return
        if self.writing and not (
            frame.f_code.co_filename.endswith(WRITERS)
            or (frame.f_back is not None and frame.f_back.f_code.co_filename.endswith(WRITERS))
        ):
            return
        self.calls += 1
        if self.calls == self.at:
            report = {"killed_in": f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"}
            os.write(self.pipe, json.dumps(report).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self, pipe: int) -> None:
        """Count calls from the beginning of the training loop on; report a kill through the pipe."""
        self.pipe = pipe
        steps = Trainer.steps

        def watched(trainer):
            sys.setprofile(self.watch)
            return steps(trainer)

        Trainer.steps = watched


def attempt(config, at: int, *, writing: bool = False) -> dict:
    """Run one process that starts or resumes training, until it ends or is killed; return its report."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        death = KillAtCall(at, writing=writing)
        death.install(writer)
        exists = Path(config.output.dir, config.output.name).is_dir()
        document = run.train(config, lambda _: None, resume=exists)
        sys.setprofile(None)
        os.write(writer, json.dumps({**document, "calls": death.calls}).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = json.loads(pipe.read())
    _, status = os.waitpid(child, 0)
    was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert was_killed == ("killed_in" in answer), answer
    return answer


def main(folder: str, kills: int, seed: int, settings: list[str]) -> None:
    """Kill and resume a run up to `kills` times; print the comparison with an uninterrupted run."""
    make_deterministic(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # imports half of torch
    if "--rollout.mode=server" in settings:
        SERVERS.run(["-c", "pass"])  # attempts are forks: each would start and leave its own fork server
    draw = random.Random(seed)

    def config(name: str):
        return load(None, [*settings, f"--output.dir={folder}", f"--output.name={name}"])

    uninterrupted = attempt(config("whole"), 0)
    assert uninterrupted["outcome"] == "ok", uninterrupted
    writing = attempt(config("counted"), 0, writing=True)
    # Spread the requested number of kills: on average one in the time of so many calls.
    spans = [2 * document["calls"] // kills for document in (uninterrupted, writing)]
    deaths = []
    while len(deaths) < kills:
        kind = len(deaths) % 2
        answer = attempt(config("killed"), draw.randrange(1, spans[kind]), writing=bool(kind))
        if "killed_in" not in answer:
            break
        steps = Path(folder, "killed", "checkpoints")
        answer["checkpoints"] = sorted(path.name for path in steps.glob("step-*"))
        deaths.append(answer)
    last = attempt(config("killed"), 0)
    first, second = (
        {file: read_lines(Path(folder, name, f"{file}.jsonl")) for file in ("metrics", "completions")}
        for name in ("whole", "killed")
    )
    pairs = {name: list(zip(first[name], second[name], strict=False)) for name in first}
    report = {
        "deaths": deaths,
        "outcome": last["outcome"],
        "parameters": [uninterrupted["parameters"], last["parameters"]],
        "differences": {name: [n for n, (a, b) in enumerate(rows) if a != b] for name, rows in pairs.items()},
        "lines": {name: [len(first[name]), len(second[name])] for name in first},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
