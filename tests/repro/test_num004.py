"""NUM004 measures the gradient scale, identifies affected TRL releases, and reproduces with TRL if it is installed.

NUM004: TRL's dapo and cispo losses are too small with several optimizer steps per generation.
"""

import os
from pathlib import Path

import pytest

from repro.issues import num004 as repro
from tests.cells import read_attempts, run_with


def test_gradient_scale_is_measured_along_the_correct_gradient():
    """A gradient with a quarter of the right size has the scale 0.25, and each parameter is judged separately."""
    right = {"a": [1.0, -2.0], "b": [4.0]}
    work = repro.count_right_gradients({"a": [0.25, -0.5], "b": [4.0]}, right)
    assert [name for name, _ in work.received] == ["b"]
    assert work.describe().startswith("1 of 2 parameters' gradients are right; mean gradient of the steps")
    assert repro.count_right_gradients(
        {name: [v / 4 for v in values] for name, values in right.items()}, right
    ).note.endswith("at once: 0.2500")
    assert repro.count_right_gradients(right, right).complete


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("normalizer = inputs['x']", "does not divide by the tokens of a generation"),
        (f"steps_per_generation {repro.DIVIDES}", None),
        (f"{repro.DIVIDES} * {repro.RESCALES}", "rescales the tokens"),
    ],
)
def test_release_is_identified_by_its_divisor(monkeypatch, text, reason):
    """The repro applies to a TRL source that divides by the tokens of a generation without rescaling."""
    monkeypatch.setattr(repro.upstream, "source", lambda *_: text)
    monkeypatch.setattr(
        repro.upstream, "first_installed", lambda _: type("Distribution", (), {"version": "0"})
    )
    result = repro.inapplicable()
    assert result is None if reason is None else reason in result


@pytest.mark.slow
@pytest.mark.heavy
def test_trl_gradient_is_a_quarter():
    """With TRL 0.29.1 the gradient scale is 0.2500, and 1.0000 under each mitigation.

    The environment is the one that compares grpo_core with other trainers (GRPO_DOCTOR_PEERS).
    """
    python = Path(os.environ.get("GRPO_DOCTOR_PEERS", ""))
    if not python.is_file():
        pytest.skip("no GRPO_DOCTOR_PEERS: nox -s tests-cells makes that environment")
    done = run_with(python, "-m", "repro", "run", "NUM004", "--json")
    for (_, mitigation), attempt in read_attempts(done, "NUM004").items():
        if mitigation is None:
            assert (attempt["outcome"], attempt["finished"]) == ("reproduced", 0)
            assert attempt["detail"].endswith("0.2500")
        elif mitigation != "upgrade":
            assert (attempt["outcome"], attempt["finished"]) == ("mitigated", attempt["expected"])
            assert attempt["detail"].endswith("1.0000")
