"""Importing the HTTP client of the rollout server imports neither torch nor trainer modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cells import ROOT

HEAVY = ("torch", "grpo_core.rollout.vllm_server_engine", "grpo_core.records.", "grpo_core.machine.")


def test_http_client_does_not_import_torch():
    """The matrix imports the client in environments where importing torch takes seconds."""
    program = (
        "import sys, grpo_core.rollout.http_client; "
        f"print(sorted(name for name in sys.modules if name.startswith({HEAVY!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(ROOT)
    )
    assert done.stdout == "[]\n"
