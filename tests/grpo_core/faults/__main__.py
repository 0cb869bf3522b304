"""Inject each kind of fault into calls of a training run to its server; print each outcome as a line of JSON.

`python -m tests.grpo_core.faults` runs all cases, with `--quick` one case of each kind, with `--only garbage/probe` one
kind and phase. A phase is the purpose of a call, such as `upload` or `probe` (see `PHASES`).

Each case is one run of three steps in server mode, against a real server over a real socket, through the fault-
injecting proxy of this package. Two outcomes are correct:

- `retried`: the run ends bit for bit as without a fault.
- `named error`: the run ends with an error that names server, call and fix, and `--resume` then gives the run without
  a fault bit for bit.

Everything else is a failure: a hang, a traceback, a different number, or a completion that was trained on although the
server did not sample it for this prompt from the recorded weights. The exit code is 1 if there is a failure, or a case
has no result.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_core import run
from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.machine.process_setup import make_deterministic
from grpo_core.settings import load
from grpo_core.tasks import model
from tests.grpo_core.faults import run_checks
from tests.grpo_core.faults.killable_servers import Servers
from tests.grpo_core.faults.kinds import KINDS, TIMEOUT_S, CaseRandom, Kind
from tests.grpo_core.faults.proxy import Proxy

STEPS = 3
SETTINGS = [
    "--rollout.mode=server", f"--train.steps={STEPS}", "--train.prompts_per_step=2",
    "--train.warmup_updates=0", "--sampling.group_size=4", "--eval.every=2", "--eval.prompts=4",
    "--checkpoint.keep=100", "--output.completions_every=1", "--output.record_every=1",
]  # fmt: skip
SLACK_S = 30.0
"""How much longer than its time-out a call may take, because other processes use the CPU too."""
BOUND_S = 500.0
"""A run that takes longer counts as hanging."""


class Hang(BaseException):
    """Raised by the timer in a run that exceeds BOUND_S."""


@dataclass(frozen=True)
class Case:
    """One fault: a kind, a phase, and the seed of its random choices."""

    kind: Kind
    phase: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind.name}/{self.phase}/{self.seed}"


def cases(*, quick: bool = False, only: str = "") -> list[Case]:
    """Return all cases, or with `quick` one of each kind, whose names begin with `only`."""
    results = []
    for place, kind in enumerate(KINDS):
        phases = [kind.phases[place % len(kind.phases)]] if quick else kind.phases
        results += [Case(kind, phase, seed) for phase in phases for seed in range(1 if quick else kind.seeds)]
    return [case for case in results if case.name.startswith(only)]


class Bench:
    """Run cases with a server and a proxy, and compare them with a reference run without faults."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model_dir = folder, folder / "model"
        model.make_tiny(self.model_dir, ModelConfig(), TaskConfig().letters, seed=0)
        self.servers = Servers(folder, self.model_dir)
        self.proxy = Proxy(("127.0.0.1", self.servers.port))
        complete, _ = self.train("whole")
        assert complete["outcome"] == "ok", complete["error"]
        self.counts, self._passed = self.proxy.seen, list(self.proxy.passed)
        self._start = 0
        self._check_sampling_problems()

    def arguments(self, name: str, **settings: Any) -> list[str]:
        """Return the command-line arguments of a run on this bench."""
        defaults = {"model.path": self.model_dir, "rollout.port": self.proxy.port, "rollout.timeout_s": 100}
        defaults |= {"output.dir": self.folder, "output.name": name}
        return [*SETTINGS, *(f"--{key}={value}" for key, value in {**defaults, **settings}.items())]

    def train(self, name: str, *, resume: bool = False, **settings: Any) -> tuple[dict[str, Any], float]:
        """Train in this process; return the document and the duration, or raise `Hang`."""
        config = load(None, self.arguments(name, **settings))
        started = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, BOUND_S)
        try:
            return run.train(config, lambda _: None, resume=resume), time.monotonic() - started
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def run_case(self, case: Case) -> dict[str, Any]:
        """Run one case; `outcome` is `retried`, `named error` or `FAILURE`, with the reasons in `why`."""
        started = os.times()
        self._start = self.servers.log.stat().st_size
        draw = CaseRandom(case.kind.name, case.phase, case.seed)
        number = 1 if case.kind.lasting else draw.randrange(self.counts[case.phase]) + 1
        self.proxy.passed[:] = self._passed
        inject = lambda link: case.kind.do(link, self, draw)  # noqa: E731
        self.proxy.arm(inject, case.phase, number, lasting=case.kind.lasting)
        name = case.name.replace("/", "-").replace(" ", "-").replace(",", "")
        settings: dict[str, Any] = {}
        if case.kind.waits:
            settings["rollout.timeout_s"] = TIMEOUT_S
        outcome, error, seconds = "FAILURE", None, 0.0
        try:
            document, seconds = self.train(name, **settings)
            error = document["error"]
            outcome = "named error" if error else "retried"
            reasons = self._problems_after(case, document)
            reasons += self._resume_and_compare(name) if error else self._differences(name)
            reasons += run_checks.sampling_problems(self.folder / name, self.model_dir, self._log())
        except Hang:
            reasons = [f"it did not end in {BOUND_S:g} s"]
        except Exception as failure:  # noqa: BLE001 - continue with the next case
            reasons = [f"{type(failure).__name__}: {failure}", traceback.format_exc()[-1500:]]
        self._end_fault()
        shutil.rmtree(self.folder / name, ignore_errors=True)
        spent = os.times()
        return {
            "case": case.name,
            "kind": case.kind.name,
            "phase": case.phase,
            "number": number,
            "outcome": "FAILURE" if reasons else outcome,
            "why": reasons,
            "error": error,
            "seconds": seconds,
            "cpu_s": spent.user + spent.system - started.user - started.system,
        }

    def _problems_after(self, case: Case, document: dict[str, Any]) -> list[str]:
        """Return the problems found right after the run with the fault."""
        error = document["error"]
        self.proxy.settle()
        reasons = self.proxy.problems[:]
        if not self.proxy.injected:
            reasons.append("the fault was not injected")
        limit = TIMEOUT_S + SLACK_S
        waited = [seconds for seconds in self.proxy.held_s if seconds > limit]
        reasons += [f"a call waited for {seconds:.1f} s, not {TIMEOUT_S:g}" for seconds in waited]
        if error is not None:
            reasons += run_checks.missing_parts(error, self.proxy.port)
        if case.kind.waits and document["outcome"] != "timeout":
            reasons.append(f"its time-out did not end it: {document['outcome']}")
        self._end_fault()
        return reasons

    def _end_fault(self) -> None:
        """Stop injecting faults, and restart the server if it does not run."""
        self.proxy.settle()
        self.proxy.disarm()
        self.servers.switch.cancel()
        self.servers.ensure_running()

    def _log(self) -> list[dict[str, Any]]:
        return run_checks.read_log(self.servers.log, self._start)

    def _differences(self, name: str) -> list[str]:
        return run_checks.differences(self.folder / name, self.folder / "whole", STEPS)

    def _resume_and_compare(self, name: str) -> list[str]:
        """Resume a run that ended with an error, now without faults; return its differences from the reference run."""
        document, _ = self.train(name, resume=True)
        if document["outcome"] != "ok":
            return [f"it can't be resumed: {document['error']}"]
        return self._differences(name)

    def _check_sampling_problems(self) -> None:
        """Check that `sampling_problems` accepts the reference run's log, and rejects each altered log."""
        complete, log = self.folder / "whole", self._log()
        results = run_checks.sampling_problems(complete, self.model_dir, log)
        assert not results, results[:3]
        recorded = {key[0] for _, _, key, _ in run_checks.recorded_completions(complete)}

        def problems_after(change) -> list[str]:
            altered = json.loads(json.dumps(log))
            for call in altered:
                if call["answers"][0][0] in recorded:
                    change(call)
            return run_checks.sampling_problems(complete, self.model_dir, altered)

        def swap(call) -> None:
            first, last = call["answers"][0], call["answers"][-1]
            first[0], last[0] = last[0], first[0]

        assert problems_after(swap)
        assert problems_after(lambda call: call.update(weights=dict.fromkeys(call["weights"], "other")))


