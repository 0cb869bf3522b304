"""The repros: each with its catalog entry, and importing them imports nothing of upstream's."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from diagnostics.matrix.layers.repros import REPRO_MODULES
from repro import base
from repro.issues import REPROS

ROOT = Path(base.__file__).parents[1]


def test_what_a_repro_reads_of_its_entry_is_what_toml_has():
    """Title, triggers and records; and triggers that no entry describes have a description of their own."""
    wrong = []
    for code, repro in REPROS.items():
        entry = tomllib.loads((base.ISSUES / f"{code}.toml").read_text(encoding="utf-8"))
        helps = {name: frozenset(item.get("helps", ())) for name, item in entry["mitigations"].items()}
        triggers = {name: item["about"] for name, item in entry.get("triggers", {}).items()}
        if base.read_entry(code) != base.CatalogEntry(entry["title"], triggers, helps):
            wrong.append(code)
        if not all(trigger.about for trigger in repro.triggers):
            wrong.append(f"{code}: a trigger without a description")
    assert wrong == []


def test_the_matrix_finds_the_module_that_registers_each_repro():
    """The matrix reads the registry's imports without running them."""
    assert set(REPRO_MODULES) == set(REPROS)
    with pytest.raises(KeyError):
        REPROS["__INIT__"]


def test_importing_all_imports_nothing_of_upstreams():
    """Nothing but the standard library and repro itself."""
    program = (
        "import sys; from repro.issues import REPROS; list(REPROS.values())\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(ast.literal_eval(done.stdout)) <= {"repro", "__main__", "__mp_main__"}
