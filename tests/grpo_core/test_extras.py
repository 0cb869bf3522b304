"""Extras are found by name, and each offers what its kind must. That nothing imports them, `lint-imports` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.extras import MODULES, extra
from tests.cells import ROOT

OFFERS = {
    ("recorder",): ("StepRecorder",),
    ("loggers",): ("build_loggers",),
    ("watchdog",): ("Watchdog",),
}
EXTRAS = ("grpo_core.rollout.vllm_serve.", "grpo_core.records.", "grpo_core.show.")


@pytest.mark.parametrize("name", MODULES)
def test_each_extra_offers_what_its_kind_must(name):
    """By the names that who asks for it calls."""
    ((_, offers),) = (entry for entry in OFFERS.items() if name in entry[0])
    assert all(callable(getattr(extra(name), offer)) for offer in offers)


def test_asking_who_answers_loads_no_torch():
    """A question of the matrix begins with it, in an environment where importing torch takes seconds."""
    program = (
        "import sys, grpo_core.rollout.http_client; print('torch' in sys.modules, "
        f"sorted(name for name in sys.modules if name.startswith({EXTRAS!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(ROOT)
    )
    assert done.stdout.split() == ["False", "[]"]
