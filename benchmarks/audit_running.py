"""What looking at a run costs while it goes on: a look's time, and its share of a step of our own trainer.

    python benchmarks/audit_running.py [--toy]

A look: metrics alone, and with samples of a step of several sizes, by the process's CPU time. The share: whole runs of
our trainer with the hook, whose own time is held against that of the steps. `--toy` shows that it runs and measures
nothing.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from diagnostics.audit.recorded.readers.metrics import logged  # noqa: E402
from diagnostics.audit.recorded.rows import Tokens  # noqa: E402
from diagnostics.audit.running.hook import AuditReport  # noqa: E402
from diagnostics.audit.running.watcher import Watcher  # noqa: E402
from tests.diagnostics.audit_running.lines import healthy, samples  # noqa: E402

TOY = "--toy" in sys.argv
LOOKS = 3 if TOY else 60
# Samples of a step, and tokens of each with log-probs; 0: text alone.
SIZES = ((0, 0), (64, 0), (512, 0), (64, 256), (512, 256))
GOAL = 0.01


def looks(count: int, tokens: int) -> list[float]:
    """Seconds of CPU of each look."""
    watcher, found, drawn = Watcher(share=1.0), [], random.Random(0)
    for step in range(1, LOOKS + 1):
        row = logged(healthy(step, drawn), f"step {step}", step)
        rows = samples(step, drawn, groups=count // 8, size=8)
        if tokens:
            rows = [replace(each, tokens=_tokens(drawn, tokens)) for each in rows]
        began = time.process_time()
        watcher.metrics("metrics", row)
        watcher.looked(step, (lambda rows=rows: rows) if rows else None)
        found.append(time.process_time() - began)
    return found


def _tokens(drawn: random.Random, count: int) -> Tokens:
    told = tuple(drawn.uniform(-3, 0) for _ in range(count))
    trained = (False, *[True] * (count - 1))
    return Tokens(tuple(drawn.choices(range(1000), k=count)), 1, trained, told, told, ended="stop")


def share(steps: int) -> None:
    """Of our trainer's steps, with completions written at each, and as they are by default."""
    from grpo_core.run import train
    from grpo_core.settings import load

    for every in (1, 10):
        with tempfile.TemporaryDirectory() as folder:
            words = [f"--train.steps={steps}", f"--output.dir={folder}", "--output.name=run"]
            config = load(None, [*words, f"--output.completions_every={every}"])
            hook = AuditReport(Path(folder) / "run")
            document = train(config, hook)
            hook.close()
            spent = hook.guarded.watcher.spent_s / document["seconds"]
            verdict = "pass" if spent <= GOAL else "MISS"
            print(
                f"our trainer, {steps} steps of {document['seconds'] / steps:.3f} s, completions every {every}: "
                f"{spent:.2%} of their time; {hook.guarded.watcher.left_out} looks at samples left out; "
                f"goal {GOAL:.0%} {verdict}"
            )


def main() -> None:
    """One line a size, then the share."""
    for count, tokens in SIZES[:2] if TOY else SIZES:
        found = [1000 * each for each in looks(count, tokens)]
        what = (
            f"{count} samples" + (f" of {tokens} tokens" if tokens else " as texts")
            if count
            else "metrics alone"
        )
        print(f"a look, {what}: {statistics.median(found):.2f} ms in the middle, {max(found):.1f} most")
    share(3 if TOY else 100)


if __name__ == "__main__":
    main()
