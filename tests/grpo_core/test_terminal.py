"""The live view: what it says, and that it leaves a terminal as people want it, whatever happens."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from grpo_core.show.terminal import StepProgress, block, line

ROOT = Path(__file__).resolve().parents[2]


def entry(step: int, **values) -> dict:
    """The metrics of a step."""
    numbers = {
        "reward/mean": step / 100,
        "loss": -0.0123,
        "entropy": 1.5,
        "importance_ratio/mean": 1.0,
        "logprob_difference/max": 2e-6,
        "grad_norm": 0.5,
        "clip_ratio": 0.012,
        "staleness/max": 1,
        "completions/truncated": 0.25,
        "time/step_s": 2.0,
    }
    return {"step": step, **numbers, **values}


def test_the_block_says_how_far_how_good_and_how_long_still():
    """Half the bar at half the steps; time left by the last steps' pace; the curve ends high as reward rises."""
    lines = block([entry(step) for step in range(1, 51)], 100, 79)
    assert re.fullmatch(r"step 50/100 (━+)(─+) 0:01:40 left", lines[0])
    assert abs(lines[0].count("━") - lines[0].count("─")) <= 1
    assert re.fullmatch(r"reward 0.500 ▁.+█", lines[1])
    numbers = [re.split(r"\s{2,}", text) for text in lines[2:]]
    assert numbers == [
        ["loss -0.0123", "entropy 1.50", "ratio 1.000", "logp diff 2.0e-06"],
        ["grad norm 0.50", "clipped 1.2%", "staleness 1", "cut off 25%"],
    ]


def test_the_newest_evaluation_stays():
    """Until the next one."""
    history = [entry(1, **{"eval/reward/mean": 0.25}), entry(2), entry(3)]
    assert block(history, 3, 79)[1].endswith("eval 0.250")


@pytest.mark.parametrize("columns", [1, 10, 20, 39, 79, 200])
@pytest.mark.parametrize("steps", [1, 7, 300])
def test_no_line_is_wider_than_the_terminal(columns, steps):
    """And there are few, however narrow it is."""
    lines = block([entry(step) for step in range(1, steps + 1)], steps, columns)
    assert max(map(len, lines)) <= columns
    assert 2 <= len(lines) <= 5


def test_a_log_gets_a_line_each_twentieth_of_the_steps():
    """The first and the last, too, and the last of a run that ended early; no control codes."""
    stream = io.StringIO()
    progress = StepProgress(100, stream)
    for step in range(1, 48):
        progress(entry(step))
    progress.close()
    shown = [int(text.split()[1].partition("/")[0]) for text in stream.getvalue().splitlines()]
    assert shown == [1, *range(5, 46, 5), 47]
    assert stream.getvalue().splitlines()[-1] == line(entry(47), 100)
    assert "\033" not in stream.getvalue()
    progress.close()
    assert len(stream.getvalue().splitlines()) == len(shown)


def test_nothing_is_shown_of_no_step():
    """A run that failed before its first."""
    stream = io.StringIO()
    StepProgress(100, stream, live=True).close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {}])
def test_colour_can_be_declined(monkeypatch, variable):
    """By NO_COLOR, the block is still redrawn in place."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    progress = StepProgress(3, stream, live=True)
    progress(entry(1))
    progress(entry(2))
    assert ("\033[36m" in stream.getvalue()) == (not variable)
    assert "\033[4A\r\033[J" in stream.getvalue()


@pytest.mark.parametrize(("variables", "live"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False)])
def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch, variables, live):
    """TERM=dumb, as inside an editor."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        StepProgress(3, stream)(entry(1))
        text = os.read(ours, 65536).decode()
    os.close(ours)
    assert ("\033" in text) == live


