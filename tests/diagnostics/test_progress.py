"""Progress on stderr is a line after 20 s of silence, a spinner on a terminal, and nothing with GRPO_DOCTOR_QUIET."""

import io

import pytest

from diagnostics.output import progress, sanitize


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_line_is_printed_after_each_20_s_of_silence(clock):
    """It has the step and the elapsed time, and control characters are escaped."""
    stream = io.StringIO()
    line = progress.ProgressLine("triage", stream, clock)
    line.update("reading a\x1b[2Jb.log")
    for clock.now in range(50):
        line.tick()
    assert stream.getvalue().splitlines() == [
        "triage: reading a\\u001b[2Jb.log, 20 s",
        "triage: reading a\\u001b[2Jb.log, 40 s",
    ]


def test_other_output_resets_the_silence(clock):
    stream = io.StringIO()
    line = progress.ProgressLine("doctor", stream, clock)
    for clock.now in range(50):
        line.clear()
        line.tick()
    assert stream.getvalue() == ""


def test_update_sets_the_step_of_the_running_command_only(monkeypatch):
    """Output of a sanitized stream clears the spinner; without a command `update` does nothing."""
    monkeypatch.delenv(progress.QUIET, raising=False)
    with progress.running("audit", io.StringIO(), lambda event: event.wait()) as line:
        progress.update("querying the server")
        assert line._step == "querying the server"
        assert sanitize.before_write == line.clear
    assert sanitize.before_write is None
    progress.update("ignored")


def test_quiet_variable_disables_progress(monkeypatch):
    """No hook is set."""
    monkeypatch.setenv(progress.QUIET, "1")
    with progress.running("audit", io.StringIO()):
        assert sanitize.before_write is None


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def test_spinner_text_is_escaped_and_its_own_movements_are_not(monkeypatch, clock):
    """Rich's cursor movements reach the terminal; those in a file name do not."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    line = progress.ProgressLine("lint", stream, clock)
    line.update("reading a\x1b[2Jb.sh")
    clock.now = 3.0
    monkeypatch.setattr(sanitize, "before_write", line.clear)
    line.tick()
    assert line._spinner is not None  # its own output does not clear it
    line.clear()
    shown = stream.getvalue()
    assert "reading a\\u001b[2Jb.sh" in shown
    assert "\x1b[2K" in shown
    assert "\\u001b[?25l" not in shown
    assert "\x1b[2J" not in shown
