"""An engine with later weights is reported as its checkpoint or as newer than all; not if it only differs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from diagnostics.audit.live import checkpoint_identification, weight_comparison
from diagnostics.audit.live.reference import step_of
from diagnostics.audit.live.weight_comparison import Scores

SIZE = 4000


def make_checkpoints(*steps):
    """Make checkpoints whose scores move in one direction, each with some noise."""
    generator = torch.Generator().manual_seed(1)
    way = torch.randn(SIZE, generator=generator)
    return [
        (
            SimpleNamespace(name=f"checkpoint-{step}", step=step),
            0.01 * step * way + 0.05 * torch.randn(SIZE, generator=generator),
        )
        for step in steps
    ], way


def test_weights_further_along_the_last_step_are_newer():
    """In any order of the checkpoints; the newest and the one before it are named."""
    (single, two, three), way = make_checkpoints(10, 20, 30)
    engine = three[1] + 0.1 * way + 0.05 * torch.randn(SIZE, generator=torch.Generator().manual_seed(2))
    audit = weight_comparison.find_newer([three, single, two], engine)
    assert (audit.newest, audit.before) == ("checkpoint-30", "checkpoint-20")
    assert audit.slope.value > 1.5


@pytest.mark.parametrize("what", ["noise", "between", "older"])
def test_other_differences_are_not_newer_weights(what):
    """Weights with noise, those on the way, and those before all of them."""
    pairs, way = make_checkpoints(10, 20, 30)
    noise = 0.2 * torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    engine = {"noise": pairs[2][1] + noise, "between": 0.25 * way + noise / 4, "older": -0.2 * way}[what]
    assert weight_comparison.find_newer(pairs, engine) is None


def unlike(engine, *names):
    """Return the verdict on an engine `engine` along a direction on which checkpoint N is at 0.01 N."""
    generator = torch.Generator().manual_seed(4)
    way = torch.randn(SIZE, generator=generator)
    folders = [
        SimpleNamespace(
            name=name,
            step=step_of(Path(name)),
            has_adapter=False,
            large=True,
            has_same_tensors=lambda _other: False,
            state={},
            release=lambda: None,
        )
        for name in names
    ]
    (*reported, (reference, exact)) = [
        (item, 0.01 * (20 if item.step is None else item.step) * way) for item in folders
    ]
    best = Scores(reference, [[0] * (SIZE + 1)], engine * way, "bfloat16", exact, 0.01)
    answer, tokens = checkpoint_identification._find_other_weights(best, reported)
    assert tokens is None
    return answer


def test_engine_older_than_all_checkpoints_is_reported():
    """In words, with how much farther back it is, and what to ask next; never with a factor below nothing."""
    answer = unlike(0.1, "checkpoint-20", "checkpoint-120")
    assert (answer.family, answer.values["name"]) == ("weights/older", "checkpoint-20")
    assert answer.values["slope"] == pytest.approx(1.1, abs=0.01)
    assert [fact.name for fact in answer.evidence] == ["go_back"]


@pytest.mark.parametrize(
    ("engine", "names", "family", "way"),
    [
        (0.6, ("checkpoint-20", "checkpoint-120"), "weights/between", 0.4),
        (0.1, ("policy", "checkpoint-120"), "weights/past", None),
        (1.4, ("policy", "checkpoint-120"), "weights/beyond", None),
    ],
)
def test_place_on_the_way_is_reported(engine, names, family, way):
    """Between, past the other, or beyond the checkpoint; a folder without a number has no age."""
    answer = unlike(engine, *names)
    assert answer.family == family
    assert answer.values["slope"] > 0
    assert way is None or answer.values["slope"] == pytest.approx(way, abs=0.01)
