"""How far a run has come, on standard error: a block that is redrawn in place on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grpo_core.metrics import mean
from grpo_core.show.curves import sparkline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TextIO

    Entry = Mapping[str, Any]

# What is worth a look while it runs, most of all first.
_NUMBERS = (
    "loss {loss:+.4f}|entropy {entropy:.2f}|ratio {importance_ratio/mean:.3f}|logp diff {logprob_difference/max:.1e}|"
    "grad norm {grad_norm:.2f}|clipped {clip_ratio:.1%}|staleness {staleness/max}|cut off {completions/truncated:.0%}"
)
# Seconds without a step after which it is said that one is under way: on a terminal, and in a log.
_DRAWN_S, _WRITTEN_S, _LOOK_S = 5.0, 20.0, 1.0
# Seconds without a word after which it is said that a step is under way: on a terminal, and in a log.
_DRAWN_S, _WRITTEN_S = 5.0, 20.0


class StepProgress:
    """Shows each step's metrics; call it with them.

    On a terminal the cursor always stands below the block and is never hidden, so that a run that ends in any
    way leaves a whole block behind, and what is printed next stands below it.
    """

    def __init__(
        self,
        steps: int,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Shows nothing yet.

        Args:
            steps: Of the whole run.
            stream: None: standard error.
            live: Redraw in place; None: if the stream is a terminal that can.
            clock: Says the time in seconds.
        """
        self._steps, self._stream = steps, stream or sys.stderr
        self._live = _can_redraw(self._stream) if live is None else live
        self._history: list[Entry] = []
        self._shown = 0
        self._drawn: list[str] = []
        self._clock = clock
        self._stepped = self._said = clock()
        self._lock = threading.RLock()

    def __call__(self, entry: Entry) -> None:
        """Shows a step; but for a terminal, only each twentieth of the steps."""
        with self._lock:
            self._took(entry)

    def _took(self, entry: Entry) -> None:
        self._history.append(entry)
        self._stepped = self._clock()
        step = entry["step"]
        if self._live or step in (1, self._steps) or step % max(self._steps // 20, 1) == 0:
            self._show(entry)

    def close(self) -> None:
        """Shows the last step, if it was passed over."""
        if self._history and self._history[-1]["step"] != self._shown:
            self._show(self._history[-1])

    def look(self) -> None:
        """Says how long the step that is under way has taken, where nothing was said for long; once a second or so."""
        with self._lock:
            now = self._clock()
            if now - self._said < (_DRAWN_S if self._live else _WRITTEN_S):
                return
            self._said = now
            step = self._history[-1]["step"] + 1 if self._history else 1
            doing = "ending" if step > self._steps else f"step {step}/{self._steps}"
            told = f"{doing}: at it for {now - self._stepped:.0f} s"
            self._stream.write(self._redrawn(told) if self._live else told + "\n")
            self._stream.flush()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Has somebody look meanwhile, unless GRPO_DOCTOR_QUIET is set to anything; then shows the last step."""
        ended = threading.Event()

        def looks() -> None:
            while not ended.wait(_LOOK_S):
                self.look()

        looker = threading.Thread(target=looks, name="progress", daemon=True)
        if not os.environ.get("GRPO_DOCTOR_QUIET"):
            looker.start()
        try:
            yield
        finally:
            ended.set()
            if looker.ident is not None:
                looker.join()
            self.close()

    def _show(self, entry: Entry) -> None:
        self._shown, self._said = entry["step"], self._clock()
        self._stream.write(self._redrawn() if self._live else line(entry, self._steps) + "\n")
        self._stream.flush()

    def _redrawn(self, below: str = "") -> str:
        """The block over the last one, to be written in one piece; a line below it, if there is one."""
        columns, rows = _size(self._stream)
        # A terminal made narrower since has wrapped the lines that stand there.
        up = sum(max(-(-len(text) // columns), 1) for text in self._drawn)
        drawn = block(self._history, self._steps, columns - 1) if self._history else []
        self._drawn = [*drawn, *([below[: columns - 1]] if below else [])][: max(rows - 1, 1)]
        text = "".join(text + "\n" for text in self._drawn)
        if not os.environ.get("NO_COLOR"):
            text = re.sub("[━▁-█]+", "\033[36m\\g<0>\033[0m", text)
        return (f"\033[{up}A" if up else "") + "\r\033[J" + text


def line(entry: Entry, steps: int) -> str:
    """One step, for a log."""
    return (
        f"step {entry['step']}/{steps}  reward {entry['reward/mean']:.3f}  loss {entry['loss']:+.4f}  "
        f"entropy {entry['entropy']:.2f}  staleness {entry['staleness/max']}  {entry['time/step_s']:.2f} s"
    )


def block(history: Sequence[Entry], steps: int, columns: int) -> list[str]:
    """The lines of the live view, none longer than `columns`."""
    step, rewards = history[-1]["step"], [entry["reward/mean"] for entry in history]
    pace = mean([entry["time/step_s"] for entry in history[-20:]])
    counted, left = f"step {step}/{steps} ", f" {timedelta(seconds=round(pace * (steps - step)))} left"
    room = max(columns - len(counted) - len(left), 0)
    bar = ("━" * (room * step // steps)).ljust(room, "─")
    reward = f"reward {rewards[-1]:.3f} "
    evaluated = [entry["eval/reward/mean"] for entry in history if "eval/reward/mean" in entry]
    held_out = f" eval {evaluated[-1]:.3f}" if evaluated else ""
    curve = sparkline(rewards, max(columns - len(reward) - len(held_out), 1))
    cells = _NUMBERS.format_map(history[-1]).split("|")
    across = max(columns // 19, 1)
    rows = ["".join(cell.ljust(19) for cell in cells[i : i + across]) for i in range(0, len(cells), across)]
    return [text.rstrip()[:columns] for text in (counted + bar + left, reward + curve + held_out, *rows[:3])]


def _can_redraw(stream: TextIO) -> bool:
    encoding = (getattr(stream, "encoding", None) or "").lower()
    return stream.isatty() and os.environ.get("TERM") != "dumb" and encoding.startswith("utf")


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24
