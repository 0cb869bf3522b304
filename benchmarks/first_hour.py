"""Five ways in, as somebody new goes them: commands, machine seconds, and whether the answer is on the screen.

python benchmarks/first_hour.py [--program GRPO_DOCTOR] [--trainer GRPO_DOCTOR] [--toy]

Each begins with the program alone, which asks what one has, in a fresh folder on a terminal of 24 lines by 80 columns.
Without a program the wheel of this checkout is built and put into an empty environment. The trainer is that of this
Python, which needs PyTorch; it is told apart what the empty environment says of it.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.screen import COLUMNS, ROWS, show  # noqa: E402 - of this checkout, wherever it is started

# Goals: so many commands, and so many seconds of the machine.
MOST, SECONDS = 3, 300.0


@dataclass(frozen=True)
class Walk:
    """A situation: what is in the folder, the commands, and the words of the answer that the last of them shows."""

    name: str
    has: str
    lines: tuple[str, ...]
    answer: str
    trains: bool = False


WALKS = (
    Walk("a dead run", "dead_run.log", ("triage dead_run.log",), "* fresh_engine (shown by a run)"),
    Walk(
        "a wrong script",
        "wrong_run.sh",
        ("lint wrong_run.sh",),
        "* Start `swift rollout` on devices of its own",
    ),
    Walk(
        "a broken environment",
        "environments/mixed",
        ("doctor --prefix mixed", "doctor --prefix mixed --fix-plan"),
        "$ uv pip install --python mixed vllm==",
    ),
    Walk("which versions", "", ("versions",), "take TRL"),
    Walk("learning the trainer", "", ("train",), "weight syncs proven", trains=True),
)


def installed(folder: Path) -> Path:
    """The program of this checkout's wheel in an empty environment."""
    build = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder / "dist"), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", str(python), str(wheel)], check=True)
    return folder / "env" / "bin" / "grpo-doctor"


def walked(walk: Walk, program: list[str], here: Path) -> tuple[int, float, float, int, bool]:
    """Commands, seconds of the processor, seconds, lines of the longest screen, whether the answer is on the last."""
    if walk.has:
        source = ROOT / "examples" / walk.has
        (shutil.copytree if source.is_dir() else shutil.copy)(source, here / source.name)
    began, before = time.perf_counter(), used()
    # What is said of a slow machine would be counted as lines of the answer.
    environ = {"PYTHONPATH": str(ROOT) if program[0] == sys.executable else "", "GRPO_DOCTOR_QUIET": "1"}
    shown = [show([*program, *line.split()], here, environ) for line in ("", *walk.lines)]
    told = shown[-1].lines
    seen = told[-ROWS:] if walk.trains else told[: ROWS - 1]
    longest = max(len(one.lines) for one in shown if not walk.trains or one is shown[0])
    found = walk.answer in " ".join(" ".join(seen).split()) and all(not one.wide for one in shown)
    return len(shown), used() - before, time.perf_counter() - began, longest, found


def used() -> float:
    """Seconds of the processor that children took."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> int:
    """Walks, prints the table; 1 where one is longer than it may be, or ends without its answer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, help="grpo-doctor in an environment of its own")
    parser.add_argument("--trainer", type=Path, help="grpo-doctor in an environment with the extra 'train'")
    parser.add_argument(
        "--toy", action="store_true", help="this Python's program, and no trainer: does it run?"
    )
    options = parser.parse_args()
    ours = [sys.executable, "-m", "diagnostics"]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        program = ours if options.toy else [str(options.program or installed(Path(folder)))]
        print(
            "| situation | commands | machine, s | wall, s | lines of the longest screen | answer on the screen |"
        )
        print("|---|---|---|---|---|---|")
        for walk in WALKS:
            if walk.trains and options.toy:
                continue
            here = Path(folder) / walk.name
            here.mkdir()
            starts = ([str(options.trainer)] if options.trainer else ours) if walk.trains else program
            count, machine, wall, lines, found = walked(walk, starts, here)
            good = found and count <= MOST and machine <= SECONDS
            wrong += not good
            said = "; ".join(f"`{line}`" for line in walk.lines)
            print(
                f"| {walk.name}: {said} | {count} | {machine:.1f} | {wall:.1f} | {lines} | {'yes' if found else 'NO'} |"
            )
    print(
        f"\nat most {MOST} commands, {SECONDS:g} s each, on {ROWS} x {COLUMNS}: {'NOT held' if wrong else 'held'}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
