"""Every failure that says nothing has a question that finds it, and every fault that is found has an entry."""

import ast
import json
from collections import Counter
from pathlib import Path

from diagnostics import audit
from diagnostics.audit import document
from diagnostics.audit.model import CLEAN, FAULT, LIVE, Audit, ProbeAnswer
from diagnostics.catalog import loader
from diagnostics.output.audits import wording

# Codes that a probe puts in place of the one that its family has.
BY_A_PROBE = {
    "SYN003": "weights/version, where that is the base",
    "SYN015": "cache/stale: an answer does not say why the cache was not reset",
}
# Those that no question of an audit shows.
WHY_NOT = {
    "CFG107": "options that a run does not use leave no trace in what it samples; lint reads them",
    "CFG114": "options that the command never sees leave no trace in what it samples; lint reads them",
    "MEM013": "memory is asked of the device, which an audit does not do; the log tells",
    "NUM004": "a loss divided by too much: a replay of the step shows it, and no answer of an engine or of a dump",
    "SYN002": "weights that change within a completion: no sample of an audit lies across an update",
}


def test_every_silent_failure_has_a_probe_or_a_reason():
    """And nothing else stands there."""
    silent = {code: issue for code, issue in loader.load().items() if issue.kind == "silent"}
    assert {code for code, issue in silent.items() if not issue.audit} == WHY_NOT.keys() | BY_A_PROBE.keys()


def test_every_fault_that_is_found_is_one_entrys():
    """Of each family one, and none that no audit tells; metrics/unlike is never decided, and so no fault."""
    families = Counter(family for issue in loader.load().values() for family in issue.audit)
    assert [family for family, times in families.items() if times > 1] == []
    assert wording.FAULTS.keys() - families.keys() == set()
    assert families.keys() - wording.FAULTS.keys() == {"metrics/unlike"}


def test_a_faults_code_is_its_familys_unless_the_probe_knows_better():
    """With what helps; a clean answer has none."""
    answers = (
        Result("weights/partial", FAULT, "P4", values={"tensors": "a", "name": "b"}),
        Result("weights/version", FAULT, "P3", code="SYN003", values={"name": "base"}),
        Result("weights/version", CLEAN, "P3"),
    )
    told = document.document(Audit(LIVE, {}, answers))["answers"]
    assert [each["code"] for each in told] == ["SYN025", "SYN003", ""]
    assert [each["name"] for each in told[0]["helps"]["mitigations"]] == ["all_names"]


def test_every_family_is_called_something():
    """A fault's class has a name for when nothing is wrong with it."""
    assert [family for family in wording.FAULTS if not wording.about(family)] == []
    assert json.dumps(wording.FACTS)


def test_a_probe_that_names_a_code_names_its_familys():
    """Where it says both as they stand: a second place that could say another."""
    issues = loader.load()
    codes = {family: code for code, issue in issues.items() for family in issue.audit}
    named = []
    for path in sorted(Path(audit.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                words = [
                    each.value
                    for each in (*node.args, *(one.value for one in node.keywords))
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                named += [
                    (word, code)
                    for word in words[:1]
                    if word in codes
                    for code in words[1:]
                    if code in issues
                ]
    assert len(named) > 20
    assert [(family, code) for family, code in named if codes[family] != code] == []
