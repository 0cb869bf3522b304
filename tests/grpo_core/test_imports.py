"""Command line, settings and the HTTP client of the rollout server are imported without torch, which takes seconds.

The client is also imported without other heavy parts of grpo_core.
"""

import pytest

from tests.cells import ROOT
from tests.processes import run_python

HEAVY = ("torch", "grpo_core.rollout.vllm_server_engine", "grpo_core.records.", "grpo_core.machine.")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [("grpo_core.__main__, grpo_core.settings", ("torch",)), ("grpo_core.rollout.http_client", HEAVY)],
)
def test_import_loads_no_heavy_module(modules, heavy):
    """A wrong setting is reported at once, and the matrix imports the client in environments with a slow torch."""
    names = f"sorted(name for name in sys.modules if name.startswith({heavy!r}))"
    done = run_python("-c", f"import sys, {modules}; print({names})", check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
