"""Imports that must stay light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cells import ROOT

HEAVY = ("torch", "grpo_core.rollout.vllm_server", "grpo_core.records.", "grpo_core.machine.")


def test_identifying_a_server_loads_no_torch():
    """A probe of the matrix begins with it, in an environment where importing torch takes seconds."""
    program = (
        "import sys, grpo_core.rollout.http_client; "
        f"print(sorted(name for name in sys.modules if name.startswith({HEAVY!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(ROOT)
    )
    assert done.stdout == "[]\n"
