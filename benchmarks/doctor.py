"""What doctor's static tier costs, in CPU time of its process and the child that asks the GPUs' driver.

python benchmarks/doctor.py --prefix .matrix/environments/vllm-0.31.0+trl-1.16.0
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "vllm", "transformers", "ray", "numpy")


def cpu_s(command: list[str]) -> float:
    """CPU seconds of a command and its children; its output is thrown away."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode in {0, 1, 3}, command
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded(prefix: Path) -> list[str]:
    """Which heavy packages a run loads into its process."""
    program = (
        "import sys; from diagnostics.__main__ import main; out, sys.stdout = sys.stdout, sys.stderr;"
        f"main(['doctor', '--prefix', {str(prefix)!r}]); print(*sorted(set({HEAVY!r}) & set(sys.modules)), file=out)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout.split()


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    figures: dict[str, object] = {"loads": loaded(options.prefix)}
    for form in ("terminal", "json"):
        command = [sys.executable, "-m", "diagnostics", "doctor", "--prefix", str(options.prefix)]
        times = [cpu_s([*command, "--format", form]) for _ in range(options.repeats)]
        figures[form] = {
            "cpu_s_median": round(statistics.median(times), 3),
            "cpu_s_most": round(max(times), 3),
        }
    packages = len(list(options.prefix.glob("lib/python3*/site-packages/*.dist-info")))
    print(json.dumps({"packages": packages, **figures}, indent=1))


if __name__ == "__main__":
    main()
