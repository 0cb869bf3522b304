"""Run the measurements that must not get worse, and print a line for each: `nox -s acceptance [-- NAME...]`.

Each row is a command, and a pattern for numbers in its output. A row fails if its command exits with a code that is not
expected, the pattern is missing, or the numbers miss the minimum. The exit code is 1 if a row fails.

Not included, because they need environments of other projects: lint's combinations of options (`evaluation.lint`),
doctor's broken environments (`evaluation.doctor`), and the repros on real wheels (`nox -s repro`).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = ("-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "not (vllm or peers or heavy or gpu)")
LOGS = "tests/diagnostics/logs"


@dataclass(frozen=True)
class Row:
    """A command whose output has the numbers of a measurement.

    Attributes:
        name: Name of the row; also selects it on the command line.
        arguments: Arguments of the Python interpreter that runs this program.
        pattern: Regular expression for the output; its groups are the numbers.
        is_good_enough: Function that returns whether the numbers reach the minimum.
        minimum: The minimum, as text for the printed row.
        codes: Exit codes that are not a failure.
    """

    name: str
    arguments: tuple[str, ...]
    pattern: str
    is_good_enough: Callable[[Sequence[int]], bool]
    minimum: str
    codes: tuple[int, ...] = (0,)


def passing_tests(name: str, *arguments: str, at_least: int) -> Row:
    """Return a row that runs tests: all must pass, and at least `at_least` of them."""
    return Row(
        name,
        (*PYTEST, *arguments),
        r"(\d+) passed",
        lambda n: n[0] >= at_least,
        f"{at_least} passed, 0 failed",
    )


ROWS = (
    passing_tests("golden commands: exit code, schema, first lines", "tests/golden", at_least=127),
    Row(
        "triage, own logs named",
        ("-m", "evaluation.triage.labelled_logs", LOGS, "--format", "json"),
        r'"recall": \{\s*"hits": (\d+),\s*"of": (\d+)',
        lambda n: n[0] >= 227 and n[1] == 228,
        "227 of 228",
        (0, 1),
    ),
    Row(
        "triage, false alarms on 90 clean logs",
        ("-m", "evaluation.triage.labelled_logs", LOGS, "--format", "json"),
        r'"false_alarms_on_clean": (\d+)',
        lambda n: n[0] == 0,
        "0",
        (0, 1),
    ),
    passing_tests("three modes end with equal parameters", "tests/grpo_core/test_modes.py", at_least=11),
    passing_tests("a killed run resumes exactly", "tests/grpo_core/test_resume.py", at_least=17),
    passing_tests(
        "conformance of engines, with broken engines",
        "tests/grpo_core/conformance",
        "tests/grpo_core/test_faults.py",
        at_least=189,
    ),
    Row(
        "audit, faults named and healthy clean (stand-in server)",
        (
            "-m",
            "evaluation.audit.live_bench",
            "build/acceptance-audit",
            *("--seeds", "1", "--first", "100", "--healthy", "1"),
        ),
        r"\| all faults \| (\d+) of (\d+)[^\n]*\n\| all healthy \| (\d+) of (\d+)",
        lambda n: n[0] == n[1] >= 26 and n[2] == n[3] >= 6,
        "26 of 26 faults, 6 of 6 healthy",
    ),
    Row(
        "hang, 64 live programs",
        ("-m", "evaluation.hang.bench"),
        r"(\d+) hangs: process right (\d+), cause right (\d+), .*\n\d+ healthy: hang claimed (\d+)",
        lambda n: n[1] == n[0] and n[2] >= n[0] - 1 and n[3] == 0,
        "every process, all causes but one, 0 false",
    ),
)


def main() -> int:
    """Run all rows, or those whose name contains one of the words; return 1 if a row fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="only rows whose name contains one of these")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.words or any(word in row.name for word in options.words)]
    if not rows:
        parser.error(f"no row has a name with {' or '.join(options.words)}")
    failed = 0
    for row in rows:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *row.arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        match = re.search(row.pattern, done.stdout)
        figures = [int(group) for group in match.groups()] if match else []
        good = bool(figures) and done.returncode in row.codes and row.is_good_enough(figures)
        failed += not good
        figure = " of ".join(map(str, figures)) or f"no figure, exit code {done.returncode}"
        verdict = "ok" if good else "FAILED"
        print(
            f"{verdict:6} {row.name}: {figure} (minimum: {row.minimum}), {time.monotonic() - began:.0f} s",
            flush=True,
        )
        if not good:
            print("\n".join((done.stdout + done.stderr).splitlines()[-20:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
