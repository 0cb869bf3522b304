"""Extras are found by name, imported by nobody, and each offers what its kind must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.extras import MODULES, extra
from tests.cells import ROOT
from tests.test_walls import imports

OFFERS = {
    ("vllm", "trl"): ("connect",),
    ("gloo", "nccl", "files"): ("open_sender", "open_receiver"),
    ("recorder",): ("Recorder",),
    ("loggers",): ("build_loggers",),
}
# What runs when nothing beside the three modes was asked for.
EXTRAS = ("grpo_core.rollout.connect.", "grpo_core.records.", "grpo_core.show.")


@pytest.mark.parametrize("name", MODULES)
def test_each_extra_offers_what_its_kind_must(name):
    """By the names that who asks for it calls."""
    ((_, offers),) = (entry for entry in OFFERS.items() if name in entry[0])
    assert all(callable(getattr(extra(name), offer)) for offer in offers)


def test_nothing_of_the_core_imports_an_extra():
    """Not even late: only the table knows where it is. The command line shows and reads what was written."""
    found = []
    for path in sorted((ROOT / "grpo_core").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.startswith((*EXTRAS, "grpo_core.__main__")):
            found += [
                f"{name}:{line}: {what}" for line, what, _ in imports(path) if f"{what}.".startswith(EXTRAS)
            ]
    assert found == []


def test_asking_who_answers_loads_no_torch():
    """A question of the matrix begins with it, in an environment where importing torch takes seconds."""
    program = (
        "import sys, grpo_core.rollout.http.identify; print('torch' in sys.modules, "
        f"sorted(name for name in sys.modules if name.startswith({EXTRAS!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(ROOT)
    )
    assert done.stdout.split() == ["False", "[]"]
