"""Transform and cut each log of the corpus with several seeds: `python evaluation/triage/corpus/sweep.py --seeds 5`.

Prints each log whose verdict changes after a transformation (at most --show) or whose code changes after a cut, and
counts by transformation. The tests run a
fixed sample. The exit code is 1 if a verdict changes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from diagnostics import catalog
from diagnostics.triage.command import triage
from diagnostics.triage.rules import Rules
from evaluation.triage.corpus import transforms

LOGS = Path(__file__).resolve().parents[3] / "tests" / "diagnostics" / "logs"
SHARED = ("[rank{rank}]: ", "(WorkerDict pid={pid}, ip=10.0.0.{rank}) ", "(EngineCore_{rank} pid={pid}) ",
          "{rank}: ", "trainer-{rank}  | ", "2026-01-31T10:00:{clock}Z [rank{rank}]: ")  # fmt: skip


class MemoryLog:
    """A log in memory, with the interface of LogSource."""

    def __init__(self, data: bytes, name: str = "log") -> None:
        self.data, self.name, self.path = data, name, None

    def blocks(self):
        """Yield the whole log, unless it is empty."""
        if self.data:
            yield self.data


def state_and_code(rules: Rules, lines: list[str]) -> tuple[str, str]:
    """Return the state and the first code of a log's verdict.

    The states `clean`, `not_judged` and `hypothesis` count as equal, because a transformation can hide the
    end of the run.
    """
    verdict = triage([MemoryLog(transforms.join_lines(lines))], rules)
    state = "nothing" if verdict.state in {"clean", "not_judged", "hypothesis"} else verdict.state
    return state, verdict.candidates[0].issue.code if verdict.candidates else ""


def cut_lines(rules: Rules, lines: list[str], numbers: random.Random) -> list[str]:
    """Return a log without a random part before its first and after its last line that matched the verdict's issue."""
    verdict = triage([MemoryLog(transforms.join_lines(lines))], rules)
    if not verdict.candidates:
        return lines
    # rich may have broken the matched text into two lines.
    first, last = verdict.candidates[0].first.line, max(hit.line for hit in verdict.candidates[0].hits) + 1
    before, after = int(numbers.random() * (first - 1)), int(numbers.random() * max(0, len(lines) - last))
    return lines[before : last + after]


def random_transforms(numbers: random.Random):
    """Yield name and function of each verdict-preserving transformation, and of some with random prefixes and noise."""
    yield from transforms.VERDICT_PRESERVING.items()
    prefix = numbers.choice(SHARED)
    yield f"ranks {prefix}", transforms.interleave_ranks(prefix, numbers.randrange(2, 5))
    yield "noise", transforms.insert_noise(numbers.randrange(1, 40))
    first, second = numbers.choice(SHARED), transforms.insert_noise(numbers.randrange(1, 40))
    both = transforms.interleave_ranks(first, numbers.randrange(1, 4))
    yield f"ranks+noise {first}", lambda lines, seeded: second(both(lines, seeded), seeded)


def main() -> int:
    """Run the sweep; return 1 if a verdict changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", type=int, default=60)
    parser.add_argument(
        "--broken", action="store_true", help="also break lines at a width, after which verdicts may change"
    )
    parser.add_argument("logs", nargs="*", type=Path)
    options = parser.parse_args()
    rules = Rules(catalog.load())
    failed: Counter[str] = Counter()
    done = reported = 0
    paths = options.logs or sorted(LOGS.glob("*/*.log"))
    for path in paths:
        # Split as triage does: a carriage return does not end a line.
        lines = path.read_bytes().decode("utf-8", "replace").removesuffix("\n").split("\n")
        expected = state_and_code(rules, lines)
        for seed in range(options.first, options.first + options.seeds):
            numbers = random.Random(f"{path.name} {seed}")
            cases = [
                *random_transforms(numbers),
                *(transforms.LINE_BREAKING.items() if options.broken else ()),
            ]
            done += 1
            part = cut_lines(rules, lines, numbers)
            if state_and_code(rules, part)[1] != expected[1]:
                failed["cut"] += 1
                print(
                    f"{path.parent.name}/{path.name} seed {seed}: cut: {expected} became {state_and_code(rules, part)}"
                )
            for name, transform in cases:
                done += 1
                got = state_and_code(rules, transform(lines, random.Random(seed)))
                if got != expected:
                    failed[name] += 1
                    reported += 1
                    if reported <= options.show:
                        print(f"{path.parent.name}/{path.name} seed {seed}: {name}: {expected} became {got}")
    print(f"{done} cases of {len(paths)} logs, {sum(failed.values())} judged otherwise")
    for name, count in failed.most_common():
        print(f"{count:>6}  {name}")
    return min(1, sum(failed.values()))


if __name__ == "__main__":
    sys.exit(main())
