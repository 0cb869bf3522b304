"""Lint against the frameworks' own checks, every combination of some settings, in environments that have them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEERS, EASYR1 = os.environ.get("GRPO_DOCTOR_PEERS", ""), os.environ.get("GRPO_DOCTOR_EASYR1", "")


def compare(name, *arguments):
    done = subprocess.run(
        [sys.executable, "tests/diagnostics/programs/lint_against.py", name, *arguments],
        capture_output=True, text=True, timeout=3000, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert ", 0 disagreements" in done.stdout


@pytest.mark.heavy
@pytest.mark.skipif(not PEERS, reason="GRPO_DOCTOR_PEERS: the Python of verl, ms-swift and OpenRLHF")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["verl", "verl-options", "ms-swift", "openrlhf", "openrlhf-options"])
def test_lint_and_the_framework_refuse_the_same(name):
    """Hundreds to thousands of combinations: an error of lint where the framework raises, and nowhere else."""
    compare(name, PEERS)


@pytest.mark.heavy
@pytest.mark.skipif(
    not EASYR1, reason="GRPO_DOCTOR_EASYR1: a checkout of EasyR1 0.3.2, which is in no registry"
)
@pytest.mark.timeout(3600)
def test_lint_and_easyr1_refuse_the_same():
    """The statements of its own that look at sizes, executed."""
    compare("easyr1", sys.executable, "--source", EASYR1)
