"""Each switch of the loss is held against others' code, in value and gradient, or a line of the docs says why not.

What the programs of `peer_programs` and `cell_programs` answered stands in switches.json; that it is what they answer
today is asserted where they run (`test_loss_against_peers`, `test_loss_against_trl`).
"""

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest

from grpo_core.config import LossConfig

HERE = Path(__file__).parent
PEERS = json.loads((HERE / "switches.json").read_text())
PAGE = (HERE.parents[1] / "docs" / "results" / "comparison.md").read_text()
PROGRAMS = [*(HERE / "peer_programs").glob("*_*.py"), *(HERE / "cell_programs").glob("trl*_loss.py")]


def compared() -> set[str]:
    """`key = choice`, and `key` of one that is a number and was compared at another than its default."""
    fields, found = {entry.name: entry for entry in dataclasses.fields(LossConfig)}, set()
    for seen in PEERS.values():
        for name, values in seen.items():
            if fields[name].metadata["choices"]:
                found |= {f"{name} = {value}" for value in values}
            elif set(values) - {str(fields[name].default)}:
                found.add(name)
    return found


def switches() -> set[str]:
    """All there are."""
    found = set()
    for entry in dataclasses.fields(LossConfig):
        choices = entry.metadata["choices"]
        found |= {f"{entry.name} = {choice}" for choice in choices} if choices else {entry.name}
    return found


def said() -> set[str]:
    """Those of which the page says that no peer's code was run against them."""
    _, _, part = PAGE.partition("## Not run against anybody's code")
    return set(re.findall(r"^\| `loss\.([^`]+)` \|", part.partition("\n## ")[0], re.MULTILINE))


def test_each_switch_is_compared_or_the_page_says_why_not():
    """None is forgotten, and no line is older than the comparison."""
    assert said()
    assert switches() - compared() == said()


def test_no_comparison_passes_over_a_case_without_a_line_of_the_page():
    """The one way to leave a case out names it."""
    named = set()
    for path in PROGRAMS:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and any(isinstance(part, ast.Continue) for part in node.body):
                assert isinstance(node.test, ast.Call), f"{path.name}:{node.lineno}"
                assert ast.unparse(node.test.func) == "left_out", f"{path.name}:{node.lineno}"
                named.add(node.test.args[0].value)
        assert "skip" not in {getattr(node, "attr", None) for node in ast.walk(tree)}
    assert len(PROGRAMS) == 7
    part = PAGE.partition("Left out of these programs:")[2].partition("\n## ")[0]
    assert named == set(re.findall(r"^- (.+?): ", part, re.MULTILINE))


@pytest.mark.parametrize(
    "key", ["surrogate", "correction", "aggregation", "ratio", "reject", "correction_gate"]
)
def test_a_setting_of_the_loss_is_compared_by_more_than_its_default(key):
    """The record is one of programs that ran, not an empty one."""
    assert any(len(seen.get(key, ())) > 1 for seen in PEERS.values())
