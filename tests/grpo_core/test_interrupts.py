"""SIGINT raises KeyboardInterrupt at once or after a shielded block, again if it was swallowed, and ends a run."""

import contextlib
import signal

import pytest

from grpo_core import run
from grpo_core.machine.process_setup import Interrupts


def ctrl_c() -> None:
    """Send SIGINT as a terminal does on Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def test_unshielded_interrupt_raises_at_once():
    """The interrupt is raised at once, and afterwards the previous handler is installed again."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts().watched():
        ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_shielded_block_finishes_before_the_interrupt():
    """The interrupt is raised once, after the block."""
    interrupts, done = Interrupts(), []

    def work() -> None:
        with interrupts.shielded():
            ctrl_c()
            done.append("ended")
        done.append("went on")

    with pytest.raises(KeyboardInterrupt), interrupts.watched():
        work()
    assert done == ["ended"]


def test_swallowed_interrupt_is_raised_again():
    """An interrupt that other code swallows, such as a destructor, is raised again by the next shielded block."""
    interrupts = Interrupts()
    with interrupts.watched():
        with contextlib.suppress(KeyboardInterrupt):
            ctrl_c()
        with pytest.raises(KeyboardInterrupt), interrupts.shielded():
            pass


def test_interrupt_converted_to_another_error_still_interrupts(short_run):
    """The run counts as interrupted even if a callback of C++ code turns the interrupt into a different error."""

    def report(entry):
        if entry["step"] == 2:
            try:
                ctrl_c()
            except KeyboardInterrupt:
                raise RuntimeError("converted") from None

    document = run.train(short_run(), report)
    assert (document["outcome"], document["steps"]) == ("interrupted", 2)
