"""The live audit names cut completions, changed servers and stale tensors; right answers pass."""

from types import SimpleNamespace

import pytest
import torch

from diagnostics.audit.live import cache_and_replicas
from diagnostics.audit.live.checkpoint_identification import identify_weights
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.live.sampling_checks import check_ends
from diagnostics.audit.live.sampling_distribution import Completion
from diagnostics.audit.results import CLEAN, FAULT, MASKED, NOT_DECIDED


@pytest.mark.parametrize(
    ("ids", "reason", "stop", "stop_ids", "outcomes"),
    [
        ((5, 6, 7), "stop", None, {9}, [FAULT]), ((5, 6, 7), "length", None, {9}, [FAULT]),
        ((5, 6, 7, 8), "stop", None, {9}, [FAULT]), ((5, 6, 7), "stop", None, set(), [NOT_DECIDED]),
        ((5, 6, 9), "stop", None, {9}, []), ((5, 6, 7), "stop", 7, {9}, []),
        ((5, 6, 7), "stop", "</answer>", {9}, []), ((5, 6, 7, 8), "length", None, {9}, []),
    ],
)  # fmt: skip
def test_completion_that_ends_early_without_a_stop_is_a_fault(ids, reason, stop, stop_ids, outcomes):
    """If the stop ids are not known, the result is undecided. A stop word or id, or the token limit, is no fault."""
    completion = Completion((1,), ids, (-1.0,) * len(ids), ids, reason, stop)
    assert [result.outcome for result in check_ends([completion], 4, stop_ids)] == outcomes


@pytest.mark.parametrize(("answer", "is_changed"), [({1: -0.5, 2: -1.0}, False), ({1: -0.1, 2: -3.0}, True)])
def test_server_that_changed_hides_the_prefix_cache(answer, is_changed):
    """A stale cache gives the same answer again; another answer is a server that changed, and no cache fault."""
    comparison = cache_and_replicas.CacheComparison(0.5, 1, None, 9, [1, 2], {1: -0.5, 2: -1.0})
    changed = cache_and_replicas.check_unchanged(
        SimpleNamespace(next_ids=lambda _prompt: answer), comparison, 1e-6
    )
    assert (changed is not None) is is_changed
    cache = cache_and_replicas.check_cache(comparison, 1e-6, changed.family if changed else "")
    assert (cache.outcome, cache.code) == ((MASKED, "") if is_changed else (FAULT, "SYN001"))


@pytest.mark.parametrize(("engine", "outcome"), [("stale", FAULT), ("bfloat16", CLEAN), ("float32", CLEAN)])
def test_stale_tensor_is_told_from_bfloat16_rounding(trained, engine, outcome):
    """One tensor of an older checkpoint is named in float32; rounding to bfloat16 differs as much, and is no fault."""
    reference, older = Reference(trained / "checkpoint-120"), Reference(trained / "checkpoint-110")
    generator = torch.Generator().manual_seed(2)
    sequences = [
        torch.randint(0, reference.vocabulary, (160,), generator=generator).tolist() for _ in range(3)
    ]
    name = next(name for name in reference.state if "layers.1" in name and "down_proj" in name)
    if engine == "stale":
        scores = reference.mix(older, name.__eq__).scores(sequences, "float32")
    else:
        scores = reference.scores(sequences, engine, native=True)
    identified = identify_weights(reference, [older], sequences, scores)
    assert identified.result.outcome == outcome
    if outcome == FAULT:
        assert (identified.result.family, identified.result.estimates[0].value) == (
            "weights/partial",
            (name,),
        )
