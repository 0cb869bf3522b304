"""NUM004: the measured gradient scale, the affected TRL releases, and TRL's own trainer if it is installed."""

import os
from pathlib import Path

import pytest

from repro.issues import num004 as repro
from tests.cells import read_attempts, run_with


def test_gradient_scale_is_measured_along_the_correct_gradient():
    """A quarter gives 0.25 for either sign; each parameter is judged separately."""
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
    """Before 0.22 the loss does not exist; from 1.9.1 on it is rescaled."""
    monkeypatch.setattr(repro.upstream, "source", lambda *_: text)
    monkeypatch.setattr(
        repro.upstream, "first_installed", lambda _: type("Distribution", (), {"version": "0"})
    )
    result = repro.inapplicable()
    assert result is None if reason is None else reason in result


@pytest.mark.slow
@pytest.mark.heavy
def test_trl_gradient_is_a_quarter():
    """TRL 0.29.1 in the peers' environment: 0.2500, and 1.0000 under each mitigation."""
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