BENCHES: list[Bench] = []
"""The bench of a worker process. Its servers end with the process."""


def start_bench(folder: str) -> None:
    """Create the bench of this worker process, and write the trainer's messages to a file."""

    def hangs(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, hangs)
    run_folder = Path(tempfile.mkdtemp(dir=folder))
    with (run_folder / "trainer.txt").open("w") as words:
        os.dup2(words.fileno(), 2)
    BENCHES.append(Bench(run_folder))


def run_on_bench(case: Case) -> dict[str, Any]:
    """Run a case on the bench of this worker process."""
    return BENCHES[0].run_case(case)


def run_cases(selected: list[Case], workers: int) -> list[dict[str, Any]]:
    """Return the results of all cases, distributed over the workers."""
    fork = multiprocessing.get_context("fork")  # the imports are done
    with (
        tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(workers, fork, start_bench, (folder,)) as pool,
    ):
        return list(pool.map(run_on_bench, selected))


def main() -> int:
    """Run the requested cases, and print each as a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.grpo_core.faults", description="The fault table.")
    parser.add_argument("--quick", action="store_true", help="one case of each kind")
    parser.add_argument("--only", default="", help="the beginning of the names of cases, as in garbage/probe")
    parser.add_argument("--workers", type=int, default=2, help="cases at one time")
    options = parser.parse_args()
    make_deterministic(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # imports half of torch
    selected = cases(quick=options.quick, only=options.only)
    entries = run_cases(selected, options.workers)
    print("\n".join(map(json.dumps, entries)))
    counts = Counter(entry["outcome"] for entry in entries)
    kinds = {entry["kind"] for entry in entries}
    print(f"{len(entries)} faults of {len(kinds)} kinds: {dict(counts)}", file=sys.stderr)
    return 0 if len(entries) == len(selected) and not counts["FAILURE"] else 1


if __name__ == "__main__":
    sys.exit(main())
