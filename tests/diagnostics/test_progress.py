"""Progress on standard error: plain lines after silence, a spinner on a terminal, nothing when quiet."""

import io

import pytest

from diagnostics.output import progress, sanitize


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_line_after_each_twenty_seconds_of_silence(clock):
    """With the step and the elapsed time; what was read is escaped."""
    stream = io.StringIO()
    line = progress.ProgressLine("triage", stream, clock)
    line.update("reading a\x1b[2Jb.log")
    for clock.now in range(50):
        line.tick()
    assert stream.getvalue().splitlines() == [
        "triage: reading a\\u001b[2Jb.log, 20 s",
        "triage: reading a\\u001b[2Jb.log, 40 s",
    ]


def test_other_output_counts_as_a_sign_of_life(clock):
    """Standard output and error reset the silence."""
    stream = io.StringIO()
    line = progress.ProgressLine("doctor", stream, clock)
    for clock.now in range(50):
        line.clear()
        line.tick()
    assert stream.getvalue() == ""


def test_the_current_step_belongs_to_the_running_command(monkeypatch):
    """Output of a sanitized stream clears the spinner; without a command `update` does nothing."""
    monkeypatch.delenv(progress.QUIET, raising=False)
    with progress.running("audit", io.StringIO(), lambda event: event.wait()) as line:
        progress.update("querying the server")
        assert line._step == "querying the server"
        assert sanitize.before_write == line.clear
    assert sanitize.before_write is None
    progress.update("ignored")


def test_quiet(monkeypatch):
    """GRPO_DOCTOR_QUIET starts no thread and sets no hook."""
    monkeypatch.setenv(progress.QUIET, "1")
    with progress.running("audit", io.StringIO()):
        assert sanitize.before_write is None


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_spinner_moves_the_cursor_and_its_text_cannot(monkeypatch, clock):
    """Rich's own movements reach the terminal; those in a file name are escaped."""
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
