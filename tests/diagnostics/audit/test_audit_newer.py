"""Weights that are no checkpoint's are reported as newer, older, between or beyond; not if they only differ."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from diagnostics.audit.live import checkpoint_identification
from diagnostics.audit.live.reference import step_of
from diagnostics.audit.live.weight_comparison import Scores

SIZE = 4000


def noise(size, seed):
    return size * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


WAY = noise(1.0, 4)


def identify(engine, *names, spread=0.0):
    """Return the verdict on an engine; checkpoint N is at 0.01 N on a way, with some noise, the last is audited."""
    pairs = []
    for seed, name in enumerate(names):
        step = step_of(Path(name))
        folder = SimpleNamespace(
            name=name, step=step, has_adapter=False, large=True, state={}, release=lambda: None,
            has_same_tensors=lambda _other: False,
        )  # fmt: skip
        pairs.append((folder, 0.01 * (20 if step is None else step) * WAY + noise(spread, seed)))
    *siblings, (reference, exact) = pairs
    scores = Scores(reference, [[0] * (SIZE + 1)], engine, "bfloat16", exact, 0.01)
    result, weights = checkpoint_identification._find_other_weights(scores, siblings)
    assert weights is None
    return result


@pytest.mark.parametrize(
    ("place", "names", "family", "way"),
    [
        (0.6, ("checkpoint-20", "checkpoint-120"), "weights/between", 0.4),
        (0.1, ("checkpoint-20", "checkpoint-120"), "weights/older", 1.1),
        (1.4, ("checkpoint-20", "checkpoint-120"), "weights/newer", 1.2),
        (0.1, ("policy", "checkpoint-120"), "weights/past", 1.1),
        (1.4, ("policy", "checkpoint-120"), "weights/beyond", 1.2),
    ],
)
def test_place_on_the_line_is_reported(place, names, family, way):
    """Newer than both, older than both, or between; a folder without a number has no age."""
    result = identify(place * WAY, *names)
    assert (result.family, result.values["name"] in names) == (family, True)
    assert result.values["slope"] == pytest.approx(way, abs=0.01)


def test_newer_weights_name_the_newest_checkpoints_in_any_order():
    names = ("checkpoint-30", "checkpoint-10", "checkpoint-20")
    result = identify(0.4 * WAY + noise(0.05, 7), *names, spread=0.05)
    assert result.family == "weights/newer"
    assert (result.values["name"], result.values["before"]) == ("checkpoint-30", "checkpoint-20")


@pytest.mark.parametrize("place", [0.3, 0.25, -0.2], ids=["noise", "between", "older"])
def test_other_differences_are_not_newer_weights(place):
    engine = place * WAY + noise(0.2 if place == 0.3 else 0.05, 3)
    result = identify(engine, "checkpoint-10", "checkpoint-20", "checkpoint-30", spread=0.05)
    assert result.family != "weights/newer"
