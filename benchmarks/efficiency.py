"""How well async mode overlaps: max(generate, train) / step, by wall time.

`python benchmarks/efficiency.py [--toy]`; `--toy` shows that it runs and
measures nothing. First with SIMULATED stages, a stand-in engine and an update that each take a stated
time, driven by the real loop of grpo_core/modes/asynchronous.py; then with real work, trainer and engine pinned to
one core each.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo_core.modes import asynchronous  # noqa: E402
from grpo_core.rollout.build import build_engine  # noqa: E402
from grpo_core.run import train  # noqa: E402
from grpo_core.settings import load  # noqa: E402
from grpo_core.trainer import Trainer  # noqa: E402

if TYPE_CHECKING:
    from grpo_core.rollout.build import EngineSpec
    from grpo_core.rollout.engine import Engine

TOY = "--toy" in sys.argv
STEPS, UNIT_S, ROUNDS = (4, 0.01, 1) if TOY else (10, 0.5, 3)
SMALL = {"train.prompts_per_step": 2, "sampling.group_size": 2, "checkpoint.every": 0}


class TimedEngine:
    """SIMULATED: samples in a thread, and is done after a stated time."""

    seconds = 0.0

    def __init__(self, spec: EngineSpec, *, timeout_s: float, sync: str) -> None:
        del timeout_s, sync
        self._engine: Engine = build_engine(spec)
        self._calls: list[tuple[threading.Thread, list[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def start_generate(self, requests: Any, params: Any) -> None:
        """Starts the thread."""
        answer: list[Any] = []

        def work() -> None:
            deadline = time.perf_counter() + self.seconds
            answer.extend(self._engine.generate(requests, params))
            time.sleep(max(0.0, deadline - time.perf_counter()))

        thread = threading.Thread(target=work)
        thread.start()
        self._calls.append((thread, answer))

    def finish_generate(self) -> list[Any]:
        """Waits for the oldest."""
        thread, answer = self._calls.pop(0)
        thread.join()
        return answer


def steps_of(settings: dict[str, object]) -> list[dict[str, Any]]:
    """The metrics of a run without its first and last step, where nothing overlaps."""
    entries: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        wanted = {**settings, "output.dir": folder, "output.completions_every": 0}
        document = train(load(None, [f"--{key}={value}" for key, value in wanted.items()]), entries.append)
    assert document["outcome"] == "ok", document["error"]
    return entries[2:-1]


def simulated(generate_s: float, train_s: float) -> float:
    """Efficiency with stages of stated lengths."""
    real_engine, real_learn = asynchronous.ProcessEngine, Trainer.learn

    def learn(self: Trainer) -> None:
        deadline = time.perf_counter() + train_s
        real_learn(self)
        time.sleep(max(0.0, deadline - time.perf_counter()))

    TimedEngine.seconds = generate_s
    asynchronous.ProcessEngine, Trainer.learn = TimedEngine, learn  # type: ignore[misc,method-assign]
    try:
        started: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            settings = {**SMALL, "rollout.mode": "async", "train.steps": STEPS, "output.dir": folder}
            config = load(None, [f"--{key}={value}" for key, value in settings.items()])
            train(config, lambda _: started.append(time.perf_counter()))
    finally:
        asynchronous.ProcessEngine, Trainer.learn = real_engine, real_learn  # type: ignore[misc,method-assign]
    step_s = statistics.median(b - a for a, b in itertools.pairwise(started[1:]))
    return max(generate_s, train_s) / step_s


def real() -> tuple[float, float, float, float]:
    """Efficiency, and seconds of generate, train and step, with real work on one core each."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    work: dict[str, object] = {
        "train.steps": 24, "sampling.max_tokens": 24, "model.hidden_size": 128, "model.layers": 4,
        "train.prompts_per_step": 16, "sampling.group_size": 8, "checkpoint.every": 0,
    }  # fmt: skip
    work |= {**SMALL, "train.steps": 5, "model.layers": 1} if TOY else {}
    real_engine = asynchronous.ProcessEngine

    class Pinned(real_engine):  # type: ignore[misc,valid-type]
        """The real engine process, on the other core."""

        def __init__(self, spec: EngineSpec, *, timeout_s: float, sync: str) -> None:
            super().__init__(spec, timeout_s=timeout_s, sync=sync)
            os.sched_setaffinity(self.pid, cores[1:] or cores)

    os.sched_setaffinity(0, cores[:1])
    asynchronous.ProcessEngine = Pinned  # type: ignore[misc]
    try:
        alone = steps_of({**work, "rollout.mode": "colocate"})
        overlapped = steps_of({**work, "rollout.mode": "async"})
    finally:
        asynchronous.ProcessEngine = real_engine  # type: ignore[misc]
        os.sched_setaffinity(0, cores)
    generate_s = statistics.median(entry["time/rollout_s"] for entry in alone)
    train_s = statistics.median(entry["time/train_s"] + entry["time/sync_s"] for entry in alone)
    step_s = statistics.median(entry["time/step_s"] for entry in overlapped)
    return max(generate_s, train_s) / step_s, generate_s, train_s, step_s


def main() -> None:
    """Three repetitions each."""
    if len(os.sched_getaffinity(0)) < 2:
        print("one core: trainer and engine share it, so that real work can't overlap", file=sys.stderr)
    for name, generate, learn in (("1:2", 1, 2), ("1:1", 2, 2), ("2:1", 2, 1)):
        found = [simulated(generate * UNIT_S, learn * UNIT_S) for _ in range(ROUNDS)]
        verdict = "pass" if statistics.median(found) >= 0.95 else "MISS"
        shown = ", ".join(f"{value:.3f}" for value in sorted(found))
        print(f"simulated stages, generate:train {name}: {shown}; goal 0.95 {verdict}", flush=True)
    runs = sorted(real() for _ in range(ROUNDS))
    middle = runs[len(runs) // 2][0]
    verdict = "pass" if middle >= 0.80 else "MISS"
    for efficiency, generate_s, train_s, step_s in runs:
        print(
            f"real work: {efficiency:.3f} (generate {generate_s:.3f} s, train {train_s:.3f} s, step {step_s:.3f} s)"
        )
    print(f"real work, one core each: median {middle:.3f}; goal 0.80 {verdict}")


if __name__ == "__main__":
    main()
