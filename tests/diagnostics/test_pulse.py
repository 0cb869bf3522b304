"""A command that is silent says now and then that it is at work; by a clock that the test moves."""

from __future__ import annotations

import io
import threading

import pytest

from diagnostics import __main__ as command
from diagnostics import door
from diagnostics.matrix.report import progress
from diagnostics.output import pulse
from diagnostics.output.pulse import Pulse
from grpo_core.show.terminal import StepProgress
from repro.waiting import Silence
from tests.screen import plain


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self):
        return True


class Clock:
    """Says the time that it is told."""

    now = 0.0

    def __call__(self):
        return self.now

    def silent_for(self, seconds, look):
        """Nothing else happens for so long; somebody looks each second."""
        for _ in range(seconds):
            self.now += 1
            look()


def longest_silence(clock, stream, look, seconds=120):
    """Seconds without anything new on the stream."""
    longest, since, before = 0.0, clock.now, stream.getvalue()
    for _ in range(seconds):
        clock.silent_for(1, look)
        if stream.getvalue() != before:
            longest, since, before = max(longest, clock.now - since), clock.now, stream.getvalue()
    return max(longest, clock.now - since)


def a_step(step):
    """The metrics of a step, as far as they are shown."""
    numbers = dict.fromkeys(
        ("reward/mean", "loss", "entropy", "importance_ratio/mean", "logprob_difference/max", "grad_norm",
         "clip_ratio", "staleness/max", "completions/truncated", "time/step_s"), 0.0,
    )  # fmt: skip
    return {"step": step, **numbers}


MADE = {
    "pulse": lambda stream, clock: Pulse("triage", stream, clock),
    "repro": Silence,
    "train": lambda stream, clock: StepProgress(9, stream, live=stream.isatty(), clock=clock),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(("stream", "most"), [(Terminal, 10), (io.StringIO, 30)])
def test_something_moves(name, stream, most):
    """At a terminal every ten seconds, in a log a plain line every thirty."""
    clock, told = Clock(), stream()
    look = MADE[name](told, clock).look
    assert longest_silence(clock, told, look) <= most
    if stream is io.StringIO:
        assert plain(told.getvalue()) == told.getvalue()
        assert told.getvalue().endswith("\n")


def test_a_log_gets_no_more_than_it_needs():
    """What speaks by itself is left alone."""
    clock, told = Clock(), io.StringIO()
    beats = Pulse("doctor", told, clock)
    for _ in range(30):
        clock.silent_for(15, beats.look)
        beats.spoke()
    assert told.getvalue() == ""
    beats.doing("importing torch")
    clock.silent_for(40, beats.look)
    assert told.getvalue() == "doctor: importing torch, 470 s\ndoctor: importing torch, 490 s\n"


def test_what_was_drawn_gives_way_to_the_answer():
    """No letter of it is left before or behind what is written next; nothing of a name acts."""
    clock, told = Clock(), Terminal()
    beats = Pulse("triage", told, clock)
    beats.doing("reading \x1b[2J" + "x" * 200)
    clock.silent_for(3, beats.look)
    drawn = told.getvalue().rpartition("\x1b[K")[2]
    assert drawn.startswith("triage: reading \\u001b[2J")
    assert len(drawn) < 80
    beats.spoke()
    assert told.getvalue().endswith(f"{drawn}\r\x1b[K")
    beats.spoke()
    assert told.getvalue().endswith(f"{drawn}\r\x1b[K")


def test_whatever_passes_the_door_is_a_sign_of_life(monkeypatch):
    """So that no command has to know; afterwards the door is as before."""
    monkeypatch.delenv(pulse.QUIET, raising=False)
    looks = threading.Event()

    def once(ended):
        return looks.is_set() or ended.wait()

    told = Terminal()
    with pulse.beating("audit", told, once) as beats:
        pulse.asking("the server")
        beats._last -= 60
        beats.look()
        assert "audit: asking the server, " in told.getvalue()
        door.Door(io.StringIO()).write("an answer\n")
        assert told.getvalue().endswith("\r\x1b[K")
    assert door.before_words is None
    pulse.doing("nothing is told of it")


def test_the_commands_that_may_take_long_are_watched(monkeypatch):
    """Those that pass on what another program says are not."""
    began = []

    class Beating:
        def __init__(self, name):
            began.append(name)

        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(pulse, "beating", Beating)
    assert command.main(["lint", "nowhere.sh"]) == 2
    assert command.main(["audit", "/nowhere"]) == 2
    assert command.main(["explain", "SCH001"]) == 0
    assert command.main(["hang", "--watch", "--", "true"]) == 0
    typed = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", typed)
    assert command.main(["triage", "-"]) == 3
    assert began == ["lint", "audit"]


def test_a_matrix_in_a_log_says_what_takes_long(monkeypatch):
    """The action that makes no line of its own."""
    monkeypatch.delenv(pulse.QUIET, raising=False)
    said = []
    monkeypatch.setattr(pulse.Pulse, "doing", lambda _, text: said.append(text))
    stream = io.StringIO()
    with progress.shown(stream) as lines:
        lines.say("building the environment")
        lines.note("a line")
    assert said == ["building the environment"]
    assert stream.getvalue().endswith("a line\n")


def test_a_step_that_takes_long_is_said_below_the_block():
    """And the block that follows stands where it stood."""
    clock, told = Clock(), Terminal()
    shown = StepProgress(9, told, live=True, clock=clock)
    shown(a_step(1))
    clock.silent_for(7, shown.look)
    assert "step 2/9: at it for 5 s" in plain(told.getvalue())
    before = len(shown._drawn)
    shown(a_step(2))
    assert len(shown._drawn) == before - 1
    shown(a_step(9))
    clock.silent_for(5, shown.look)
    assert "ending: at it for 5 s" in plain(told.getvalue())
