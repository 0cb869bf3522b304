"""Extras are found by name, imported by nobody, and each offers what its kind must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.extras import MODULES, extra
from grpo_core.rollout import connect
from tests.cells import ROOT
from tests.test_walls import imports

OFFERS = {
    ("vllm", "trl"): ("connect",),
    ("trl endpoints",): ("add_routes",),
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


def test_the_core_imports_no_extra_before_it_is_asked_for():
    """A connector not even late: only the table knows where it is. Records and displays late, where a setting asks."""
    found = []
    for path in sorted((ROOT / "grpo_core").rglob("*.py")):
        for line, module, at_import in imports(path):
            named = [extra for extra in EXTRAS if f"{module}.".startswith(extra)]
            inside = any(str(path.relative_to(ROOT)).replace("/", ".").startswith(extra) for extra in EXTRAS)
            if named and not inside and (at_import or named == [EXTRAS[0]]) and module != connect.__name__:
                found.append(f"{path.relative_to(ROOT)}:{line}: {module}")
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
