"""Progress lines of a run."""

import io

from grpo_core.progress import StepProgress


def entry(step: int) -> dict:
    """Return the metrics of a step."""
    return {
        "step": step,
        "reward/mean": step / 100,
        "loss": -0.0123,
        "entropy": 1.5,
        "staleness/max": 1,
        "time/step_s": 2.0,
    }


def test_a_twentieth_of_the_steps_is_printed_and_the_last_one_once():
    stream = io.StringIO()
    progress = StepProgress(100, stream)
    for step in range(1, 48):
        progress(entry(step))
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [int(line.split()[1].partition("/")[0]) for line in lines] == [1, *range(5, 46, 5), 47]
    assert lines[-1] == "step 47/100  reward 0.470  loss -0.0123  entropy 1.50  staleness 1  2.00 s"


def test_a_long_step_is_reported_every_twenty_seconds():
    now, stream = [0.0], io.StringIO()
    progress = StepProgress(3, stream, clock=lambda: now[0])
    for now[0] in range(46):
        progress.check()
    progress(entry(1))
    now[0] = 70.0
    progress.check()
    assert [line for line in stream.getvalue().splitlines() if "running" in line] == [
        "step 1/3: running for 20 s",
        "step 1/3: running for 40 s",
        "step 2/3: running for 25 s",
    ]


def test_nothing_is_watched_in_quiet_mode(monkeypatch):
    monkeypatch.setenv("GRPO_DOCTOR_QUIET", "1")
    stream = io.StringIO()
    progress = StepProgress(3, stream)
    with progress.watched():
        progress(entry(2))
    assert stream.getvalue().startswith("step 2/3  reward 0.020")
