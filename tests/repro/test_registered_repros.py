"""Registered repros agree with their catalog entries and the matrix; importing them imports no upstream package.

A new record of attempts keeps the order of the others.
"""

import ast
import json
import tomllib

import pytest

from diagnostics.matrix.layers.repros import REPRO_MODULES
from repro import registry
from repro.issues import REPROS
from repro.registry import InapplicableError
from tests.cells import ROOT
from tests.processes import run_python
from tests.repro import record


def test_entry_reader_matches_a_toml_parser():
    """`read_entry` returns what `tomllib` reads, and each trigger and mitigation has a description."""
    wrong = []
    for code, repro in REPROS.items():
        entry = tomllib.loads((registry.ISSUES / f"{code}.toml").read_text(encoding="utf-8"))
        mitigations = [
            registry.TriedMitigation(
                name,
                item["about"],
                *(frozenset(item.get(key, ())) for key in ("helps", "fails")),
                item.get("recommended", ""),
            )
            for name, item in entry["mitigations"].items()
        ]
        triggers = {name: item["about"] for name, item in entry.get("triggers", {}).items()}
        if registry.read_entry(code) != (entry["title"], triggers, mitigations):
            wrong.append(code)
        if not all(item.about for item in (*repro.triggers, *repro.mitigations)):
            wrong.append(f"{code}: a trigger or mitigation without a description")
    assert wrong == []


def test_missing_trigger_in_the_entry_is_named():
    """The error names the entry and the TOML table that it lacks."""
    trigger = registry.Trigger("frobnicate", lambda mitigation: registry.Tally({}, []), "")
    with pytest.raises(ValueError, match=r"CFG101: its entry .* has no \[triggers\.frobnicate\]"):
        registry.repro("CFG101", triggers=[trigger])


def test_matrix_finds_each_repro_module():
    """The matrix, which searches the sources without importing them, finds the same codes; another is a KeyError."""
    assert set(REPRO_MODULES) == set(REPROS)
    with pytest.raises(KeyError):
        REPROS["__INIT__"]


def test_mitigation_is_inapplicable_to_unrecorded_triggers():
    """A mitigation that records neither `helps` nor `fails` for a trigger is inapplicable to it."""
    for code, trigger, mitigation in (
        ("CMP001", "named_device", "other_version"),
        ("SCH001", "lost_step", "server_mode"),
        ("SCH002", "min_tokens", "drain"),
    ):
        with pytest.raises(InapplicableError, match="neither `helps` nor `fails`"):
            REPROS[code].trigger(trigger).run(mitigation)


def test_importing_repros_imports_no_upstream_package():
    """Only the standard library and our own packages are imported."""
    program = (
        "import sys; from repro.issues import REPROS; list(REPROS.values())\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = run_python("-S", "-c", program, check=True, cwd=ROOT)
    assert set(ast.literal_eval(done.stdout)) <= {"repro", "grpo_core", "__main__", "__mp_main__"}


def test_a_new_record_keeps_the_order_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RECORD", tmp_path / "attempts.json")
    runs = [{"code": code, "environment": "pip"} for code in ("SCH002", "SCH001")]
    record.RECORD.write_text(json.dumps({"runs": runs}))
    attempt = {"trigger": "t", "mitigation": None, "outcome": "crash", "where": "", "as_recorded": True}
    reported = {"python": "3.11", "versions": {}, "codes": {"MEM001": {"attempts": [attempt]}}}
    (tmp_path / "run.json").write_text(json.dumps(reported))
    monkeypatch.setattr("sys.argv", ["record", "pip", str(tmp_path / "run.json")])
    record.main()
    codes = [run["code"] for run in json.loads(record.RECORD.read_text())["runs"]]
    assert codes == ["SCH002", "SCH001", "MEM001"]
