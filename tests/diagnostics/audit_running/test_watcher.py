"""What a watcher finds of a run that goes on, when it says so, and when it takes it back."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from diagnostics.audit import document
from diagnostics.audit.recorded.readers.metrics import logged
from diagnostics.audit.running.watcher import AGAIN, FOUND, GONE, Watcher
from diagnostics.output.audits import running
from tests.diagnostics.audit_running.lines import healthy, samples


def watched(entries, rows=lambda step: (), watcher=None):
    """The changes, by step, what and family."""
    watcher = watcher or Watcher(share=1.0)
    found = []
    for entry in entries:
        watcher.metrics("metrics", logged(entry, f"line {entry['step']}"))
        found += watcher.looked(entry["step"], lambda step=entry["step"]: rows(step))
    return [(change.step, change.what, change.answer.family) for change in found], watcher, found


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_found_where_nothing_is_wrong(seed):
    """Over 60 steps of metrics and samples."""
    drawn = random.Random(seed)
    found, watcher, _ = watched(
        (healthy(step, drawn) for step in range(1, 61)), lambda step: samples(step, drawn)
    )
    assert found == []
    assert watcher.audit({}).outcome == "clean"


FAULTS = [
    ({"grad_norm": 0.0}, "metrics/no_gradient"),
    ({"learning_rate": 0.0}, "metrics/rate_zero"),
    ({"completions/clipped_ratio": 1.0}, "metrics/all_cut"),
    ({"frac_reward_zero_std": 1.0}, "metrics/no_spread"),
    ({"loss": math.nan}, "metrics/nan"),
    ({"sampling/sampling_logp_difference/mean": 0.2}, "metrics/unlike"),
    ({"sampling/sampling_logp_difference/mean": 0.08}, "metrics/drifting"),
    ({"entropy": 0.01}, "curves"),
]


@pytest.mark.parametrize(("change", "family"), FAULTS)
def test_a_fault_in_the_metrics_is_found_within_twelve_steps(change, family):
    """From step 30 on; and in words."""
    entries = [healthy(step) | (change if step >= 30 else {}) for step in range(1, 43)]
    found, _, changes = watched(entries)
    assert (FOUND, family) in [(what, named) for _, what, named in found]
    assert all(step >= 30 for step, _, _ in found)
    assert all(running.line(change).startswith(f"step {change.step}: ") for change in changes)


def test_a_reference_that_is_another_model_is_told_once_and_stays():
    """Only the first line can show it."""
    found, watcher, _ = watched(healthy(step) | {"kl": 0.2} for step in range(1, 31))
    assert found == [(2, FOUND, "metrics/reference")]
    assert watcher.scalars()["audit/metrics/reference"] == 1.0


def test_a_finding_goes_and_returns():
    """Each time as one line; the document has it once, with since when and how often."""
    wrong = {"grad_norm": 0.0}
    entries = [
        healthy(step) | (wrong if step in range(10, 25) or step >= 40 else {}) for step in range(1, 61)
    ]
    found, watcher, changes = watched(entries)
    assert [(what, family) for _, what, family in found] == [
        (what, "metrics/no_gradient") for what in (FOUND, GONE, AGAIN)
    ]
    assert "again" in running.line(changes[2])
    made = document.document(watcher.audit({"run": "x"}))
    (answer,) = (each for each in made["answers"] if each["outcome"] == "fault")
    assert answer["facts"][-1]["text"] == f"since step {found[0][0]}"
    assert watcher.scalars()["audit/faults"] == 1.0


def test_one_bad_line_is_no_finding():
    """A gradient that is no number in one step is left out by every optimizer."""
    found, _, _ = watched(
        healthy(step) | ({"grad_norm": math.inf} if step % 9 == 0 else {}) for step in range(1, 60)
    )
    assert found == []


def _same(rows):
    return [replace(row, completion="the same") for row in rows]


@pytest.mark.parametrize(
    ("rows", "family"),
    [
        (lambda step: samples(step, reward=0.0), "rewards/constant"),
        (lambda step: [replace(row, reward=float(int(row.prompt[-1]) % 2)) for row in samples(step)],
         "rewards/no_spread"),
        (lambda step: _same(samples(step)), "samples/identical"),
        (lambda step: [replace(row, advantage=1.0 - row.reward) for row in samples(step)], ""),
    ],
)  # fmt: skip
def test_a_fault_in_the_samples_is_found(rows, family):
    """Groups without a spread and samples that are all the same, though the policy is not that sure."""
    found, _, _ = watched(map(healthy, range(1, 31)), rows)
    assert {named for _, what, named in found if what == FOUND} == ({family} if family else set())


def test_a_task_that_is_solved_is_no_fault():
    """All right at last, after some wrong ones."""
    found, _, _ = watched(
        map(healthy, range(1, 61)), lambda step: samples(step, reward=1.0 if step > 20 else None)
    )
    assert found == []


def test_looking_stays_within_its_share_of_the_time():
    """By a clock that says that a look takes as long as a step: then nearly all looks at samples are left out."""
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    _, watcher, _ = watched(map(healthy, range(1, 101)), samples, Watcher(share=0.01, clock=clock))
    assert watcher.left_out >= 98
    _, watcher, _ = watched(map(healthy, range(1, 101)), samples, Watcher(share=1.0, clock=clock))
    assert watcher.left_out == 0


def test_what_is_kept_of_a_long_run_is_bounded():
    """However many lines and samples come."""
    _, watcher, _ = watched(map(healthy, range(1, 400)), lambda step: samples(step, groups=40, size=16))
    kept = watcher.window
    assert sum(map(len, kept._steps)) <= 2 * 512
    assert all(len(lines.both()) == 16 for lines in kept._lines.values())
