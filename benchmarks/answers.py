"""What short answers cost, in CPU time of their process and its children, against goals and an older checkout.

python benchmarks/answers.py [--against CHECKOUT] [--prefix ENV]

Both checkouts take turns, and the least of each is told: what else the machine does only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Seconds; of `explain` no goal but to be no slower than before.
GOALS = {"--help": 0.08, "explain": 0.15, "doctor": 0.25, "lint": 0.15, "triage": 0.2}


def answers(prefix: Path) -> dict[str, list[str]]:
    """The command lines, by their goals' names; files are this checkout's for both."""
    examples = ROOT / "examples"
    return {
        "--help": ["--help"],
        "explain": ["explain", "SCH002"],
        "doctor": ["doctor", "--prefix", str(prefix)],
        "lint": ["lint", str(examples / "wrong_run.sh"), "--vllm", "0.8.5"],
        "triage": ["triage", str(examples / "dead_run.log")],
    }


def cpu_s(root: Path, arguments: list[str]) -> float:
    """CPU seconds of a command and its children, with Python's bytecode where it is kept."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "diagnostics", *arguments],
        env={**environ, "PYTHONPATH": str(root)}, cwd=root, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1, 3}, (arguments, done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measures and prints one JSON document; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--prefix", type=Path, default=Path(sys.prefix), metavar="ENV", help="of doctor")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    roots = [ROOT, *([options.against.resolve()] if options.against else [])]
    figures: dict[str, dict[str, float | None]] = {}
    for name, arguments in answers(options.prefix).items():
        least = dict.fromkeys(roots, float("inf"))
        for _ in range(options.repeats):
            for root in roots:
                least[root] = min(least[root], cpu_s(root, arguments))
        mine, *theirs = least.values()
        ratio = round(mine / theirs[0], 2) if theirs else None
        figures[name] = {"cpu_s": round(mine, 3), "goal_s": GOALS[name], "of_the_older": ratio}
    print(json.dumps({"load": os.getloadavg()[0], "answers": figures}, indent=1))
    return 1 if any((each["cpu_s"] or 0) > GOALS[name] for name, each in figures.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
