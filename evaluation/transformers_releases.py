"""Train the shipped task in three modes with several transformers releases, and compare the parameters.

usage: python evaluation/transformers_releases.py [RELEASE...]

Each release gets a separate environment. Python runs with warnings as errors. For each release the three modes must end
with the same parameters, bit for bit. The exit code is 1 if a run fails or warns, or if the modes of a release differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from diagnostics.uv import find_uv, uv_environment  # noqa: E402

RELEASES = ("4.48.3", "4.57.6", "5.0.0", "5.10.0", "5.23.0", "5.24.0")
MODES = ("colocate", "async", "server")


def create_environment(uv: str, python: str, folder: Path, release: str) -> Path:
    """Create an environment with one transformers release and torch for CPUs; return its Python."""
    environment_python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", python, str(folder)], check=True)
    requirements = ["torch==2.13.0", f"transformers=={release}", "safetensors", "fastapi", "uvicorn", "numpy"]
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(environment_python), *requirements], check=True
    )
    return environment_python


def train(python: Path, mode: str, folder: Path, *, root: Path) -> str:
    """Train four steps of the shipped task; return the digest of the parameters, or `failed: ` and the error."""
    command = [
        str(python),
        "-W",
        "error",
        "-m",
        "grpo_core",
        "train",
        "--train.steps",
        "4",
        "--rollout.mode",
        mode,
    ]
    command += ["--rollout.max_staleness", "0", "--output.dir", str(folder)]
    environ = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=folder, check=False)
    warned = [
        line for line in done.stderr.splitlines() if "warn" in line.lower() or "deprecated" in line.lower()
    ]
    if done.returncode or warned:
        return (
            "failed: "
            + (warned or (done.stderr or done.stdout).strip().splitlines() or ["no output"])[-1][:200]
        )
    (summary,) = folder.glob("*/summary.json")
    return str(json.loads(summary.read_text(encoding="utf-8"))["parameters"])


def main() -> int:
    """Print one line per release; return 1 if a release fails or its modes differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--uv", default=str(find_uv()))
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout whose grpo_core is run")
    options = parser.parse_args()
    os.environ.update(uv_environment(os.environ))
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        for release in options.releases:
            folder = Path(work) / release
            python = create_environment(options.uv, sys.executable, folder / "environment", release)
            digests = []
            for mode in MODES:
                (folder / mode).mkdir()
                digests.append(train(python, mode, folder / mode, root=options.root))
            same = len(set(digests)) == 1 and not digests[0].startswith("failed")
            wrong += not same
            outcome = f"three modes equal, parameters {digests[0][:16]}" if same else "; ".join(digests)
            print(f"transformers {release}: {outcome}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
