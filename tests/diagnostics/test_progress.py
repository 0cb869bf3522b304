"""Progress is a spinner on a terminal, and nothing elsewhere or with GRPO_DOCTOR_QUIET."""

import io

import pytest

from diagnostics.output import progress, sanitize
from tests.diagnostics.conftest import Terminal


@pytest.fixture
def terminal(monkeypatch):
    """Return a terminal on which progress is not disabled."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv(progress.QUIET, raising=False)
    return Terminal()


def test_spinner_escapes_its_text_and_not_its_cursor_movements(terminal):
    """Rich's cursor movements reach the terminal, and those in a file name are escaped."""
    with progress.show_spinner("lint", terminal):
        progress.update("reading a\x1b[2Jb.sh")
        progress.Spinner.current.draw()
        assert progress.Spinner.current._status is not None  # its own output does not clear it
    printed = terminal.getvalue()
    assert "reading a\\u001b[2Jb.sh" in printed
    assert "\x1b[2K" in printed
    assert "\\u001b[?25l" not in printed
    assert "\x1b[2J" not in printed


@pytest.mark.parametrize(
    ("name", "shown"),
    [("e[/x].log", "e[/x].log"), (f"d_hf_{'aB3dE5gH7j' * 3}.log", "d_<secret>.log")],
)
def test_spinner_masks_its_text_and_reads_no_markup_in_it(terminal, name, shown):
    with progress.show_spinner("triage", terminal):
        progress.update(f"reading {name}")
        progress.Spinner.current.draw()
    assert f"reading {shown}" in terminal.getvalue()
    assert "aB3dE5gH7j" not in terminal.getvalue()


def test_spinner_disappears_before_other_output(terminal):
    with progress.show_spinner("audit", terminal):
        progress.Spinner.current.draw()
        sanitize.SanitizedStream(io.StringIO()).write("a result")
        assert progress.Spinner.current._status is None
    assert sanitize.before_write is None
    progress.update("ignored")


@pytest.mark.parametrize("reason", ["quiet", "no terminal"])
def test_no_spinner_without_a_terminal_or_if_quiet(terminal, monkeypatch, reason):
    if reason == "quiet":
        monkeypatch.setenv(progress.QUIET, "1")
    with progress.show_spinner("audit", terminal if reason == "quiet" else io.StringIO()):
        assert sanitize.before_write is None
    assert terminal.getvalue() == ""
