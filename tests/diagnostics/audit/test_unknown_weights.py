"""Scores of weights on or near the line of the checkpoints are reported as newer, older, between or beyond them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from diagnostics.audit.live import checkpoint_identification
from diagnostics.audit.live.reference import step_of
from diagnostics.audit.live.weight_comparison import Scores

SIZE = 4000


def noise(size, seed):
    """Return Gaussian noise with this standard deviation, reproducible by seed."""
    return size * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


DIRECTION = noise(1.0, 4)


def identify(engine, *names, spread=0.0):
    """Return the verdict on engine scores, audited against the last name.

    Checkpoint N lies at 0.01 N along DIRECTION, a folder whose name has no step at 0.2.
    """
    pairs = []
    for seed, name in enumerate(names):
        step = step_of(Path(name))
        folder = SimpleNamespace(
            name=name, step=step, has_adapter=False, is_large=True, state={}, release=lambda: None,
            has_same_tensors=lambda _other: False,
        )  # fmt: skip
        pairs.append((folder, 0.01 * (20 if step is None else step) * DIRECTION + noise(spread, seed)))
    *siblings, (reference, exact) = pairs
    scores = Scores(reference, [[0] * (SIZE + 1)], engine, "bfloat16", exact, 0.01)
    result, weights = checkpoint_identification._find_other_weights(scores, siblings)
    assert weights is None
    return result


@pytest.mark.parametrize(
    ("position", "names", "family", "slope"),
    [
        (0.6, ("checkpoint-20", "checkpoint-120"), "weights/between", 0.4),
        (0.1, ("checkpoint-20", "checkpoint-120"), "weights/older", 1.1),
        (1.4, ("checkpoint-20", "checkpoint-120"), "weights/newer", 1.2),
        (1.4, ("policy", "checkpoint-120"), "weights/beyond", 1.2),
    ],
)
def test_position_relative_to_the_checkpoints_is_reported(position, names, family, slope):
    """Weights are reported as between, older or newer, or as beyond if the other folder's name has no step."""
    result = identify(position * DIRECTION, *names)
    assert (result.family, result.values["name"] in names) == (family, True)
    assert result.values["slope"] == pytest.approx(slope, abs=0.01)


@pytest.mark.parametrize(
    ("position", "spread", "is_newer"),
    [(0.4, 0.05, True), (0.3, 0.2, False), (0.25, 0.05, False), (-0.2, 0.05, False)],
    ids=["newer", "noise", "between", "older"],
)
def test_only_weights_beyond_the_newest_checkpoint_are_newer(position, spread, is_newer):
    """The result names the newest checkpoint and the one before; weights that are far off the line are not newer."""
    names = ("checkpoint-20", "checkpoint-10", "checkpoint-30")
    result = identify(position * DIRECTION + noise(spread, 7), *names, spread=0.05)
    assert (result.family == "weights/newer") is is_newer
    if is_newer:
        assert (result.values["name"], result.values["before"]) == ("checkpoint-30", "checkpoint-20")
