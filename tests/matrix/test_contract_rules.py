"""The rules of behaviour: cases on sources made of the rules' own lines, and pairs as recorded from real wheels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.version import Version

from diagnostics.matrix.ask.contract import rules
from diagnostics.matrix.ask.contract.compare import compare
from diagnostics.matrix.ask.contract.rules import BREAKS, HOLDS, Case, Line, Rule
from diagnostics.matrix.ask.contract.surface import Surface
from diagnostics.matrix.ask.layers.contract import _answer
from diagnostics.matrix.build.sources import HeldSources
from diagnostics.matrix.plan.verdicts import Outcome
from diagnostics.tables import TableError

RECORDED = json.loads(Path(__file__).with_name("contract_lines.json").read_text(encoding="utf-8"))
CASES = [(rule, case) for rule in rules.known() for case in rule.cases]
RULE = Rule(
    "vllm.LLM.deep", "TRL goes deep", "colocate", "", ("vllm.LLM.engine.deep",),
    (Line(("trl/trainer/grpo_trainer.py",), "llm.engine.deep.er"),),
    (
        Case(HOLDS, "it is there", (Line(("vllm/a.py", "vllm/b.py"), "self.deep = Deep("),)),
        Case(BREAKS, "it is gone", (Line(("vllm/a.py",), "deep", absent=True), Line(("vllm/a.py",), "class Engine"))),
    ),
)  # fmt: skip
TRAINER = {"trl/trainer/grpo_trainer.py": "from vllm import LLM\nllm = LLM()\nllm.engine.deep.er\n"}
LLM = {"vllm/__init__.py": "class LLM:\n    def __init__(self):\n        self.engine = make()\n"}


def made(lines):
    """Sources in which exactly these lines stand."""
    files: dict[str, str] = {}
    for line in lines:
        if not line.absent:
            files[line.files[0]] = files.get(line.files[0], "") + f"{line.text}\n"
    return HeldSources(files)


def answer(engine, behaviour=(RULE,)):
    """What the layer says of TRAINER and an engine."""
    held = HeldSources({**LLM, **engine})
    return _answer(compare(HeldSources(TRAINER), Surface(held, "vllm"), Version("1"), behaviour))


@pytest.mark.parametrize(
    ("rule", "case"), CASES, ids=lambda it: getattr(it, "subject", getattr(it, "outcome", ""))
)
def test_each_case_is_found_in_its_own_lines(rule, case):
    """It decides where its lines stand, and its rule speaks of no trainer without the lines of its own."""
    trainer, engine = made(rule.trl), made(case.vllm)
    (found,) = list(rules.rulings(trainer, engine, (rule,)))
    assert found.case is case
    assert found.trl.partition(":")[0] in {file for line in rule.trl for file in line.files}
    assert rules.rulings(HeldSources({}), engine, (rule,)) == []


@pytest.mark.parametrize("rule", rules.known(), ids=lambda it: it.subject)
def test_an_engine_that_no_case_knows_is_not_decided(rule):
    """Nobody has read it: the rule says nothing, in either direction."""
    (found,) = rules.rulings(made(rule.trl), HeldSources({}), (rule,))
    assert found.case is None


def test_a_rule_decides_a_path_that_source_does_not_follow():
    """Holds, breaks, or not judged with what would let it be judged."""
    assert answer({"vllm/b.py": "self.deep = Deep("}).outcome is Outcome.PASS
    broken = answer({"vllm/a.py": "class Engine"})
    assert (broken.outcome, broken.told("missing")) == (Outcome.FAIL, [("vllm.LLM.deep", "when called")])
    assert "it is gone (vllm/a.py" in broken.signs[0]
    open_ = answer({})
    assert (open_.outcome, open_.told("undecided")[0][0]) == (Outcome.NOT_JUDGED, "vllm.LLM.deep")
    assert (
        "not judged: vllm.LLM.deep; needed: this vLLM read, and a case for it in rules.toml" in open_.summary
    )


def test_a_path_without_a_rule_is_not_judged():
    """As far as it was followed, and what is needed."""
    found = answer({}, ())
    assert found.outcome is Outcome.NOT_JUDGED
    assert found.signs[0].startswith(
        "vllm.LLM.engine.deep.er: followed as far as LLM.engine (trl/trainer/grpo_trainer.py:3)"
    )


def test_a_line_is_found_however_it_is_wrapped():
    """Blanks and line ends between words; file and line of where it begins; absence names the file looked at."""
    held = HeldSources({"a.py": "x\nraise TypeError(\n    'no' )\n"})
    assert Line(("b.py", "a.py"), "raise TypeError( 'no' )").place(held) == "a.py:2"
    assert Line(("a.py",), "raise", absent=True).place(held) is None
    assert Line(("b.py",), "raise", absent=True).place(held) == "b.py"
    assert Line(("b.py",), "raise").place(held) is None


def test_a_rule_that_is_written_wrongly_is_refused(tmp_path, monkeypatch):
    """By file, line, key and what was expected."""
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nsubject = "two words"\nsays = "s"\nway = "w"\n')
    monkeypatch.setattr(rules, "PATH", path)
    with pytest.raises(TableError, match=r"rules.toml:2: rule.#1.subject is 'two words': expected one word"):
        rules.known.__wrapped__()


@pytest.mark.parametrize("pair", RECORDED["pairs"], ids=lambda it: f"{it['trl']}-{it['vllm']}")
def test_pairs_as_recorded_from_real_wheels(pair):
    """Which rules speak of a pair and what they come to, from the lines that stand in both released wheels."""
    trainer, engine = (
        HeldSources({file: "\n".join(lines) for file, lines in RECORDED[name][pair[name]].items()})
        for name in ("trl", "vllm")
    )
    found = {
        (one.rule.subject, one.case.outcome if one.case else None) for one in rules.rulings(trainer, engine)
    }
    assert found == {tuple(item) for item in pair["rulings"]}
