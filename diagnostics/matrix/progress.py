"""Print the progress of a matrix run on standard error: results and notes, each in a line with the elapsed time."""

import sys
import time

from diagnostics.matrix.report import verdict_text
from diagnostics.matrix.results import LayerResult
from diagnostics.output import sanitize
from diagnostics.output.redact import mask, truncate


class Progress:
    """Prints lines with the time since this object was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def print_result(self, result: LayerResult, remaining: int) -> None:
        """Print a result and the number of remaining layers."""
        question, seconds = result.question, result.event.seconds if result.event else 0.0
        words = (f"{question.cell.id} {question.layer.name}:", verdict_text(result.judgement), *result.codes)
        self.note(f"{' '.join(words)} ({seconds:.1f} s): {truncate(result.summary, 200)} ({remaining} open)")

    def note(self, text: str) -> None:
        """Print a text as one line, masked."""
        elapsed = time.monotonic() - self._start
        print(f"[{elapsed:7.1f} s] {sanitize.escape_line(mask(text))}", file=sys.stderr, flush=True)
