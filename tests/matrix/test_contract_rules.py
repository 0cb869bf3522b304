"""The contract layer's behaviour rules decide on synthetic sources, and give the recorded results of real wheels."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from diagnostics.api_index import rules
from diagnostics.api_index.rules import Case, Rule, SourceLine, apply_rules, broken_rules, project_rules
from diagnostics.api_index.surface import SourceFacts, Surface
from diagnostics.matrix.layers.contract import compare_apis, contract_answer
from diagnostics.matrix.verdicts import Outcome
from tests.matrix.test_contract import MemorySources

RECORDED = json.loads(Path(__file__).with_name("contract_lines.json").read_text(encoding="utf-8"))
CASES = [(rule, case) for rule in project_rules().rule for case in rule.cases]
RULE = Rule(
    subject="vllm.LLM.deep",
    statement="TRL goes deep",
    affected_runs="colocate",
    trl=(SourceLine(("trl/trainer/grpo_trainer.py",), "llm.engine.deep.er"),),
    cases=(
        Case("holds", "it is there", (SourceLine(("vllm/a.py", "vllm/b.py"), "self.deep = Deep("),)),
        Case(
            "breaks",
            "it is gone",
            (SourceLine(("vllm/a.py",), "deep", absent=True), SourceLine(("vllm/a.py",), "class Engine")),
        ),
    ),
    decided_types=("vllm.LLM.engine.deep",),
)
TRAINER = {"trl/trainer/grpo_trainer.py": "from vllm import LLM\nllm = LLM()\nllm.engine.deep.er\n"}
LLM = {"vllm/__init__.py": "class LLM:\n    def __init__(self):\n        self.engine = make()\n"}


def sources_with(lines):
    """Return sources that contain exactly these lines."""
    files: dict[str, str] = {}
    for line in lines:
        if not line.absent:
            files[line.files[0]] = files.get(line.files[0], "") + f"{line.text}\n"
    return MemorySources(files)


def layer_result(engine, behaviour=(RULE,)):
    """Return the contract layer's result for TRAINER and an engine."""
    sources = MemorySources({**LLM, **engine})
    return contract_answer(
        compare_apis(MemorySources(TRAINER), Surface(SourceFacts(sources), "vllm"), Version("1"), behaviour)
    )


@pytest.mark.parametrize(
    ("rule", "case"), CASES, ids=lambda it: getattr(it, "subject", getattr(it, "outcome", ""))
)
def test_case_is_found_by_its_lines(rule, case):
    """A case is chosen if its lines exist in the engine; a trainer without the rule's lines is ignored."""
    trainer, engine = sources_with(rule.trl), sources_with(case.vllm)
    (decision,) = list(apply_rules(trainer, engine, (rule,)))
    assert decision.case is case
    assert decision.trl.partition(":")[0] in {file for line in rule.trl for file in line.files}
    assert apply_rules(MemorySources({}), engine, (rule,)) == []


@pytest.mark.parametrize("rule", project_rules().rule, ids=lambda it: it.subject)
def test_engine_without_a_case_is_undecided(rule):
    """An engine without the lines of any case gives no decision."""
    (decision,) = apply_rules(sources_with(rule.trl), MemorySources({}), (rule,))
    assert decision.case is None


def test_rule_decides_a_path_beyond_the_source():
    """A rule decides a path that the source alone leaves open; without a case, the summary says what is needed."""
    assert layer_result({"vllm/b.py": "self.deep = Deep("}).outcome is Outcome.PASS
    broken = layer_result({"vllm/a.py": "class Engine"})
    assert (broken.outcome, broken.facts) == (Outcome.FAIL, (("missing", "vllm.LLM.deep", "when called"),))
    assert "it is gone (vllm/a.py" in broken.signs[0]
    undecided = layer_result({})
    assert undecided.outcome is Outcome.NOT_CHECKED
    assert undecided.facts[0][:2] == ("undecided", "vllm.LLM.deep")
    needed = "not checked: vllm.LLM.deep; needed: this vLLM read, and a case for it in rules.toml"
    assert needed in undecided.summary


def test_path_without_a_rule_is_undecided():
    """Without a rule the result is not checked, and names the part of the path that was followed."""
    result = layer_result({}, ())
    assert result.outcome is Outcome.NOT_CHECKED
    assert result.signs[0].startswith(
        "vllm.LLM.engine.deep.er: followed as far as LLM.engine (trl/trainer/grpo_trainer.py:3)"
    )


def test_wrapped_line_is_found():
    """A line is found although it is wrapped; the absence of a text gives the searched file."""
    sources = MemorySources({"a.py": "x\nraise TypeError(\n    'no' )\n"})
    assert SourceLine(("b.py", "a.py"), "raise TypeError( 'no' )").find(sources) == "a.py:2"
    assert SourceLine(("a.py",), "raise", absent=True).find(sources) is None
    assert SourceLine(("b.py",), "raise", absent=True).find(sources) == "b.py"
    assert SourceLine(("b.py",), "raise").find(sources) is None


def test_invalid_rules_are_refused(tmp_path, monkeypatch):
    """A rule file with an unknown key is refused with the name of the key."""
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rule]]\nsubject = "a"\nstatement = "s"\naffected_runs = "w"\ntrl = []\ncase = []\ncolour = 1\n'
    )
    monkeypatch.setattr(rules, "PATH", path)
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        project_rules.__wrapped__()


@pytest.mark.parametrize("pair", RECORDED["pairs"], ids=lambda it: f"{it['trl']}-{it['vllm']}")
def test_rules_give_the_recorded_results_of_real_wheels(pair):
    """The rules that apply to a pair give the recorded results on the lines of both wheels."""
    trainer, engine = (
        MemorySources({file: "\n".join(lines) for file, lines in RECORDED[name][pair[name]].items()})
        for name in ("trl", "vllm")
    )
    decisions = {
        (decision.rule.subject, decision.case.outcome if decision.case else None)
        for decision in apply_rules(trainer, engine)
    }
    assert decisions == {tuple(item) for item in pair["rulings"]}


@pytest.mark.parametrize("pair", RECORDED["pairs"], ids=lambda it: f"{it['trl']}-{it['vllm']}")
def test_recorded_ranges_give_the_results_of_real_wheels(pair):
    """`broken_rules`, which reads no source, finds the rules that break for all runs of a pair."""
    for_option = {rule.subject for rule in project_rules().rule if rule.option}
    broken = {subject for subject, outcome in pair["rulings"] if outcome == "breaks"} - for_option
    assert {item.use.text for item in broken_rules(pair["trl"], pair["vllm"])} == broken
