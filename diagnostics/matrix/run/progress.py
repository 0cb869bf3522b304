"""What a run tells of itself while it goes; `report/progress.py` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from diagnostics.matrix.run.board import Board, Question, Square


class Progress(Protocol):
    """What a run tells about itself."""

    def started(self, item: Question, now: Board, where: str = "") -> None:
        """A question is being asked, on the machine of that name if it isn't this one."""

    def finished(self, square: Square | None, now: Board) -> None:
        """It was answered."""

    def say(self, text: str) -> None:
        """What is being done at the moment."""

    def note(self, text: str) -> None:
        """Something worth keeping on the screen."""
