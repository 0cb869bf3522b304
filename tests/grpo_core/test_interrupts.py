"""Ctrl-C is neither lost nor mistaken for a failure."""

import contextlib
import signal

import pytest

from grpo_core import run
from grpo_core.machine.process import Interrupts


def ctrl_c() -> None:
    """Send SIGINT as a terminal does on Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def test_it_raises_where_nothing_is_shielded():
    """And the handler that was there before comes back."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts().watched():
        ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_shielded_ends_first():
    """It raises behind the block, once."""
    interrupts, done = Interrupts(), []

    def work() -> None:
        with interrupts.shielded():
            ctrl_c()
            done.append("ended")
        done.append("went on")

    with pytest.raises(KeyboardInterrupt), interrupts.watched():
        work()
    assert done == ["ended"]


def test_one_that_was_swallowed_is_raised_again():
    """A destructor swallows the exception; it is raised again."""
    interrupts = Interrupts()
    with interrupts.watched():
        with contextlib.suppress(KeyboardInterrupt):
            ctrl_c()
        with pytest.raises(KeyboardInterrupt), interrupts.shielded():
            pass


def test_one_that_comes_out_as_another_error_ends_the_run_as_interrupted(short_run):
    """A callback of C++ code turns the interrupt into another error; the run still ends as interrupted."""

    def report(entry):
        if entry["step"] == 2:
            try:
                ctrl_c()
            except KeyboardInterrupt:
                raise RuntimeError("converted") from None

    document = run.train(short_run(), report)
    assert (document["outcome"], document["steps"]) == ("interrupted", 2)