class Screen:
    """A terminal of so many columns: understands what StepProgress uses, and refuses any other control code."""

    def __init__(self, columns: int) -> None:
        self.columns, self.lines, self.row, self.column = columns, [""], 0, 0

    def feed(self, text: str) -> list[str]:
        for code, count, final, char in re.findall(r"(\x1b\[(\d*)([A-Za-z]))|(.)", text, re.DOTALL):
            if not code:
                self._put(char)
            elif final == "A":
                self.row = max(self.row - int(count), 0)
            elif final == "J":
                self.lines[self.row :] = [self.lines[self.row][: self.column]]
            else:
                assert final == "m", code
        return [text.rstrip() for text in self.lines]

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
            return
        if char == "\n" or self.column == self.columns:
            self.row, self.column = self.row + 1, 0
            self.lines += [""] * (self.row + 1 - len(self.lines))
        if char != "\n":
            text = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = text[: self.column] + char + text[self.column + 1 :]
            self.column += 1


def test_a_block_is_drawn_over_the_last_one():
    """Whatever stood on the screen before stays; one block is left."""
    stream = io.StringIO()
    progress = StepProgress(3, stream, live=True)
    for step in (1, 2, 3):
        progress(entry(step))
    progress.close()
    lines = Screen(80).feed("$ train\r\n" + stream.getvalue().replace("\n", "\r\n") + "$ ")
    assert lines == ["$ train", *block([entry(step) for step in (1, 2, 3)], 3, 79), "$"]


_PROGRAM = """
import sys
from grpo_core.show.terminal import StepProgress
from tests.grpo_core.test_terminal import entry
progress = StepProgress(4)
print("before", file=sys.stderr)
try:
    for step in range(1, 5):
        progress(entry(step))
        if step == 3 and sys.argv[1] == "error":
            raise SystemError("the end")
except SystemError as error:
    print(error, file=sys.stderr)
finally:
    progress.close()
print("behind", file=sys.stderr)
"""
_RUN = """
import os, signal, sys
from grpo_core import run
from grpo_core.settings import load
from grpo_core.show.terminal import StepProgress
progress = StepProgress(4)
def report(entry):
    progress(entry)
    if entry["step"] == 3:
        os.kill(os.getpid(), signal.SIGINT)
print("before", file=sys.stderr)
document = run.train(load(None, sys.argv[1:]), report)
progress.close()
print(document["outcome"], file=sys.stderr)
"""


def on_a_terminal(columns: int, program: str, *arguments: str) -> str:
    """What a program writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            some = os.read(ours, 65536)
        except OSError:  # all of its other end is closed
            break
        if not some:
            break
        written += some
    os.close(ours)
    assert child.wait(timeout=500) == 0
    return written.decode()


@pytest.mark.parametrize(("end", "last", "also"), [("well", 4, []), ("error", 3, ["the end"])])
@pytest.mark.parametrize("columns", [50, 120])
def test_on_a_terminal(columns, end, last, also):
    """However it ends: one whole block, text before and behind it in its place, the cursor never hidden."""
    written = on_a_terminal(columns, _PROGRAM, end)
    drawn = block([entry(step) for step in range(1, last + 1)], 4, columns - 1)
    assert "\033[?25" not in written
    assert Screen(columns).feed(written) == ["before", *drawn, *also, "behind", ""]


@pytest.mark.slow
def test_an_interrupted_run_on_a_terminal(tmp_path):
    """The block of the last step is whole, and what is printed next stands below it."""
    settings = (
        "train.steps=4",
        "train.prompts_per_step=2",
        "sampling.group_size=2",
        f"output.dir={tmp_path}",
    )
    lines = Screen(50).feed(on_a_terminal(50, _RUN, *(f"--{setting}" for setting in settings)))
    assert lines[0] == "before"
    assert lines[1].startswith("step 3/4 ")
    assert lines[2].startswith("reward ")
    assert lines[3].startswith("loss ")
    assert lines[-2:] == ["interrupted", ""]
    assert sum("reward" in text for text in lines) == 1
